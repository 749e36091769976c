//! What a stolen agent key can and cannot do: SECURITY.md has the list.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::HeaderMap;
use serde_json::Value;
use thalweg_fleet::wire::policy::ALL_PPM;
use thalweg_fleet::{BUCKETS, Kind, Member, Outgoing};

use super::exchange::arrives;
use super::support::{Bed, Raw, connected, fault, name, priors, status, wait_for};

/// Streams with what is under keys that a thief would like to write.
fn others(operator: &Raw) -> Vec<Option<Vec<u8>>> {
    let keys = [
        ("KV_thalweg-priors", "$KV.thalweg-priors.b.3"),
        ("KV_thalweg-priors", "$KV.thalweg-priors.x.3"),
        ("KV_thalweg-status", "$KV.thalweg-status.b"),
        ("KV_thalweg-status", "$KV.thalweg-status.x"),
        ("KV_thalweg-policy", "$KV.thalweg-policy.all"),
    ];
    keys.map(|(stream, subject)| operator.value(stream, subject))
        .into()
}

fn counts(operator: &Raw) -> Vec<u64> {
    BUCKETS
        .map(|bucket| operator.count(&bucket.stream_name()))
        .into()
}

/// A bed in which `b` has said something, there is a policy, and `a` has put forgeries under its own
/// keys.
fn bed() -> Option<(Bed, Raw, Raw)> {
    let bed = Bed::new(&["a", "b"])?;
    bed.operator()
        .publish_policy(&name("all"), "text", ALL_PPM, &bed.signing(), &[])
        .expect("it works");
    let (thief, operator) = (bed.raw("a"), bed.raw("operator"));
    let b = bed.raw("b");
    b.put(
        "$KV.thalweg-priors.b.3",
        &priors("b", 3, 7).encode().expect("it works"),
    )
    .expect("it works");
    b.put(
        "$KV.thalweg-status.b",
        &status("b").encode().expect("it works"),
    )
    .expect("it works");
    thief
        .put(
            "$KV.thalweg-priors.a.3",
            &priors("b", 3, -9).encode().expect("it works"),
        )
        .expect("it works");
    thief.put("$KV.thalweg-status.a", b"").expect("it works");
    Some((bed, thief, operator))
}

#[test]
fn a_thief_writes_under_no_other_key() {
    let Some((_bed, thief, operator)) = bed() else {
        return;
    };
    let before = (others(&operator), counts(&operator));
    let forged = priors("b", 3, -9).encode().unwrap();
    for subject in [
        "$KV.thalweg-priors.b.3",
        "$KV.thalweg-priors.x.3",
        "$KV.thalweg-status.b",
        "$KV.thalweg-status.x",
        "$KV.thalweg-policy.all",
        "$KV.thalweg-priors.a.3.b",
        // It has seventeen keys, however many it would like to fill the bucket with.
        "$KV.thalweg-priors.a.x",
        "$KV.thalweg-priors.a.16",
        "$KV.thalweg-priors.a.03",
    ] {
        assert!(thief.put(subject, &forged).is_err(), "{subject}");
    }
    // A server's answer goes to whatever the asker names: an answer, and its own message as one.
    let targets = [
        "$KV.thalweg-priors.b.3",
        "$KV.thalweg-status.b",
        "$KV.thalweg-policy.all",
    ];
    let consumer = |stream: &str, more: &str| {
        let config = format!(
            r#"{{"stream_name":"{stream}","config":{{"deliver_policy":"all","ack_policy":"none","replay_policy":"instant"{more}}}}}"#
        );
        let made = thief.request(&format!("thalweg.API.CONSUMER.CREATE.{stream}"), &config);
        serde_json::from_str::<Value>(&made.unwrap()).unwrap()
    };
    // A server delivers only to whom somebody listens: the thief does.
    thief.hear(&targets, || {
        for target in targets {
            thief.publish(
                "thalweg.API.STREAM.INFO.KV_thalweg-priors",
                Some(target),
                None,
                b"",
            );
            thief.publish("$KV.thalweg-status.a", Some(target), None, b"");
            let made = consumer("KV_thalweg-priors", "");
            let next = format!(
                "thalweg.API.CONSUMER.MSG.NEXT.KV_thalweg-priors.{}",
                made["name"].as_str().unwrap()
            );
            // Those that there are, and the word that there are no more.
            thief.publish(&next, Some(target), None, br#"{"batch":10,"no_wait":true}"#);
            thief.publish(&next, Some(target), None, br#"{"batch":1,"no_wait":true}"#);
            for stream in ["KV_thalweg-priors", "KV_thalweg-status"] {
                consumer(stream, &format!(r#","deliver_subject":"{target}""#));
            }
        }
        // The same with requests as the target: an empty message would delete all.
        let delete = "$JS.API.STREAM.DELETE.KV_thalweg-policy";
        let own = r#","filter_subject":"$KV.thalweg-status.a""#;
        consumer(
            "KV_thalweg-status",
            &format!(r#"{own},"deliver_subject":"{delete}""#),
        );
        let made = consumer("KV_thalweg-status", own);
        let next = format!(
            "thalweg.API.CONSUMER.MSG.NEXT.KV_thalweg-status.{}",
            made["name"].as_str().unwrap()
        );
        thief.publish(&next, Some(delete), None, br#"{"batch":1,"no_wait":true}"#);
        // A message of its own comes after all of those.
        let sequence = thief.put("$KV.thalweg-status.a", b"end").unwrap();
        assert!(sequence > 0);
        std::thread::sleep(Duration::from_millis(300));
    });
    assert_eq!((others(&operator), counts(&operator)), before);
}

#[test]
fn a_thief_changes_no_bucket() {
    let Some((_bed, thief, operator)) = bed() else {
        return;
    };
    let before = (others(&operator), counts(&operator));
    for api in ["$JS.API", "thalweg.API"] {
        for request in [
            "STREAM.DELETE.KV_thalweg-policy",
            "STREAM.PURGE.KV_thalweg-priors",
            "STREAM.UPDATE.KV_thalweg-priors",
            "STREAM.CREATE.other",
            "STREAM.MSG.DELETE.KV_thalweg-priors",
            "STREAM.MSG.GET.KV_thalweg-priors",
            "DIRECT.GET.KV_thalweg-priors",
            "STREAM.SNAPSHOT.KV_thalweg-priors",
            "CONSUMER.LIST.KV_thalweg-priors",
            "CONSUMER.DURABLE.CREATE.KV_thalweg-priors.d",
        ] {
            let answer = thief.request(&format!("{api}.{request}"), "{}");
            let refused = match &answer {
                Ok(text) => text.contains("JetStream not enabled for account"),
                Err(_) => true,
            };
            assert!(refused, "{api}.{request}: {answer:?}");
        }
    }
    // By these headers a bucket could be emptied, or another's key be deleted.
    for (header, value) in [("Nats-Rollup", "all"), ("Nats-Rollup", "sub")] {
        let mut headers = HeaderMap::new();
        headers.insert(header, value);
        thief.publish("$KV.thalweg-priors.a.3", None, Some(headers), b"");
    }
    thief.put("$KV.thalweg-status.a", b"end").unwrap();
    assert_eq!((others(&operator), counts(&operator)), before);
}

#[test]
fn what_a_thief_says_under_its_own_key_is_parsed() {
    let Some((bed, thief, _operator)) = bed() else {
        return;
    };
    let b = bed.agent("b");
    // `a` says something for `b`, under its own key: counted, not taken.
    let told = fault(&b, Kind::Key);
    assert!(told.contains("$KV.thalweg-priors.a.3: found b 3"), "{told}");
    for (bytes, kind) in [
        (&b"\x00\xff\x17random"[..], Kind::Form),
        (&[b'['; 60_000][..], Kind::Form),
        (br#"{"format":2}"#, Kind::Version),
    ] {
        thief.put("$KV.thalweg-priors.a.5", bytes).unwrap();
        fault(&b, kind);
    }
    // Too large: refused by the server.
    assert!(
        thief
            .put("$KV.thalweg-priors.a.5", &[b' '; 70_000])
            .is_err()
    );
    // What it can do: say something false of itself, in bounds. Aggregation bounds its weight.
    thief
        .put(
            "$KV.thalweg-priors.a.5",
            &priors("a", 5, -1 << 20).encode().unwrap(),
        )
        .unwrap();
    arrives(&b, &priors("a", 5, -1 << 20));
    assert!(b.state().connected.is_some());
}

#[test]
fn a_thief_hears_no_answers_of_others() {
    let Some((bed, thief, _operator)) = bed() else {
        return;
    };
    let b = bed.agent("b");
    connected(&b);
    let heard = thief.hear(
        &["_INBOX.>", "$KV.thalweg-priors.>", "$JS.>", "_R_.>"],
        || {
            b.offer_message(&Outgoing::Priors(priors("b", 4, 1)))
                .unwrap();
            b.request_statuses(Duration::from_secs(10)).unwrap();
        },
    );
    assert!(heard.is_empty(), "{heard:?}");
}

#[test]
fn a_thief_that_writes_without_end_holds_nobody_up() {
    holds_nobody_up(None);
}

/// A member that writes less leaves the server time to say each time that there is something new.
#[test]
fn a_thief_that_writes_ten_thousand_times_a_second_holds_nobody_up() {
    holds_nobody_up(Some(10_000));
}

/// A thief rewrites its own keys, so many times a second or as fast as it can.
fn holds_nobody_up(rate: Option<u32>) {
    let Some((bed, thief, _operator)) = bed() else {
        return;
    };
    let other = bed.raw("a");
    let b = bed.agent("b");
    connected(&b);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| thief.flood("$KV.thalweg-priors.a.3", b"none", rate, &stop));
        scope.spawn(|| other.flood("$KV.thalweg-status.a", b"none", rate, &stop));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let first = wait_for("a look", || b.state().looked);
            wait_for("another look", || {
                b.state().looked.filter(|looked| *looked > first)
            });
            b.offer_message(&Outgoing::Priors(priors("b", 4, 1)))
                .unwrap();
            wait_for("what b says", || (b.state().published > 0).then_some(()));
            let has_b = |all: Vec<Member>| all.iter().any(|it| it.agent == name("b"));
            assert!(has_b(b.request_statuses(Duration::from_secs(20)).unwrap()));
            assert!(has_b(bed.operator().statuses().unwrap()));
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
}
