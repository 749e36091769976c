//! The modules of the packaged user-mode Linux.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Where the package has them, one directory a version.
const DIRECTORY: &str = "/usr/lib/uml/modules";

/// What a run may need, whatever the scenario.
const ALWAYS: [&str; 11] = [
    "ipv6",
    "veth",
    "sch_ingress",
    "cls_bpf",
    "sch_tbf",
    "sch_netem",
    "sch_red",
    "sch_fq",
    "tcp_bbr",
    "tcp_dctcp",
    "tcp_htcp",
];

/// The files of the modules for a run, each after those that it needs.
pub(super) fn wanted<'a>(
    program: &Path,
    version: &str,
    congestion_controls: impl Iterator<Item = &'a str>,
) -> Result<Vec<PathBuf>, Error> {
    let directory = Path::new(DIRECTORY).join(version);
    let read = |name: &str| {
        let file = directory.join(name);
        fs::read_to_string(&file).map_err(Error::io("cannot read", file))
    };
    let mut names: Vec<String> = ALWAYS.map(str::to_owned).into();
    names.extend(congestion_controls.map(|name| format!("tcp_{name}")));
    let files =
        order(&names, &read("modules.dep")?, &read("modules.builtin")?).map_err(|name| {
            let what = name.strip_prefix("tcp_").unwrap_or(&name);
            Error::Preconditions(vec![format!(
                "{} has no module {name} in {} ({what} is needed)",
                program.display(),
                directory.display()
            )])
        })?;
    Ok(files.into_iter().map(|file| directory.join(file)).collect())
}

/// The files of the named modules and of what they need, in the order in which
/// they can be inserted, from `modules.dep` and `modules.builtin` (modules.dep(5)).
/// Fails with the name of one that is in neither.
fn order(names: &[String], dependencies: &str, builtin: &str) -> Result<Vec<String>, String> {
    let table: BTreeMap<String, (&str, Vec<&str>)> = dependencies
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(file, needs)| {
            (
                module(file),
                (file, needs.split_ascii_whitespace().collect()),
            )
        })
        .collect();
    let mut files: Vec<String> = Vec::new();
    for name in names {
        let Some((file, needs)) = table.get(name.as_str()) else {
            // Reno is a part of TCP and has no file at all.
            if name == "tcp_reno" || builtin.lines().any(|line| module(line) == *name) {
                continue;
            }
            return Err(name.clone());
        };
        // The last of them needs none of the others.
        for file in needs.iter().rev().chain([file]) {
            if !files.iter().any(|known| known == file) {
                files.push((*file).to_owned());
            }
        }
    }
    Ok(files)
}

/// The name of a module from its file: dashes and underscores are the same.
fn module(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.strip_suffix(".ko").unwrap_or(name).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPENDENCIES: &str = "kernel/a/top-one.ko: kernel/b/middle.ko kernel/c/base.ko\n\
        kernel/b/middle.ko: kernel/c/base.ko\nkernel/c/base.ko:\nkernel/d/alone.ko:\n";

    fn ordered(names: &[&str]) -> Result<Vec<String>, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        order(&names, DEPENDENCIES, "kernel/net/ipv4/tcp_cubic.ko\n")
    }

    #[test]
    fn each_comes_after_what_it_needs_and_once() {
        assert_eq!(
            ordered(&["alone", "top_one", "middle"]).unwrap(),
            [
                "kernel/d/alone.ko",
                "kernel/c/base.ko",
                "kernel/b/middle.ko",
                "kernel/a/top-one.ko"
            ]
        );
    }

    #[test]
    fn what_is_built_in_needs_no_file_and_what_is_unknown_is_named() {
        assert_eq!(ordered(&["tcp_cubic", "tcp_reno"]).unwrap(), [""; 0]);
        assert_eq!(ordered(&["tcp_prague"]).unwrap_err(), "tcp_prague");
    }
}
