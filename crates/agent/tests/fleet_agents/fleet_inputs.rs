//! What is wrong with a fleet's server, or in its buckets: refused in a line, counted, shown by `fleet
//! status`; the agent goes on.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use thalweg_fleet::keys::UserKey;
use thalweg_fleet::setup::{Authority, Validity};
use thalweg_fleet::wire::Network;

use crate::fleet_server::{
    Server, bed, network_of, others_decide, priors, reader, records, settings,
};
use thalweg_testbed::{Bed, plain, privileged, wait_for};

/// A message as large as the largest server takes.
const LARGE: usize = 64 << 20;

/// Waits until the agent has counted a fault of this kind; what it then shows is checked.
fn refuses(bed: &Bed, kind: &str, words: &str) {
    let place = wait_for(kind, || {
        let place = bed.json(&["fleet", "status"]);
        place["faults"][kind].is_u64().then_some(place)
    });
    let last = &place["last_fault"];
    assert_eq!(last["kind"], kind, "{place}");
    let text = last["text"].as_str().expect("a text");
    assert!(text.contains(words) && !text.contains('\n'), "{text}");
    let shown = String::from_utf8(bed.thalweg(&["fleet", "status"]).stdout).expect("text");
    assert!(shown.contains(&format!(" of kind {kind}\n")), "{shown}");
    assert!(shown.contains(words), "{shown}");
}

/// A connection more is decided and measured.
fn goes_on(bed: &Bed) {
    let (decided, measured) = (bed.counter("decided"), bed.measured());
    bed.connect(&bed.server_address(), 1, 1_100_000);
    bed.counter_reaches("decided", decided + 1);
    bed.measured_reaches(measured + 1);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn keys_and_certificates() {
    if !privileged() {
        return;
    }
    let (authority, other) = (
        Authority::generate().unwrap(),
        Authority::generate().unwrap(),
    );
    let (key, stranger) = (UserKey::generate(), UserKey::generate());
    let now = SystemTime::now();
    let past = Validity {
        from: now - Duration::from_secs(7200),
        until: now - Duration::from_secs(3600),
    };
    let Some(good) = Server::tls(&authority, Validity::default(), &key) else {
        return;
    };
    let expired = Server::tls(&authority, past, &key).unwrap();
    let files = tempfile::tempdir().unwrap();
    let at = |file: &str| files.path().join(file);
    fs::write(at("ca.pem"), authority.certificate_pem()).unwrap();
    fs::write(at("other.pem"), other.certificate_pem()).unwrap();
    key.write_new(&at("key.nk")).unwrap();
    stranger.write_new(&at("stranger.nk")).unwrap();
    let of = |server: &Server, key: &str, ca: &str| {
        let more = format!("nkey = {:?}\nca = {:?}\n", at(key), at(ca));
        settings(&server.tls_url(), &more)
    };

    // A link to itself stands for an error of the disk: the file is there, and cannot be read now.
    symlink("loop", at("loop")).unwrap();
    let mut bed = Bed::new(&plain("fleet-tls"), "");
    for (key, ca, file, code) in [
        ("none.nk", "ca.pem", "none.nk", 78),
        ("loop", "ca.pem", "loop", 1),
        ("key.nk", "key.nk", "found no certificate", 78),
        ("key.nk", "loop", "loop", 1),
    ] {
        bed.configure(&of(&good, key, ca));
        let refused = bed.run_command().output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(code), "{said}");
        assert!(said.contains(file), "{said}");
    }
    bed.configure(&of(&good, "stranger.nk", "ca.pem"));
    bed.start();
    let _reader = reader(&bed);
    refuses(&bed, "credentials", "authorization violation");
    goes_on(&bed);
    for (settings, words) in [
        (of(&expired, "key.nk", "ca.pem"), "certificate expired"),
        (of(&good, "key.nk", "other.pem"), "invalid peer certificate"),
    ] {
        bed.configure(&settings);
        bed.json(&["reload"]);
        refuses(&bed, "tls", words);
        goes_on(&bed);
    }
    // All is right but the buckets, which nobody has made.
    bed.configure(&of(&good, "key.nk", "ca.pem"));
    bed.json(&["reload"]);
    refuses(&bed, "bucket", "stream not found");
    goes_on(&bed);
}

#[test]
#[ignore = "slow: half a minute"]
fn buckets_and_messages() {
    if !privileged() {
        return;
    }
    let Some(mut server) = Server::new() else {
        return;
    };
    let mut bed = bed("fleet-wrong", &server);
    let network = network_of(&bed);
    server.all_tell(24, &network);
    server.restart("max_payload: 64MB");
    let mut raw = server.raw();
    let subject = |agent: &str, shard: u8| format!("$KV.thalweg-priors.{agent}.{shard}");
    raw.put(&subject("random", 3), &[0xa5; 1000]);
    let shard = network.shard().to_string().parse().unwrap();
    let told = |agent: &str| priors(agent, &network).encode().unwrap();
    raw.put(&subject("victim", shard), &told("liar"));
    raw.put(&subject("future", 3), br#"{"format":2}"#);
    raw.without_limits("thalweg-priors", |raw| {
        raw.put(&subject("large", 3), &vec![b'x'; LARGE / 4]);
        raw.put(&subject("larger", 3), &vec![b'x'; LARGE]);
    });
    raw.put(&subject("agent-99", shard), &told("agent-99"));

    // Such a server could send everybody messages of its own size at any time.
    bed.start();
    let _reader = reader(&bed);
    let before = peak(&bed);
    refuses(
        &bed,
        "size",
        "max_payload: found 67108864 bytes, expected at most 8388608",
    );
    goes_on(&bed);

    // One with bounds, which has large messages from before.
    server.process = None;
    let sizes = bed.json(&["fleet", "status"])["faults"]["size"].as_u64();
    server.restart("max_payload: 1MB");
    // What is behind the wrong messages is heard.
    wait_for("the last one", || {
        (others_decide(&bed)["agents"] == 25).then_some(())
    });
    let place = wait_for("all faults", || {
        let place = bed.json(&["fleet", "status"]);
        let faults = &place["faults"];
        let all = ["form", "key", "version"].map(|kind| faults[kind] == 1);
        let large = faults["size"].as_u64() > sizes && place["server"].is_string();
        (all == [true; 3] && large).then_some(place)
    });
    assert_eq!(
        place["faults"]["size"].as_u64(),
        sizes.map(|it| it + 1),
        "{place}"
    );
    goes_on(&bed);
    assert!(
        peak(&bed) < before + (16 << 10),
        "{} kB, then {}",
        before,
        peak(&bed)
    );

    // Messages without bounds, and another version.
    let mut raw = server.raw();
    let mut first = Value::Null;
    raw.change("thalweg-priors", |config| {
        first = config.clone();
        config["max_msg_size"] = json!(-1);
    });
    assert!(bed.end(Signal::SIGTERM).success());
    bed.start();
    refuses(
        &bed,
        "version",
        "subjects, history or sizes are not those of format 1",
    );
    goes_on(&bed);
    raw.change("thalweg-priors", |config| {
        *config = first;
        config["description"] = json!("thalweg fleet, format 2");
    });
    assert!(bed.end(Signal::SIGTERM).success());
    bed.start();
    refuses(&bed, "version", r#"found "thalweg fleet, format 2""#);
    goes_on(&bed);
    // What it knew of others before stays.
    assert_eq!(others_decide(&bed)["agents"], 25);
    let name = format!(
        "prefix:{}",
        records(&bed, "prefix")[0]["name"].as_str().unwrap()
    );
    assert_eq!(Network::parse(&name), Some(network));
    // A kind of fault is one line of the log.
    let logged = bed.logged();
    let lines = logged.lines().filter(|line| line.contains("max_payload"));
    assert_eq!(lines.count(), 1, "{logged}");
}

/// The most memory that the agent has had, kB.
fn peak(bed: &Bed) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", bed.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.unwrap().parse().unwrap()
}
