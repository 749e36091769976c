//! Allowed dependencies: between crates, from their manifests, and between modules, from their
//! sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use toml::Table;

/// Dependencies that compile or load kernel programs.
const KERNEL: [&str; 4] = [
    "bindgen",
    "libbpf-cargo",
    "libbpf-rs",
    "thalweg-bpf-objects",
];
/// Crates that build without clang, for use where no program can be loaded.
const WITHOUT: [&str; 15] = [
    "bpf-types",
    "fleet",
    "gain",
    "guest",
    "learner",
    "link",
    "policy",
    "process",
    "py",
    "rate",
    "report",
    "sim",
    "stack",
    "terminal",
    "units",
];

/// The trees of the product and of the laboratory.
const TREES: [&str; 2] = ["crates", "lab"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Folder of the crate `thalweg-NAME`.
fn folder_of(name: &str) -> PathBuf {
    match name {
        "lab-cli" => root().join("lab/cli"),
        _ => {
            let folders = TREES.map(|tree| root().join(tree).join(name));
            let found = folders.into_iter().find(|folder| folder.exists());
            found.unwrap_or_else(|| panic!("no crate {name}"))
        }
    }
}

/// All dependencies of a crate, and transitively those of our crates.
fn built_from(name: &str) -> BTreeSet<String> {
    let manifest = folder_of(name).join("Cargo.toml");
    let text = fs::read_to_string(&manifest).expect("each crate has a manifest");
    let manifest: Table = text.parse().expect("cargo reads it, too");
    let mut all = BTreeSet::new();
    for kind in ["dependencies", "build-dependencies"] {
        let Some(dependencies) = manifest.get(kind).and_then(|value| value.as_table()) else {
            continue;
        };
        for dependency in dependencies.keys() {
            if let Some(ours) = dependency.strip_prefix("thalweg-") {
                all.extend(built_from(ours));
            }
            all.insert(dependency.clone());
        }
    }
    all
}

#[test]
fn what_loads_no_program_is_built_without_clang() {
    for name in WITHOUT {
        let all = built_from(name);
        let found: Vec<_> = KERNEL.iter().filter(|it| all.contains(**it)).collect();
        assert!(found.is_empty(), "thalweg-{name} is built from {found:?}");
    }
}

/// Crates, and their forbidden dependencies.
const APART: [(&str, &[&str]); 6] = [
    // A root daemon carries no laboratory,
    (
        "cli",
        &[
            "thalweg-guest",
            "thalweg-lab",
            "thalweg-link",
            "thalweg-report",
            "thalweg-sim",
            "thalweg-stack",
        ],
    ),
    // and the laboratory knows the agent as a program.
    (
        "lab-cli",
        &["rusqlite", "axum", "thalweg-agent", "thalweg-control"],
    ),
    (
        "control",
        &["rusqlite", "axum", "thalweg-agent", "thalweg-lab"],
    ),
    (
        "guest",
        &[
            "thalweg-lab",
            "thalweg-link",
            "thalweg-policy",
            "thalweg-report",
            "thalweg-stack",
        ],
    ),
    ("stack", &["thalweg-agent", "thalweg-lab", "thalweg-report"]),
    ("lab", &["thalweg-agent", "thalweg-control", "thalweg-sim"]),
];

#[test]
fn crates_know_nothing_of_what_uses_them() {
    assert!(built_from("control").contains("thalweg-policy"));
    for (name, others) in APART {
        let all = built_from(name);
        let found: Vec<_> = others.iter().filter(|it| all.contains(**it)).collect();
        assert!(found.is_empty(), "thalweg-{name} is built from {found:?}");
    }
}

/// The names of all crates of the product and the laboratory.
fn crates() -> Vec<String> {
    let mut names = Vec::new();
    for tree in TREES {
        for entry in fs::read_dir(root().join(tree)).expect("the crates") {
            let name = entry.expect("an entry").file_name().into_string();
            names.push(match (tree, name.expect("a plain name").as_str()) {
                ("lab", "cli") => "lab-cli".to_owned(),
                (_, name) => name.to_owned(),
            });
        }
    }
    names.sort();
    names
}

#[test]
fn only_tests_are_built_from_the_testbed() {
    assert!(crates().contains(&"agent".to_owned()));
    for name in crates() {
        let all = built_from(&name);
        assert!(!all.contains("thalweg-testbed"), "thalweg-{name}");
    }
}

/// The path of a module in its crate; the root's is empty.
type Module = Vec<String>;

/// Names in a module's source.
#[derive(Default)]
struct Source {
    /// Paths of `use`, each with the imported name.
    imports: Vec<(Vec<String>, String)>,
    others: Vec<Vec<String>>,
}

/// The modules of a crate, without tests.
fn modules(folder: &Path, module: &Module, all: &mut BTreeMap<Module, Source>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("it can be read").path();
        let name = path.file_stem().expect("a name").to_string_lossy();
        if name.ends_with("tests") {
            continue;
        }
        let mut inner = module.clone();
        if !["lib", "main", "mod"].contains(&&*name) {
            inner.push(name.into_owned());
        }
        if path.is_dir() {
            modules(&path, &inner, all);
        } else if path.extension().is_some_and(|it| it == "rs") {
            let text = fs::read_to_string(&path).expect("source code");
            all.insert(inner, source(&text));
        }
    }
}

fn source(text: &str) -> Source {
    let mut tokens = Vec::new();
    flatten(text.parse().expect("rustc reads it, too"), &mut tokens);
    let mut source = Source::default();
    let mut rest = &tokens[..];
    while let [first, others @ ..] = rest {
        if first == "use" && others.first().is_some_and(|it| it != "<") {
            rest = import(others, &[], &mut source.imports);
            continue;
        }
        let mut path = vec![first.clone()];
        rest = others;
        while let [colons, next, others @ ..] = rest
            && colons == "::"
            && is_word(next)
        {
            path.push(next.clone());
            rest = others;
        }
        if path.len() > 1 {
            source.others.push(path);
        }
    }
    source
}

fn is_word(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Words, `::` and single characters. All brackets become braces; literals and tests are left out.
fn flatten(stream: TokenStream, tokens: &mut Vec<String>) {
    let mut trees = stream.into_iter();
    while let Some(tree) = trees.next() {
        match tree {
            TokenTree::Group(group) if group.stream().to_string() == "cfg (test)" => {
                // The item of the attribute.
                trees.find(|tree| match tree {
                    TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                    other => other.to_string() == ";",
                });
            }
            TokenTree::Group(group) => {
                tokens.push("{".to_owned());
                flatten(group.stream(), tokens);
                tokens.push("}".to_owned());
            }
            TokenTree::Punct(it) if it.as_char() == ':' && it.spacing() == Spacing::Joint => {
                trees.next();
                tokens.push("::".to_owned());
            }
            TokenTree::Literal(_) => {}
            other => tokens.push(other.to_string()),
        }
    }
}

/// Reads one path of a `use`, or several in braces; returns the tokens after it.
fn import<'a>(
    tokens: &'a [String],
    before: &[String],
    imports: &mut Vec<(Vec<String>, String)>,
) -> &'a [String] {
    let mut path = before.to_vec();
    let mut rest = tokens;
    while let [first, others @ ..] = rest {
        match first.as_str() {
            "{" => {
                rest = others;
                while rest[0] != "}" {
                    rest = import(rest, &path, imports);
                    if rest[0] == "," {
                        rest = &rest[1..];
                    }
                }
                return &rest[1..];
            }
            "as" => {
                imports.push((path, others[0].clone()));
                return &others[1..];
            }
            "," | "}" | ";" => break,
            "::" => {}
            "self" if !path.is_empty() => {}
            word => path.push(word.to_owned()),
        }
        rest = others;
    }
    let name = path.last().cloned().unwrap_or_default();
    imports.push((path, name));
    rest
}

/// The module whose file defines a path, with imports followed; none if it is in another crate.
fn resolve(all: &BTreeMap<Module, Source>, from: &[String], path: &[String]) -> Option<Module> {
    let child = |module: &[String], name: &String| [module, std::slice::from_ref(name)].concat();
    let mut module = from.to_vec();
    let mut rest = path;
    while let [first, others @ ..] = rest {
        match first.as_str() {
            "crate" => module.clear(),
            "self" => {}
            "super" => drop(module.pop()),
            _ if all.contains_key(&child(&module, first)) => module.push(first.clone()),
            _ => {
                let imports = &all.get(&module)?.imports;
                // An import that begins with its own name is of another crate.
                let import = imports
                    .iter()
                    .find(|(target, name)| name == first && target.first() != Some(first));
                return match import {
                    Some((target, _)) => resolve(all, &module, &[target, others].concat()),
                    None if rest.len() == path.len() => None,
                    None => Some(module),
                };
            }
        }
        rest = others;
    }
    Some(module)
}

/// The modules that each module names. The root, which declares all others, is left out.
fn graph(all: &BTreeMap<Module, Source>) -> BTreeMap<&Module, BTreeSet<Module>> {
    let edges = all.iter().filter(|(module, _)| !module.is_empty());
    edges
        .map(|(module, source)| {
            let imports = source.imports.iter().map(|(path, _)| path);
            let named = imports.chain(&source.others);
            let named = named.filter_map(|path| resolve(all, module, path));
            (module, named.filter(|it| !it.is_empty()).collect())
        })
        .collect()
}

/// The modules that depend on each other, directly or through others, among those of `let_in`.
fn cycles(
    graph: &BTreeMap<&Module, BTreeSet<Module>>,
    let_in: impl Fn(&Module) -> bool,
) -> BTreeSet<BTreeSet<Module>> {
    let reached = |from: &Module| {
        let mut reached = BTreeSet::new();
        let mut left = vec![from];
        while let Some(module) = left.pop() {
            for next in graph.get(module).into_iter().flatten() {
                if let_in(next) && reached.insert(next.clone()) {
                    left.push(next);
                }
            }
        }
        reached
    };
    let modules = graph.keys().copied().filter(|module| let_in(module));
    let known: BTreeMap<&Module, _> = modules.map(|module| (module, reached(module))).collect();
    let cycle = |(module, others): (&&Module, &BTreeSet<Module>)| {
        let back = others.iter().filter(|other| known[other].contains(*module));
        back.cloned().collect::<BTreeSet<Module>>()
    };
    known.iter().map(cycle).filter(|it| it.len() > 1).collect()
}

/// The import cycles of a crate that span folders, or have more than three files of one folder. The
/// module of a folder and the files in it may depend on each other.
fn wide_cycles(all: &BTreeMap<Module, Source>) -> Vec<String> {
    let graph = graph(all);
    let mut wide = Vec::new();
    for cycle in cycles(&graph, |_| true) {
        let first = cycle.first().expect("it has several");
        let folder = match cycle.iter().all(|module| module.starts_with(first)) {
            true => &first[..],
            false => &first[..first.len() - 1],
        };
        let is_within = |module: &Module| {
            module == folder || module.split_last().is_some_and(|(_, it)| it == folder)
        };
        let siblings = cycles(&graph, |module| cycle.contains(module) && module != folder);
        if !cycle.iter().all(is_within) || siblings.iter().any(|it| it.len() > 3) {
            let names: Vec<String> = cycle.iter().map(|module| module.join("/")).collect();
            wide.push(names.join(", "));
        }
    }
    wide
}

#[test]
fn no_import_cycle_spans_folders_or_more_than_three_files() {
    let mut wide = Vec::new();
    for name in crates() {
        let mut all = BTreeMap::new();
        modules(&folder_of(&name).join("src"), &Module::new(), &mut all);
        assert!(!all.is_empty(), "{name}");
        wide.extend(wide_cycles(&all).iter().map(|it| format!("{name}: {it}")));
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

#[test]
fn cycles_are_seen_through_imports_braces_and_parents() {
    let crate_of = |files: &[(&str, &str)]| {
        let module = |path: &str| path.split('/').map(str::to_owned).collect::<Module>();
        let mut all: BTreeMap<_, _> = files
            .iter()
            .map(|(path, text)| (module(path), source(text)))
            .collect();
        all.insert(Module::new(), source("pub use b::{self as again, Thing};"));
        wide_cycles(&all)
    };
    // Two files of one folder may depend on each other, and so may a module and its children.
    let pair = (
        "b",
        "pub struct Thing; use crate::{a, other::X}; fn f() { a::g() }",
    );
    assert!(crate_of(&[("a", "use crate::Thing;"), pair]).is_empty());
    let below = (
        "a/c",
        "use super::Part; /* crate::b */ const T: &str = \"crate::b::X\";",
    );
    let tested = "mod c; fn f() { c::g() } #[cfg(test)] mod tests { use crate::b; }";
    assert!(crate_of(&[("a", tested), below, ("b", "use crate::a::c::C;")]).is_empty());
    // A file of another folder may not,
    let inner = ("a/c", "type T = Vec<crate::again::X>;");
    assert_eq!(
        crate_of(&[("a", "pub use c::C;"), inner, ("b", "use crate::a::C;")]),
        ["a/c, b"]
    );
    // and four may not.
    let four = [
        ("a", "use super::b;"),
        ("b", "use super::c;"),
        ("c", "use super::d;"),
    ];
    assert!(crate_of(&[four[0], four[1], ("c", "use super::a;")]).is_empty());
    let four = [four[0], four[1], four[2], ("d", "use super::a;")];
    assert_eq!(crate_of(&four), ["a, b, c, d"]);
}
