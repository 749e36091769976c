//! Policies of a fleet, as an operator gives them: `thalweg fleet init` to `fleet policy remove`, with a
//! real nats-server and a real agent.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use serde_json::Value;
use thalweg_fleet::keys::SigningKey;
use thalweg_fleet::wire::policy::{ALL_PPM, canary_turn};
use thalweg_fleet::{Identity, Name, Operator, Settings};
use thalweg_process::Process;

use crate::fleet_server::program;
use thalweg_testbed::policies::{one_rule, options_of};
use thalweg_testbed::{Bed, plain, privileged, skip, thalweg, wait_for};

/// A fleet with one server, and an operator's directory.
struct Fleet {
    directory: tempfile::TempDir,
    port: String,
    policy_key: String,
    server: Option<Process>,
}

impl Fleet {
    /// None if there is no nats-server.
    fn new() -> Option<Self> {
        if program().is_none() {
            skip("no nats-server (scripts/setup.sh --test)");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("its address").port().to_string();
        drop(free);
        let mut fleet = Self {
            directory,
            port,
            policy_key: String::new(),
            server: None,
        };
        let (at, store) = (fleet.at("f/servers/127.0.0.1"), fleet.at("store"));
        let (port, at, store) = (fleet.port.clone(), text(&at), text(&store));
        let report = fleet.json(&[
            "init",
            "f",
            "--server=127.0.0.1",
            "--agent=web1",
            "--listen=127.0.0.1",
            &format!("--port={port}"),
            &format!("--at={at}"),
            &format!("--store={store}"),
        ]);
        report["policy_key"]
            .as_str()
            .expect("a key")
            .clone_into(&mut fleet.policy_key);
        fleet.start();
        wait_for("buckets", || {
            let made = fleet.run(&["buckets", "f", "--size=16MB", &fleet.port()]);
            made.status.success().then_some(())
        });
        Some(fleet)
    }

    fn start(&mut self) {
        let mut command = Command::new(program().expect("nats-server"));
        command
            .arg("-c")
            .arg(self.at("f/servers/127.0.0.1/nats-server.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.server = Some(Process::spawn(&mut command).expect("starting nats-server"));
    }

    fn at(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    fn port(&self) -> String {
        format!("--port={}", self.port)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(thalweg())
            .current_dir(self.directory.path())
            .arg("fleet")
            .args(arguments)
            .output()
            .expect("running thalweg")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// What publishes a text for label web as it is; returns its number.
    fn operator(&self) -> impl FnOnce(&str) -> u64 + use<> {
        let server = format!("tls://127.0.0.1:{}", self.port);
        let key = Identity::Nkey(self.at("f/operator.nk"));
        let mut settings = Settings::new(vec![server], name("operator"), key);
        settings.ca = Some(self.at("f/ca.pem"));
        let signing = SigningKey::read_file(&self.at("f/policy.nk")).expect("a key");
        move |text| {
            let mut operator = Operator::connect(&settings).expect("a connection");
            let published = operator.publish_policy(&name("web"), text, ALL_PPM, &signing, &[]);
            published.expect("a number")
        }
    }

    /// Asks for a policy of label web.
    fn publish(&self, policy: &str, more: &[&str]) -> Output {
        fs::write(self.at("policy.toml"), policy).expect("writing");
        let words = ["policy", "apply", "policy.toml", "--to=web", "--fleet=f"];
        self.run(&[&words, more, &[&self.port(), "--json"]].concat())
    }

    /// Publishes a policy for label web; returns its number.
    fn apply(&self, policy: &str, more: &[&str]) -> u64 {
        let output = self.publish(policy, more);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        told["number"].as_u64().expect("a number")
    }

    /// Why a policy is not published.
    fn refuses(&self, policy: &str, more: &[&str]) -> String {
        let output = self.publish(policy, more);
        assert!(!output.status.success());
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    }

    /// What agent web1 tells of its policy of label web.
    fn told(&self) -> Option<Value> {
        let shown = self.json(&["policy", "show", "--to=web", "--fleet=f", &self.port()]);
        let agents = shown[0]["agents"].as_array()?.clone();
        let web1 = agents.into_iter().find(|it| it["agent"] == "web1")?;
        Some(web1["progress"].clone())
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn text(path: &Path) -> String {
    path.to_str().expect("plain path").to_owned()
}

/// A bed whose agent is web1, with label web.
fn bed(label: &str, fleet: &Fleet) -> Bed {
    let settings = format!(
        "[fleet]\nname = \"web1\"\nservers = [\"tls://127.0.0.1:{}\"]\nnkey = {:?}\nca = {:?}\n\
         labels = [\"web\"]\nkeys = [{:?}]\n",
        fleet.port,
        fleet.at("f/agents/web1/agent.nk"),
        fleet.at("f/agents/web1/ca.pem"),
        fleet.policy_key
    );
    Bed::new(&plain(label), &settings)
}

/// The agent's policy of a label, once it is so far.
fn reaches(bed: &Bed, number: u64, stage: &str) -> Value {
    wait_for(&format!("policy {number}, {stage}"), || {
        let place = bed.json(&["fleet", "status"]);
        let found = place["policies"]
            .as_array()?
            .iter()
            .find(|it| it["label"] == "web")?;
        (found["number"] == number && found["stage"] == stage).then(|| found.clone())
    })
}

fn in_force(bed: &Bed) -> Value {
    bed.json(&["policy", "show"])["file"].clone()
}

/// A directory that cannot be written to as long as this value is there.
struct ReadOnly(PathBuf);

impl ReadOnly {
    fn new(directory: PathBuf) -> Self {
        let mounted = Self(directory);
        for more in [MsFlags::empty(), MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY] {
            let (at, flags) = (&mounted.0, MsFlags::MS_BIND | more);
            mount(Some(at), at, None::<&str>, flags, None::<&str>).expect("a mount");
        }
        mounted
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn policies_leave_the_kernel_although_the_state_directory_fails() {
    if !privileged() {
        return;
    }
    let Some(fleet) = Fleet::new() else {
        return;
    };
    let mut bed = bed("fleet-disk", &fleet);
    bed.start();
    let first = fleet.apply(&one_rule("mark = 7"), &[]);
    reaches(&bed, first, "in-force");

    // What is wanted cannot be written, and the history is lost.
    let (file, history) = (bed.state().join("fleet.json"), bed.state().join("policy"));
    fs::remove_file(&file).expect("removing");
    fs::create_dir(&file).expect("a directory");
    fs::rename(&history, history.with_extension("aside")).expect("moving");
    let removal = fleet.json(&["policy", "remove", "--to=web", "--fleet=f", &fleet.port()]);
    let removal = removal["number"].as_u64().expect("a number");
    let found = reaches(&bed, removal, "in-force");
    assert_eq!(found["reason"], "removed");
    assert!(bed.json(&["policy", "show"]).is_null());
    fs::remove_dir(&file).expect("removing");

    // A policy is at fault, and there is no room to put the one before it in force.
    let good = fleet.apply(&one_rule("mark = 8"), &[]);
    reaches(&bed, good, "in-force");
    let bad = fleet.apply(&one_rule("congestion = \"nosuch\""), &[]);
    reaches(&bed, bad, "in-force");
    let _read_only = ReadOnly::new(history);
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 20, 1);
    let found = reaches(&bed, bad, "rolled-back");
    let why = found["reason"].as_str().expect("a reason");
    for part in ["TCP_CONGESTION", "cannot be put in force again"] {
        assert!(why.contains(part), "{why}");
    }
    assert!(bed.json(&["policy", "show"]).is_null());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn agents_obey_catch_up_and_take_back() {
    if !privileged() {
        return;
    }
    let Some(mut fleet) = Fleet::new() else {
        return;
    };
    let mut bed = bed("fleet-policy", &fleet);
    bed.start();
    let first = fleet.apply(&one_rule("mark = 7"), &[]);
    reaches(&bed, first, "in-force");
    assert_eq!(options_of(&bed, &[(1, 36)]), (vec![7], vec![7]));
    let told = wait_for("what the agent tells", || {
        fleet.told().filter(|it| !it.is_null())
    });
    assert_eq!(
        (&told["number"], &told["stage"]),
        (&first.into(), &"in-force".into())
    );

    // Away: without an agent, and without a server.
    assert!(!bed.end(Signal::SIGKILL).success());
    let second = fleet.apply(&one_rule("mark = 8"), &[]);
    fleet.server = None;
    // Nor is there what it wanted, which is no reason to let go of it.
    let file = bed.state().join("fleet.json");
    let wanted = fs::read_to_string(&file).expect("what is wanted");
    fs::write(&file, &wanted[1..]).expect("writing");
    bed.start();
    let problem = |bed: &Bed| {
        let told = bed.json(&["status"])["problems"].to_string();
        told.contains("fleet.json is damaged")
    };
    wait_for("the problem", || problem(&bed).then_some(()));
    assert_eq!(in_force(&bed), format!("fleet/web/{first}"));
    fleet.start();
    reaches(&bed, second, "in-force");
    wait_for("its end", || (!problem(&bed)).then_some(()));
    assert_eq!(options_of(&bed, &[(1, 36)]), (vec![8], vec![8]));

    // Settings fail: it is taken back.
    let bad = fleet.apply(&one_rule("congestion = \"nosuch\""), &[]);
    reaches(&bed, bad, "in-force");
    let taken_back = wait_for("a policy that is taken back", || {
        options_of(&bed, &[(1, 36)]);
        let place = bed.json(&["fleet", "status"]);
        let found = place["policies"][0].clone();
        (found["stage"] == "rolled-back").then_some(found)
    });
    let why = taken_back["reason"].as_str().expect("a reason");
    assert!(
        why.contains("TCP_CONGESTION") && why.contains("ENOENT"),
        "{why}"
    );
    assert_eq!(in_force(&bed), format!("fleet/web/{second}"));
    assert_eq!(options_of(&bed, &[(1, 36)]), (vec![8], vec![8]));

    // What is taken back stays so, also over a restart.
    assert!(bed.end(Signal::SIGTERM).success());
    bed.start();
    reaches(&bed, bad, "rolled-back");
    assert_eq!(in_force(&bed), format!("fleet/web/{second}"));

    // After a restart of the machine it cannot be put in force again: nobody removed it. Once it can,
    // it is.
    assert!(bed.end(Signal::SIGTERM).success());
    thalweg_control::policy::remove(&bed.pin).expect("no policy");
    let kept = bed.state().join("policy/in-force");
    let number = fs::read_to_string(&kept).expect("a number");
    let number: u32 = number.trim().parse().expect("a number");
    let kept = bed.state().join(format!("policy/{number:08}.toml"));
    let aside = kept.with_extension("aside");
    fs::rename(&kept, &aside).expect("moving");
    bed.start();
    wait_for("the problem", || {
        let told = bed.json(&["status"])["problems"].to_string();
        told.contains(&format!("{number:08}.toml")).then_some(())
    });
    reaches(&bed, bad, "rolled-back");
    fs::rename(&aside, &kept).expect("moving");
    wait_for("the policy again", || {
        (in_force(&bed) == format!("fleet/web/{second}")).then_some(())
    });
    assert_eq!(options_of(&bed, &[(1, 36)]), (vec![8], vec![8]));

    // Whoever is at the machine has the last word, until the next one.
    let output = bed.thalweg(&["policy", "remove"]);
    assert!(output.status.success(), "{output:?}");
    let found = reaches(&bed, bad, "rolled-back");
    assert!(found["reason"].is_string());
    let third = fleet.apply(&one_rule("mark = 9"), &[]);
    reaches(&bed, third, "in-force");
    fleet.json(&["policy", "remove", "--to=web", "--fleet=f", &fleet.port()]);
    wait_for("the removal", || {
        bed.json(&["policy", "show"]).is_null().then_some(())
    });
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_canary_is_first_and_strangers_are_not_obeyed() {
    if !privileged() {
        return;
    }
    let Some(fleet) = Fleet::new() else {
        return;
    };
    let mut bed = bed("fleet-canary", &fleet);
    bed.start();
    wait_for("a status", || {
        let shown = fleet.run(&["policy", "apply", "nosuch.toml", "--fleet=f"]);
        assert!(!shown.status.success());
        let place = bed.json(&["fleet", "status"]);
        (place["sent"]["messages"].as_u64() > Some(6)).then_some(())
    });
    let mine = f64::from(canary_turn(&name("web1"), &name("web"))) / 10_000.0;
    // Nobody is first: that is a mistake of the operator's.
    let said = wait_for("the agent's status", || {
        let less = format!("--canary={:.3}%", (mine / 2.0).max(0.001));
        let said = fleet.refuses(&one_rule("mark = 6"), &[&less]);
        said.contains("which is web1").then_some(said)
    });
    assert!(said.contains("of 1 agent is nobody"), "{said}");
    let share = format!("--canary={:.3}%", (mine + 0.2).min(99.9));
    let first = fleet.apply(&one_rule("mark = 7"), &[&share]);
    reaches(&bed, first, "canary");
    // The same for all changes nothing in the kernel.
    let second = fleet.apply(&one_rule("mark = 7"), &[]);
    reaches(&bed, second, "in-force");
    assert_eq!(in_force(&bed), format!("fleet/web/{first}"));

    // Another key than the agent's configuration names.
    fleet.json(&["key", "other.nk"]);
    let third = fleet.apply(&one_rule("mark = 8"), &["--key=other.nk"]);
    let fault = wait_for("a fault", || {
        let place = bed.json(&["fleet", "status"]);
        (place["faults"]["signature"].as_u64() > Some(0)).then(|| place["last_fault"].clone())
    });
    let said = fault["text"].as_str().expect("a text");
    assert!(
        said.contains(&format!("policy web {third}")) && said.contains("`keys`"),
        "{said}"
    );
    assert_eq!(in_force(&bed), format!("fleet/web/{first}"));

    // A fault in what was signed elsewhere, as by another version: nothing changes, and the fleet hears.
    let operator = fleet.operator();
    let text = "name = \"x\"\n[[rule]]\nname = \"y\"\nset = { mark = \"z\" }\n";
    let fourth = operator(text);
    let refused = reaches(&bed, fourth, "refused");
    let why = refused["reason"].as_str().expect("a reason");
    assert!(why.contains(&format!("fleet/web/{fourth}:4:")), "{why}");
    assert_eq!(in_force(&bed), format!("fleet/web/{first}"));
    wait_for("the fleet to hear of it", || {
        let told = fleet.told()?;
        (told["stage"] == "refused").then_some(())
    });

    // A credentials file goes before the key.
    let credentials = fleet.at("f/operator.creds");
    fs::write(&credentials, "-----BEGIN NATS USER JWT-----\n").expect("writing");
    fs::set_permissions(&credentials, fs::Permissions::from_mode(0o600)).expect("its mode");
    let said = fleet.refuses(&one_rule("mark = 9"), &[]);
    assert!(
        said.contains("operator.creds: found no JWT and seed"),
        "{said}"
    );
    fs::remove_file(credentials).expect("removing");

    // Faults in the file are told before anything is signed.
    let said = fleet.refuses(
        "name = \"x\"\n[[rule]]\nname = \"y\"\nset = { mark = \"z\" }\n",
        &[],
    );
    assert!(said.contains("policy.toml:4:"), "{said}");
    // A cookie is another network namespace's on each machine.
    let said = fleet.refuses(
        "name = \"x\"\n[[rule]]\nname = \"y\"\nmatch.netns = 7\nset.nodelay = true\n",
        &[],
    );
    assert!(said.contains("match.netns: found the cookie 7"), "{said}");
}
