//! What agents say reaches the others.

use std::time::{Duration, Instant};

use thalweg_fleet::wire::policy::{ALL_PPM, Policy, TEXT_MAX};
use thalweg_fleet::wire::{Progress, Stage};
use thalweg_fleet::{Bucket, Fleet, Incoming, Kind, Member, Name, Outgoing};

use super::support::{Bed, connected, fault, name, priors, status, wait_for};

/// The next things that arrive, until the condition has seen enough.
pub fn arrive(
    fleet: &Fleet,
    what: &str,
    mut enough: impl FnMut(&[Incoming]) -> bool,
) -> Vec<Incoming> {
    let mut all = Vec::new();
    wait_for(what, || {
        all.extend(fleet.take_messages(Duration::from_millis(20)));
        enough(&all).then_some(())
    });
    all
}

/// Waits for these priors.
pub fn arrives(fleet: &Fleet, expected: &thalweg_fleet::wire::Priors) {
    arrive(fleet, "priors", |all| {
        all.iter()
            .any(|it| matches!(it, Incoming::Priors { priors, .. } if priors == expected))
    });
}

#[test]
fn priors_reach_the_others_and_not_their_sender() {
    let Some(bed) = Bed::new(&["a", "b", "c"]) else {
        return;
    };
    let (a, b) = (bed.agent("a"), bed.agent("b"));
    let first = priors("a", 3, 1 << 16);
    a.offer_message(&Outgoing::Priors(first.clone())).unwrap();
    a.offer_message(&Outgoing::Priors(priors("a", 4, 5)))
        .unwrap();
    let all = arrive(&b, "two shards", |all| all.len() == 2);
    let Incoming::Priors { age, priors: found } = &all[0] else {
        panic!("{all:?}")
    };
    assert_eq!(*found, first);
    assert!(*age < Duration::from_secs(30), "{age:?}");
    // Of one shard the newest wins, and what is there already is not sent again.
    let published = wait_for("two confirmations", || {
        Some(a.state().published).filter(|it| *it == 2)
    });
    a.offer_message(&Outgoing::Priors(first)).unwrap();
    let newest = priors("a", 3, 9);
    a.offer_message(&Outgoing::Priors(priors("a", 3, 8)))
        .unwrap();
    a.offer_message(&Outgoing::Priors(newest.clone())).unwrap();
    arrives(&b, &newest);
    assert!(a.state().published <= published + 2);
    // Who comes later reads only the newest.
    let c = bed.agent("c");
    let all = arrive(&c, "both shards", |all| all.len() >= 2);
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(a.take_messages(Duration::ZERO).is_empty());
    assert_eq!(a.state().faults.len() + b.state().faults.len(), 0);
    assert!(b.state().taken >= 3 && b.state().received.bytes > 0 && b.state().sent.messages > 0);
}

#[test]
fn an_agent_takes_back_what_it_said() {
    let Some(bed) = Bed::new(&["a", "b"]) else {
        return;
    };
    let b = bed.agent("b");
    let raw = bed.raw("a");
    raw.put(
        "$KV.thalweg-priors.a.3",
        &priors("a", 3, 1).encode().unwrap(),
    )
    .unwrap();
    arrives(&b, &priors("a", 3, 1));
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("KV-Operation", "DEL");
    raw.publish("$KV.thalweg-priors.a.3", None, Some(headers), b"");
    let all = arrive(&b, "nothing", |all| !all.is_empty());
    assert!(
        matches!(&all[0], Incoming::Gone { agent, .. } if *agent == name("a")),
        "{all:?}"
    );
}

#[test]
fn statuses_of_all_agents() {
    let Some(bed) = Bed::new(&["a", "b"]) else {
        return;
    };
    let (a, b) = (bed.agent("a"), bed.agent("b"));
    a.offer_message(&Outgoing::Status(status("a"))).unwrap();
    b.offer_message(&Outgoing::Status(status("b"))).unwrap();
    // Nobody says something for another.
    assert!(a.offer_message(&Outgoing::Status(status("b"))).is_err());
    wait_for("both statuses", || {
        Some(()).filter(|()| a.state().published + b.state().published == 2)
    });
    let members = a.request_statuses(Duration::from_secs(10)).unwrap();
    let names: Vec<_> = members.iter().map(|member| member.agent.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let mut told = members[1].status.clone().unwrap();
    assert!(told.instance.take().is_some());
    assert_eq!(told, status("b"));
    assert!(members[0].age < Duration::from_secs(30));
    assert_eq!(bed.operator().statuses().unwrap().len(), 2);
    // The same status again says that the agent is alive.
    let before = a.state().published;
    a.offer_message(&Outgoing::Status(status("a"))).unwrap();
    wait_for("another status", || {
        Some(()).filter(|()| a.state().published > before)
    });
}

#[test]
fn policies_are_obeyed_by_label_key_and_number() {
    let Some(bed) = Bed::new(&["a"]) else { return };
    let a = bed.agent("a");
    connected(&a);
    let mut operator = bed.operator();
    let all = name("all");
    let begun = Instant::now();
    assert_eq!(
        operator
            .publish_policy(&all, "first", ALL_PPM, &bed.signing(), &[])
            .unwrap(),
        1
    );
    let obeyed = |text: &str| {
        arrive(&a, text, |all| {
            all.iter()
                .any(|it| matches!(it, Incoming::Policy(policy) if policy.text == text))
        })
    };
    obeyed("first");
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    // Not one of its labels.
    operator
        .publish_policy(&name("edge"), "other", ALL_PPM, &bed.signing(), &[])
        .unwrap();
    // Not one of its keys.
    let stranger = thalweg_fleet::keys::SigningKey::generate();
    operator
        .publish_policy(&all, "stranger", ALL_PPM, &stranger, &[])
        .unwrap();
    let told = fault(&a, Kind::Signature);
    assert!(told.contains("which `keys` does not name"), "{told}");
    operator
        .publish_policy(&all, "third", 50_000, &bed.signing(), &[])
        .unwrap();
    assert_eq!(obeyed("third").len(), 1);

    // What was signed once, by whoever may write: an older number, and another label.
    let raw = bed.raw("operator");
    let sign = |label: &str, number| {
        let policy = Policy {
            label: name(label),
            number,
            time_s: 0,
            canary_ppm: ALL_PPM,
            text: "replayed".to_owned(),
        };
        policy.sign(&bed.signing()).unwrap().encode()
    };
    raw.put("$KV.thalweg-policy.all", &sign("all", 2)).unwrap();
    raw.put("$KV.thalweg-policy.all", &sign("edge", 9)).unwrap();
    let told = fault(&a, Kind::Key);
    assert!(told.contains("of another label"), "{told}");
    raw.put("$KV.thalweg-policy.all", &sign("all", 10)).unwrap();
    let got = obeyed("replayed");
    assert_eq!(got.len(), 1, "{got:?}");

    // The next number follows the highest one, whatever was put back since, or that agents have. Numbers
    // that nobody signed do not use up all.
    raw.put("$KV.thalweg-policy.all", &sign("all", 3)).unwrap();
    let mut publish = |label: &Name, members: &[Member]| {
        let published = operator.publish_policy(label, "next", ALL_PPM, &bed.signing(), members);
        published.unwrap()
    };
    assert_eq!(publish(&all, &[]), 11);
    let lost = name("lost");
    let told = |number| {
        let mut status = status("b");
        status.policies = vec![Progress {
            label: lost.clone(),
            number,
            stage: Stage::InForce,
            reason: String::new(),
        }];
        Member {
            agent: name("b"),
            age: Duration::ZERO,
            status: Ok(status),
            left_out: Vec::new(),
        }
    };
    assert_eq!(publish(&lost, &[told(40)]), 41);
    assert_eq!(publish(&lost, &[told((1 << 53) - 1)]), (1 << 40) + 1);
    let forged = Policy {
        label: name("forged"),
        number: (1 << 53) - 1,
        time_s: 0,
        canary_ppm: ALL_PPM,
        text: String::new(),
    };
    let forged = forged.sign(&stranger).unwrap().encode();
    raw.put("$KV.thalweg-policy.forged", &forged).unwrap();
    assert_eq!(publish(&name("forged"), &[]), (1 << 40) + 1);
    // What is no policy is in nobody's way.
    raw.put("$KV.thalweg-policy.none", b"\xff").unwrap();
    let labels: Vec<Name> = bed
        .operator()
        .last_policies()
        .unwrap()
        .into_keys()
        .collect();
    assert_eq!(labels, ["all", "edge", "forged", "lost"].map(name));
    assert_eq!(publish(&name("none"), &[]), 1);

    // An agent that was away gets the last one alone; one that has it, nothing.
    let later = bed.agent("a");
    let got = arrive(&later, "the last policy", |all| !all.is_empty());
    assert!(
        matches!(&got[..], [Incoming::Policy(policy)] if policy.number == 11),
        "{got:?}"
    );
    drop(later);
    let mut settings = bed.settings("a");
    settings.policies.insert(all, 11);
    let knows = Fleet::start(&settings).unwrap();
    wait_for("a look", || knows.state().looked);
    assert!(knows.take_messages(Duration::ZERO).is_empty());
}

#[test]
fn largest_messages_are_read() {
    let Some(bed) = Bed::new(&["a", "b"]) else {
        return;
    };
    let b = bed.agent("b");
    let padded = |bucket: Bucket, mut bytes: Vec<u8>| {
        assert!(bytes.len() <= bucket.message_bytes());
        bytes.resize(bucket.message_bytes(), b' ');
        bytes
    };
    let large = priors("a", 3, 1);
    let bytes = padded(Bucket::Priors, large.encode().unwrap());
    bed.raw("a").put("$KV.thalweg-priors.a.3", &bytes).unwrap();
    arrives(&b, &large);
    // JSON escapes these.
    let policy = Policy {
        label: name("all"),
        number: 1,
        time_s: 0,
        canary_ppm: ALL_PPM,
        text: "\"".repeat(TEXT_MAX),
    };
    let signed = policy.clone().sign(&bed.signing()).unwrap();
    let bytes = padded(Bucket::Policy, signed.encode());
    let raw = bed.raw("operator");
    raw.put("$KV.thalweg-policy.all", &bytes).unwrap();
    arrive(&b, "the policy", |all| {
        all.iter()
            .any(|it| matches!(it, Incoming::Policy(found) if *found == policy))
    });
    let mut operator = bed.operator();
    assert_eq!(operator.last_policies().unwrap()[&name("all")], signed);
    let next = operator.publish_policy(&name("all"), "next", ALL_PPM, &bed.signing(), &[]);
    assert_eq!(next.unwrap(), 2);
    assert_eq!((b.state().connections, b.state().faults.len()), (1, 0));
}
