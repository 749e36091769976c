//! Messages of hostile senders: every parser returns, within its bounds, and what it takes it writes
//! again.
#![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]

use proptest::prelude::*;
use thalweg_fleet::Name;
use thalweg_fleet::keys::{PublicKey, SigningKey};
use thalweg_fleet::wire::policy::{self, ALL_PPM, Policy, PolicyRejection, Signed};
use thalweg_fleet::wire::{
    Arm, Cell, Measured, Network, Priors, Progress, Received, Shard, Stage, Status, WireError,
};

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// What all parsers say of these bytes.
fn parse(bytes: &[u8]) -> [Result<(), WireError>; 3] {
    let results = [
        Priors::parse(bytes).map(drop),
        Status::parse(bytes).map(drop),
        Signed::parse(bytes).map(drop),
    ];
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        let line = error.to_string();
        assert!(!line.contains('\n') && line.len() < 1000, "{line}");
    }
    results
}

fn arm() -> impl Strategy<Value = Arm> {
    let bits = 64i32 << 16;
    (
        "[!-~]{1,15}",
        -bits..=bits,
        any::<u32>(),
        -bits..=bits,
        0..=bits as u32,
        any::<u32>(),
        any::<u32>(),
    )
        .prop_map(
            |(
                name,
                cost_q16,
                evidence_q16,
                log_rate_q16,
                deviation_q16,
                segments,
                retransmitted,
            )| Arm {
                name,
                cost_q16,
                evidence_q16,
                log_rate_q16,
                deviation_q16,
                segments,
                retransmitted,
            },
        )
}

fn network() -> impl Strategy<Value = Network> {
    prop_oneof![
        any::<u32>().prop_map(|bits| {
            let [a, b, c, _] = bits.to_be_bytes();
            Network::parse(&format!("prefix:{a}.{b}.{c}.0/24")).expect("a prefix")
        }),
        (1u32..0xffff).prop_map(
            |it| Network::parse(&format!("prefix:2001:db8:{it:x}::/48")).expect("a prefix")
        ),
        "[ -~]{1,64}".prop_map(Network::Named),
        (any::<u16>(), any::<bool>(), 0u8..8).prop_map(|(port, accepted, rtt)| Network::Service {
            port,
            accepted,
            rtt
        }),
        Just(Network::All),
    ]
}

proptest! {
    #[test]
    fn random_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        for result in parse(&bytes) {
            prop_assert!(result.is_err());
        }
    }

    #[test]
    fn changed_messages_are_refused_or_good(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let signed = policy("all", 3).sign(&SigningKey::generate()).unwrap();
        for mut bytes in [priors().encode().unwrap(), status().encode().unwrap(), signed.encode()] {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(priors) = Priors::parse(&bytes) {
                prop_assert_eq!(Priors::parse(&priors.encode().unwrap()).unwrap(), priors);
            }
            if let Ok(Received { status, .. }) = Status::parse(&bytes) {
                let again = Status::parse(&status.encode().unwrap()).unwrap();
                prop_assert_eq!(again.status, status);
                prop_assert!(again.left_out.is_empty());
            }
            let _ = Signed::parse(&bytes);
        }
    }

    #[test]
    fn priors_are_read_as_they_were_written(
        of in proptest::collection::vec((network(), 0u32..31_622_400, proptest::collection::vec(arm(), 1..5)), 1..9)
    ) {
        let shard = of[0].0.shard();
        let mut networks: Vec<Measured> = Vec::new();
        for (network, age_s, mut arms) in of {
            arms.sort_by(|a, b| a.name.cmp(&b.name));
            arms.dedup_by(|a, b| a.name == b.name);
            if network.shard() == shard && networks.iter().all(|it| it.network != network) {
                networks.push(Measured {
                    network,
                    age_s,
                    queue_q16: age_s % (1 << 20),
                    arms,
                });
            }
        }
        let priors = Priors { agent: name("a"), shard, rule: 3, networks };
        prop_assert_eq!(Priors::parse(&priors.encode().unwrap()).unwrap(), priors);
    }

    #[test]
    fn texts_of_networks_are_unique(network in network(), text in "(prefix|name|service|all)?[:a-z0-9./]{0,30}") {
        prop_assert_eq!(Network::parse(&network.to_string()), Some(network));
        if let Some(network) = Network::parse(&text) {
            prop_assert_eq!(network.to_string(), text);
        }
    }

    #[test]
    fn a_changed_policy_has_another_signature(
        label in "[a-z]{1,8}", number in 1u64..1000, time_s in any::<u64>(), canary_ppm in 1u32..=ALL_PPM,
        text in "\\PC{0,40}", field in 0usize..5,
    ) {
        let key = SigningKey::generate();
        let policy = Policy { label: name(&label), number, time_s, canary_ppm, text };
        let signed = policy.clone().sign(&key).unwrap();
        let keys = [key.public_key()];
        prop_assert_eq!(signed.verify_for(&policy.label, &keys, None), Ok(&policy));
        let mut document: serde_json::Value = serde_json::from_slice(&signed.encode()).unwrap();
        match field {
            0 => document["label"] = format!("{label}x").into(),
            1 => document["number"] = (number + 1).into(),
            2 => document["time_s"] = time_s.wrapping_add(1).into(),
            3 => document["canary_ppm"] = (canary_ppm % ALL_PPM + 1).into(),
            _ => document["text"] = format!("{} ", policy.text).into(),
        }
        let changed = Signed::parse(&serde_json::to_vec(&document).unwrap()).unwrap();
        let label = changed.unverified().label.clone();
        let refused = matches!(changed.verify_for(&label, &keys, None), Err(PolicyRejection::Signature { .. }));
        prop_assert!(refused);
    }
}

fn priors() -> Priors {
    let network = Network::parse("prefix:192.0.2.0/24").expect("a prefix");
    Priors {
        agent: name("a"),
        shard: network.shard(),
        rule: 3,
        networks: vec![Measured {
            network,
            age_s: 7,
            queue_q16: 9,
            arms: vec![Arm {
                name: "cubic".to_owned(),
                cost_q16: -5,
                evidence_q16: 1 << 20,
                log_rate_q16: 9,
                deviation_q16: 2,
                segments: 3,
                retransmitted: 1,
            }],
        }],
    }
}

#[test]
fn status_without_an_instance_is_read() {
    let text = String::from_utf8(status().encode().unwrap()).unwrap();
    assert!(!text.contains("instance") && !text.contains("is_shared"));
    let own = Status {
        instance: Some(u64::MAX),
        is_shared: true,
        ..status()
    };
    assert_eq!(Status::parse(&own.encode().unwrap()).unwrap().status, own);
}

fn status() -> Status {
    Status {
        agent: name("a"),
        version: "0.1.0".to_owned(),
        instance: None,
        is_shared: false,
        labels: vec![Name::all(), name("edge")],
        policies: vec![Progress {
            label: Name::all(),
            number: 4,
            stage: Stage::RolledBack,
            reason: "line 3: unknown key".to_owned(),
        }],
        faults: vec!["the store is read-only".to_owned()],
        cells: vec![Cell {
            scope: "all".to_owned(),
            row: "time".to_owned(),
            side: "control".to_owned(),
            clusters: 3,
            connections: 40,
            sums: [1.0, -2.5, 3.0, 0.0, 1e-9, -7.0],
        }],
    }
}

fn policy(label: &str, number: u64) -> Policy {
    Policy {
        label: name(label),
        number,
        time_s: 1_800_000_000,
        canary_ppm: ALL_PPM,
        text: "[[rule]]\n".to_owned(),
    }
}

#[test]
fn sizes_and_depths() {
    for bytes in [
        vec![0u8; 64 << 20],
        vec![b'['; 64 << 20],
        "[".repeat(60_000).into_bytes(),
        "{\"format\":1,\"a\":".repeat(4000).into_bytes(),
        format!(
            "{{\"format\":1,\"x\":{}0{}}}",
            "[".repeat(20_000),
            "]".repeat(20_000)
        )
        .into_bytes(),
    ] {
        for result in parse(&bytes) {
            result.unwrap_err();
        }
    }
    let [error, ..] = parse(&vec![0; 64 << 20]);
    assert_eq!(
        error.unwrap_err().to_string(),
        "found 67108864 bytes, expected at most 65536"
    );
}

/// The message with a piece replaced is refused with this.
fn refused(good: &[u8], from: &str, to: &str, expected: &str) {
    let text = String::from_utf8(good.to_vec()).expect("text");
    assert!(text.contains(from), "{text}");
    let results = parse(text.replacen(from, to, 1).as_bytes());
    let told = results.iter().any(|result| {
        result
            .as_ref()
            .is_err_and(|error| error.to_string().contains(expected))
    });
    assert!(
        told && results.iter().all(Result::is_err),
        "{to}: {results:?}"
    );
}

#[test]
fn fields_out_of_bounds() {
    let good = priors().encode().unwrap();
    for (from, to, expected) in [
        (
            r#""format":1"#,
            r#""format":2"#,
            "format: found 2, expected 1",
        ),
        (r#""format":1,"#, "", "format: found none, expected 1"),
        (r#""format":1"#, r#""format":1e400"#, "number out of range"),
        (r#""rule":3"#, r#""rule":-3"#, "invalid value"),
        (
            r#""rule":3"#,
            r#""rule":3,"more":1"#,
            "unknown field `more`",
        ),
        (
            r#""agent":"a""#,
            r#""agent":"a.b""#,
            "expected 1 to 63 of a-z",
        ),
        ("192.0.2.0/24", "192.0.2.7/32", "expected a network"),
        ("192.0.2.0/24", "192.0.2.1/24", "expected a network"),
        ("192.0.2.0/24", "192.0.3.0/24", "each once"),
        ("-5", "-4194305", "cost: found -4194305"),
        ("-5", "NaN", "expected"),
        (
            "-5",
            "99999999999999999999999999999",
            "invalid type: floating point",
        ),
        (r#""cubic""#, r#""sixteen-letters-""#, "arm: found"),
        (r#""cubic""#, r#""a b""#, "arm: found"),
        (
            r#""age_s":7"#,
            r#""age_s":31622401"#,
            "age_s: found 31622401",
        ),
    ] {
        refused(&good, from, to, expected);
    }
    let good = status().encode().unwrap();
    for (from, to, expected) in [
        ("1e-9", "NaN", "expected"),
        ("1e-9", "1e999", "number out of range"),
        (r#""clusters":3"#, r#""clusters":-3"#, "invalid value"),
        ("rolled-back", "unheard-of", "unknown variant"),
        ("the store", "the\\nstore", "faults: found"),
        ("0.1.0", "", "version: found"),
    ] {
        refused(&good, from, to, expected);
    }
    let key = SigningKey::generate();
    let good = policy("all", 3).sign(&key).unwrap().encode();
    let public = key.public_key().to_string();
    let user = thalweg_fleet::keys::UserKey::generate().public_key();
    for (from, to, expected) in [
        (r#""number":3"#, r#""number":0"#, "number: found 0"),
        (
            r#""canary_ppm":1000000"#,
            r#""canary_ppm":0"#,
            "canary_ppm: found 0",
        ),
        (
            r#""signature":""#,
            r#""signature":"z"#,
            "128 hexadecimal digits",
        ),
        (&public, "M", "expected a public key of policies"),
        (&public, &user, "expected a public key of policies"),
        ("[[rule]]", &"x".repeat(policy::TEXT_MAX), "at most 131072"),
    ] {
        refused(&good, from, to, expected);
    }
}

/// The learner's comparison and a rule's, two cells each.
fn two_comparisons() -> Status {
    let cell = |scope: &str, side: &str| Cell {
        scope: scope.to_owned(),
        side: side.to_owned(),
        ..status().cells[0].clone()
    };
    let sides = ["control", "treated"].into_iter();
    let cells = sides.flat_map(|side| [cell("all", side), cell("rule:pace", side)]);
    Status {
        cells: cells.collect(),
        ..status()
    }
}

#[test]
fn cell_out_of_bounds_costs_its_comparison_and_not_the_status() {
    let whole = two_comparisons();
    let text = String::from_utf8(whole.encode().unwrap()).unwrap();
    for (from, to, expected) in [
        (
            "1e-9",
            "1e19",
            "time of control: sums: found 1e19, expected -1e18 to 1e18",
        ),
        (
            "1e-9",
            "-1e300",
            "time of control: sums: found -1e300, expected -1e18 to 1e18",
        ),
        (
            r#""clusters":3"#,
            r#""clusters":9007199254740993"#,
            "time of control: clusters, connections: found 9007199254740993, expected at most 2^53",
        ),
        (
            r#""row":"time""#,
            r#""row":"ti\nme""#,
            "row: found \"ti me\", expected 1 to 64 bytes of one line",
        ),
    ] {
        // The first one is the control group's of the learner.
        assert!(text.contains(from), "{from}");
        let changed = text.replacen(from, to, 1);
        let received = Status::parse(changed.as_bytes()).unwrap();
        let [left_out] = &received.left_out[..] else {
            panic!("{received:?}");
        };
        let found = (left_out.scope.as_str(), left_out.cells, &*left_out.why);
        assert_eq!(found, ("all", 2, expected));
        // The rest of the comparison goes with it, the other comparison and all else stays.
        let mut rest = whole.clone();
        rest.cells.retain(|cell| cell.scope != "all");
        assert_eq!(rest.cells.len(), 2);
        assert_eq!(received.status, rest);
    }
    let unnamed = text.replacen(r#""scope":"all""#, r#""scope":"\u001b[31m""#, 1);
    let received = Status::parse(unnamed.as_bytes()).unwrap();
    assert_eq!(received.left_out[0].scope, " [31m");
    assert_eq!(received.status.cells.len(), 3);
}

#[test]
fn own_cell_out_of_bounds_keeps_back_its_comparison_and_is_a_fault() {
    let mut own = two_comparisons();
    own.cells[0].sums[5] = f64::NAN;
    let received = Status::parse(&own.encode().unwrap()).unwrap();
    assert!(received.left_out.is_empty());
    assert_eq!(received.status.cells.len(), 2);
    let [told, store] = &received.status.faults[..] else {
        panic!("{received:?}");
    };
    let said = "gain of all is not told: time of control: sums: found NaN";
    assert!(told.starts_with(said), "{told}");
    assert_eq!(store, &own.faults[0]);
}

#[test]
fn replay_swap_and_strangers() {
    let (key, stranger) = (SigningKey::generate(), SigningKey::generate());
    let keys = [key.public_key()];
    let signed = policy("all", 3).sign(&key).unwrap();
    let all = Name::all();
    assert!(signed.verify_for(&all, &keys, Some(2)).is_ok());
    for has in [3, 4] {
        let error = signed.verify_for(&all, &keys, Some(has)).unwrap_err();
        assert!(matches!(error, PolicyRejection::Old { .. }), "{error}");
    }
    let error = signed.verify_for(&name("edge"), &keys, None).unwrap_err();
    assert_eq!(error.to_string(), "policy all 3: found under label edge");
    let error = signed
        .verify_for(&all, &[stranger.public_key()], None)
        .unwrap_err();
    assert!(
        matches!(error, PolicyRejection::UnknownKey { .. }),
        "{error}"
    );
    assert!(signed.verify_for(&all, &[], None).is_err());
    // A stranger's signature under the name of a known key.
    let mut document: serde_json::Value = serde_json::from_slice(&signed.encode()).unwrap();
    let foreign = policy("all", 3).sign(&stranger).unwrap();
    let foreign: serde_json::Value = serde_json::from_slice(&foreign.encode()).unwrap();
    document["signature"] = foreign["signature"].clone();
    let forged = Signed::parse(&serde_json::to_vec(&document).unwrap()).unwrap();
    let error = forged.verify_for(&all, &keys, None).unwrap_err();
    assert!(
        matches!(error, PolicyRejection::Signature { .. }),
        "{error}"
    );
}

#[test]
fn key_files_are_secret_and_kept() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.nk");
    let key = SigningKey::generate();
    key.write_new(&file).unwrap();
    let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert_eq!(
        SigningKey::read_file(&file).unwrap().public_key(),
        key.public_key()
    );
    assert!(PublicKey::parse(&key.public_key().to_string()).is_ok());
    // A key in use is not overwritten, and seeds of users sign no policies.
    assert!(
        key.write_new(&file)
            .unwrap_err()
            .to_string()
            .contains("it exists")
    );
    let user = directory.path().join("agent.nk");
    thalweg_fleet::keys::UserKey::generate()
        .write_new(&user)
        .unwrap();
    assert!(
        SigningKey::read_file(&user)
            .unwrap_err()
            .to_string()
            .contains("another kind")
    );
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let error = SigningKey::read_file(&file).unwrap_err().to_string();
    assert!(error.contains("found mode 0640, expected 0600"), "{error}");
    std::fs::write(&user, "SUNOTASEED\n").unwrap();
    let error = thalweg_fleet::keys::UserKey::read_file(&user)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("found no seed") && !error.contains("SUNOT"),
        "{error}"
    );
    let seed = std::fs::read_to_string(&file).unwrap();
    assert!(!format!("{key:?}").contains(seed.trim()), "{key:?}");
}

#[test]
fn shards_are_even_and_stay() {
    let mut counts = [0u32; 16];
    for number in 0..16_000u32 {
        let [_, a, b, _] = (number << 8).to_be_bytes();
        let network = Network::parse(&format!("prefix:10.{a}.{b}.0/24")).unwrap();
        counts[usize::from(network.shard().number())] += 1;
    }
    assert!(
        counts.iter().all(|count| (800..1200).contains(count)),
        "{counts:?}"
    );
    assert_eq!(Shard::all().count(), 16);
    // Agents of all versions agree; computed by hand from FNV-1a.
    assert_eq!(Network::All.shard().number(), fnv("all"));
    assert_eq!(priors().shard.number(), fnv("prefix:192.0.2.0/24"));
}

/// The rule of docs/guide/fleet-operations.md, written in another way.
fn fnv(text: &str) -> u8 {
    let mut hash: u128 = 14_695_981_039_346_656_037;
    for byte in text.bytes() {
        hash = ((hash ^ u128::from(byte)) * 1_099_511_628_211) % (1 << 64);
    }
    let halves = (hash as u32) ^ ((hash >> 32) as u32);
    ((halves & 0xffff) as u16 ^ (halves >> 16) as u16) as u8 % 16
}

/// Each caller has the key that stays in the file.
#[test]
fn key_that_several_callers_make_at_once_is_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.nk");
    let public = |key: SigningKey| key.public_key().to_string();
    let keys: Vec<String> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| public(SigningKey::read_or_create(&file).unwrap())))
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let kept = public(SigningKey::read_file(&file).unwrap());
    assert_eq!(keys, vec![kept; 8]);
}
