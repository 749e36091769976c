//! `thalweg sockops`: objects of others, compiled here.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libbpf_rs::{Link, ObjectBuilder};
use nix::sys::signal::Signal;

use thalweg_testbed::health::{is_attached, is_well};
use thalweg_testbed::{Bed, plain, privileged, thalweg, unique, wait_for};

/// Compiles the probe.
fn compile(directory: &Path, file: &str, flags: &[&str]) -> PathBuf {
    thalweg_testbed::compile("probe", directory, file, flags)
}

fn failure(bed: &Bed, arguments: &[&str]) -> String {
    let output = bed.thalweg(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn success(bed: &Bed, arguments: &[&str]) -> String {
    let output = bed.thalweg(arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {text}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_object_is_loaded_runs_prints_and_goes_whole() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("sockops"), "");
    let object = compile(bed.directory.path(), "probe.bpf.o", &[]);
    let object = object.to_str().unwrap();
    let cgroup = bed.pair.cgroup_path().to_str().unwrap().to_owned();
    let said = success(&bed, &["sockops", "load", object, "--cgroup", &cgroup]);
    assert_eq!(
        said,
        format!("loaded probe: probe on {cgroup}\nleft out, not sockops: left_out\n")
    );
    let list = bed.json(&["sockops", "list"]);
    assert_eq!(list[0]["name"], "probe");
    assert_eq!(list[0]["cgroup"], cgroup.as_str());
    assert_eq!(list[0]["programs"], serde_json::json!(["probe"]));
    assert!(
        list[0]["maps"]
            .as_array()
            .unwrap()
            .contains(&"established".into())
    );

    let taken = failure(&bed, &["sockops", "load", object, "--cgroup", &cgroup]);
    assert!(taken.contains("is taken"), "{taken}");
    // A second instance under another name is fine.
    success(
        &bed,
        &[
            "sockops", "load", object, "--cgroup", &cgroup, "--name", "second",
        ],
    );
    success(&bed, &["sockops", "unload", "second"]);

    // tracefs may not be mounted; in a mount namespace the test can mount it.
    let mut trace = Command::new("unshare")
        .args(["-m", "sh", "-c"])
        .arg(
            "mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing; \
             exec \"$@\"",
        )
        .args(["sh", thalweg(), "--json", "--config"])
        .arg(bed.configuration())
        .args(["sockops", "trace", "probe"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    // The kernel keeps lines until they are read.
    bed.connect(&address, 3, 0);
    let lines = BufReader::new(trace.stdout.take().unwrap()).lines();
    let texts: Vec<String> = lines
        .take(3)
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
            line["text"].as_str().unwrap().to_owned()
        })
        .collect();
    trace.kill().unwrap();
    trace.wait().unwrap();
    assert_eq!(
        texts,
        [1, 2, 3].map(|number| format!("probe: connection {number}"))
    );

    success(&bed, &["sockops", "unload", "probe"]);
    assert_eq!(success(&bed, &["sockops", "list"]), "nothing is loaded\n");
    assert!(
        !bed.pin.exists(),
        "something stayed in {}",
        bed.pin.display()
    );
    let gone = failure(&bed, &["sockops", "unload", "probe"]);
    assert!(gone.contains("nothing is loaded under"), "{gone}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_cannot_be_loaded_is_said_and_leaves_nothing() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("sockops-faults"), "");
    let cgroup = bed.pair.cgroup_path().to_str().unwrap().to_owned();
    let directory = bed.directory.path();
    let text = directory.join("text.o");
    std::fs::write(&text, "no object at all, but long enough").unwrap();
    let cut = directory.join("cut.o");
    let good = compile(directory, "good.o", &[]);
    std::fs::write(&cut, &std::fs::read(&good).unwrap()[..200]).unwrap();
    let cases = [
        (
            text,
            "is not an ELF file; expected an object that clang compiled",
        ),
        (PathBuf::from("/bin/true"), "for another machine"),
        (directory.join("none.o"), "No such file"),
        (cut, "cannot be read as a BPF object"),
        (
            compile(directory, "other.o", &["-DNO_SOCKOPS"]),
            "no program in a section \"sockops\" (only other)",
        ),
        (
            compile(directory, "refused.o", &["-DREFUSED"]),
            "invalid bpf_context access off=4000",
        ),
        (
            compile(directory, "library.o", &["-DLIBRARY"]),
            "extern 'memcmp' [",
        ),
        (
            compile(directory, "library.o", &["-DLIBRARY"]),
            "; a BPF program has no C library: declare functions static",
        ),
        (
            compile(directory, "old-map.o", &["-DOLD_MAP"]),
            "; declare maps in section \".maps\", with __uint and __type",
        ),
    ];
    for (object, expected) in cases {
        let object = object.to_str().unwrap();
        let said = failure(&bed, &["sockops", "load", object, "--cgroup", &cgroup]);
        assert!(said.contains(expected), "{expected:?} is not in: {said}");
        assert!(said.len() < 1000, "too much of a log: {said}");
        assert!(!bed.pin.exists(), "left behind by {object}");
    }
    let good = good.to_str().unwrap();
    let said = failure(&bed, &["sockops", "load", good, "--cgroup", "/tmp"]);
    assert!(said.contains("is not a cgroup v2 directory"), "{said}");
    let arguments = [
        "sockops", "load", good, "--cgroup", &cgroup, "--name", "../x",
    ];
    let said = failure(&bed, &arguments);
    assert!(said.contains("cannot be a name"), "{said}");
    assert!(!bed.pin.exists());
}

/// An object with two programs.
fn compile_two(directory: &Path) -> PathBuf {
    let (source, object) = (directory.join("two.bpf.c"), directory.join("two.o"));
    let section = |name| format!("__attribute__((section(\"{name}\"), used))");
    let program = |name| {
        let section = section("sockops");
        format!("{section} int {name}(void *ops)\n{{\n\treturn 1;\n}}\n")
    };
    let license = format!("char _license[] {} = \"GPL\";\n", section("license"));
    std::fs::write(&source, program("first") + &program("second") + &license).unwrap();
    thalweg_testbed::compile_file(&source, &object, &[]);
    object
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn one_of_several_programs_is_put_back() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("sockops-two", "");
    let object = compile_two(bed.directory.path());
    let cgroup = bed.pair.cgroup_path().to_str().unwrap().to_owned();
    let file = object.to_str().unwrap();
    success(&bed, &["sockops", "load", file, "--cgroup", &cgroup]);
    let pin = bed.pin.join("sockops/two/link_second");
    let program = || {
        let link = Link::open(&pin).ok().filter(|_| is_attached(&pin))?;
        Some(link.info().ok()?.prog_id)
    };
    let own = program();
    assert!(own.is_some());
    let check = |what: &str, said: &str, take: &dyn Fn()| {
        let log = bed.logged().len();
        take();
        wait_for(what, || (program() == own).then_some(()));
        wait_for(what, || is_well(&bed));
        let log = &bed.logged()[log..];
        assert!(log.contains(said), "{what}: {said:?} is not in {log}");
    };
    check("a link's pin", "sockops object two: second", &|| {
        std::fs::remove_file(&pin).unwrap();
    });
    check(
        "another program",
        "second is not attached: its link runs another program",
        &|| {
            let object = ObjectBuilder::default().open_file(&object).unwrap();
            let object = object.load().unwrap();
            let other = object.progs_mut().next().unwrap();
            Link::open(&pin).unwrap().update_prog(&other).unwrap();
        },
    );
    // Without an agent it is said by the list.
    bed.end(Signal::SIGTERM);
    Link::open(&pin).unwrap().detach().unwrap();
    let listed = bed.json(&["sockops", "list"]);
    assert_eq!(listed[0]["cgroup"], cgroup.as_str(), "{listed}");
    let programs = serde_json::json!(["first", "second"]);
    assert_eq!(listed[0]["programs"], programs, "{listed}");
    let faults = listed[0]["faults"].to_string();
    let fault = "second is not attached: its link was detached";
    assert!(faults.contains(fault), "{faults}");
    let text = success(&bed, &["sockops", "list"]);
    assert!(text.contains(&format!("problem: two: {fault}")), "{text}");
    success(&bed, &["sockops", "unload", "two"]);
}

/// Exit code and message of a command; none if a signal ended it.
fn said(bed: &Bed, arguments: &[&str]) -> Option<(i32, String)> {
    let output = bed.thalweg(arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    Some((output.status.code()?, text))
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn names_that_are_no_text_end_in_one_line() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("sockops-names"), "");
    let cgroup = bed.pair.cgroup_path().to_str().unwrap().to_owned();
    let good = std::fs::read(compile(bed.directory.path(), "good.o", &[])).unwrap();
    let object = bed.directory.path().join("probe.o");
    let object = object.to_str().unwrap();
    let mut refused = 0;
    for name in ["established", "probe", "left_out", "format", "bpf_sock_ops"] {
        let mut bytes = good.clone();
        let mut from = 0;
        while let Some(at) = bytes[from..]
            .windows(name.len() + 1)
            .position(|text| text[..name.len()] == *name.as_bytes() && text[name.len()] == 0)
        {
            from += at + 1;
            bytes[from..from + 3].copy_from_slice(b"\xff\x1b\n");
        }
        assert!(from > 0, "{name} is not in the object");
        std::fs::write(object, bytes).unwrap();
        let (code, text) = said(&bed, &["sockops", "load", object, "--cgroup", &cgroup])
            .unwrap_or_else(|| panic!("aborted by the name {name}"));
        if code == 0 {
            success(&bed, &["sockops", "unload", "probe"]);
        } else {
            refused += 1;
            assert_eq!(code, 1, "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
            assert!(!text.trim_end().contains(char::is_control), "{text:?}");
        }
        assert!(!bed.pin.exists(), "left behind by the name {name}");
    }
    assert!(refused > 0, "nothing was wrong with these names");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_a_killed_load_leaves_is_reused() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("sockops-left"), "");
    let cgroup = bed.pair.cgroup_path().to_str().unwrap().to_owned();
    let object = compile(bed.directory.path(), "probe.o", &[]);
    let object = object.to_str().unwrap();
    let left = [
        bed.pin.join("sockops/probe"),
        bed.pin.join("sockops/probe~new"),
    ];
    for left in left {
        std::fs::create_dir_all(&left).unwrap();
        assert_eq!(success(&bed, &["sockops", "list"]), "nothing is loaded\n");
        std::fs::create_dir_all(&left).unwrap();
        success(&bed, &["sockops", "load", object, "--cgroup", &cgroup]);
        assert!(!bed.pin.join("sockops/probe~new").exists());
        success(&bed, &["sockops", "unload", "probe"]);
        assert!(!bed.pin.exists());
    }
}

/// Numbers that are the same in every run (SplitMix64, Steele and others, OOPSLA 2014).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }
}

/// Loads objects that differ from valid ones by a few bytes, in random places, or that are cut
/// short. Each must fail with one line, and leave nothing, or load.
fn mutants(label: &str, number: u64) {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain(label), "");
    let directory = bed.directory.path();
    let cgroup = bed.pair.cgroup_path().to_str().unwrap().to_owned();
    let control = unique("mut");
    let sockops = std::fs::read(compile(directory, "good.o", &[])).unwrap();
    let cc = {
        let path = thalweg_testbed::compile("fixed", directory, "cc.o", &[]);
        std::fs::read(path).unwrap()
    };
    let path = directory.join("mutant.o");
    let file = path.to_str().unwrap();
    let mut loaded = 0;
    for seed in 0..number {
        let mut numbers = Numbers(seed);
        let is_control = seed % 2 == 0;
        let mut bytes = if is_control {
            cc.clone()
        } else {
            sockops.clone()
        };
        for _ in 0..1 + numbers.below(8) {
            let at = numbers.below(bytes.len());
            match numbers.below(4) {
                0 => bytes[at] = numbers.below(256) as u8,
                1 => bytes[at] ^= 1 << numbers.below(8),
                2 => bytes[at] = [0, 0x7f, 0x80, 0xff][numbers.below(4)],
                _ if numbers.below(8) == 0 => bytes.truncate(at.max(64)),
                _ => bytes[at] = b"\x1b\n/.%"[numbers.below(5)],
            }
        }
        std::fs::write(&path, bytes).unwrap();
        let (load, unload): (&[&str], &[&str]) = if is_control {
            (
                &["cc", "load", file, "--name", &control],
                &["cc", "unload", &control],
            )
        } else {
            (
                &["sockops", "load", file, "--cgroup", &cgroup],
                &["sockops", "unload", "mutant"],
            )
        };
        let (code, text) = said(&bed, load).unwrap_or_else(|| panic!("aborted by seed {seed}"));
        if code == 0 {
            loaded += 1;
            success(&bed, unload);
        } else {
            assert_eq!(code, 1, "seed {seed}: {text}");
            assert_eq!(text.lines().count(), 1, "seed {seed}: {text}");
            assert!(
                !text.trim_end().contains(char::is_control),
                "seed {seed}: {text:?}"
            );
        }
        assert!(!bed.pin.exists(), "left behind by seed {seed}");
    }
    // Some bytes matter and some do not; otherwise the mutants would test nothing.
    assert!(loaded > 0 && loaded < number, "{loaded} of {number}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn mutated_objects_load_or_end_in_one_line() {
    mutants("sockops-mutants", 200);
}

#[test]
#[ignore = "slow: 10,000 objects, some ten minutes"]
fn ten_thousand_mutated_objects_load_or_end_in_one_line() {
    mutants("sockops-10000", 10_000);
}
