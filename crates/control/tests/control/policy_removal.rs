//! Policies that are removed where a disk, a hierarchy or a file system is at fault; applications that
//! fail; pins and files of a policy that are gone or are others'.

use std::fs;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use libbpf_rs::{Link, MapCore, MapHandle, ObjectBuilder, libbpf_sys};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use thalweg_control::{links, system};
use thalweg_lab::host::Side;

use thalweg_testbed::health::{Service, checked, is_well};
use thalweg_testbed::policies::{bed, one_rule, policy};
use thalweg_testbed::{Bed, compile, map_id, privileged, thalweg, wait_for, was_killed};

/// A file system mounted at a directory; unmounted with this value.
struct Mounted(PathBuf);

impl Mounted {
    fn new(arguments: &[&str], directory: &Path) -> Self {
        fs::create_dir_all(directory).unwrap();
        mount(arguments, directory);
        Self(directory.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn mount(arguments: &[&str], directory: &Path) {
    let done = Command::new("mount")
        .args(arguments)
        .arg(directory)
        .status();
    assert!(done.unwrap().success(), "{arguments:?}");
}

/// A bed without an agent, whose pins are in a BPF file system of their own.
fn bed_on_own_bpffs(label: &str) -> (Bed, PathBuf, Mounted) {
    let mut bed = bed(label);
    let bpffs = bed.directory.path().join("bpf");
    let mounted = Mounted::new(&["-t", "bpf", "bpf"], &bpffs);
    bed.pin = bpffs.join("thalweg");
    bed.configure("");
    (bed, bpffs, mounted)
}

fn open_link(bed: &Bed) -> Link {
    Link::open(bed.pin.join("policy/link")).unwrap()
}

fn is_detached(link: &Link) -> bool {
    links::attached_to(link).unwrap() == Some(0)
}

/// The exit code and the errors of a command.
fn told(output: &Output) -> (Option<i32>, String) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

/// `thalweg policy remove` in mounts of its own, after a line of shell that has a directory as `$0`.
fn remove_with_mounts(bed: &Bed, line: &str, directory: &Path) -> (Option<i32>, String) {
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &format!("{line} && exec \"$@\"")])
        .arg(directory)
        .args([thalweg(), "--config"])
        .arg(bed.configuration())
        .args(["policy", "remove"])
        .output();
    told(&output.unwrap())
}

/// A policy of one rule for the cgroup of a service.
fn for_service(service: &Service) -> String {
    let path = service.path().strip_prefix("/sys/fs/cgroup").unwrap();
    let path = path.strip_prefix("/unified").unwrap_or(path);
    policy(&format!(
        "[[rule]]\nname = \"service\"\nmatch.cgroup = \"{path}\"\nset = {{ mark = 1 }}\n"
    ))
}

/// The pin of the program that marks sockets of the rule's cgroup.
fn mark_pin(bed: &Bed) -> PathBuf {
    let mut files = fs::read_dir(bed.pin.join("policy/1")).unwrap().flatten();
    let is_mark = |name: &str| name.starts_with("cgroup_");
    let found = files.find(|file| file.file_name().to_str().is_some_and(is_mark));
    found.unwrap().path()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn removal_with_read_only_state_holds_until_restart_of_machine() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("rostate", "");
    bed.apply(&one_rule("mark = 1"));
    let link = open_link(&bed);
    let state = bed.state();
    let mounted = Mounted::new(&["--bind", state.to_str().unwrap()], &state);
    mount(&["-o", "remount,bind,ro"], &state);
    let (code, said) = told(&bed.thalweg(&["policy", "remove"]));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("comes back after a restart"), "{said}");
    assert!(is_detached(&link));
    drop(mounted);
    assert!(state.join("policy/in-force").exists());
    // Neither an agent that runs nor one that starts puts it back.
    wait_for("an agent without a problem", || is_well(&bed));
    assert!(bed.json(&["policy", "show"]).is_null());
    bed.end(Signal::SIGTERM);
    bed.start();
    assert!(bed.json(&["policy", "show"]).is_null());
    // A later policy is wanted.
    let mark = bed.pin.join("policy-unwanted");
    assert!(mark.exists());
    bed.apply(&one_rule("mark = 2"));
    assert!(!mark.exists());
    assert_eq!(bed.json(&["policy", "remove"])["removed"], true);
    assert!(!state.join("policy/in-force").exists());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn removal_needs_no_cgroup_hierarchy() {
    if !privileged() {
        return;
    }
    let bed = bed("nohierarchy");
    bed.apply(&one_rule("mark = 1"));
    let link = open_link(&bed);
    let text = fs::read_to_string(bed.configuration()).unwrap();
    let own = format!("cgroup = {:?}\n", bed.pair.cgroup_path());
    assert!(text.contains(&own), "{text}");
    fs::write(bed.configuration(), text.replace(&own, "")).unwrap();
    let line = "while point=$(grep -m1 ' - cgroup2 ' /proc/self/mountinfo); do \
                umount -l \"$(echo \"$point\" | cut -d' ' -f5)\" || exit 9; done";
    let (code, said) = remove_with_mounts(&bed, line, Path::new("/"));
    bed.configure("");
    assert_eq!(code, Some(0), "{said}");
    assert!(is_detached(&link));
    assert!(!bed.pin.exists());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn removal_detaches_where_pins_are_read_only() {
    if !privileged() {
        return;
    }
    let (bed, bpffs, _mounted) = bed_on_own_bpffs("ropins");
    // The mount alone, and the whole file system.
    for (options, back) in [
        ("remount,bind,ro", "remount,bind,rw"),
        ("remount,ro", "remount,rw"),
    ] {
        bed.apply(&one_rule("mark = 1"));
        let link = open_link(&bed);
        mount(&["-o", options], &bpffs);
        let (code, said) = told(&bed.thalweg(&["policy", "remove"]));
        mount(&["-o", back], &bpffs);
        assert_eq!(code, Some(1), "{options}: {said}");
        assert!(said.contains("out of the kernel"), "{options}: {said}");
        assert!(said.contains("policy/link"), "{options}: {said}");
        assert!(is_detached(&link), "{options}");
        bed.json(&["policy", "remove"]);
        assert!(!bed.pin.exists(), "{options}");
    }
}

/// Applies two policies to one cgroup, the second below pins of another agent; returns their links.
fn apply_beside_another(bed: &mut Bed, bpffs: &Path) -> [Link; 2] {
    let own = std::mem::replace(&mut bed.pin, bpffs.join("other"));
    bed.configure("");
    bed.apply(&one_rule("mark = 2"));
    let other = open_link(bed);
    bed.pin = own;
    bed.configure("");
    bed.apply(&one_rule("mark = 1"));
    [open_link(bed), other]
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn removal_leaves_policy_of_another_agent_whose_pins_are_read_only() {
    if !privileged() {
        return;
    }
    let (mut bed, bpffs, _mounted) = bed_on_own_bpffs("roother");
    let [own, other] = apply_beside_another(&mut bed, &bpffs);
    mount(&["-o", "remount,ro"], &bpffs);
    let (code, said) = told(&bed.thalweg(&["policy", "remove"]));
    mount(&["-o", "remount,rw"], &bpffs);
    assert_eq!(code, Some(1), "{said}");
    assert!(is_detached(&own), "{said}");
    assert!(!is_detached(&other), "{said}");
}

/// As a container that has the pins of its own agent alone.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn removal_leaves_policy_of_another_agent_whose_pins_are_hidden() {
    if !privileged() {
        return;
    }
    let (mut bed, bpffs, _mounted) = bed_on_own_bpffs("hidother");
    let [own, other] = apply_beside_another(&mut bed, &bpffs);
    let aside = bed.directory.path().join("aside");
    fs::create_dir(&aside).unwrap();
    let line = format!(
        "mount --bind \"$0/thalweg\" {aside} && umount -l \"$0\" && mkdir \"$0/thalweg\" && \
         mount --bind {aside} \"$0/thalweg\"",
        aside = aside.display()
    );
    let (code, said) = remove_with_mounts(&bed, &line, &bpffs);
    assert!(is_detached(&own), "{said}");
    assert!(!is_detached(&other), "{said}");
    assert_eq!(code, Some(0), "{said}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn removal_reaches_policy_below_another_bpffs() {
    if !privileged() {
        return;
    }
    let (bed, bpffs, _mounted) = bed_on_own_bpffs("stacked");
    let service = Service::new(&bed);
    bed.apply(&for_service(&service));
    let (link, mark) = (open_link(&bed), Link::open(mark_pin(&bed)).unwrap());
    // A process that sees another file system than the machine's first process is refused.
    let (code, said) = remove_with_mounts(&bed, "mount -t bpf bpf \"$0\"", &bpffs);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("for this process alone"), "{said}");
    assert!(!is_detached(&link));

    let over = Mounted::new(&["-t", "bpf", "bpf"], &bpffs);
    assert_eq!(bed.json(&["policy", "remove"])["removed"], true);
    assert!(is_detached(&link) && is_detached(&mark));
    assert!(!bed.pin.exists());
    drop(over);
    bed.json(&["policy", "remove"]);
    assert!(!bed.pin.exists());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn policy_missing_from_state_directory_is_a_problem() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("stateless", "");
    bed.apply(&one_rule("mark = 1"));
    assert!(is_well(&bed).is_some());
    fs::remove_dir_all(bed.state().join("policy")).unwrap();
    let (code, line) = checked(&bed);
    assert_eq!(code, 1, "{line}");
    let words = "policy number 1: this state directory does not keep it";
    assert!(line.contains(words), "{line}");
    bed.apply(&one_rule("mark = 1"));
    wait_for("the end of the problem", || is_well(&bed));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn other_programs_and_maps_in_place_of_a_policys_are_a_problem() {
    if !privileged() {
        return;
    }
    let mut bed = bed("replaced");
    let service = Service::new(&bed);
    bed.apply(&for_service(&service));
    assert_eq!(bed.json(&["policy", "show"])["faults"], json!([]));

    let file = compile("silencer", bed.directory.path(), "silencer.bpf.o", &[]);
    let object = ObjectBuilder::default().open_file(file).unwrap();
    let object = object.load().unwrap();
    let other = object.progs_mut().next().unwrap();
    let mut mark = Link::open(mark_pin(&bed)).unwrap();
    mark.update_prog(&other).unwrap();
    let counters = bed.pin.join("policy/1/counters");
    let own = MapHandle::from_pinned_path(&counters).unwrap();
    let id = map_id(&counters);
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let (key, value, entries) = (own.key_size(), own.value_size(), own.max_entries());
    let like = MapHandle::create(
        own.map_type(),
        Some("counters"),
        key,
        value,
        entries,
        &options,
    );
    fs::remove_file(&counters).unwrap();
    like.unwrap().pin(&counters).unwrap();

    let faults = bed.json(&["policy", "show"])["faults"].to_string();
    for words in [
        "no program marks its sockets",
        "are other maps than those of its program: counters",
    ] {
        assert!(faults.contains(words), "{words:?} is not in {faults}");
    }
    bed.start();
    wait_for("the repairs", || is_well(&bed));
    assert_eq!(map_id(&counters), id);
    assert_eq!(bed.json(&["policy", "show"])["faults"], json!([]));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn head_of_a_policy_is_put_back_and_blocks_no_other() {
    if !privileged() {
        return;
    }
    let mut bed = bed("head");
    bed.apply(&one_rule("mark = 1"));
    let head = |number: u32| bed.pin.join(format!("policy/{number}/head"));
    fs::remove_file(head(1)).unwrap();
    bed.apply(&one_rule("mark = 2"));
    let head = head(2);
    let id = map_id(&head);
    let other = MapHandle::from_pinned_path(bed.pin.join("policy/2/rules")).unwrap();
    bed.start();
    assert!(is_well(&bed).is_some(), "{:?}", checked(&bed));
    for is_replaced in [false, true] {
        match is_replaced {
            true => links::pin_over(other.as_fd(), &head).unwrap(),
            false => fs::remove_file(&head).unwrap(),
        }
        wait_for("the head's pin", || {
            (head.exists() && map_id(&head) == id).then_some(())
        });
        wait_for("the end of the problem", || is_well(&bed));
    }
}

/// A version before `boot_id` wrote none.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn cookie_of_an_earlier_version_is_void_only_after_a_restart() {
    if !privileged() {
        return;
    }
    let bed = bed("oldentry");
    let client = Path::new("/run/netns").join(bed.pair.namespace_name(Side::Client));
    let cookie = system::netns_cookie_of(&client).unwrap();
    let rule = format!("name = \"one\"\nmatch.netns = {cookie}\nset = {{ mark = 1 }}\n");
    bed.apply(&policy(&format!("[[rule]]\n{rule}")));
    // Each rollback writes a number of its own.
    for (number, applied_ms, is_void) in [(1, None, false), (3, Some(1), true)] {
        let file = bed.state().join(format!("policy/{number:08}.json"));
        let mut entry: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert!(entry.as_object_mut().unwrap().remove("boot_id").is_some());
        if let Some(applied_ms) = applied_ms {
            entry["applied_ms"] = json!(applied_ms);
        }
        fs::write(&file, entry.to_string()).unwrap();
        bed.apply(&one_rule("mark = 2"));
        let notes = bed.json(&["policy", "rollback"])["notes"].to_string();
        let is_told = notes.contains("match nothing");
        assert_eq!(is_told, is_void, "{number}: {notes}");
    }
    // The time of a rollback is not that of its file.
    let last = fs::read_to_string(bed.state().join("policy/00000005.json")).unwrap();
    assert!(!last.contains("\"boot_id\": \"\""), "{last}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn application_that_fails_leaves_nothing() {
    if !privileged() {
        return;
    }
    let bed = bed("failed");
    let text = fs::read_to_string(bed.configuration()).unwrap();
    let own = format!("{:?}", bed.pair.cgroup_path());
    let absent = format!("{:?}", bed.pair.cgroup_path().join("absent"));
    fs::write(bed.configuration(), text.replace(&own, &absent)).unwrap();
    let file = bed.directory.path().join("policy.toml");
    fs::write(&file, one_rule("mark = 1")).unwrap();
    let output = bed.thalweg(&["policy", "apply", file.to_str().unwrap()]);
    bed.configure("");
    let (code, said) = told(&output);
    assert_eq!(code, Some(1), "{said}");
    assert!(!bed.pin.exists(), "{said}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn first_application_that_is_killed_is_cleared_by_the_agent() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("killedfirst", "");
    let service = Service::new(&bed);
    let file = bed.directory.path().join("policy.toml");
    fs::write(&file, for_service(&service)).unwrap();
    let mut command = Command::new(thalweg());
    command
        .arg("--config")
        .arg(bed.configuration())
        .args(["policy", "apply"])
        .arg(&file)
        .env("FAILPOINTS", "policy::prepared=return");
    let mut apply = bed.spawn(command);
    assert!(was_killed(&mut apply, "policy::prepared"));
    wait_for("the end of its pins", || {
        (!bed.pin.join("policy").exists()).then_some(())
    });
    let cgroup = fs::File::open(service.path()).unwrap();
    wait_for("the end of the program on the rule's cgroup", || {
        let programs = links::programs_of(&cgroup, libbpf_sys::BPF_CGROUP_SOCK_OPS, 0);
        programs.unwrap().is_empty().then_some(())
    });
    assert!(is_well(&bed).is_some(), "{:?}", checked(&bed));
}
