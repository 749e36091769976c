//! What a server or its operator has wrong is told in one line, and counted.

use std::fs;
use std::time::{Duration, SystemTime};

use thalweg_fleet::setup::{Authority, Validity};
use thalweg_fleet::{Fleet, Kind, Limits, Outgoing};

use super::support::{Bed, connected, fault, priors, status, wait_for};

#[test]
fn an_unknown_key() {
    let Some(bed) = Bed::new(&["a", "b"]) else {
        return;
    };
    let key = thalweg_fleet::keys::UserKey::generate();
    let file = bed.path("stranger.nk");
    key.write_new(&file).unwrap();
    let mut settings = bed.settings("a");
    settings.identity = thalweg_fleet::Identity::Nkey(file);
    let stranger = Fleet::start(&settings).unwrap();
    let told = fault(&stranger, Kind::Credentials);
    assert!(told.contains("authorization violation"), "{told}");
    assert_eq!(stranger.state().connected, None);
    // It goes on trying, and others are not disturbed.
    wait_for("another try", || {
        stranger
            .state()
            .faults
            .get(&Kind::Credentials)
            .filter(|it| **it > 1)
            .copied()
    });
    connected(&bed.agent("b"));
}

#[test]
fn another_ca() {
    let Some(bed) = Bed::new(&["a"]) else { return };
    fs::write(
        bed.path("ca.pem"),
        Authority::generate().unwrap().certificate_pem(),
    )
    .unwrap();
    let told = fault(&bed.agent("a"), Kind::Tls);
    assert!(told.contains("invalid peer certificate"), "{told}");
}

#[test]
fn an_expired_certificate() {
    let now = SystemTime::now();
    let validity = Validity {
        from: now - Duration::from_secs(7200),
        until: now - Duration::from_secs(3600),
    };
    let Some(bed) = Bed::bare(&["a"], 1, validity) else {
        return;
    };
    let told = fault(&bed.agent("a"), Kind::Tls);
    assert!(told.to_lowercase().contains("expired"), "{told}");
}

#[test]
fn another_name() {
    let Some(bed) = Bed::new(&["a"]) else { return };
    let mut settings = bed.settings("a");
    settings.servers = vec![settings.servers[0].replace("127.0.0.1", "localhost")];
    let told = fault(&Fleet::start(&settings).unwrap(), Kind::Tls);
    assert!(told.contains("not valid for name"), "{told}");
}

#[test]
fn buckets_that_are_missing_then_there() {
    let Some(bed) = Bed::bare(&["a"], 1, Validity::default()) else {
        return;
    };
    let a = bed.agent("a");
    a.offer_message(&Outgoing::Priors(priors("a", 1, 1)))
        .unwrap();
    let told = fault(&a, Kind::Bucket);
    assert!(told.contains("bucket thalweg-p"), "{told}");
    bed.operator().make_all(&super::support::SMALL).unwrap();
    wait_for("what waited", || {
        Some(()).filter(|()| a.state().published == 1)
    });
}

#[test]
fn a_bucket_of_another_version() {
    let Some(bed) = Bed::new(&["a"]) else { return };
    let operator = bed.raw("operator");
    operator.change("KV_thalweg-priors", |config| {
        config.description = Some("thalweg fleet, format 2".to_owned());
    });
    let told = fault(&bed.agent("a"), Kind::Version);
    assert!(
        told.contains(r#"found "thalweg fleet, format 2""#),
        "{told}"
    );
    // One that somebody else made, or in which rollups could empty it.
    operator.change("KV_thalweg-priors", |config| {
        config.description = Some("thalweg fleet, format 1".to_owned());
        config.max_message_size = -1;
    });
    let a = bed.agent("a");
    let told = fault(&a, Kind::Version);
    assert!(told.contains("sizes are not those of format 1"), "{told}");
    assert_eq!(a.state().connected, None);
    assert!(bed.operator().make_all(&super::support::SMALL).is_err());
}

#[test]
fn a_full_bucket() {
    let Some(bed) = Bed::bare(&["a", "b"], 1, Validity::default()) else {
        return;
    };
    // The bucket of statuses has a sixteenth: room for one, with its name and all.
    let one = status("a").encode().unwrap().len() + 100;
    let limits = Limits {
        bytes: 16 * one as u64,
        ..super::support::SMALL
    };
    bed.operator().make_all(&limits).unwrap();
    let (a, b) = (bed.agent("a"), bed.agent("b"));
    b.offer_message(&Outgoing::Priors(priors("b", 1, 1)))
        .unwrap();
    a.offer_message(&Outgoing::Status(status("a"))).unwrap();
    wait_for("one status and priors", || {
        Some(()).filter(|()| a.state().published == 1 && b.state().published == 1)
    });
    b.offer_message(&Outgoing::Status(status("b"))).unwrap();
    let told = fault(&b, Kind::Full);
    assert!(told.contains("maximum bytes exceeded"), "{told}");
    // Nobody's value was pushed out, and the rest goes on.
    assert_eq!(
        b.request_statuses(Duration::from_secs(10)).unwrap().len(),
        1
    );
    b.offer_message(&Outgoing::Priors(priors("b", 1, 2)))
        .unwrap();
    wait_for("priors", || Some(()).filter(|()| b.state().published == 2));
    assert_eq!(b.state().connections, 1);
    // What was taken meanwhile says nothing of what was refused.
    assert_eq!(b.state().refused.map(|fault| fault.kind), Some(Kind::Full));
    // Room is made: what was refused is offered again.
    bed.operator().make_all(&super::support::SMALL).unwrap();
    wait_for("the status", || {
        Some(()).filter(|()| b.state().published == 3)
    });
    assert_eq!(b.state().refused, None);
}

#[test]
fn oversized_and_random_messages() {
    let Some(bed) = Bed::new(&["a"]) else { return };
    let a = bed.agent("a");
    connected(&a);
    let operator = bed.raw("operator");
    // No bucket takes it.
    assert!(
        operator
            .put("$KV.thalweg-policy.all", &vec![b'x'; 600 << 10])
            .is_err()
    );
    operator
        .put("$KV.thalweg-policy.all", &[0xff; 1000])
        .unwrap();
    // Whatever a bell says is not read.
    operator.publish("thalweg.bell.all", None, None, &vec![b'x'; 600 << 10]);
    fault(&a, Kind::Form);
    assert_eq!(a.state().connections, 1);
}

#[test]
fn a_server_that_is_none() {
    use std::io::Write as _;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Random bytes to everybody, for as long as the test.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut random = thalweg_units::random::Random::new(7);
            let bytes: Vec<u8> = (0..100_000).map(|_| random.u64() as u8).collect();
            // It may have gone by now.
            let _ = stream.write_all(&bytes);
        }
    });
    let mut settings = thalweg_fleet::Settings::new(
        vec![format!("nats://{address}")],
        super::support::name("a"),
        thalweg_fleet::Identity::None,
    );
    settings.pace = super::support::QUICK;
    let a = Fleet::start(&settings).unwrap();
    let told = fault(&a, Kind::Unreachable);
    assert!(told.starts_with(&address.to_string()), "{told}");
}

#[test]
fn a_message_larger_than_any_of_its_bucket_is_passed_over() {
    let Some(mut bed) = Bed::new(&["a", "b"]) else {
        return;
    };
    let large = vec![b'x'; 16 << 20];
    let limit = |bed: &mut Bed, from: &str, to: &str| {
        let conf = bed.path("server-0/nats-server.conf");
        let text = fs::read_to_string(&conf).unwrap();
        assert!(text.contains(from));
        fs::write(&conf, text.replace(from, to)).unwrap();
        bed.servers[0].kill();
        bed.servers[0].restart();
        // A server answers before JetStream does.
        wait_for("its store", || {
            let raw = bed.raw("operator");
            raw.request("$JS.API.STREAM.INFO.KV_thalweg-priors", "")
                .ok()
        });
    };
    limit(&mut bed, "max_payload: 1MB", "max_payload: 64MB");
    let operator = bed.raw("operator");
    operator.change("KV_thalweg-priors", |config| {
        config.max_message_size = -1;
        config.max_bytes = 256 << 20;
    });
    let small = priors("c", 1, 1).encode().unwrap();
    operator.put("$KV.thalweg-priors.c.1", &small).unwrap();
    operator.put("$KV.thalweg-priors.large.1", &large).unwrap();
    operator.put("$KV.thalweg-priors.large.2", &large).unwrap();
    operator.change("KV_thalweg-priors", |config| {
        config.max_message_size = thalweg_fleet::Bucket::Priors.message_bytes() as i32 + 1024;
    });
    // A server that lets such messages through could send them at any time.
    let told = fault(&bed.agent("b"), Kind::Size);
    assert!(
        told.ends_with("max_payload: found 67108864 bytes, expected at most 8388608"),
        "{told}"
    );
    limit(&mut bed, "max_payload: 64MB", "max_payload: 1MB");
    let (a, b) = (bed.agent("a"), bed.agent("b"));
    a.offer_message(&Outgoing::Priors(priors("a", 1, 1)))
        .unwrap();
    super::exchange::arrives(&b, &priors("a", 1, 1));
    let told = fault(&b, Kind::Size);
    assert!(
        told.starts_with("$KV.thalweg-priors.large.2: found 16777"),
        "{told}"
    );
    assert_eq!(b.state().faults[&Kind::Size], 2);
    assert_eq!((b.state().connections, b.state().faults.len()), (1, 1));
}
