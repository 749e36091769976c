//! Permissions of the agent itself, members of the socket's group, and everybody else.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::sys::signal::Signal;
use thalweg_testbed::{Bed, copy_of_command, plain, privileged, thalweg};

/// Nobody, and nobody's group.
const NOBODY: u32 = 65_534;
/// CAP_NET_ADMIN, CAP_PERFMON and CAP_BPF (linux/capability.h).
const IN_FORCE: u64 = 1 << 12 | 1 << 38 | 1 << 39;
/// CAP_SYS_PTRACE and CAP_SYS_ADMIN.
const AT_HAND: u64 = 1 << 19 | 1 << 21;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// The command in a directory accessible to everybody.
fn public_copy(bed: &Bed) -> PathBuf {
    fs::set_permissions(bed.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = bed.directory.path().join("thalweg");
    copy_of_command(&copy);
    copy
}

/// A command as an ordinary user who is in a group.
fn as_user(group: u32, command: &Path) -> Command {
    let mut user = Command::new("setpriv");
    user.arg(format!("--reuid={NOBODY}"))
        .arg(format!("--regid={group}"))
        .arg("--clear-groups")
        .arg(command)
        .stdin(Stdio::null());
    user
}

/// Adds a key to the section `[paths]`.
fn set_path(bed: &Bed, key: &str, value: &str) {
    let text = fs::read_to_string(bed.configuration()).unwrap();
    let text = text.replace("[paths]\n", &format!("[paths]\n{key} = {value:?}\n"));
    fs::write(bed.configuration(), text).unwrap();
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A line of /proc/PID/status for every thread of a process, without repetitions.
fn of_threads(pid: u32, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let Ok(text) = fs::read_to_string(thread.unwrap().path().join("status")) else {
            continue; // Gone by now.
        };
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        found.push(line.trim().to_owned());
    }
    found.sort();
    found.dedup();
    found
}

fn capabilities(pid: u32) -> BTreeMap<&'static str, Vec<u64>> {
    ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"]
        .into_iter()
        .map(|name| {
            let sets = of_threads(pid, name);
            let sets = sets.iter().map(|set| u64::from_str_radix(set, 16).unwrap());
            (name, sets.collect())
        })
        .collect()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_agent_keeps_three_capabilities_in_force() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("caps", "");
    // A thread that enters other namespaces has all five effective during that time.
    let settled = thalweg_testbed::wait_for("no thread with more", || {
        let has = capabilities(bed.pid());
        (has["CapEff:"] == [IN_FORCE]).then_some(has)
    });
    assert_eq!(settled["CapPrm:"], [IN_FORCE | AT_HAND]);
    assert_eq!(
        (&settled["CapInh:"], &settled["CapAmb:"]),
        (&vec![0], &vec![0])
    );
    assert_eq!(of_threads(bed.pid(), "NoNewPrivs:"), ["1"]);
    // With these capabilities it learns, saves, and removes everything.
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("closed", 2);
    assert_eq!(bed.host(&address).unwrap()["scored"], 1);
    let detached = bed.json(&["detach"]);
    assert_eq!(detached["unsaved"], serde_json::Value::Null);
    bed.reap();
    assert!(fs::read_dir(&bed.pin).is_err() || fs::read_dir(&bed.pin).unwrap().next().is_none());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_ordinary_user_with_three_capabilities_may_run_it() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("user"), "");
    // A BPF file system of the user's own: /sys/fs/bpf is root's.
    let mount = bed.directory.path().join("bpf");
    fs::create_dir(&mount).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "bpf", "bpf"])
        .arg(&mount)
        .status();
    assert!(mounted.unwrap().success());
    chown(&mount, Some(NOBODY), Some(NOBODY)).unwrap();
    bed.pin = mount.join("thalweg");
    bed.configure("");
    let command = public_copy(&bed);
    let home = bed.directory.path();
    chown(home, Some(NOBODY), Some(NOBODY)).unwrap();

    let start = |capabilities: &str| {
        let mut agent = Command::new("setpriv");
        agent
            .arg(format!("--reuid={NOBODY}"))
            .arg(format!("--regid={NOBODY}"))
            .arg("--clear-groups")
            .arg(format!("--inh-caps={capabilities}"))
            .arg(format!("--ambient-caps={capabilities}"))
            .arg(&command)
            .arg("--config")
            .arg(bed.configuration())
            .arg("run")
            .stdin(Stdio::null());
        agent
    };
    let refusal = bed.refuses(start("-all,+net_admin,+perfmon"));
    assert!(refusal.contains("missing privilege: CAP_BPF"), "{refusal}");
    bed.start_by(start("-all,+bpf,+net_admin,+perfmon"));

    let has = capabilities(bed.pid());
    assert_eq!(has["CapPrm:"], [IN_FORCE]);
    assert_eq!(has["CapAmb:"], [0]);
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    // Ends of connections in namespaces that this agent may not enter are out of scope. So only the
    // visibility of connections can be checked.
    bed.connect(&address, 1, 1_000_000);
    thalweg_testbed::wait_for("the connection is seen", || {
        let seen = bed.counter("closed") + bed.counter("outside");
        (seen >= 2).then_some(())
    });
    assert!(bed.end(Signal::SIGTERM).success(), "{}", bed.logged());
    assert_eq!(bed.thalweg(&["detach"]).status.code(), Some(0));
    let mount_gone = Command::new("umount").arg("-l").arg(&mount).status();
    assert!(mount_gone.unwrap().success());
}

/// The doctor's message on privileges, run by a command that executes the rest of its line.
fn doctor_of_privileges(by: &[&str]) -> (String, String) {
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().join("empty.toml");
    fs::write(&empty, "").unwrap();
    let mut command = Command::new(by[0]);
    command
        .args(&by[1..])
        .args([thalweg(), "--json", "--config"])
        .arg(&empty)
        .arg("doctor")
        .stdin(Stdio::null());
    let output = command.output().unwrap();
    let checks: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", said(&output)));
    let mut checks = checks.as_array().unwrap().iter();
    let check = checks.find(|check| check["name"] == "privileges").unwrap();
    let text = |key: &str| check[key].as_str().unwrap().to_owned();
    (text("state"), text("found"))
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_doctor_names_the_capability_that_lacks_and_no_other() {
    if !privileged() {
        return;
    }
    for (without, found) in [
        ("-sys_ptrace", "without CAP_SYS_PTRACE"),
        ("-sys_admin", "without CAP_SYS_ADMIN"),
        (
            "-sys_admin,-sys_ptrace",
            "without CAP_SYS_ADMIN and CAP_SYS_PTRACE",
        ),
    ] {
        let said = doctor_of_privileges(&["setpriv", "--bounding-set", without]);
        assert_eq!(said, ("degraded".to_owned(), found.to_owned()));
    }
    let said = doctor_of_privileges(&["setpriv", "--bounding-set", "-bpf,-sys_admin"]);
    assert_eq!(said, ("missing".to_owned(), "missing CAP_BPF".to_owned()));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_group_may_read_and_root_alone_may_change() {
    if !privileged() {
        return;
    }
    let group = nix::unistd::Group::from_gid(NOBODY.into())
        .unwrap()
        .unwrap();
    let mut bed = Bed::new(&plain("group"), "");
    set_path(&bed, "socket_group", &group.name);
    bed.start();
    let command = public_copy(&bed);
    let socket = fs::metadata(bed.socket()).unwrap();
    assert_eq!((socket.gid(), mode(&bed.socket())), (NOBODY, 0o660));

    // What the user is told; pins he could not read.
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let config = place.path().join("thalweg.toml");
    fs::write(&config, format!("[paths]\nsocket = {:?}\n", bed.socket())).unwrap();
    let ask = |group: u32, arguments: &[&str]| {
        let mut user = as_user(group, &command);
        user.arg("--config").arg(&config).args(arguments);
        user.output().unwrap()
    };
    for arguments in [
        &["status"][..],
        &["hosts"],
        &["arms"],
        &["events"],
        &["export"],
    ] {
        let output = ask(NOBODY, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    }
    let document = bed.directory.path().join("none.json");
    let exported = bed.thalweg(&["export", document.to_str().unwrap()]);
    assert!(exported.status.success(), "{}", said(&exported));
    fs::set_permissions(&document, fs::Permissions::from_mode(0o644)).unwrap();
    let import = ["import", document.to_str().unwrap()];
    for arguments in [
        &["detach"][..],
        &["reset", "-y"],
        &["reset", "-y", "192.0.2.1"],
        &import,
    ] {
        let output = ask(NOBODY, arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(
            said(&output).contains("only root may change"),
            "{arguments:?}: {}",
            said(&output)
        );
    }
    // Nor does root in a user namespace help.
    let mut inside = as_user(NOBODY, Path::new("unshare"));
    inside
        .arg("-Ur")
        .arg(&command)
        .arg("--config")
        .arg(&config)
        .arg("detach");
    let output = inside.output().unwrap();
    assert!(!output.status.success());
    // Users outside the group may not even read.
    let output = ask(NOBODY - 1, &["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("paths.socket_group"),
        "{}",
        said(&output)
    );
    assert_eq!(bed.json(&["status"])["problems"], serde_json::json!([]));
    assert!(bed.running_program().is_some());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_policy_that_may_not_come_before_the_learner_is_refused_whole() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("before", "");
    let policy = bed.directory.path().join("policy.toml");
    fs::write(
        &policy,
        "name = \"mark\"\n[[rule]]\nname = \"all\"\nmatch = {}\nset = { mark = 5 }\n",
    )
    .unwrap();
    let apply = |bed: &Bed| {
        let mut apply = Command::new("setpriv");
        apply
            .args([
                "--bounding-set",
                "-all,+bpf,+net_admin,+perfmon",
                thalweg(),
                "--config",
            ])
            .arg(bed.configuration())
            .args(["policy", "apply"])
            .arg(&policy);
        apply.output().unwrap()
    };
    let output = apply(&bed);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("CAP_SYS_ADMIN"), "{}", said(&output));
    let shown = bed.thalweg(&["policy", "show"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("no policy is in force"));
    // A policy in force may be replaced.
    bed.apply("name = \"mark\"\n[[rule]]\nname = \"all\"\nmatch = {}\nset = { mark = 4 }\n");
    let output = apply(&bed);
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn files_are_the_agents_own_whatever_they_were() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("modes"), "");
    let store = bed.state().join("thalweg.db");
    let open_umask = |bed: &Bed| {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "umask 000; exec \"$@\"", "sh"])
            .args([bed.run_command().get_program()])
            .args(bed.run_command().get_args())
            .stdin(Stdio::null());
        shell
    };
    bed.start_by(open_umask(&bed));
    let private = |bed: &Bed| {
        assert_eq!(mode(&bed.state()), 0o700);
        for entry in fs::read_dir(bed.state()).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(mode(&path), 0o600, "{}", path.display());
        }
        assert!(store.exists());
        assert_eq!(mode(&bed.socket()), 0o600);
        assert_eq!(mode(&bed.pin), 0o700);
    };
    private(&bed);
    assert!(bed.end(Signal::SIGTERM).success());
    // As earlier versions created them.
    fs::set_permissions(bed.state(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&store, fs::Permissions::from_mode(0o644)).unwrap();
    bed.start();
    private(&bed);
    assert!(bed.end(Signal::SIGTERM).success());
    // The agent refuses a directory that others may write to.
    fs::set_permissions(bed.state(), fs::Permissions::from_mode(0o770)).unwrap();
    let refusal = bed.refused();
    assert!(refusal.contains("chmod go-w"), "{refusal}");
    fs::set_permissions(bed.state(), fs::Permissions::from_mode(0o700)).unwrap();
    chown(&store, Some(NOBODY), None).unwrap();
    let refusal = bed.refused();
    assert!(refusal.contains("belongs to user 65534"), "{refusal}");
    chown(&store, Some(0), None).unwrap();
    bed.start();
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_directory_behind_somebody_elses_is_refused_in_words() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("behind"), "");
    let home = bed.directory.path().join("home");
    fs::create_dir(&home).unwrap();
    let text = fs::read_to_string(bed.configuration()).unwrap();
    let inside = home.join("state");
    let text = text.replace(bed.state().to_str().unwrap(), inside.to_str().unwrap());
    fs::write(bed.configuration(), text).unwrap();
    chown(&home, Some(NOBODY), None).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    let refusal = bed.refused();
    assert!(refusal.contains("without CAP_DAC_OVERRIDE"), "{refusal}");
    assert!(!bed.socket().exists());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_group_that_is_not_there_is_named() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("nogroup"), "");
    set_path(&bed, "socket_group", "thalweg-no-such");
    let refusal = bed.refused();
    assert!(
        refusal.contains("there is no group \"thalweg-no-such\" (paths.socket_group)"),
        "{refusal}"
    );
    assert!(!bed.socket().exists());
    assert!(bed.running_program().is_none());
}

/// The sources of a test: of a file, or of all files of a directory. None if there is no such test.
fn sources(name: &str, test: &str) -> Option<String> {
    let folder = |path: &str| Some(thalweg_testbed::manifest_path(path)).filter(|it| it.exists());
    let root = match name {
        "lab-cli" => folder("lab/cli"),
        _ => folder(&format!("crates/{name}")).or_else(|| folder(&format!("lab/{name}"))),
    }?;
    let tests = root.join("tests");
    let within = |folder: &Path| -> Vec<_> {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    // A file of `src` or `tests`, or of a test program's directory.
    let mut folders = vec![root.join("src"), tests.clone()];
    folders.extend(within(&tests));
    let file = |folder: PathBuf| folder.join(format!("{test}.rs"));
    let mut files: Vec<_> = folders.into_iter().map(file).collect();
    for folder in [&tests, &tests.join(name)] {
        files.extend(within(&folder.join(test)));
    }
    let texts = files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok());
    texts.reduce(|all, more| all + &more)
}

/// Each statement of SECURITY.md names its tests: `crate` `file` `name`, ....
#[test]
fn the_threat_model_names_tests_that_exist() {
    let page = include_str!("../../../../SECURITY.md");
    let mut named = 0;
    for cell in page.lines().filter_map(|line| line.strip_suffix(" |")) {
        let cell = cell.rsplit(" | ").next().unwrap();
        let mut words = cell.split('`').skip(1).step_by(2);
        let mut source = String::new();
        while let Some(word) = words.next() {
            named += 1;
            if source.contains(&format!("fn {word}(")) {
                continue;
            }
            let file = words.next().unwrap_or_default();
            source = sources(word, file).unwrap_or_else(|| panic!("{word} {file} in: {cell}"));
        }
    }
    assert!(named > 40, "{named}");
}
