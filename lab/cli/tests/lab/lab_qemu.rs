//! `thalweg-lab run --backend qemu`: whole runs on a distribution's kernel, in virtual time.
//!
//! Tests that boot a kernel need QEMU and a kernel of a package, and no privilege.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use thalweg_guest::qemu::cpio::Archive;
use thalweg_testbed::place::{
    DELAYED, Place, assert_code, assert_delayed, assert_ended, assert_same, files, finish,
    on_small_disk, said,
};
use thalweg_testbed::{
    copy_of_command, laboratory, manifest_path, privileged, skip, stock, tell_skipped,
};

/// A user who owns nothing.
const NOBODY: u32 = 65_534;
/// Loss, queue and delay, so that runs can differ.
const PATH: &str = "loss = \"0.5%\"\nrate = \"20mbit\"\ndelay = \"10ms\"\n";

/// A run of the scenario in QEMU on a kernel.
fn qemu(place: &Place, kernel: &str, arguments: &[&str]) -> Command {
    let arguments = [&["--backend", "qemu", "--kernel", kernel], arguments].concat();
    place.command(Path::new(laboratory()), &arguments)
}

fn run(command: &mut Command) -> Output {
    finish(command.spawn().unwrap())
}

/// Without ECN the kernel's dctcp runs as dctcp-reno. The published rule books that as dctcp; an arm
/// without measurement costs nothing, and would be chosen for ever.
#[test]
#[ignore = "slow: half a minute of a processor"]
fn classic_books_what_its_dctcp_measured() {
    let Some(kernel) = stock::kernel() else {
        return;
    };
    let place = Place::new(&format!("[path]\n{PATH}"));
    let arguments = ["--mode", "classic", "--connections", "12"];
    assert_code(&run(&mut qemu(&place, kernel, &arguments)), 0);
    let results = place.results();
    let hosts = results["scenarios"][0]["modes"][0]["hosts"].as_array();
    let arms = hosts
        .unwrap()
        .iter()
        .flat_map(|host| host["arms"].as_array().unwrap());
    let measured: Vec<_> = arms
        .filter(|arm| arm["arm"] == "dctcp" && arm["count"].as_u64() > Some(0))
        .map(|arm| arm["metric"].as_f64().unwrap())
        .collect();
    assert!(!measured.is_empty(), "dctcp was not tried: {results}");
    assert!(measured.iter().all(|cost| *cost > 0.0), "{measured:?}");
}

#[test]
fn two_connections_in_virtual_time() {
    let Some(kernel) = stock::kernel() else {
        return;
    };
    let place = Place::new(DELAYED);
    let arguments = [
        "--mode",
        "baseline",
        "--connections",
        "2",
        "--memory",
        "512mib",
    ];
    assert_code(&run(&mut qemu(&place, kernel, &arguments)), 0);
    let results = place.results();
    assert_delayed(&results, 2);
    // Figures that a machine's speed would blur. They are 1448 of 1514 bytes of 50 Mbit/s, less
    // slow start, and 10 ms of round-trip time, counted to a sixteenth.
    let connections = results["scenarios"][0]["modes"][0]["connections"].as_array();
    for connection in connections.unwrap() {
        let goodput = connection["goodput_bps"].as_f64().unwrap() / 1e6;
        assert!((46.0..47.9).contains(&goodput), "{connection}");
        let least = connection["rtt_us"][0][0].as_f64().unwrap();
        assert!((10_000.0..10_700.0).contains(&least), "{connection}");
    }
    let environment = &results["environment"];
    assert!(
        environment["kernel"].as_str().unwrap().contains(kernel),
        "{environment}"
    );
    assert_eq!(environment["cpus"], 1);
    assert!(
        environment["started"]
            .as_str()
            .unwrap()
            .starts_with("2026-01-01T00:00:")
    );
    let backend = &environment["backend"];
    assert_eq!(backend["name"], "qemu");
    let why = backend["why"].as_str().unwrap();
    assert!(
        why.contains("QEMU emulator version") && why.contains("linux-image-"),
        "{why}"
    );
    let machine = backend["kernel_command"].as_str().unwrap();
    assert!(
        machine.contains("shift=0,sleep=off") && machine.contains("-m 524288K"),
        "{machine}"
    );
    // The command line as given, without the path of the report.
    let command = environment["command"].as_str().unwrap();
    assert!(
        command.contains("lab run") && !command.contains("--out"),
        "{command}"
    );
    let page = fs::read_to_string(place.path("out/report.html")).unwrap();
    assert!(page.contains("--memory 512mib") && !page.contains("@COMMAND@"));
    assert!(place.path("out/raw/baseline-0001.json").exists());
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

/// Pages to two hosts of one network, behind bottlenecks by a trace of 12 Mbit/s.
#[test]
#[ignore = "slow: half a minute of a processor"]
fn pages_are_alike_in_all_modes_and_keep_to_a_trace() {
    let Some(kernel) = stock::kernel() else {
        return;
    };
    let place = Place::new(
        "[path]\ntrace = \"steady.trace\"\ndelay = \"10ms\"\noffload = false\n\
         [[host]]\nname = \"line\"\ncount = 2\n\
         [traffic]\nkind = \"web\"\nconnections = 1\nduration = \"2s\"\nevery = \"700ms\"\n\
         objects = 3\nbytes = \"200kb\"\n\
         [[expect]]\nmode = \"fixed:reno\"\nstatistic = \"page-mean\"\n\
         relative_to = \"baseline\"\nat_most = 1.5\n\
         [[expect]]\nmode = \"baseline\"\nstatistic = \"fct-p99\"\nclass = \"large\"\nat_most = \"9s\"\n",
    );
    fs::write(place.path("steady.trace"), "1\n").unwrap();
    let arguments = [
        "--mode",
        "baseline",
        "--mode",
        "fixed:reno",
        "--memory",
        "512mib",
    ];
    assert_code(&run(&mut qemu(&place, kernel, &arguments)), 0);
    let results = place.results();
    let scenario = &results["scenarios"][0];
    let objects = |mode: usize| scenario["modes"][mode]["connections"].as_array().unwrap();
    let sent = |mode| -> Vec<String> {
        let of = |one: &Value| format!("{} {} {}", one["address"], one["page"], one["flow_bytes"]);
        objects(mode).iter().map(of).collect()
    };
    assert_eq!(sent(0), sent(1));
    for host in ["10.0.0.2", "10.0.0.3"] {
        let at_host = |one: &&Value| one["address"] == host && one["host"] == "line";
        let pages: std::collections::BTreeSet<u64> = (objects(0).iter().filter(at_host))
            .map(|one| one["page"].as_u64().unwrap())
            .collect();
        assert!(!pages.is_empty(), "{host}");
    }
    let time = |one: &Value, key: &str| one[key].as_f64().unwrap_or(f64::NAN) / 1e3;
    for one in objects(0) {
        assert_eq!(one["error"], Value::Null, "{one}");
        // The payload alone takes 133 ms at 12 Mbit/s, and the way 10 ms. Buckets that new rates
        // find full pass 3 kB each.
        assert!(time(one, "fct_us") > 138.0, "{one}");
        assert!(time(one, "page_us") >= time(one, "fct_us"), "{one}");
    }
    // Alone, an object has slow start, some five round trips, beside that.
    let least = objects(0).iter().map(|one| time(one, "fct_us"));
    let least = least.fold(f64::INFINITY, f64::min);
    assert!(least < 280.0, "{least} ms");
    for check in scenario["checks"].as_array().unwrap() {
        assert_eq!(check["verdict"], "met", "{check}");
    }
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

/// A missed expectation gives exit code 5, and the table names it.
#[test]
#[ignore = "slow: ninety seconds of traffic"]
fn a_deep_queue_is_filled_as_its_scenario_says() {
    let Some(kernel) = stock::kernel() else {
        return;
    };
    let place = Place::new(DELAYED);
    let file = manifest_path("scenarios/lab/bottleneck-10m.toml");
    fs::copy(file, place.path("scenario.toml")).unwrap();
    let modes = ["baseline", "fixed:bbr", "fixed:reno"].map(|mode| ["--mode", mode]);
    assert_code(&run(&mut qemu(&place, kernel, &modes.concat())), 0);
}

#[test]
#[ignore = "slow: boots four kernels, some two minutes"]
fn two_runs_are_the_same_to_the_byte() {
    let Some(kernel) = stock::kernel() else {
        return;
    };
    let scenario = |seed: u32| {
        format!("[path]\n{PATH}seed = {seed}\n[traffic]\nconnections = 4\nduration = \"1s\"\n")
    };
    let modes = ["--mode", "baseline", "--mode", "thalweg"];
    // Each has another path, and so a command line of another length.
    let measured = |seed: u32, further: &[&str]| {
        let place = Place::new(&scenario(seed));
        let deep = place.path("a-directory-with-quite-another-and-longer-name");
        fs::create_dir(&deep).unwrap();
        let mut command = qemu(&place, kernel, &[&modes, further].concat());
        if !further.is_empty() {
            command.env("TMPDIR", &deep);
        }
        assert_code(&run(&mut command), 0);
        let mut all = files(&place.path("out"));
        for name in ["results.json", "report.html"] {
            // The command line names the scenario's directory.
            let text = String::from_utf8(all[Path::new(name)].clone()).unwrap();
            let own = place.directory().to_str().unwrap();
            let text = text.replace(own, "PLACE").replace(" --shift 0", "");
            all.insert(name.into(), text.into_bytes());
        }
        all
    };
    let one = measured(1, &[]);
    let same = measured(1, &["--shift", "0"]);
    assert_same(&one, &same);
    // The results are not trivially equal.
    let connections = |of: &BTreeMap<PathBuf, Vec<u8>>| {
        let results: Value = serde_json::from_slice(&of[Path::new("results.json")]).unwrap();
        results["scenarios"][0]["modes"][0]["connections"].clone()
    };
    for connection in connections(&one).as_array().unwrap() {
        assert!(
            connection["goodput_bps"].as_f64().unwrap() > 1e6,
            "{connection}"
        );
    }
    let [seed, shift] = [measured(2, &[]), measured(1, &["--shift", "1"])];
    for other in [&seed, &shift] {
        assert_ne!(connections(&one), connections(other));
    }
    // Sixteen bytes of the kernel's random numbers.
    let cookie = |of: &BTreeMap<PathBuf, Vec<u8>>| {
        let raw = &of[Path::new("raw/baseline-0000.json")];
        let raw: Value = serde_json::from_slice(raw).unwrap();
        raw["start"]["cookie"].as_str().unwrap().to_owned()
    };
    assert_ne!(cookie(&one), cookie(&seed));
}

#[test]
#[ignore = "slow: boots a kernel, some ten seconds"]
fn a_guest_with_too_little_memory_says_so_in_one_line() {
    let Some(kernel) = stock::kernel() else {
        return;
    };
    let place = Place::new(DELAYED);
    let output = run(&mut qemu(
        &place,
        kernel,
        // The agent's program is in its memory, too.
        &["--mode", "thalweg", "--memory", "128mib"],
    ));
    assert_code(&output, 1);
    let said = said(&output);
    assert!(said.contains("give it more memory (--memory"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

/// By QEMU's version and the package's: the nanosecond at which the first process starts. From the
/// BIOS to the end of the kernel's boot it takes some 1.6 billion instructions, the same on every
/// machine.
const COUNTS: [(&str, &str, &str); 2] = [
    (
        "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)",
        "6.1.192-3",
        "000000005c362d45",
    ),
    (
        "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)",
        "6.12.117-1~deb12u1",
        "00000000877edecb",
    ),
];

#[test]
#[ignore = "slow: boots each kernel that is there, some ten seconds"]
fn the_first_process_begins_at_the_same_instruction_on_every_machine() {
    let kernels = stock::several();
    if kernels.is_empty() {
        return;
    }
    let emulator = Command::new(stock::QEMU).arg("--version").output().unwrap();
    let emulator = String::from_utf8(emulator.stdout).unwrap();
    let place = Place::new("");
    // The run's own file system is replaced by one with the program that prints the time.
    let probe = place.path("probe.cpio");
    fs::write(&probe, first_process(place.directory())).unwrap();
    let script = format!(
        "[ $1 = --version ] || cp {} initial.cpio; exec {} \"$@\"",
        probe.display(),
        stock::QEMU
    );
    let path = place.first_on_path("qemu-system-x86_64", &script);
    for stock in kernels {
        let version = stock["package"]["version"].as_str().unwrap();
        let recorded = COUNTS
            .iter()
            .find(|(of, package, _)| emulator.starts_with(of) && *package == version);
        let Some((.., recorded)) = recorded else {
            tell_skipped(&format!("no count is recorded for {emulator}, {version}"));
            continue;
        };
        let name = stock["name"].as_str().unwrap();
        let mut command = qemu(&place, name, &["--memory", "512mib"]);
        let output = run(command.env("PATH", &path));
        assert_code(&output, 1);
        let expected = format!("thalweg-lab: in QEMU: {recorded}\n");
        assert_eq!(said(&output), expected, "{emulator}, {version}");
    }
}

/// An initial file system whose one program is `count.S`.
fn first_process(directory: &Path) -> Vec<u8> {
    let object = directory.join("count.o");
    let code = directory.join("count.bin");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/count.S");
    let mut assemble = Command::new("cc");
    assemble.arg("-c").arg(source).arg("-o").arg(&object);
    let mut copy = Command::new("objcopy");
    copy.args(["-O", "binary", "-j", ".text"])
        .args([&object, &code]);
    for step in [&mut assemble, &mut copy] {
        assert!(step.status().unwrap().success());
    }
    let code = fs::read(code).unwrap();
    // The minimum of elf(5): a header, and one segment for the whole file.
    let (address, begin) = (0x40_0000_u64, 0x78_u64);
    let size = begin + code.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    for word in [address + begin, 0x40, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend([
        0, 0, 0, 0, 0x40, 0, 0x38, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0,
    ]);
    for word in [0, address, address, size, size, 0x1000] {
        file.extend(word.to_le_bytes());
    }
    file.extend(code);
    let mut archive = Archive::new(Vec::new());
    archive
        .add_file(Path::new("/usr/bin/thalweg-lab"), 0o755, &file)
        .unwrap();
    archive
        .add_device(Path::new("/dev/console"), (5, 1))
        .unwrap();
    archive
        .add_device(Path::new("/dev/ttyS1"), (4, 65))
        .unwrap();
    archive.finish_archive().unwrap()
}

/// Checks one line with these words, an exit code, and that nothing is left.
fn assert_refused(place: &Place, output: &Output, code: i32, words: &str) {
    assert_code(output, code);
    let said = said(output);
    assert!(said.contains(words), "{said}");
    assert_eq!(place.leftovers(), Vec::<String>::new());
    assert!(!place.path("out").exists());
}

/// The output with QEMU, or with a replacement if there is none: nothing is started here.
fn with_qemu(place: &Place, command: &mut Command) -> Output {
    let version = "echo 'QEMU emulator version 0'";
    run(command.env("PATH", place.first_on_path("qemu-system-x86_64", version)))
}

#[test]
fn what_cannot_be_is_refused_before_anything_starts() {
    for (arguments, code, words) in [
        (
            &["--backend", "host", "--kernel", "x"][..],
            1,
            "--kernel goes with --backend qemu",
        ),
        (&["--shift", "1"], 2, "--shift goes with --backend qemu"),
        (
            &["--backend", "qemu", "--shift", "11"],
            2,
            "expected a whole number from 0 to 10",
        ),
        (
            &["--backend", "qemu", "--kernel", "6.0-none"],
            1,
            "no kernel \"6.0-none\": expected a",
        ),
        (
            &["--backend", "qemu", "--kernel", "./none"],
            1,
            "cannot read the kernel ./none",
        ),
    ] {
        let place = Place::new("");
        let output = with_qemu(
            &place,
            &mut place.command(Path::new(laboratory()), arguments),
        );
        assert_refused(&place, &output, code, words);
    }
    let place = Place::new("");
    let file = stock::no_kernel(place.directory());
    let name = file.to_str().unwrap().to_owned();
    let refused = |arguments: &[&str], words: &str| {
        let output = with_qemu(&place, &mut qemu(&place, &name, arguments));
        assert_refused(&place, &output, 1, words);
    };
    refused(
        &["--mode", "fixed:prague"],
        "the kernel 6.12.1-test has no module tcp_prague",
    );
    refused(
        &["--memory", "1mib"],
        "--memory: expected memory from 128mib to 4000mb",
    );
    fs::remove_file(place.path("lib/modules/6.12.1-test/modules.dep")).unwrap();
    refused(&[], "is Linux 6.12.1-test, whose modules are neither in");
    fs::write(&file, "text").unwrap();
    refused(&[], "is no Linux kernel for x86");
}

#[test]
fn no_kernel_at_all_says_how_to_add_one() {
    let place = Place::new("");
    if fs::read_dir("/boot").is_ok_and(|mut entries| entries.next().is_some()) {
        tell_skipped("this machine has kernels of its own");
        return;
    }
    let mut command = place.command(Path::new(laboratory()), &["--backend", "qemu"]);
    let output = with_qemu(&place, command.env("XDG_CACHE_HOME", place.path("cache")));
    assert_refused(&place, &output, 1, "`thalweg-lab kernels add linux-image-");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_image_that_only_root_may_read() {
    if !nix::unistd::geteuid().is_root() {
        skip("not root: cannot become someone else");
        return;
    }
    let place = Place::new("");
    let file = stock::no_kernel(place.directory());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    // Others may not read the directory of this test's own binary.
    let program = place.path("thalweg-lab");
    copy_of_command(&program);
    for path in [place.directory(), &program] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let arguments = ["--backend", "qemu", "--kernel", file.to_str().unwrap()];
    let mut command = place.command(&program, &arguments);
    command
        .uid(NOBODY)
        .gid(NOBODY)
        .env("HOME", "/nonexistent")
        .current_dir("/");
    let output = with_qemu(&place, &mut command);
    assert_refused(
        &place,
        &output,
        1,
        "Permission denied (os error 13) (chmod a+r as root",
    );
}

/// A run with a script in place of QEMU, and no kernel.
fn fake(place: &Place, script: &str, arguments: &[&str]) -> Command {
    let file = stock::no_kernel(place.directory());
    let mut command = qemu(place, file.to_str().unwrap(), arguments);
    let version = "[ \"$1\" = --version ] && exec echo 'QEMU emulator version 0'";
    let path = place.first_on_path("qemu-system-x86_64", &format!("{version}\n{script}"));
    command.env("PATH", path);
    command
}

#[test]
fn a_kernel_that_does_not_boot_is_ended_and_quoted() {
    for (script, words) in [
        (
            "echo 'VFS: waiting for root'; sleep 1000",
            ["QEMU did not boot within 1 s", "VFS: waiting for root"],
        ),
        (
            "echo surprise >>messages; sleep 1000",
            ["\"surprise\\n\", which is no message", "(nothing)"],
        ),
        (
            "echo '{\"kind\":\"file\",\"path\":\"../x\",\"bytes\":1}' >>messages; sleep 1000",
            ["QEMU sent a file \"../x\"", "(nothing)"],
        ),
        (
            "echo '[    1.5] Kernel panic - not syncing: VFS: no root'",
            [
                "QEMU ended unexpectedly",
                "saying \"Kernel panic - not syncing: VFS: no root\"",
            ],
        ),
        (
            "echo '{\"kind\":\"end\",\"error\":\"cannot\"}' >>messages",
            ["in QEMU: cannot", ""],
        ),
    ] {
        let place = Place::new("");
        assert_ended(&place, fake(&place, script, &["--boot-limit", "1"]), &words);
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_full_disk_is_named_and_nothing_is_left() {
    if !privileged() {
        return;
    }
    let place = Place::new("");
    let command = fake(&place, "sleep 1000", &[]);
    let output = run(&mut on_small_disk(&place.temporary(), &command));
    assert_code(&output, 1);
    let said = said(&output);
    assert!(
        said.contains("initial.cpio: No space left on device"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
}

#[test]
fn a_signal_leaves_nothing() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let place = Place::new("");
        let child = fake(&place, "echo booting; sleep 1000", &[])
            .spawn()
            .unwrap();
        place.await_console("booting");
        place.interrupt(child, signal);
    }
}

#[test]
fn what_a_killed_run_leaves_is_removed_by_the_next() {
    let place = Place::new("");
    let child = fake(&place, "echo booting; exec sleep 1000", &[])
        .spawn()
        .unwrap();
    place.await_console("booting");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL).unwrap();
    child.wait_with_output().unwrap();
    assert!(!place.leftovers().is_empty());
    let file = place.path("boot/vmlinuz-6.12.1-test");
    let mut command = qemu(&place, file.to_str().unwrap(), &[]);
    let path = place.first_on_path("qemu-system-x86_64", "echo 'QEMU emulator version 0'");
    assert_code(&run(command.env("PATH", path)), 1);
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

/// All parts of Thalweg in a kernel: the agent, a policy, congestion controls and queueing
/// disciplines of the kernel's modules, several hosts. If the kernel supports congestion controls
/// in BPF, also the learned rate controller.
#[test]
#[ignore = "slow: a minute in each kernel"]
fn all_of_thalweg_runs_inside() {
    for stock in stock::several() {
        run_all(stock["name"].as_str().unwrap(), stock["struct_ops"] == true);
    }
}

fn run_all(kernel: &str, struct_ops: bool) {
    let model = manifest_path("models/adpg-plus.safetensors");
    let clamp = manifest_path("policies/clamp.toml");
    let arm = match struct_ops {
        true => format!("[[arm]]\nname = \"thalweg_rl\"\nload = {model:?}\n"),
        false => String::new(),
    };
    let place = Place::new(&format!(
        "{arm}[[policy]]\nname = \"clamp\"\nfile = {clamp:?}\n\
         [path]\nfamily = \"ipv6\"\nrate = \"50mbit\"\ndelay = \"5ms\"\naqm = \"red\"\necn = true\n\
         [[host]]\nname = \"near\"\n[[host]]\nname = \"far\"\ndelay = \"20ms\"\n\
         [traffic]\nconnections = 2\n[system]\nqdisc = \"fq\"\n"
    ));
    let mut modes = vec!["thalweg", "policy:clamp", "fixed:dctcp", "fixed:htcp"];
    modes.extend(struct_ops.then_some("fixed:thalweg_rl"));
    let arguments: Vec<&str> = modes.iter().flat_map(|mode| ["--mode", mode]).collect();
    assert_code(&run(&mut qemu(&place, kernel, &arguments)), 0);
    let results = place.results();
    let measured = results["scenarios"][0]["modes"].as_array().unwrap();
    assert_eq!(measured.len(), modes.len());
    for (mode, name) in measured.iter().zip(&modes) {
        let connections = mode["connections"].as_array().unwrap();
        assert_eq!(connections.len(), 4, "{name}");
        for connection in connections {
            assert_eq!(connection["error"], Value::Null, "{name}: {connection}");
            assert!(
                connection["goodput_bps"].as_f64().unwrap() > 5e6,
                "{name}: {connection}"
            );
            if let Some(arm) = name.strip_prefix("fixed:") {
                assert_eq!(connection["arm"], arm, "{name}: {connection}");
            }
        }
    }
    let hosts = measured[0]["hosts"].as_array().unwrap();
    assert_eq!(hosts.len(), 2, "{hosts:?}");
    let policy: Value =
        serde_json::from_slice(&fs::read(place.path("out/policy-clamp.json")).unwrap()).unwrap();
    let matched = |rule: &Value| rule["matched"].as_u64().unwrap_or(0);
    let rules = policy["rules"].as_array().unwrap();
    assert!(rules.iter().map(matched).sum::<u64>() > 0, "{policy}");
}
