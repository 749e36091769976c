//! What somebody takes away of programs, links, pins and the cgroup: it is said by everything that
//! tells of the agent, and put back where that is safe.

use std::fs;
use std::os::fd::AsFd as _;

use libbpf_rs::libbpf_sys;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, MapType, ObjectBuilder};
use serde_json::Value;

use thalweg_testbed::cc::{is_offered, success};
use thalweg_testbed::health::{Service, checked, is_attached, is_well, visit};
use thalweg_testbed::policies::{one_rule, policy};
use thalweg_testbed::{Bed, compile, privileged, unique, wait_for};

fn repairs(bed: &Bed) -> u64 {
    bed.json(&["status"])["repairs"]["number"]
        .as_u64()
        .unwrap_or(0)
}

/// A figure of `/metrics`, by the beginning of its line.
fn metric(bed: &Bed, name: &str) -> f64 {
    let output = bed.thalweg(&["metrics"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    line.trim().parse().expect("a number")
}

/// Checks that the agent is well, sees connections, and knows what it knew.
fn goes_on(bed: &Bed, what: &str) {
    let address = bed.server_address();
    let known = |host: Option<Value>| host.and_then(|host| host["connections"].as_u64());
    let before = known(bed.host(&address)).unwrap_or_else(|| panic!("{what}: the host is lost"));
    visit(bed);
    wait_for(&format!("{what}: a connection that is seen"), || {
        known(bed.host(&address)).filter(|now| *now == before + 1)
    });
    let (code, line) = checked(bed);
    assert_eq!(code, 0, "{what}: {line}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn cgroup_made_again_is_critical_until_attached_again() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("cgroupagain", "");
    visit(&bed);
    wait_for("a host", || bed.host(&bed.server_address()));
    let cgroup = bed.pair.cgroup_path().to_owned();
    for what in ["removed", "removed once more"] {
        fs::remove_dir(&cgroup).unwrap();
        let (code, line) = checked(&bed);
        assert_eq!(code, 2, "{line}");
        assert!(line.starts_with("THALWEG CRITICAL - the cgroup "), "{line}");
        let status = bed.json(&["status"]);
        assert_eq!(status["health"], "critical");
        assert!(
            status["fixes"][0].as_str().unwrap().contains("cgroup"),
            "{status}"
        );
        assert_eq!(
            metric(&bed, "thalweg_attached{program=\"learn_sockops\"}"),
            0.0
        );
        assert_eq!(metric(&bed, "thalweg_problem{kind=\"cgroup\"}"), 1.0);
        assert_eq!(metric(&bed, "thalweg_health"), 2.0);
        wait_for("the agent's own look", || {
            bed.logged()
                .contains("is gone: no connection")
                .then_some(())
        });
        fs::create_dir(&cgroup).unwrap();
        wait_for(what, || is_well(&bed));
        goes_on(&bed, what);
    }
    assert_eq!(
        metric(&bed, "thalweg_attached{program=\"learn_sockops\"}"),
        1.0
    );
    let log = bed.logged();
    for part in [
        "is gone: no connection",
        "attached again: learn_sockops",
        "problem is gone: cgroup",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    assert!(metric(&bed, "thalweg_repairs_total") >= 4.0);
}

/// Takes something away, and waits until the agent says so and has put it back.
fn taken(bed: &Bed, what: &str, said: &str, take: impl FnOnce()) {
    let (before, log) = (repairs(bed), bed.logged().len());
    take();
    wait_for(&format!("{what}: a repair"), || {
        (repairs(bed) > before).then_some(())
    });
    wait_for(&format!("{what}: the end of the problem"), || is_well(bed));
    let log = &bed.logged()[log..];
    assert!(log.contains(said), "{what}: {said:?} is not in {log}");
    assert!(log.contains("problem is gone"), "{what}: {log}");
    goes_on(bed, what);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn links_and_pins_taken_away_are_put_back() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("taken", "");
    visit(&bed);
    wait_for("a host", || bed.host(&bed.server_address()));
    let program = bed.running_program();
    let link = bed.pin.join("link_sockops");
    let remove = |name: &str| fs::remove_file(bed.pin.join(name)).unwrap();
    taken(
        &bed,
        "a link's pin",
        "learn_sockops is not attached",
        || {
            remove("link_sockops");
        },
    );
    taken(
        &bed,
        "the other's",
        "learn_setsockopt is not attached",
        || {
            remove("link_setsockopt");
        },
    );
    taken(&bed, "a map's pin", "are gone: hosts", || remove("hosts"));
    taken(&bed, "another's", "are gone: arms, owned", || {
        remove("arms");
        remove("owned");
    });
    taken(&bed, "a detached link", "its link was detached", || {
        Link::open(&link).unwrap().detach().unwrap();
    });
    taken(
        &bed,
        "another program",
        "its link runs another program",
        || {
            let file = compile("silencer", bed.directory.path(), "silencer.bpf.o", &[]);
            let object = ObjectBuilder::default()
                .open_file(file)
                .unwrap()
                .load()
                .unwrap();
            let other = object.progs_mut().next().unwrap();
            let mut link = Link::open(&link).unwrap();
            link.update_prog(&other).unwrap();
        },
    );
    taken(&bed, "all pins", "the pins of all maps", || {
        fs::remove_dir_all(&bed.pin).unwrap();
    });
    assert_eq!(bed.running_program(), program, "the program is another one");
    let other = bed.refused();
    assert!(other.contains("another agent"), "{other}");
    // No link is left twice.
    let cgroup = fs::File::open(bed.pair.cgroup_path()).unwrap();
    let ids = thalweg_control::links::programs_of(&cgroup, libbpf_sys::BPF_CGROUP_SOCK_OPS, 0);
    assert_eq!(ids.unwrap().len(), 1);
    // The next agent finds all of it.
    let address = bed.server_address();
    let known = bed.host(&address).unwrap()["connections"].clone();
    let mut bed = bed;
    bed.end(nix::sys::signal::Signal::SIGKILL);
    bed.start();
    assert_eq!(bed.host(&address).unwrap()["connections"], known);
    assert_eq!(bed.json(&["status"])["took_over"], true);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn detach_after_repairs_leaves_nothing() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("detached", "");
    visit(&bed);
    wait_for("a host", || bed.host(&bed.server_address()));
    taken(&bed, "all pins", "the pins of all maps", || {
        fs::remove_dir_all(&bed.pin).unwrap();
    });
    assert!(bed.thalweg(&["detach"]).status.success());
    bed.reap();
    assert!(!bed.pin.exists());
    let cgroup = fs::File::open(bed.pair.cgroup_path()).unwrap();
    wait_for("the end of the links", || {
        let ids = thalweg_control::links::programs_of(&cgroup, libbpf_sys::BPF_CGROUP_SOCK_OPS, 0);
        ids.unwrap().is_empty().then_some(())
    });
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn pin_of_somebody_else_is_said_and_left() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("foreign", "");
    let path = bed.pin.join("arms");
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let other = MapHandle::create(MapType::Array, Some("other"), 4, 4, 1, &options).unwrap();
    let mut pinned = MapHandle::try_from(&other).unwrap();
    pinned.pin(bed.pin.join("beside")).unwrap();
    fs::rename(bed.pin.join("beside"), &path).unwrap();
    let said = wait_for("a problem", || {
        let (code, line) = checked(&bed);
        (code == 1).then_some(line)
    });
    assert!(
        said.contains("in place of the agent's") && said.contains("arms"),
        "{said}"
    );
    assert_eq!(metric(&bed, "thalweg_problem{kind=\"pins\"}"), 1.0);
    let there = MapHandle::from_pinned_path(&path).unwrap();
    assert_eq!(there.info().unwrap().info.id, other.info().unwrap().info.id);
    fs::remove_file(&path).unwrap();
    wait_for("the agent's own", || is_well(&bed));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn policy_taken_away_is_in_force_again() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("policytaken", "");
    let settings = "max_pacing_rate = \"8mbit\"";
    bed.apply(&one_rule(settings));
    let directory = bed.pin.join("policy");
    let number = bed.json(&["policy", "show"])["number"].to_string();
    visit(&bed);
    wait_for("a host", || bed.host(&bed.server_address()));
    let link = directory.join("link");
    let own = directory.join(&number);
    let cgroup = bed.pair.cgroup_path().to_owned();
    let rule_of = |bed: &Bed| bed.json(&["policy", "show"])["rules"][0]["matched"].as_u64();
    let check = |what: &str, said: &str, take: &dyn Fn()| {
        let (before, log) = (repairs(&bed), bed.logged().len());
        take();
        wait_for(&format!("{what}: a repair"), || {
            (repairs(&bed) > before).then_some(())
        });
        wait_for(&format!("{what}: the end of the problem"), || is_well(&bed));
        let log = bed.logged()[log..].to_owned();
        assert!(log.contains(said), "{what}: {said:?} is not in {log}");
        assert_eq!(bed.json(&["policy", "show"])["name"], "test", "{what}");
        assert!(is_attached(&link), "{what}");
        let before = rule_of(&bed);
        visit(&bed);
        wait_for(&format!("{what}: a flow of the rule"), || {
            (rule_of(&bed) > before).then_some(())
        });
        let file = fs::File::open(&cgroup).unwrap();
        assert!(
            thalweg_control::learner::runs_before_learner(&bed.pin, &link, &file).unwrap(),
            "{what}: the policy runs after the learner"
        );
    };
    check("its link's pin", "policy test is not in force", &|| {
        fs::remove_file(&link).unwrap();
    });
    check("a detached link", "its link was detached", &|| {
        Link::open(&link).unwrap().detach().unwrap();
    });
    check("its maps and program", "policy test: pins below", &|| {
        fs::remove_dir_all(&own).unwrap();
    });
    check("all", "policy test is not in force", &|| {
        fs::remove_dir_all(&directory).unwrap();
    });
    check("the cgroup", "policy test is not in force", &|| {
        fs::remove_dir(&cgroup).unwrap();
        wait_for("a problem", || (checked(&bed).0 == 2).then_some(()));
        fs::create_dir(&cgroup).unwrap();
    });
    // What an operator removes stays away.
    assert_eq!(bed.json(&["policy", "remove"])["removed"], true);
    let before = repairs(&bed);
    visit(&bed);
    wait_for("an agent that has looked", || {
        bed.json(&["policy", "show"]).is_null().then_some(())
    });
    assert_eq!(repairs(&bed), before);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn policy_show_without_agent_says_what_is_gone() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&thalweg_testbed::plain("policygone"), "");
    bed.apply(&one_rule("max_pacing_rate = \"8mbit\""));
    let link = bed.pin.join("policy/link");
    Link::open(&link).unwrap().detach().unwrap();
    let shown = bed.json(&["policy", "show"]);
    let fault = shown["faults"][0].as_str().unwrap().to_owned();
    assert!(fault.contains("its link was detached"), "{fault}");
    fs::remove_file(&link).unwrap();
    let output = bed.thalweg(&["policy", "show"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("is gone"), "{said}");
    bed.apply(&one_rule("max_pacing_rate = \"9mbit\""));
    assert_eq!(
        bed.json(&["policy", "show"])["faults"],
        serde_json::json!([])
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn congestion_control_without_its_pins_is_said() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("ccpins", "");
    let name = unique("pinned");
    success(&bed, &["cc", "load", "htcp", "--name", &name]);
    let own = bed.pin.join("cc").join(&name);
    let (before, log) = (repairs(&bed), bed.logged().len());
    fs::remove_file(own.join("struct_ops")).unwrap();
    let problem = format!("congestion control {name}: its pin");
    wait_for("a repair", || (repairs(&bed) > before).then_some(()));
    wait_for("the end of the problem", || is_well(&bed));
    assert!(bed.logged()[log..].contains(&problem));
    assert!(own.join("struct_ops").exists());
    let state = || {
        let list = bed.json(&["cc", "list"]);
        let mut all = list.as_array().unwrap().iter();
        all.find(|it| it["name"] == *name)
            .map(|it| it["state"].clone())
    };
    assert_eq!(state(), Some(Value::from("loaded")));
    // What somebody else has pinned in its place is left there.
    let other = MapHandle::from_pinned_path(bed.pin.join("arms")).unwrap();
    thalweg_control::links::pin_over(other.as_fd(), &own.join("struct_ops")).unwrap();
    let line = wait_for("a problem", || {
        let (_, line) = checked(&bed);
        line.contains("it cannot be put back").then_some(line)
    });
    assert!(line.contains("is something else"), "{line}");
    fs::remove_file(own.join("struct_ops")).unwrap();
    wait_for("its own", || is_well(&bed));
    // Its link keeps it registered. It is registered again, whatever became of its link.
    let link = own.join("link");
    for (said, take) in [
        (
            "no longer registered: its pin",
            &(|| fs::remove_file(&link).unwrap()) as &dyn Fn(),
        ),
        ("no longer registered: its link was detached", &|| {
            Link::open(&link).unwrap().detach().unwrap();
        }),
    ] {
        let (before, log) = (repairs(&bed), bed.logged().len());
        take();
        wait_for("a repair", || (repairs(&bed) > before).then_some(()));
        wait_for("the end of the problem", || is_well(&bed));
        assert!(bed.logged()[log..].contains(said), "{said}");
        assert_eq!(state(), Some(Value::from("loaded")), "{said}");
        assert!(is_offered(&name), "{said}");
    }
    // Without its callbacks nobody can.
    fs::remove_file(own.join("struct_ops")).unwrap();
    fs::remove_file(&link).unwrap();
    let line = wait_for("a problem", || {
        let (code, line) = checked(&bed);
        line.contains("it cannot be put back")
            .then_some((code, line))
    });
    assert_eq!(line.0, 1, "{line:?}");
    for part in [name.as_str(), "no longer registered", "load it again"] {
        assert!(line.1.contains(part), "{line:?}");
    }
    assert!(!is_offered(&name));
    success(&bed, &["cc", "unload", &name]);
    assert!(is_well(&bed).is_some());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn cgroup_of_a_rule_without_its_mark_is_a_problem() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&thalweg_testbed::plain("marks"), "");
    let service = Service::new(&bed);
    let path = service.path().strip_prefix("/sys/fs/cgroup").unwrap();
    let path = path.strip_prefix("/unified").unwrap_or(path);
    bed.apply(&policy(&format!(
        "[[rule]]\nname = \"service\"\nmatch.cgroup = \"{path}\"\nset = {{ mark = 1 }}\n"
    )));
    let faults = |bed: &Bed| bed.json(&["policy", "show"])["faults"].to_string();
    assert_eq!(faults(&bed), "[]");
    service.restart();
    let said = faults(&bed);
    let unmarked = format!("connections of cgroup {} do not get", service.path());
    assert!(said.contains(&unmarked), "{said}");
    bed.start();
    wait_for("a mark for the new cgroup", || is_well(&bed));
    assert_eq!(faults(&bed), "[]");
    // A mark whose place is taken: it lasts until somebody gives way.
    let number = bed.json(&["policy", "show"])["number"].to_string();
    let own = bed.pin.join("policy").join(number);
    let marks = fs::read_dir(&own).unwrap().map(|entry| entry.unwrap());
    let mark = marks.map(|entry| entry.path());
    let mark = mark.filter(|path| path.display().to_string().contains("cgroup_"));
    let mark: Vec<_> = mark.collect();
    let [mark] = &mark[..] else {
        panic!("{mark:?}");
    };
    let beside = own.join("beside");
    fs::create_dir(&beside).unwrap();
    fs::remove_file(mark).unwrap();
    fs::rename(&beside, mark).unwrap();
    let (code, line) = wait_for("a problem", || {
        let (code, line) = checked(&bed);
        line.contains("it cannot be put back")
            .then_some((code, line))
    });
    assert!(code == 1 && line.contains(&unmarked), "{line}");
    fs::remove_dir(mark).unwrap();
    wait_for("its mark", || is_well(&bed));
    assert!(is_attached(mark));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn policy_applied_beside_an_agent_on_another_cgroup_is_attached_there() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&thalweg_testbed::plain("runcgroup"), "");
    let service = Service::new(&bed);
    let mut command = bed.run_command();
    command.args(["--cgroup", service.path()]);
    bed.start_by(command);
    let file = bed.directory.path().join("policy.toml");
    fs::write(&file, one_rule("mark = 1")).unwrap();
    let output = bed.thalweg(&["policy", "apply", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let configured = bed.pair.cgroup_path().display();
    let note = format!(
        "note: the agent's programs are on the cgroup {}, where the configuration has \
         {configured}: policies are, too\n",
        service.path()
    );
    assert_eq!(said.matches(&note).count(), 1, "{said}");
    let link = Link::open(bed.pin.join("policy/link")).unwrap();
    let cgroup = fs::File::open(service.path()).unwrap();
    let id = thalweg_control::links::cgroup_id(&cgroup).unwrap();
    let attached = thalweg_control::links::attached_to(&link).unwrap();
    assert_eq!(attached, Some(id));
    let shown = bed.json(&["policy", "show"]);
    assert_eq!(shown["faults"], serde_json::json!([]), "{shown}");
    assert!(is_well(&bed).is_some());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn sockops_object_on_a_cgroup_that_was_made_again_is_a_problem() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("objects", "");
    let service = Service::new(&bed);
    let object = compile("silencer", bed.directory.path(), "silencer.o", &[]);
    let object = object.to_str().unwrap();
    let load = ["sockops", "load", object, "--cgroup", service.path()];
    success(&bed, &load);
    assert!(is_well(&bed).is_some());
    let link = bed.pin.join("sockops/silencer/link_silencer");
    let check = |what: &str, take: &dyn Fn()| {
        let (before, log) = (repairs(&bed), bed.logged().len());
        take();
        wait_for(&format!("{what}: a repair"), || {
            (repairs(&bed) > before).then_some(())
        });
        wait_for(what, || is_well(&bed));
        let log = bed.logged()[log..].to_owned();
        assert!(log.contains("sockops object silencer: silencer"), "{log}");
        assert!(is_attached(&link), "{what}");
        let listed = bed.json(&["sockops", "list"]);
        assert_eq!(listed[0]["cgroup"], service.path(), "{what}");
    };
    check("a restart", &|| service.restart());
    check("a detached link", &|| {
        Link::open(&link).unwrap().detach().unwrap();
    });
    check("a stop, and a start", &|| {
        fs::remove_dir(service.path()).unwrap();
        let (code, line) = checked(&bed);
        assert_eq!(code, 1, "{line}");
        let gone = format!("the cgroup {} is gone", service.path());
        assert!(line.contains(&gone), "{line}");
        assert_eq!(metric(&bed, "thalweg_problem{kind=\"sockops\"}"), 1.0);
        fs::create_dir(service.path()).unwrap();
    });
    check("a link's pin", &|| fs::remove_file(&link).unwrap());
    // An earlier version pinned no programs.
    fs::remove_file(bed.pin.join("sockops/silencer/prog_silencer")).unwrap();
    check("a detached link of an earlier version", &|| {
        Link::open(&link).unwrap().detach().unwrap();
    });
    // Nobody knows the program of such a link that is gone.
    fs::remove_file(&link).unwrap();
    let (code, line) = checked(&bed);
    assert_eq!(code, 1, "{line}");
    let lost = "sockops object silencer: its links are gone: load it again";
    assert!(line.contains(lost), "{line}");
    // Who looks removes nothing.
    let listed = bed.json(&["sockops", "list"]);
    assert_eq!(listed[0]["programs"], serde_json::json!([]));
    assert!(checked(&bed).1.contains(lost));
    success(&bed, &load);
    assert!(is_well(&bed).is_some());
    success(&bed, &["sockops", "unload", "silencer"]);
    assert!(is_well(&bed).is_some());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn store_whose_file_is_gone_is_a_problem() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("storegone", "");
    let file = bed.state().join("thalweg.db");
    fs::rename(&file, bed.state().join("away.db")).unwrap();
    let (code, line) = checked(&bed);
    assert_eq!(code, 1, "{line}");
    assert!(
        line.contains("the store") && line.contains("is gone"),
        "{line}"
    );
    fs::rename(bed.state().join("away.db"), &file).unwrap();
    wait_for("the end of the problem", || is_well(&bed));
    // What was saved last is in the log alone.
    fs::remove_file(bed.state().join("thalweg.db-wal")).unwrap();
    let (code, line) = checked(&bed);
    assert!(
        code == 1 && line.contains("thalweg.db-wal is gone"),
        "{line}"
    );
    bed.end(nix::sys::signal::Signal::SIGTERM);
    bed.start();
    wait_for("an agent without problems", || is_well(&bed));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn socket_removed_is_bound_again() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("socketgone", "");
    for what in ["removed", "removed with its name taken"] {
        fs::remove_file(bed.socket()).unwrap();
        if what != "removed" {
            fs::write(bed.socket(), "").unwrap();
            wait_for("a problem", || {
                bed.logged().contains("is not a socket").then_some(())
            });
            assert_eq!(checked(&bed).0, 2);
            fs::remove_file(bed.socket()).unwrap();
        }
        wait_for(what, || is_well(&bed));
    }
    assert!(bed.logged().contains("bound again: the socket"));
    let repairs = bed.json(&["status"])["repairs"]["number"].clone();
    assert_eq!(repairs, 2);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn bpf_file_system_unmounted_is_mounted_again() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&thalweg_testbed::plain("unmounted"), "");
    // The file system of a mount namespace of its own: others use the machine's.
    bed.start_by(thalweg_testbed::containers::in_container(
        &bed,
        "umount -l /sys/fs/bpf && mount -t bpf bpf /sys/fs/bpf",
    ));
    visit(&bed);
    wait_for("a host", || bed.host(&bed.server_address()));
    let pid = bed.pid().to_string();
    taken(&bed, "the file system", "the pins of all maps", || {
        // The agent's own process: /proc in its mounts is that of its processes alone.
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let done = std::process::Command::new("nsenter")
            .args([
                "-m",
                "-p",
                "-t",
                children.trim(),
                "umount",
                "-l",
                "/sys/fs/bpf",
            ])
            .status();
        assert!(done.unwrap().success());
    });
    bed.json(&["detach"]);
    bed.reap();
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn namespaces_taken_out_of_the_kernel_are_in_scope_again() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("scope", "");
    visit(&bed);
    wait_for("a host", || bed.host(&bed.server_address()));
    let map = |name: &str| MapHandle::from_pinned_path(bed.pin.join(name)).unwrap();
    let (defaults, slots) = (map("defaults"), map("namespaces"));
    for key in defaults.keys() {
        defaults.delete(&key).unwrap();
    }
    for slot in 0..slots.max_entries() {
        slots
            .update(&slot.to_ne_bytes(), &[0; 8], MapFlags::ANY)
            .unwrap();
    }
    let before = bed.counter("outside");
    visit(&bed);
    bed.counter_reaches("outside", before + 1);
    wait_for("its namespace", || {
        (defaults.keys().count() > 0).then_some(())
    });
    goes_on(&bed, "after that");
}
