//! A run on a stock kernel in QEMU, which sees no file of the machine. Scenarios and their files
//! are copied in, and reports are copied out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use thalweg_guest::kernels::Stock;
use thalweg_guest::qemu::{JOB, Machine, Needs, program_path};
use thalweg_guest::ticks::Timers;
use thalweg_guest::{KernelKind, OUT, SERIAL};
use thalweg_process::tool;
use thalweg_report::escape_html;

use super::Follower;
use crate::error::Error;
use crate::options::{KernelOptions, Options, Origin, UsedBackend};
use crate::report::{self, Finished};
use crate::scenario::{self, Scenario};

/// Placeholder of the command line in the guest's files. The real one is longer, which would cost
/// the guest time.
const COMMAND: &str = "@COMMAND@";

/// Boots the kernel, runs the scenarios there and returns the results. Kernel and directory are
/// gone on every way out.
pub(crate) fn run_in_qemu(
    kernel: &Stock,
    timers: Timers,
    options: &Options,
    scenarios: &[Scenario],
) -> Result<Finished, Error> {
    let machine = Machine {
        kernel,
        memory: super::guest_memory(KernelKind::Qemu, options, scenarios)?,
        shift: options.kernel.shift,
        seed: scenarios.first().map_or(0, |first| first.path.seed),
        timers,
    };
    let files = options.scenarios.iter().zip(scenarios).enumerate();
    let copies: Vec<Copy> = files
        .map(|(index, (file, scenario))| place_scenario(index, file, scenario))
        .collect();
    let mut needs = guest_needs(options, scenarios, &copies)?;
    if let Some(agent) = super::agent_program(options, scenarios)? {
        needs.programs.push((agent_inside(), agent));
    }
    machine.needed_modules(&needs)?;
    let own = super::lab_program(options)?;
    // Checked now, so that a fault does not appear after a minute.
    let directories = report::report_directories(
        options.out.as_deref(),
        scenarios,
        &options.origin.start_time(),
    )?;

    let inner = Options {
        scenarios: copies.iter().map(|copy| copy.file.clone()).collect(),
        out: Some(Path::new(JOB).join(OUT)),
        agent_binary: agent_inside(),
        program: program_path(),
        progress: false,
        kernel: KernelOptions {
            name: None,
            ..options.kernel.clone()
        },
        origin: Origin {
            place: UsedBackend {
                kernel_command: Some(machine.command_line()),
                ..options.origin.place.clone()
            },
            command: Some(COMMAND.to_owned()),
            started: None,
            policy_folders: copies.iter().map(|copy| copy.folder.clone()).collect(),
            channel: Some(SERIAL.into()),
        },
        ..options.clone()
    };
    let document = super::to_document(&inner)?;
    let mut follower = Follower::new(options.progress);
    let limits = super::guest_limits(options, scenarios);
    let told = &mut |words| follower.take_report(words);
    let (answer, work) = machine.run_document(&own, document, needs, limits, told)?;
    let command = options.origin.command_line();
    let reports = work.path().join(OUT);
    move_output(
        super::from_document(answer)?,
        &reports,
        scenarios,
        &directories,
        &command,
    )
}

/// The agent's program in the guest.
fn agent_inside() -> PathBuf {
    program_path().with_file_name(tool::AGENT)
}

/// Files and modules that the run needs.
fn guest_needs(options: &Options, scenarios: &[Scenario], copies: &[Copy]) -> Result<Needs, Error> {
    // A congestion control that a scenario brings along need not be a module.
    let arms = scenarios.iter().flat_map(|scenario| &scenario.arms);
    let brought = |name: &String| arms.clone().any(|arm| format!("tcp_{}", arm.name) == *name);
    let (wished, modules) = super::cc_modules(scenarios, &options.modes).partition(brought);
    let mut needs = Needs {
        modules,
        wished,
        ..Needs::default()
    };
    let programs: BTreeSet<_> = scenarios
        .iter()
        .flat_map(Scenario::needed_programs)
        .collect();
    let missing = thalweg_guest::missing_programs(programs.iter().copied().copied());
    if !missing.is_empty() {
        return Err(Error::Options(missing.join("; ")));
    }
    needs.programs = (programs.into_iter())
        .filter_map(|(name, _)| Some((Path::new("/usr/bin").join(name), tool::find_program(name)?)))
        .collect();
    for (copy, file) in copies.iter().zip(&options.scenarios) {
        let named = copy.named.iter();
        needs.data.push((copy.file.clone(), file.clone()));
        needs
            .data
            .extend(named.map(|(place, file)| (place.clone(), file.clone())));
        needs.directories.extend(copy.passed.iter().cloned());
    }
    Ok(needs)
}

/// A scenario in the guest, with the files that it names.
struct Copy {
    /// The scenario's file.
    file: PathBuf,
    /// The folder at which names begin.
    folder: PathBuf,
    /// The named files: path on this machine, by path in the guest.
    named: BTreeMap<PathBuf, PathBuf>,
    /// Directories that a name enters and leaves again by `..`.
    passed: Vec<PathBuf>,
}

/// Places a scenario and its files in the guest. Names stay as they are, relative to a folder that
/// is deep enough for every `..`.
fn place_scenario(index: usize, file: &Path, scenario: &Scenario) -> Copy {
    let of_policies = scenario.policies.iter().map(|policy| &policy.file);
    let of_arms = scenario.arms.iter().filter_map(|arm| arm.file.as_ref());
    let here = scenario::scenario_folder(file);
    let paths = scenario.remote_paths().into_iter().map(|(_, path)| path);
    let traces = paths.filter_map(|path| path.trace.as_ref());
    let names: Vec<(&PathBuf, &Path)> = of_policies
        .chain(of_arms)
        .chain(traces.map(|trace| &trace.file))
        .map(|path| (path, path.strip_prefix(here).unwrap_or(path)))
        .collect();
    let ups = |name: &Path| {
        name.components()
            .filter(|part| *part == Component::ParentDir)
            .count()
    };
    let depth = names.iter().map(|(_, name)| ups(name)).max().unwrap_or(0);
    let root = Path::new(JOB).join(index.to_string());
    let folder = (0..depth).fold(root, |folder, _| folder.join("d"));
    let mut passed = vec![folder.clone()];
    let named = names
        .into_iter()
        .map(|(path, name)| {
            (
                normalize_path(&folder.join(name), &mut passed),
                path.clone(),
            )
        })
        .collect();
    Copy {
        file: Path::new(JOB).join(super::copy_of_scenario(index)),
        folder,
        named,
        passed,
    }
}

/// A path without `.` and `..`, none of whose directories is a link. Directories that `..` leaves
/// are added to `passed`.
fn normalize_path(path: &Path, passed: &mut Vec<PathBuf>) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                passed.push(out.clone());
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

/// Moves the guest's output to the directories that were asked for.
fn move_output(
    mut finished: Finished,
    reports: &Path,
    scenarios: &[Scenario],
    directories: &[PathBuf],
    command: &str,
) -> Result<Finished, Error> {
    let inside = report::report_directories(Some(reports), scenarios, "")?;
    for (from, to) in inside.iter().zip(directories) {
        move_tree(from, to, command)?;
    }
    finished.document["environment"]["command"] = command.into();
    for (index, directory) in directories.iter().enumerate() {
        finished.document["scenarios"][index]["report"] = directory.to_string_lossy().into();
    }
    Ok(finished)
}

/// Copies a directory and replaces the placeholder by the command.
fn move_tree(from: &Path, to: &Path, command: &str) -> Result<(), Error> {
    fs::create_dir_all(to).map_err(Error::io("cannot create", to))?;
    let entries = fs::read_dir(from).map_err(Error::io("cannot read", from))?;
    for entry in entries {
        let entry = entry.map_err(Error::io("cannot read", from))?;
        let (path, place) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            move_tree(&path, &place, command)?;
            continue;
        }
        let content = fs::read(&path).map_err(Error::io("cannot read", &path))?;
        let shown = match path.extension().and_then(|ending| ending.to_str()) {
            Some("html") => Some(escape_html(command)),
            // Escaped as inside a JSON string.
            Some("json") => serde_json::to_string(command)
                .ok()
                .map(|text| text[1..text.len() - 1].to_owned()),
            _ => None,
        };
        let content = match (shown, String::from_utf8(content)) {
            (Some(shown), Ok(text)) => text.replace(COMMAND, &shown).into_bytes(),
            (_, Ok(text)) => text.into_bytes(),
            (_, Err(other)) => other.into_bytes(),
        };
        fs::write(&place, content).map_err(Error::io("cannot write", &place))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_a_scenario_hold_in_the_guest() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("scenarios");
        fs::create_dir_all(&folder).unwrap();
        fs::write(place.path().join("m.safetensors"), "x").unwrap();
        let file = folder.join("a.toml");
        fs::write(
            &file,
            "name = \"a\"\n[[arm]]\nname = \"x\"\nload = \"../m.safetensors\"\n",
        )
        .unwrap();
        let copy = place_scenario(3, &file, &Scenario::load(&file).unwrap());
        assert_eq!(copy.folder, Path::new("/job/3/d"));
        let places: Vec<&PathBuf> = copy.named.keys().collect();
        assert_eq!(places, [Path::new("/job/3/m.safetensors")]);
        assert!(
            copy.passed.contains(&"/job/3/d".into()),
            "{:?}",
            copy.passed
        );
        // An absolute name stays absolute.
        let mut passed = Vec::new();
        assert_eq!(
            normalize_path(Path::new("/a/b/../../c"), &mut passed),
            Path::new("/c")
        );
        assert_eq!(passed, ["/a/b", "/a"].map(PathBuf::from));
    }
}
