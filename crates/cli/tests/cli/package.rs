//! What the packages hold, and the unit, as far as can be told without building them
//! (packaging/test does the rest).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libbpf_rs::Link;
use thalweg_control::links;
use thalweg_lab::host::Side;
use toml::{Table, Value};

use thalweg_testbed::cc::{self, is_offered};
use thalweg_testbed::{Bed, compile, plain, privileged, skip, thalweg, unique, wait_for};

/// Above it, `systemd-analyze security` finds the unit too open.
const MOST_EXPOSED: &str = "40";

/// What lies in these folders and is not for users.
const NOT_SHIPPED: [&str; 5] = [
    "packaging/Containerfile",
    "packaging/deb/",
    "packaging/deb-lab/",
    "packaging/test/",
    // How a model was made.
    "models/proportional.py",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every file below a folder, relative to the repository.
fn files(folder: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left = vec![root().join(folder)];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else {
                let path = path.strip_prefix(root()).unwrap();
                found.insert(path.to_str().unwrap().to_owned());
            }
        }
    }
    found
}

/// The files of one entry of a list of assets, each with its place. What is built is itself.
fn expand(source: &str, destination: &str) -> Vec<(String, String)> {
    let source = source.trim_start_matches("../../");
    let destination = destination.trim_start_matches('/');
    let Some((folder, ending)) = source.split_once('*') else {
        let name = source.rsplit('/').next().unwrap();
        let place = match destination.ends_with('/') {
            true => format!("{destination}{name}"),
            false => destination.to_owned(),
        };
        return vec![(source.to_owned(), place)];
    };
    if folder.starts_with("target/") {
        return vec![(source.to_owned(), format!("{destination}*{ending}"))];
    }
    let (is_deep, ending) = match ending.strip_prefix("*/*") {
        Some(ending) => (true, ending),
        None => (false, ending),
    };
    let found: Vec<_> = files(folder)
        .into_iter()
        .filter_map(|file| {
            let rest = file.strip_prefix(folder)?;
            let fits = rest.ends_with(ending) && (is_deep || !rest.contains('/'));
            fits.then(|| (file.clone(), format!("{destination}{rest}")))
        })
        .collect();
    assert!(!found.is_empty(), "{source} names no file");
    found
}

/// Folders of the crates of the packages `thalweg` and `thalweg-lab`.
const CRATES: [&str; 2] = ["crates/cli", "lab/cli"];

fn metadata(of: &str, name: &str) -> Table {
    let manifest = format!("{name}/Cargo.toml");
    let text = fs::read_to_string(root().join(manifest)).unwrap();
    let mut manifest: Table = text.parse().unwrap();
    for key in ["package", "metadata", of] {
        manifest = manifest[key].as_table().unwrap().clone();
    }
    manifest
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// The files of a crate's Debian package, each with its place.
fn of_deb(name: &str) -> BTreeMap<String, String> {
    let metadata = metadata("deb", name);
    let assets = metadata["assets"].as_array().unwrap();
    let mut found: BTreeMap<_, _> = (assets.iter())
        .flat_map(|asset| expand(text(&asset[0]), text(&asset[1])))
        .collect();
    let licence = text(&metadata["license-file"]).trim_start_matches("../../");
    let place = format!("usr/share/doc/{}/copyright", text(&metadata["name"]));
    found.insert(licence.to_owned(), place);
    // cargo-deb finds it by its name.
    if let Some(units) = metadata.get("systemd-units") {
        let unit = text(&units["unit-name"]);
        found.insert(
            format!("packaging/{unit}.service"),
            format!("usr/lib/systemd/system/{unit}.service"),
        );
    }
    found
}

fn of_rpm(name: &str) -> BTreeMap<String, String> {
    let metadata = metadata("generate-rpm", name);
    let assets = metadata["assets"].as_array().unwrap();
    (assets.iter())
        .flat_map(|asset| expand(text(&asset["source"]), text(&asset["dest"])))
        .collect()
}

#[test]
fn both_packages_have_the_same_files() {
    for (name, command) in CRATES.into_iter().zip(["thalweg", "thalweg-lab"]) {
        let (mut deb, mut rpm) = (of_deb(name), of_rpm(name));
        // zsh's folder, which the distributions name differently.
        for list in [&mut deb, &mut rpm] {
            let script = format!("target/package/{command}/completions/_{command}");
            let zsh = list.remove(&script);
            assert!(zsh.is_some_and(|place| place.starts_with("usr/share/zsh/")));
        }
        assert_eq!(deb, rpm, "{name}");
    }
}

#[test]
fn no_file_is_in_two_packages() {
    let [agent, laboratory] = CRATES.map(|name| -> BTreeSet<String> {
        let built = |place: &String| place.contains('*');
        let places = of_deb(name).into_values();
        places.filter(|place| !built(place)).collect()
    });
    assert_eq!(agent.intersection(&laboratory).next(), None);
}

#[test]
fn what_is_for_users_ships() {
    let shipped: BTreeMap<_, _> = CRATES.into_iter().flat_map(of_deb).collect();
    let mut missing = Vec::new();
    for folder in ["packaging", "policies", "models", "scenarios", "schemas"] {
        missing.extend(files(folder).into_iter().filter(|file| {
            let is_left_out = NOT_SHIPPED.iter().any(|start| file.starts_with(start));
            // The sample names its schema where the package puts it.
            let built = file.replace("packaging/", "target/package/thalweg/");
            !is_left_out && !shipped.contains_key(file) && !shipped.contains_key(&built)
        }));
    }
    assert!(missing.is_empty(), "not in the packages: {missing:#?}");
}

fn unit() -> String {
    fs::read_to_string(root().join("packaging/thalweg.service")).unwrap()
}

/// The arguments of the unit's commands.
fn commands(unit: &str) -> Vec<Vec<&str>> {
    (unit.lines())
        .filter(|line| line.starts_with("Exec"))
        .filter_map(|line| line.split_once('='))
        .map(|(_, command)| command.split_whitespace().collect())
        .collect()
}

#[test]
fn the_commands_of_the_unit_exist() {
    let unit = unit();
    let commands = commands(&unit);
    let own = commands.iter().filter(|it| it[0] == "/usr/bin/thalweg");
    assert_eq!(own.clone().count(), 2, "{commands:?}");
    for command in own {
        let output = Command::new(thalweg())
            .args(&command[1..])
            .arg("--help")
            .output()
            .unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
    }
}

#[test]
fn systemd_takes_the_unit_and_finds_it_closed() {
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        skip("no systemd-analyze");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("thalweg.service");
    fs::write(&path, unit().replace("/usr/bin/thalweg", thalweg())).unwrap();
    let analyze = |arguments: &[&str]| {
        let output = Command::new("systemd-analyze")
            .args(arguments)
            .arg(&path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.success(), said)
    };
    // Unknown keys are complaints and no failure.
    let (is_good, said) = analyze(&["verify", "--man=no", "--recursive-errors=no"]);
    // systemd before 254 has no growing pauses between starts, and goes on without.
    let steps = ["'RestartSteps'", "'RestartMaxDelaySec'"];
    let complaints: Vec<&str> = (said.lines())
        .filter(|line| line.contains("thalweg.service:"))
        .filter(|line| !steps.iter().any(|step| line.contains(step)))
        .collect();
    let is_taken = is_good || steps.iter().any(|step| said.contains(step));
    assert!(is_taken && complaints.is_empty(), "{said}");
    let threshold = format!("--threshold={MOST_EXPOSED}");
    let (is_good, said) = analyze(&["security", "--offline=yes", "--no-pager", &threshold]);
    assert!(is_good, "{said}");
}

/// Output of a script where `thalweg` fails with its arguments on standard error.
fn script_says(script: &Path, argument: &str) -> String {
    let line = "thalweg() { echo \"thalweg $*\" >&2; return 1; }; systemctl() { :; }; . \"$0\"";
    let output = Command::new("sh")
        .args(["-c", line])
        .arg(script)
        .arg(argument)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[test]
fn package_removal_runs_remove_all_and_shows_what_stays() {
    let folder = tempfile::tempdir().unwrap();
    let rpm = folder.path().join("pre_uninstall");
    let metadata = metadata("generate-rpm", "crates/cli");
    fs::write(&rpm, text(&metadata["pre_uninstall_script"])).unwrap();
    let deb = root().join("packaging/deb/prerm");
    for (script, removal, upgrade) in [(&deb, "remove", "upgrade"), (&rpm, "0", "1")] {
        assert_eq!(script_says(script, removal), "thalweg remove-all\n");
        assert_eq!(script_says(script, upgrade), "");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn remove_all_leaves_nothing_in_two_directories_of_pins() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("removeown"), "");
    let mut other = Bed::running("removeother", "");
    let program = other.running_program();
    bed.apply("name = \"t\"\n[[rule]]\nname = \"r\"\nset.nodelay = true\n");
    let (default, unused) = (unique("rd"), unique("ru"));
    // A namespace other than the first takes as its default what everybody may choose.
    let anybody = cc::compile(bed.directory.path(), "anybody.o", &["-DANYBODY"]);
    bed.json(&["cc", "load", &anybody, "--name", &default]);
    other.json(&["cc", "load", "htcp", "--name", &unused]);
    let mut shell = bed.pair.command_in(Side::Client, "sh").unwrap();
    let line = format!("echo {default} >/proc/sys/net/ipv4/tcp_congestion_control");
    assert!(shell.args(["-c", &line]).status().unwrap().success());
    let object = compile("probe", other.directory.path(), "probe.bpf.o", &[]);
    let cgroup = other.pair.cgroup_path().to_str().unwrap().to_owned();
    let object = object.to_str().unwrap();
    other.json(&["sockops", "load", object, "--cgroup", &cgroup]);

    let mut agent = other.leave();
    let pins = [&other.pin, &bed.pin].map(|pin| pin.to_str().unwrap());
    let command = [&["remove-all"][..], &pins].concat();
    let output = bed.thalweg(&command);
    let said = String::from_utf8_lossy(&output.stderr);
    // A second run, as of an init container, would not tell it.
    assert_eq!(output.status.code(), Some(0), "{said}");
    let stays = format!("warning: {default} is the default of 1 network namespace, where");
    assert!(said.contains(&stays), "{said}");
    let note = format!("{} stays, with what was learned", bed.state().display());
    assert!(said.contains(&note), "{said}");
    assert!(!said.contains(&unused), "{said}");
    assert!(agent.try_wait().unwrap().is_some(), "the agent runs on");
    for pin in pins {
        assert!(!Path::new(pin).exists(), "{pin}");
    }
    assert!(program.is_none_or(|id| libbpf_rs::Program::fd_from_id(id).is_err()));
    wait_for("the names to go", || {
        (!is_offered(&default) && !is_offered(&unused)).then_some(())
    });
    let output = bed.thalweg(&command);
    assert!(output.status.success(), "{output:?}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn remove_all_of_other_pins_leaves_the_configured_agents_state() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("removestate"), "");
    let policy = "name = \"t\"\n[[rule]]\nname = \"r\"\nset.nodelay = true\n";
    let own = bed.pin.clone();
    bed.pin = own.join("other");
    bed.configure("");
    bed.apply(policy);
    let other = Link::open(bed.pin.join("policy/link")).unwrap();
    let pin = std::mem::replace(&mut bed.pin, own);
    bed.configure("");
    bed.apply(policy);
    let wanted = bed.state().join("policy/in-force");
    let before = fs::read(&wanted).unwrap();
    let output = bed.thalweg(&["remove-all", pin.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read(&wanted).unwrap(), before);
    assert_eq!(links::attached_to(&other).unwrap(), Some(0));
    assert!(!pin.exists());
    bed.json(&["policy", "remove"]);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn remove_all_needs_no_privilege_where_nothing_is_pinned() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (configuration, pins) = (path("agent.toml"), path("pins"));
    let (state, socket) = (path("state"), path("agent.sock"));
    let text = format!("[paths]\npin = {pins:?}\nstate = {state:?}\nsocket = {socket:?}\n");
    fs::write(&configuration, text).unwrap();
    let output = Command::new("setpriv")
        .args(["--bounding-set", "-all", "--inh-caps", "-all", thalweg()])
        .args(["--config", &configuration, "remove-all", &pins])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

fn depth(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Lines below the first one of a manifest that begins with `from`, without comments.
fn block<'a>(manifest: &'a str, from: &str) -> Vec<&'a str> {
    let mut lines = manifest
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .skip_while(|line| !line.trim_start().starts_with(from));
    let first = lines.next().unwrap();
    lines
        .take_while(|line| depth(line) > depth(first))
        .map(str::trim)
        .collect()
}

#[test]
fn manifest_that_removes_has_the_place_and_rights_of_the_agents() {
    let read = |name: &str| {
        let path = root().join("packaging/kubernetes").join(name);
        fs::read_to_string(path).unwrap()
    };
    let (agent, removal) = (read("thalweg.yaml"), read("remove.yaml"));
    for part in ["securityContext:", "volumeMounts:", "volumes:"] {
        let expected = block(&agent, part);
        assert!(!expected.is_empty(), "{part}");
        assert_eq!(block(&removal, part), expected, "{part}");
    }
    let images = |manifest: &str| -> BTreeSet<String> {
        let lines = manifest.lines().map(str::trim);
        let lines = lines.filter(|line| line.starts_with("image:"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(images(&removal), images(&agent));
    for line in ["hostNetwork: true", "hostPID: true", "namespace: thalweg"] {
        assert!(agent.contains(line) && removal.contains(line), "{line}");
    }
    assert!(removal.contains("command: [\"/usr/bin/thalweg\", \"remove-all\"]"));
    // The DaemonSet ends no rollout before the removal, and no probe asks for an agent.
    assert!(removal.contains("initContainers:") && !removal.contains("Probe:"));
}
