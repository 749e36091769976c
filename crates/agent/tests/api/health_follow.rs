//! What rules name and what comes and goes with it; repairs that are refused and keep no other away;
//! problems that stay until they are mended.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::sys::signal::Signal;
use thalweg_control::system;
use thalweg_lab::host::Side;

use thalweg_testbed::health::{Service, checked, is_attached, is_well, visit};
use thalweg_testbed::policies::{one_rule, policy};
use thalweg_testbed::{Bed, plain, privileged, wait_for};

/// Gives the agent this cgroup.
fn configure_cgroup(bed: &Bed, cgroup: &str) {
    bed.configure("");
    let text = fs::read_to_string(bed.configuration()).unwrap();
    let own = format!("cgroup = {:?}", bed.pair.cgroup_path());
    assert!(text.contains(&own), "{text}");
    let text = text.replace(&own, &format!("cgroup = {cgroup:?}"));
    fs::write(bed.configuration(), text).unwrap();
}

fn matched(bed: &Bed, rule: &str) -> u64 {
    bed.rule(rule)["matched"].as_u64().unwrap()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn rules_of_cgroups_keep_them_where_the_agents_cgroup_changes() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("moved"), "");
    let service = Service::new(&bed);
    let wide = bed.pair.cgroup_path().to_str().unwrap().to_owned();
    let named = service.path().strip_prefix("/sys/fs/cgroup").unwrap();
    let named = named.strip_prefix("/unified").unwrap_or(named);
    configure_cgroup(&bed, service.path());
    bed.start();
    // All that the agent sees is in the rule's cgroup.
    bed.apply(&policy(&format!(
        "[[rule]]\nname = \"service\"\nmatch.cgroup = \"{named}\"\nset = {{ mark = 1 }}\n\
         [[rule]]\nname = \"rest\"\nset = {{ mark = 2 }}\n"
    )));
    for (cgroup, what) in [(wide.as_str(), "wider"), (service.path(), "narrower")] {
        let log = bed.logged().len();
        configure_cgroup(&bed, cgroup);
        bed.json(&["reload"]);
        wait_for(what, || {
            bed.logged()[log..]
                .contains("applied again: policy test")
                .then_some(())
        });
        wait_for(what, || is_well(&bed));
        let said = &bed.logged()[log..];
        assert!(
            said.contains("it was applied for another cgroup of the agent"),
            "{said}"
        );
        if what == "wider" {
            visit(&bed);
            wait_for("flows of the other rule", || {
                (matched(&bed, "rest") > 0).then_some(())
            });
            assert_eq!(matched(&bed, "service"), 0);
        }
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn rules_of_network_namespaces_follow_them() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("namespaces"), "");
    let path = bed.directory.path().join("namespace");
    let applied = bed.apply(&policy(&format!(
        "[[rule]]\nname = \"one\"\nmatch = {{ netns = {path:?}, direction = \"active\" }}\nset = {{ mark = 1 }}\n"
    )));
    let notes = applied["notes"].to_string();
    assert!(notes.contains("does not exist"), "{notes}");
    bed.start();
    let changed = |bed: &Bed, change: &dyn Fn()| {
        let log = bed.logged().len();
        change();
        wait_for("the agent to see it", || {
            bed.logged()[log..]
                .contains("network namespace of a rule has come")
                .then_some(())
        });
        wait_for("the end of the problem", || is_well(bed));
    };
    let to = |side: Side| {
        symlink(
            Path::new("/run/netns").join(bed.pair.namespace_name(side)),
            &path,
        )
    };
    changed(&bed, &|| to(Side::Server).unwrap());
    // Connections are opened in the client's.
    visit(&bed);
    bed.counter_reaches("established", 1);
    assert_eq!(matched(&bed, "one"), 0);
    changed(&bed, &|| {
        fs::remove_file(&path).unwrap();
        to(Side::Client).unwrap();
    });
    visit(&bed);
    wait_for("flows of the rule", || {
        (matched(&bed, "one") > 0).then_some(())
    });
    // A name that is gone, or that the agent does not see, takes nothing away.
    let before = matched(&bed, "one");
    fs::remove_file(&path).unwrap();
    bed.json(&["reload"]);
    assert!(is_well(&bed).is_some());
    visit(&bed);
    wait_for("flows of the rule", || {
        (matched(&bed, "one") > before).then_some(())
    });
}

/// The boot in which the policy was applied is another one in its description: what a restart of the
/// machine leaves.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn cookie_of_another_boot_matches_nothing_until_applied_again() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("cookies"), "");
    let client = Path::new("/run/netns").join(bed.pair.namespace_name(Side::Client));
    let cookie = system::netns_cookie_of(&client).unwrap();
    let by_cookie = policy(&format!(
        "[[rule]]\nname = \"one\"\nmatch = {{ netns = {cookie}, direction = \"active\" }}\n\
         set = {{ mark = 1 }}\n[[rule]]\nname = \"rest\"\nset = {{ mark = 2 }}\n"
    ));
    bed.apply(&by_cookie);
    bed.start();
    wait_for("an agent without problems", || is_well(&bed));
    visit(&bed);
    wait_for("flows of the rule", || {
        (matched(&bed, "one") > 0).then_some(())
    });

    let description = bed.state().join("policy/00000001.json");
    let text = fs::read_to_string(&description).unwrap();
    let boot_id = system::boot_id().unwrap();
    assert!(text.contains(&boot_id), "{text}");
    bed.end(Signal::SIGTERM);
    fs::remove_dir_all(bed.pin.join("policy")).unwrap();
    fs::write(&description, text.replace(&boot_id, "another")).unwrap();
    bed.start();
    let words = format!("rules with match.netns = {cookie} match nothing");
    let is_told = |bed: &Bed| {
        let (code, line) = checked(bed);
        (code == 1 && line.contains(&words)).then_some(())
    };
    assert!(is_told(&bed).is_some(), "{:?}", checked(&bed));
    assert!(bed.logged().contains(&words), "{}", bed.logged());
    let shown = bed.json(&["policy", "show"])["faults"].to_string();
    assert!(shown.contains(&words), "{shown}");
    visit(&bed);
    wait_for("flows of the other rule", || {
        (matched(&bed, "rest") > 0).then_some(())
    });
    assert_eq!(matched(&bed, "one"), 0);
    assert!(is_told(&bed).is_some());

    // The same file, applied in this boot, means its cookies again.
    bed.apply(&by_cookie);
    wait_for("the end of the problem", || is_well(&bed));
    visit(&bed);
    wait_for("flows of the rule", || {
        (matched(&bed, "one") > 0).then_some(())
    });
    // What it replaced is still of another boot.
    let returned = bed.json(&["policy", "rollback"])["notes"].to_string();
    assert!(returned.contains(&words), "{returned}");
    assert!(is_told(&bed).is_some(), "{:?}", checked(&bed));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn policy_whose_files_are_damaged_stays_a_problem() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("damaged", "");
    bed.apply(&one_rule("mark = 1"));
    assert!(is_well(&bed).is_some());
    let policies = bed.state().join("policy");
    let file = |kind: &str| policies.join(format!("00000001.{kind}"));
    let text = fs::read(file("toml")).unwrap();
    fs::write(file("toml"), "name = 1").unwrap();
    let is_told = |bed: &Bed, words: &str| {
        let (code, line) = checked(bed);
        (code == 1 && line.contains(words)).then_some(())
    };
    assert!(is_told(&bed, "policy test: its file cannot be used").is_some());
    fs::write(file("toml"), text).unwrap();
    wait_for("the end of the problem", || is_well(&bed));
    // After a restart of the machine the kernel has none.
    bed.end(Signal::SIGTERM);
    fs::remove_dir_all(bed.pin.join("policy")).unwrap();
    fs::write(file("json"), "").unwrap();
    bed.start();
    let words = "policy number 1 is not in force";
    assert!(is_told(&bed, words).is_some(), "{:?}", checked(&bed));
    wait_for("a look that cannot put it back", || {
        is_told(&bed, "it cannot be put back")
    });
    assert!(is_told(&bed, words).is_some());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn pin_that_is_taken_keeps_no_other_program_away() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("refused", "");
    let taken = bed.pin.join("link_setsockopt");
    fs::remove_file(&taken).unwrap();
    fs::create_dir(&taken).unwrap();
    fs::remove_dir(bed.pair.cgroup_path()).unwrap();
    wait_for("a problem", || (checked(&bed).0 == 2).then_some(()));
    let log = bed.logged().len();
    fs::create_dir(bed.pair.cgroup_path()).unwrap();
    wait_for("the other program", || {
        bed.logged()[log..]
            .contains("attached again: learn_sockops")
            .then_some(())
    });
    assert!(is_attached(&bed.pin.join("link_sockops")));
    let line = checked(&bed).1;
    assert!(line.contains("learn_setsockopt is not attached"), "{line}");
    fs::remove_dir(&taken).unwrap();
    wait_for("its own", || is_well(&bed));
}
