//! `thalweg detach` in every state of the agent: afterwards nothing of it is in the kernel.

use std::fs;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use libbpf_rs::libbpf_sys::{BPF_CGROUP_SETSOCKOPT, BPF_CGROUP_SOCK_OPS};
use libbpf_rs::{Link, ObjectBuilder, Program};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use thalweg_control::links::{self, Attachment};
use thalweg_control::system;

use thalweg_testbed::cc::{failure, is_offered, row, success};
use thalweg_testbed::{Bed, compile, manifest_path, plain, privileged, thalweg, unique, wait_for};

/// Whether a program is in the kernel.
fn is_loaded(program: u32) -> bool {
    Program::fd_from_id(program).is_ok()
}

/// Detaches, and checks that the agent has ended well and nothing of it is left.
fn detaches(bed: &Bed, mut agent: Child, program: Option<u32>, what: &str) -> Value {
    let told = bed.json(&["detach"]);
    assert_eq!(told["left"], json!([]), "{what}");
    assert!(!bed.pin.exists(), "{what}: {told}");
    let ended = agent.try_wait().expect("waiting");
    assert!(ended.is_some(), "{what}: the agent runs on");
    assert!(!program.is_some_and(is_loaded), "{what}: {program:?}");
    told
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn detach_during_a_start_ends_the_agent() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("detachstart"), "");
    for delay_ms in [1, 10, 30, 60, 120, 250, 500] {
        let agent = bed.spawn(bed.run_command());
        // Any delay is good: the agent is somewhere in its start.
        std::thread::sleep(Duration::from_millis(delay_ms));
        detaches(&bed, agent, None, &format!("after {delay_ms} ms"));
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn detach_with_a_stopped_agent_ends_it() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("detachstop", "");
    let program = bed.running_program();
    bed.signal(Signal::SIGSTOP);
    let agent = bed.leave();
    let told = detaches(&bed, agent, program, "stopped");
    let ended = told["ended"][0].as_str().unwrap();
    assert!(
        ended.ends_with("was stopped, continued, and ended"),
        "{ended}"
    );
}

/// A cgroup with the name of a unit; removed with this value, once it is empty.
struct Unit {
    name: String,
    cgroup: PathBuf,
}

impl Unit {
    /// Moves an agent there.
    fn with_agent(bed: &Bed) -> Self {
        let own = bed.pin.file_name().unwrap().to_str().unwrap();
        let name = format!("{own}.service");
        let cgroup = system::cgroup2_mount().unwrap().join(&name);
        fs::create_dir(&cgroup).unwrap();
        fs::write(cgroup.join("cgroup.procs"), bed.pid().to_string()).unwrap();
        Self { name, cgroup }
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.cgroup);
    }
}

/// Detaches beside a `systemctl` that answers as these cases of a shell say; returns exit code, both
/// outputs, and what `systemctl` was asked.
fn detach_beside_systemd(bed: &Bed, cases: &str) -> (Option<i32>, String, String) {
    detach_beside_systemd_as(Command::new(thalweg()), bed, cases)
}

/// The same by a command that runs `thalweg` with the arguments that it is given.
fn detach_beside_systemd_as(
    mut command_line: Command,
    bed: &Bed,
    cases: &str,
) -> (Option<i32>, String, String) {
    let [source, command, log] =
        ["source", "systemctl", "asked"].map(|name| bed.directory.path().join(name));
    let script = format!(
        "#!/bin/sh\necho \"$*\" >>{}\ncase \"$*\" in\n{cases}\n*) exit 1 ;;\nesac\n",
        log.display()
    );
    fs::write(&source, script).unwrap();
    // A program that another test starts might inherit a file that this process writes.
    let installed = Command::new("install")
        .args(["-m", "755"])
        .args([&source, &command])
        .status();
    assert!(installed.unwrap().success());
    let _ = fs::remove_file(&log);
    let path = std::env::var("PATH").unwrap();
    let output = command_line
        .arg("--config")
        .arg(bed.configuration())
        .arg("detach")
        .env("PATH", format!("{}:{path}", bed.directory.path().display()))
        .output()
        .unwrap();
    let mut said = String::from_utf8(output.stdout).unwrap();
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    (
        output.status.code(),
        said,
        fs::read_to_string(&log).unwrap(),
    )
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn unit_of_an_agent_that_hangs_is_stopped() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("detachunit"), "");
    for status in [1, 0] {
        bed.start();
        let unit = Unit::with_agent(&bed);
        let cases = format!(
            "*MainPID*) echo {} ;;\n*ActiveState*) echo activating ;;\nstop*) exit {status} ;;",
            bed.pid()
        );
        bed.signal(Signal::SIGSTOP);
        let mut agent = bed.leave();
        let (code, said, asked) = detach_beside_systemd(&bed, &cases);
        agent.wait().unwrap();
        assert_eq!(code, Some(status), "{said}");
        let stop = format!("stop --no-ask-password -- {}", unit.name);
        assert!(asked.lines().any(|line| line == stop), "{asked}");
        let words = match status {
            0 => format!("agent: {} was stopped", unit.name),
            _ => format!("{}, by which systemd starts the agent again", unit.name),
        };
        assert!(said.contains(&words), "{said}");
        assert!(!bed.pin.exists(), "{said}");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn unit_of_an_agent_that_ends_well_is_left_alone() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("detachwell", "");
    let unit = Unit::with_agent(&bed);
    let cases = format!(
        "*MainPID*) echo {} ;;\n*ActiveState*) echo inactive ;;",
        bed.pid()
    );
    let agent = bed.leave();
    let (code, said, asked) = detach_beside_systemd(&bed, &cases);
    bed.collect(agent);
    assert_eq!(code, Some(0), "{said}");
    assert!(asked.contains("ActiveState"), "{asked}");
    assert!(!asked.contains("stop"), "{asked}");
    drop(unit);
    // An agent that something else in the unit has started says nothing of the unit.
    bed.start();
    let _other = Unit::with_agent(&bed);
    let agent = bed.leave();
    let (code, said, asked) = detach_beside_systemd(&bed, "*MainPID*) echo 1 ;;");
    bed.collect(agent);
    assert_eq!(code, Some(0), "{said}");
    assert!(asked.contains("MainPID"), "{asked}");
    assert!(!asked.contains("ActiveState"), "{asked}");
}

/// A stop of systemd's would cancel the start that follows.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn unit_that_detaches_while_it_is_stopped_is_left_alone() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("detachinside", "");
    let unit = Unit::with_agent(&bed);
    let cases = format!(
        "*MainPID*) echo {} ;;\n*ActiveState*) echo deactivating ;;\nstop*) ;;",
        bed.pid()
    );
    let mut inside = Command::new("sh");
    inside
        .args(["-c", "echo $$ >\"$0\" && exec \"$@\""])
        .arg(unit.cgroup.join("cgroup.procs"))
        .arg(thalweg());
    let agent = bed.leave();
    let (code, said, asked) = detach_beside_systemd_as(inside, &bed, &cases);
    bed.collect(agent);
    assert_eq!(code, Some(0), "{said}");
    assert!(asked.contains("ActiveState"), "{asked}");
    assert!(!asked.contains("stop"), "{asked}");
}

/// Between two tries of a unit there is no process.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn unit_that_waits_to_start_an_agent_is_stopped() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("detachwait"), "");
    let other = bed.directory.path().join("other.toml");
    fs::write(&other, "[paths]\npin = \"/sys/fs/bpf/thalweg-other\"\n").unwrap();
    for (configuration, is_stopped) in [(bed.configuration(), true), (other, false)] {
        let cases = format!(
            "list-units*) echo 'some.service loaded activating auto-restart Thalweg' ;;\n\
             *ExecStart*) echo '{{ path=/x/thalweg ; argv[]=/x/thalweg --config {} run ; \
             ignore_errors=no ; }}' ;;\n\
             *ActiveState*) echo activating ;;\nstop*) ;;",
            configuration.display()
        );
        let (code, said, asked) = detach_beside_systemd(&bed, &cases);
        assert_eq!(code, Some(0), "{said}");
        let stops = asked.contains("stop --no-ask-password -- some.service");
        assert_eq!(stops, is_stopped, "{asked}");
        assert_eq!(
            said.contains("some.service was stopped"),
            is_stopped,
            "{said}"
        );
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn detach_with_a_faulty_configuration_removes_the_agents_programs() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("detachfault", "");
    let program = bed.running_program();
    let open = fs::OpenOptions::new()
        .append(true)
        .open(bed.configuration());
    open.unwrap().write_all(b"mode = \"fsat\nx = 1\n").unwrap();
    // An agent that is asked, and none.
    let agent = bed.leave();
    detaches(&bed, agent, program, "asked");
    bed.configure("");
    bed.start();
    let program = bed.running_program();
    bed.end(Signal::SIGKILL);
    bed.configure("colour = 1\n");
    let told = bed.json(&["detach"]);
    assert!(told["removed"][0].is_string(), "{told}");
    assert!(!bed.pin.exists() && !program.is_some_and(is_loaded));
}

/// A BPF file system of a bed's own; unmounted with this value.
struct OwnFileSystem(PathBuf);

impl OwnFileSystem {
    /// Mounts one, to which the bed's pins go.
    fn mount(bed: &mut Bed) -> Self {
        let own = Self(bed.directory.path().join("bpf"));
        fs::create_dir(&own.0).unwrap();
        own.call_mount(&["-t", "bpf", "bpf"]);
        bed.pin = own.0.join("thalweg");
        bed.configure("");
        own
    }

    fn remount(&self, options: &str) {
        self.call_mount(&["-o", &format!("remount,{options}")]);
    }

    fn call_mount(&self, arguments: &[&str]) {
        let status = Command::new("mount").args(arguments).arg(&self.0).status();
        assert!(status.unwrap().success(), "{arguments:?}");
    }
}

impl Drop for OwnFileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Numbers of the `sockops` programs of a bed's cgroup.
fn attached(bed: &Bed) -> Vec<u32> {
    let cgroup = links::open_cgroup(bed.pair.cgroup_path()).unwrap();
    links::programs_of(&cgroup, BPF_CGROUP_SOCK_OPS, 0).unwrap()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn detach_from_a_read_only_file_system_stops_the_programs() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("detachro"), "");
    let own = OwnFileSystem::mount(&mut bed);
    // Where the mount alone is read-only, pins are opened still.
    for options in ["bind,ro", "ro"] {
        bed.start();
        assert_eq!(attached(&bed).len(), 1, "{options}");
        own.remount(options);
        let said = String::from_utf8(bed.thalweg(&["detach"]).stderr).unwrap();
        let left = format!("still in the kernel: pins below {} (", bed.pin.display());
        assert!(said.contains(&left), "{options}: {said}");
        assert!(said.contains("Read-only file system"), "{options}: {said}");
        assert_eq!(attached(&bed), [0u32; 0], "{options}");
        let agent = bed.leave();
        bed.collect(agent);
        own.remount("rw");
        bed.json(&["detach"]);
        assert!(!bed.pin.exists(), "{options}");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn unloading_from_a_read_only_file_system_stops_the_programs() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("unloadro"), "");
    let own = OwnFileSystem::mount(&mut bed);
    // Where the whole file system is read-only, links are found by the object's maps.
    let object = compile("probe", bed.directory.path(), "probe.o", &[]);
    let object = object.to_str().unwrap();
    let cgroup = bed.pair.cgroup_path().to_str().unwrap();
    let name = unique("ro");
    let commands = [["sockops", "unload", "probe"], ["cc", "unload", &name]];
    // The mount alone, and the whole file system.
    for options in ["bind,ro", "ro"] {
        success(&bed, &["sockops", "load", object, "--cgroup", cgroup]);
        success(&bed, &["cc", "load", "htcp", "--name", &name]);
        assert_eq!(attached(&bed).len(), 1, "{options}");
        own.remount(options);
        let listed = row(&bed, &name);
        assert_eq!(listed["state"], "loaded", "{options}: {listed}");
        let [sockops, cc] = commands.each_ref().map(|command| failure(&bed, command, 1));
        for said in [&sockops, &cc] {
            assert!(said.contains("Read-only file system"), "{options}: {said}");
        }
        assert!(sockops.contains("detached"), "{options}: {sockops}");
        assert_eq!(attached(&bed), [0u32; 0], "{options}");
        // Kernels before 6.11 detach no congestion control.
        if cc.contains("no longer registered") {
            wait_for("the end of the name", || (!is_offered(&name)).then_some(()));
        } else {
            assert!(cc.contains("still registered"), "{options}: {cc}");
        }
        own.remount("rw");
        for command in &commands {
            success(&bed, command);
        }
        assert!(!bed.pin.exists(), "{options}");
    }
}

/// A try that cannot pin the new link is not to attach the program for a moment.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn nothing_is_attached_that_cannot_be_pinned() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("unpinnable"), "");
    let own = OwnFileSystem::mount(&mut bed);
    let object = compile("silencer", bed.directory.path(), "silencer.o", &[]);
    let object = ObjectBuilder::default().open_file(object).unwrap();
    let object = object.load().unwrap();
    let program = object.progs_mut().next().unwrap();
    let pin = own.0.join("link");
    let attachment = Attachment {
        name: "silencer",
        program: program.as_fd(),
        id: Program::id_from_fd(program.as_fd()).unwrap(),
        // The kernel would refuse it there.
        hook: BPF_CGROUP_SETSOCKOPT,
        pin: &pin,
    };
    let cgroup = links::open_cgroup(bed.pair.cgroup_path()).unwrap();
    for (options, words) in [("rw", "attaching"), ("bind,ro", "removing")] {
        own.remount(options);
        let said = format!("{:#}", attachment.put_back(&cgroup).unwrap_err());
        assert!(said.contains(words), "{options}: {said}");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn detach_without_pins_detaches_what_is_attached() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("detachlost", "");
    let link = Link::open(bed.pin.join("link_sockops")).unwrap();
    bed.end(Signal::SIGKILL);
    fs::remove_dir_all(&bed.pin).unwrap();
    assert_ne!(links::attached_to(&link).unwrap(), Some(0));
    bed.json(&["detach"]);
    assert_eq!(links::attached_to(&link).unwrap(), Some(0));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn commands_leave_files_of_an_ordinary_directory_alone() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("detachplain"), "");
    let ordinary = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(bed.configuration()).unwrap();
    let (old, new) = (bed.pin.to_str().unwrap(), ordinary.path().to_str().unwrap());
    fs::write(bed.configuration(), text.replace(old, new)).unwrap();
    let files = [
        "hosts",
        "link_sockops",
        "next/program",
        "limits/7/link_ingress",
        "cc/own/link",
        "sockops/own/link",
        "policy/link",
    ];
    for name in files {
        let path = ordinary.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "precious").unwrap();
    }
    let told = bed.json(&["detach"]);
    assert_eq!(told["removed"], json!([]));
    // Agents of other tests may be there.
    let others = told["others"].to_string();
    assert!(
        !others.contains("load own") && !others.contains("a policy"),
        "{others}"
    );
    for command in [
        &["cc", "unload", "own"][..],
        &["sockops", "unload", "own"],
        &["policy", "remove"],
    ] {
        let output = bed.thalweg(command);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{command:?}");
        assert!(
            text.contains("not on a BPF file system"),
            "{command:?}: {text}"
        );
    }
    for name in files {
        let path = ordinary.path().join(name);
        assert_eq!(fs::read_to_string(path).unwrap(), "precious", "{name}");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn detach_says_what_a_process_still_holds() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("detachheld", "");
    let link = Link::open(bed.pin.join("link_sockops")).unwrap();
    let number = link.info().unwrap().prog_id;
    let held = Program::fd_from_id(number).unwrap();
    let output = bed.thalweg(&["detach"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let holder = format!(
        "learn_sockops (program {number}), which process {} holds",
        std::process::id()
    );
    assert!(text.contains(&holder), "{text}");
    let agent = bed.leave();
    bed.collect(agent);
    drop((held, link));
    bed.json(&["detach"]);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn detach_removes_pins_that_only_another_version_has() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("detachnewer", "");
    let pinned = bed.pin.join("link_later");
    let link = Link::open(bed.pin.join("link_setsockopt")).unwrap();
    links::pin_object(link.as_fd(), &pinned).unwrap();
    let map = libbpf_rs::MapHandle::from_pinned_path(bed.pin.join("hosts")).unwrap();
    links::pin_object(map.as_fd(), &bed.pin.join("hosts_later")).unwrap();
    drop((link, map));
    let agent = bed.leave();
    detaches(&bed, agent, None, "other pins");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn detach_names_a_policy_that_stays() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("detachother", "");
    bed.apply("name = \"t\"\n[[rule]]\nname = \"r\"\nset.nodelay = true\n");
    let agent = bed.leave();
    let text = String::from_utf8(bed.thalweg(&["detach"]).stdout).unwrap();
    let expected = "not the agent's, and still there: a policy; `thalweg policy remove` removes it";
    assert!(text.contains(expected), "{text}");
    bed.collect(agent);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn detach_names_another_agent_and_leaves_it() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("detachone", "");
    let other = Bed::running("detachtwo", "");
    let agent = bed.leave();
    let text = String::from_utf8(bed.thalweg(&["detach"]).stdout).unwrap();
    let expected = format!(
        "another agent, whose `paths.pin` is {};",
        other.pin.display()
    );
    assert!(text.contains(&expected), "{text}");
    let own = format!("is {};", bed.pin.display());
    assert!(!text.contains(&own), "{text}");
    assert!(other.running_program().is_some());
    bed.collect(agent);
}

/// A file that says nothing of the agent does not make it the default's: what is attached there may
/// be another's.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_acts_on_an_agent_knows_which() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("detachwhich", "");
    let [absent, open, policy] =
        ["absent.toml", "open.toml", "policy.toml"].map(|it| bed.directory.path().join(it));
    fs::copy(bed.configuration(), &open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o666)).unwrap();
    fs::copy(manifest_path("policies/clamp.toml"), &policy).unwrap();
    let commands: [&[&str]; 6] = [
        &["detach"],
        &["policy", "remove"],
        &["cc", "unload", "x"],
        &["sockops", "unload", "x"],
        &["reset", "--yes"],
        &["status"],
    ];
    for command in commands {
        for file in [&absent, &open, &policy] {
            let mut named = Command::new(thalweg());
            let output = named.arg("--config").arg(file).args(command).output();
            let output = output.unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(
                output.status.code(),
                Some(1),
                "{command:?} {file:?}: {said}"
            );
            assert!(said.contains(file.to_str().unwrap()), "{command:?}: {said}");
        }
    }
    for command in &commands[..4] {
        let mut named = Command::new(thalweg());
        let output = named
            .arg("--socket")
            .arg(bed.socket())
            .args(*command)
            .output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {said}");
        assert!(
            said.contains("--socket: does not tell"),
            "{command:?}: {said}"
        );
    }
    assert!(bed.running_program().is_some());
}
