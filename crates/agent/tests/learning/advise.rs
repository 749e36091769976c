//! Advice: `thalweg run --advise` sets nothing but trials, and `thalweg advise` says what would be
//! best.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};
use thalweg_control::system;
use thalweg_lab::host::{PairOptions, Side};
use thalweg_learner::{Control, HostKey, ONE_Q16};

use thalweg_testbed::policies::policy;
use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{Bed, COLLECTOR, plain, privileged, wait_for};

/// Connections of some bytes, as many at a time as asked for. Arguments: number to each address,
/// bytes, at a time, CC to set before connecting or "-", addresses. Prints for
/// each its address, its CC at the end, and the time that it took in s.
const CLIENT: &str = r#"
import socket, sys, threading, time
number, size, width = map(int, sys.argv[1:4])
control, addresses = sys.argv[4], sys.argv[5:]
left, said = addresses * number, []
def work():
    while True:
        try:
            address = left.pop()
        except IndexError:
            return
        with socket.socket() as connection:
            if control != "-":
                connection.setsockopt(socket.IPPROTO_TCP, 13, control.encode())
            connection.connect((address, 5001))
            begin = time.monotonic()
            connection.sendall(bytes(size))
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
            took = time.monotonic() - begin
            name = connection.getsockopt(socket.IPPROTO_TCP, 13, 16).rstrip(b"\0").decode()
            said.append(f"{address} {name} {took}")
threads = [threading.Thread(target=work) for _ in range(width)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("\n".join(said))
"#;

/// What a client said of a connection.
struct Said {
    address: String,
    control: String,
    log2_s: f64,
}

/// Connections to addresses, and what became of them.
struct Client<'b> {
    bed: &'b Bed,
    bytes: usize,
    width: usize,
}

impl Client<'_> {
    fn connect(&self, number: usize, control: &str, addresses: &[String]) -> Vec<Said> {
        let numbers = [number, self.bytes, self.width].map(|it| it.to_string());
        let mut arguments: Vec<&str> = numbers.iter().map(String::as_str).collect();
        arguments.push(control);
        arguments.extend(addresses.iter().map(String::as_str));
        let said = self.bed.python(Side::Client, CLIENT, &arguments).finish();
        let connection = |line: &str| {
            let mut words = line.split(' ');
            let mut word = || words.next().unwrap().to_owned();
            Said {
                address: word(),
                control: word(),
                log2_s: word().parse::<f64>().unwrap().log2(),
            }
        };
        let said: Vec<Said> = said.lines().map(connection).collect();
        assert_eq!(said.len(), number * addresses.len());
        said
    }
}

fn path(label: &str, delay: &str, loss: &str) -> PairOptions {
    let mut options = plain(label);
    options.path.delay = serde_json::from_value(json!(delay)).unwrap();
    options.path.loss = serde_json::from_value(json!(loss)).unwrap();
    options
}

fn addresses(bed: &Bed) -> Vec<String> {
    let addresses = bed.pair.server_addresses();
    addresses.iter().map(ToString::to_string).collect()
}

fn controls(said: &[Said]) -> BTreeSet<&str> {
    said.iter().map(|it| it.control.as_str()).collect()
}

/// The advice once so many connections are in it.
fn advice_on(bed: &Bed, connections: u64, arguments: &[&str]) -> Value {
    wait_for(&format!("advice on {connections} connections"), || {
        let advice = bed.json(&[&["advise"], arguments].concat());
        let count = advice["groups"][0]["limits"]["connections"].as_u64();
        (count >= Some(connections)).then_some(advice)
    })
}

fn nothing_is_set_without_trials() {
    let mut bed = Bed::new(
        &plain("advise"),
        "[arms]\nallow = [\"cubic\", \"reno\"]\n[advise]\nonly = true\n",
    );
    let addresses = [bed.server_address()];
    let mut server = bed.python(Side::Server, COLLECTOR, &[]);
    assert_eq!(server.line(), "listening");
    bed.start();
    let client = Client {
        bed: &bed,
        bytes: 300_000,
        width: 4,
    };
    let said = client.connect(60, "-", &addresses);
    assert_eq!(controls(&said), BTreeSet::from(["cubic"]));
    let said = client.connect(20, "reno", &addresses);
    assert_eq!(controls(&said), BTreeSet::from(["reno"]));
    // A policy's choice, too, differs by itself.
    let rule = "[[rule]]\nname = \"by-rule\"\nmatch.remote_port = 5001\n\
                set = { congestion = \"reno\" }\n";
    bed.apply(&policy(rule));
    let said = client.connect(10, "-", &addresses);
    assert_eq!(controls(&said), BTreeSet::from(["reno"]));
    bed.json(&["policy", "remove"]);
    // The first connection to the host is the yardstick; each side counts its own end.
    let advice = advice_on(&bed, 90, &["--by", "port"]);
    assert_eq!(bed.counter("changed"), 0);
    assert_eq!(advice["source"], "advice");
    assert_eq!(
        (&advice["trials"], &advice["system_arm"]),
        (&json!(0.0), &json!("cubic"))
    );
    let all = &advice["groups"][0];
    let choices = all["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 1, "{all}");
    assert_eq!(
        (&choices[0]["by"], &choices[0]["arm"]),
        (&json!("itself"), &json!("reno"))
    );
    // One host in one hour.
    assert_eq!(choices[0]["rows"][0]["treated"], 1, "{all}");
    assert_eq!(all["verdict"], "unknown");
    let ports: Vec<_> = advice["groups"].as_array().unwrap()[1..].iter().collect();
    assert_eq!((ports.len(), &ports[0]["name"]), (1, &json!("5001")));
    // Nobody was taught by what applications chose.
    let host = bed.host(&addresses[0]).unwrap();
    let scored = |arm: &str| {
        let mut arms = host["arms"].as_array().unwrap().iter();
        arms.find(|it| it["arm"] == arm).unwrap()["scored"].clone()
    };
    assert_eq!((bed.measured(), scored("reno")), (60, json!(0)));
    assert_eq!(host["scored"], scored("cubic"));
    let text = String::from_utf8(bed.thalweg(&["status"]).stdout).unwrap();
    assert!(text.contains("advice only: nothing is set"), "{text}");
}

/// The arm of each of some remote addresses, as a side sees them, in the present hour: drawn by the
/// reference.
fn drawn(bed: &Bed, group: Control, side: Side, remotes: &[String]) -> BTreeMap<String, String> {
    let draw = draws(bed, side);
    let of = |remote: &String| (remote.clone(), draw(group, remote));
    remotes.iter().map(of).collect()
}

/// What draws the arm of a remote address in the present hour.
fn draws(bed: &Bed, side: Side) -> impl Fn(Control, &str) -> String + use<> {
    let file = Path::new("/run/netns").join(bed.pair.namespace_name(side));
    let netns = system::netns_cookie_of(&file).unwrap();
    let table = bed.json(&["arms"]);
    let arms = table.as_array().unwrap().clone();
    let present = arms.iter().filter(|arm| arm["present"] == true);
    let allowed = present.fold(0, |mask, arm| mask | 1 << arm["index"].as_u64().unwrap());
    let now_ns = system::monotonic_ns();
    move |group, remote| {
        let key = HostKey::new(netns, remote.parse().unwrap(), 32, 64).unwrap();
        if group.contains_cluster(key.tag(), now_ns) {
            return "cubic".to_owned();
        }
        let index = group.trial_arm(key.tag(), allowed, now_ns).unwrap();
        let arm = arms.iter().find(|arm| arm["index"] == index).unwrap();
        arm["name"].as_str().unwrap().to_owned()
    }
}

fn only_the_drawn_clusters_have_trials() {
    let mut options = plain("drawn");
    options.further_addresses = 100;
    let mut bed = Bed::new(&options, "");
    bed.configure(
        "[arms]\nallow = [\"cubic\", \"reno\", \"bbr\"]\n[control]\npermanent = 0\nsalt = 7\n\
         [advise]\nonly = true\ntrials = 0.5\n",
    );
    let addresses = addresses(&bed);
    let mut server = bed.python(Side::Server, COLLECTOR, &[]);
    assert_eq!(server.line(), "listening");
    bed.start();
    let group = Control {
        share_q16: 1 << 15,
        permanent_q16: 0,
        salt: 7,
    };
    let client = Client {
        bed: &bed,
        bytes: 3_000,
        width: 8,
    };
    let before = drawn(&bed, group, Side::Client, &addresses);
    let said = client.connect(3, "-", &addresses);
    let after = drawn(&bed, group, Side::Client, &addresses);
    assert_eq!(before, after, "the hour has changed");
    for connection in &said {
        assert_eq!(
            connection.control, before[&connection.address],
            "{}",
            connection.address
        );
    }
    let given = |arm: &str| before.values().filter(|it| *it == arm).count();
    // 101 hosts: a third of a half each, within four deviations.
    assert!(
        (3..34).contains(&given("reno")) && (3..34).contains(&given("bbr")),
        "{before:?}"
    );
    // To the server the client is one host, with an arm for all that it accepts.
    let from = [bed.pair.first_address(Side::Client).to_string()];
    let accepted = match drawn(&bed, group, Side::Server, &from)[&from[0]].as_str() {
        "cubic" => 0,
        _ => said.len(),
    };
    let changed = bed.counter_reaches("closed", 2 * said.len() as u64);
    assert_eq!(changed, 2 * said.len() as u64);
    assert_eq!(
        bed.counter("changed") as usize,
        accepted + 3 * (given("reno") + given("bbr"))
    );
    // An application's choice is left to it in a trial as well.
    let said = client.connect(1, "cubic", &addresses);
    assert_eq!(controls(&said), BTreeSet::from(["cubic"]));
    let events = bed.events(1);
    let mut trials = events
        .iter()
        .filter(|it| it["reason"] == "drawn" && it["kind"] == "decision");
    assert!(trials.all(|event| {
        let shares = event["propensities"].as_object().unwrap();
        shares.len() == 3
            && shares
                .values()
                .all(|share| (share.as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-3)
    }));
    // A learner in its place goes on with what the trials have taught.
    bed.configure("[advise]\ntrials = 0.5\n");
    assert_eq!(bed.json(&["reload"])["changed"], true);
    let advice = wait_for("the learner", || {
        Some(bed.json(&["advise"])).filter(|advice| advice["source"] == "learner")
    });
    assert!(
        advice["summary"]
            .as_str()
            .unwrap()
            .contains("No connection has ended yet"),
        "{advice}"
    );
}

fn an_arm_twice_as_fast_is_advised_with_the_truth_in_its_interval() {
    let mut options = path("twice", "10ms", "8%");
    options.further_addresses = 200;
    let mut bed = Bed::new(&options, "");
    let addresses = addresses(&bed);
    let mut server = bed.python(Side::Server, COLLECTOR, &[]);
    assert_eq!(server.line(), "listening");
    // The truth, before there is an agent: applications with one or the other.
    let mean = |control: &str| {
        let client = Client {
            bed: &bed,
            bytes: 250_000,
            width: 16,
        };
        let said = client.connect(1, control, &addresses);
        said.iter().map(|it| it.log2_s).sum::<f64>() / said.len() as f64
    };
    let truth = 100.0 * ((mean("bbr") - mean("cubic")).exp2() - 1.0);
    println!("bbr takes {truth:.1} % of the time more than cubic");
    let advise = |bed: &mut Bed, salt: u64| {
        bed.configure(&format!(
            "[arms]\nallow = [\"cubic\", \"bbr\"]\n[control]\npermanent = 0\nsalt = {salt}\n"
        ));
        let mut command = bed.run_command();
        command.args(["--advise", "0.7"]);
        bed.start_by(command);
    };
    // A salt that gives bbr enough of the 201 hosts: what is drawn depends on the namespace's number.
    advise(&mut bed, 0);
    let draw = draws(&bed, Side::Client);
    let enough = |salt: &u64| {
        let group = Control {
            share_q16: (f64::from(ONE_Q16) * 0.3).round() as u32,
            permanent_q16: 0,
            salt: *salt,
        };
        let of_bbr = addresses.iter().filter(|it| draw(group, it) == "bbr");
        of_bbr.count() >= 85
    };
    let salt = (1..).find(enough).unwrap();
    bed.end(nix::sys::signal::Signal::SIGTERM);
    advise(&mut bed, salt);
    let client = Client {
        bed: &bed,
        bytes: 250_000,
        width: 16,
    };
    client.connect(2, "-", &addresses);
    let advice = advice_on(&bed, 402, &[]);
    println!("{advice:#}");
    let all = &advice["groups"][0];
    assert_eq!(
        (&all["verdict"], &all["best"]),
        (&json!("take"), &json!("bbr")),
        "{advice}"
    );
    let time = &all["choices"][0]["rows"][0];
    let (low, high) = (
        time["low"].as_f64().unwrap(),
        time["high"].as_f64().unwrap(),
    );
    assert!(low < truth && truth < high, "{low} {truth} {high}");
    assert!(
        truth < -33.0 && high < -10.0,
        "{low} {truth} {high}: no arm is so much faster"
    );
    assert!(
        advice["summary"]
            .as_str()
            .unwrap()
            .starts_with("bbr would take ")
    );
    let text = bed.thalweg(&["advise", "--by", "prefix"]);
    print!("{}", String::from_utf8(text.stdout).unwrap());
}

fn a_small_window_is_advised_as_the_limit() {
    let mut bed = Bed::new(&path("window", "20ms", "0%"), "[advise]\nonly = true\n");
    let addresses = [bed.server_address()];
    let mut server = bed.python(Side::Server, COLLECTOR, &["20000"]);
    assert_eq!(server.line(), "listening");
    bed.start();
    let client = Client {
        bed: &bed,
        bytes: 500_000,
        width: 1,
    };
    client.connect(4, "-", &addresses);
    let advice = advice_on(&bed, 4, &[]);
    let limits = &advice["groups"][0]["limits"];
    assert!(limits["receiver"].as_f64().unwrap() > 0.6, "{limits}");
    let finding = &limits["findings"][0];
    assert_eq!(finding["limit"], "receiver");
    assert_eq!(finding["setting"], "net.ipv4.tcp_rmem");
    // The kernel doubles SO_RCVBUF; how much of it is overhead depends on the packets.
    let in_flight = finding["needed_bytes"].as_f64().unwrap() / 4.0;
    assert!((10_000.0..40_000.0).contains(&in_flight), "{finding}");
    let rtt = finding["rtt_us"].as_u64().unwrap();
    assert!((40_000..60_000).contains(&rtt), "{finding}");
    let said = String::from_utf8(bed.thalweg(&["advise"]).stdout).unwrap();
    print!("{said}");
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("No congestion control will help there."),
        "{said}"
    );
    assert!(
        said.contains("net.ipv4.tcp_rmem on the other end"),
        "{said}"
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_published_tuner_has_no_advice() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("classic"), "mode = \"classic\"\n");
    bed.start();
    let output = bed.thalweg(&["advise"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("mode \"classic\" has no advice"), "{said}");
    // In another mode the same agent has some, and says what it rests on.
    bed.configure("dry_run = true\n");
    assert_eq!(bed.json(&["reload"])["changed"], true);
    let advice = wait_for("the dry run", || {
        let output = bed.thalweg(&["--json", "advise"]);
        let advice: Value = serde_json::from_slice(&output.stdout).ok()?;
        (advice["source"] == "dry-run").then_some(advice)
    });
    assert_eq!(advice["trials"], Value::Null);
    for (arguments, why) in [
        (
            ["advise", "--by", "port", "--prefix", "192.0.2.0/24"].as_slice(),
            "prefix: expected by=prefix beside it",
        ),
        (
            &["advise", "--prefix", "192.0.2.0/24"],
            "no connection of 192.0.2.0/24 is in a comparison yet",
        ),
    ] {
        let output = bed.thalweg(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(why), "{said}");
    }
}

in_virtual_time!(
    #[ignore = "slow: minutes of a processor"]
    [],
    an_arm_twice_as_fast_is_advised_with_the_truth_in_its_interval,
    nothing_is_set_without_trials,
    only_the_drawn_clusters_have_trials,
    a_small_window_is_advised_as_the_limit,
);
