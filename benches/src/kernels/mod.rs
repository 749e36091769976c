//! Features by kernel: each feature is tried ([`probe`]) on Debian's kernels in QEMU and on the
//! machine's own. The result is docs/reference/kernels.md ([`page`]).

mod learning;
mod page;
pub mod probe;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thalweg_agent::doctor::requirements;
use thalweg_guest::kernels::{self, Stock};
use thalweg_guest::qemu::{self, Program};
use thalweg_lab::units::Size;

use page::Compared;
use probe::{Column, Object};

/// The kernels of the page: prefixes of their releases, and their packages.
const SERIES: [(&str, &str); 2] = [
    ("6.1.", "linux-image-cloud-amd64"),
    ("6.12.", "linux-image-6.12-cloud-amd64"),
];
/// The agent, its maps and a file system in memory.
const MEMORY: Size = Size::from_bytes(1000 << 20);
/// Argument of `thalweg cc load`.
const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../models/adpg-plus.safetensors"
);
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/kernels.md");

/// A kernel and its results.
#[derive(Serialize)]
pub struct Tried {
    /// The package and its version; none: the running kernel.
    pub package: Option<String>,
    /// Its results.
    #[serde(flatten)]
    pub column: Column,
}

/// Tries features, by default all, on the given kernels, by default those of the page and this
/// machine's own. Returns whether the page agrees with the results. With `write` the page is
/// written.
pub fn run(
    binary: &Path,
    asked: &[OsString],
    features: &[String],
    write: bool,
    json: bool,
) -> Result<bool> {
    ensure!(
        !write || asked.is_empty() && features.is_empty(),
        "--write takes no --kernel and no --feature: the page has all"
    );
    for name in features {
        let names: Vec<_> = requirements().iter().map(|row| row.name).collect();
        ensure!(
            names.contains(&name.as_str()),
            "no feature {name:?}: expected one of {}",
            names.join(", ")
        );
    }
    let stocks: Vec<Stock> = if asked.is_empty() {
        let all = kernels::list_kernels()?;
        let of_page = SERIES.map(|(series, package)| newest(&all, series, package));
        of_page.into_iter().collect::<Result<_>>()?
    } else {
        let named = asked.iter().map(|name| kernels::find_kernel(Some(name)));
        named.collect::<std::result::Result<_, _>>()?
    };
    let mut all = Vec::new();
    for stock in &stocks {
        all.push(in_qemu(binary, stock, features)?);
    }
    if asked.is_empty() {
        all.extend(here(binary, features)?);
    }
    let objects = probe::objects()?;
    let whole = asked.is_empty() && features.is_empty();
    if whole {
        check_programs(&all, &objects)?;
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        print!("{}", page::tables(&all, &objects));
    }
    all.retain(|tried| tried.package.is_some());
    if write {
        fs::write(PAGE, page::text(&all, &objects)).with_context(|| format!("writing {PAGE}"))?;
        return Ok(true);
    }
    let old = fs::read_to_string(PAGE).with_context(|| format!("reading {PAGE}"))?;
    let differs = if whole {
        page::compare(&old, &all, &objects)
    } else {
        page::compare_part(&old, &all, &objects)
    };
    match differs {
        Compared::Same => Ok(true),
        Compared::Elsewhere(why) => {
            eprintln!("docs/reference/kernels.md is not compared: {why}");
            Ok(true)
        }
        Compared::Stale(line) => {
            eprintln!(
                "docs/reference/kernels.md is stale: expected {line:?} (make kernels writes it anew)"
            );
            Ok(false)
        }
    }
}

/// The newest kernel of a series from a package.
fn newest(all: &[Stock], series: &str, package: &str) -> Result<Stock> {
    let fits = |stock: &&Stock| {
        stock.package.is_some() && stock.fault.is_none() && stock.name.starts_with(series)
    };
    let found = all.iter().rfind(fits).cloned();
    found.with_context(|| {
        format!("no kernel {series}x: add its package, thalweg-lab kernels add {package}")
    })
}

/// The laboratory's command, beside the agent's.
pub fn laboratory_beside(agent: &Path) -> PathBuf {
    agent.with_file_name("thalweg-lab")
}

/// The JSON that a sub-command of this program prints on a stock kernel in QEMU. Its arguments are
/// a model and further ones.
pub fn inside<T: DeserializeOwned>(
    stock: &Stock,
    binary: &Path,
    command: &str,
    model: &str,
    further: &[String],
    memory: Size,
) -> Result<T> {
    let model = Path::new(model);
    let program = Program {
        laboratory: &laboratory_beside(binary),
        program: &std::env::current_exe().context("this program's path")?,
        arguments: ["--binary", "/usr/bin/thalweg", command]
            .map(Into::into)
            .into_iter()
            .chain([qemu::path_in_guest(model).into()])
            .chain(further.iter().map(Into::into))
            .collect(),
        environment: Vec::new(),
        data: &[model],
        files: BTreeMap::from([("/usr/bin/thalweg".into(), binary.to_owned())]),
        memory: Some(memory),
    };
    let text = qemu::run_program(stock, &program)?;
    serde_json::from_str(&text).with_context(|| format!("{command} printed {text:?}"))
}

/// Results of a stock kernel.
fn in_qemu(binary: &Path, stock: &Stock, features: &[String]) -> Result<Tried> {
    eprint!("{} in QEMU: ", stock.name);
    let begun = Instant::now();
    let column: Column = inside(stock, binary, "probe", MODEL, features, MEMORY)?;
    eprintln!(
        "{:.0} s, {} MiB of memory",
        begun.elapsed().as_secs_f64(),
        MEMORY.bytes() >> 20
    );
    check_options(stock, &column)?;
    let package = stock.package.as_ref();
    Ok(Tried {
        package: package.map(|package| format!("{} {}", package.name, package.version)),
        column,
    })
}

/// Checks that the kernel has the options of features that work: otherwise the table would be
/// wrong.
fn check_options(stock: &Stock, column: &Column) -> Result<()> {
    let file = stock.image.with_file_name(format!("config-{}", stock.name));
    let Ok(text) = fs::read_to_string(&file) else {
        return Ok(());
    };
    let has = |option: &str| {
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        let mut on = pairs.filter(|(_, value)| matches!(*value, "y" | "m"));
        on.any(|(name, _)| name == option)
    };
    for feature in requirements() {
        let works = column.features.get(feature.name).is_some_and(|it| it.works);
        let absent = feature.options().into_iter().find(|option| !has(option));
        if let (true, Some(option)) = (works, absent) {
            bail!(
                "{} works on {}, which has not {option}: the table of features is wrong",
                feature.name,
                stock.name
            );
        }
    }
    Ok(())
}

/// Checks that each program has been loaded somewhere: otherwise nothing here would try it.
fn check_programs(all: &[Tried], objects: &[Object]) -> Result<()> {
    for Object { object, programs } in objects {
        let loaded = |name: &String| {
            let of = |tried: &Tried| tried.column.programs.get(*object)?.get(name).copied();
            all.iter().any(|tried| of(tried).is_some())
        };
        if let Some(name) = programs.iter().find(|name| !loaded(name)) {
            bail!("{name} of {object} was loaded on no kernel");
        }
    }
    Ok(())
}

/// Results of this machine's own kernel; none if a privilege is missing.
fn here(binary: &Path, features: &[String]) -> Result<Option<Tried>> {
    let missing = thalweg_lab::host::missing_requirements();
    if let Some(line) = missing.first() {
        eprintln!("this machine's own kernel is left out: {line}");
        return Ok(None);
    }
    eprint!("this machine's own kernel: ");
    let begun = Instant::now();
    let own = std::env::current_exe().context("this program's path")?;
    let output = Command::new(own)
        .args([OsStr::new("--binary"), binary.as_os_str()])
        .args(["probe", MODEL])
        .args(features)
        .stdin(Stdio::null())
        .output()
        .context("starting the probe")?;
    eprintln!("{:.0} s", begun.elapsed().as_secs_f64());
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{}",
        said.lines().last().unwrap_or_default()
    );
    Ok(Some(Tried {
        package: None,
        column: serde_json::from_slice(&output.stdout).context("what was found")?,
    }))
}
