//! Servers come and go; the agent does not notice.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use thalweg_fleet::{Fleet, Incoming, Kind, Outgoing};

use super::exchange::{arrive, arrives};
use super::support::{Bed, connected, fault, name, priors, wait_for};

#[test]
fn no_server_then_one() {
    let Some(mut bed) = Bed::new(&["a", "b"]) else {
        return;
    };
    bed.servers[0].kill();
    let (a, b) = (bed.agent("a"), bed.agent("b"));
    fault(&a, Kind::Unreachable);
    let begun = Instant::now();
    for cost in 0..1000 {
        a.offer_message(&Outgoing::Priors(priors("a", 2, cost)))
            .unwrap();
    }
    // Nothing waits for the server.
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    let asked = a.request_statuses(Duration::from_secs(10)).unwrap_err();
    assert_eq!(asked.text, "the fleet is away");
    bed.servers[0].restart();
    arrives(&b, &priors("a", 2, 999));
    // The other may have it before the server's answer is here.
    wait_for("the answer", || (a.state().published > 0).then_some(()));
    assert_eq!(a.state().published, 1);
}

#[test]
fn a_server_that_does_not_answer() {
    let Some(mut bed) = Bed::new(&["a", "b"]) else {
        return;
    };
    let a = bed.agent("a");
    connected(&a);
    bed.servers[0].signal(Signal::SIGSTOP);
    let begun = Instant::now();
    a.offer_message(&Outgoing::Priors(priors("a", 2, 1)))
        .unwrap();
    fault(&a, Kind::Slow);
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(a.state().published, 0);
    // An agent ends without waiting for it.
    let begun = Instant::now();
    drop(bed.agent("b"));
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    bed.servers[0].signal(Signal::SIGCONT);
    wait_for("the message", || {
        Some(()).filter(|()| a.state().published == 1)
    });
}

#[test]
fn a_server_starts_again_with_its_store_and_without() {
    let Some(mut bed) = Bed::new(&["a", "b"]) else {
        return;
    };
    let (a, b) = (bed.agent("a"), bed.agent("b"));
    a.offer_message(&Outgoing::Priors(priors("a", 2, 1)))
        .unwrap();
    arrives(&b, &priors("a", 2, 1));
    bed.servers[0].kill();
    bed.servers[0].restart();
    let begun = Instant::now();
    bed.operator()
        .publish_policy(&name("all"), "text", 1_000_000, &bed.signing(), &[])
        .unwrap();
    let all = arrive(&b, "the policy", |all| !all.is_empty());
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    // It goes on from where it was.
    assert!(matches!(&all[..], [Incoming::Policy(_)]), "{all:?}");

    bed.servers[0].kill();
    fs::remove_dir_all(bed.servers[0].store()).unwrap();
    bed.servers[0].restart();
    bed.operator().make_all(&super::support::SMALL).unwrap();
    // What the old one had is said again.
    let all = arrive(&b, "another bucket and priors", |all| all.len() == 2);
    assert_eq!(all[0], Incoming::Anew);
    let Incoming::Priors { priors: again, .. } = &all[1] else {
        panic!("{all:?}");
    };
    assert_eq!(*again, priors("a", 2, 1));
}

#[test]
fn a_bucket_made_anew_beside_a_connection_is_noticed() {
    let Some(bed) = Bed::new(&["a"]) else { return };
    let mut settings = bed.settings("a");
    settings.pace.look = Duration::from_secs(3);
    let a = Fleet::start(&settings).unwrap();
    a.offer_message(&Outgoing::Priors(priors("a", 2, 1)))
        .unwrap();
    wait_for("a look, and the message", || {
        let state = a.state();
        (state.published == 1).then_some(state.looked?)
    });
    let operator = bed.raw("operator");
    let deleted = operator.request("$JS.API.STREAM.DELETE.KV_thalweg-priors", "");
    assert!(deleted.unwrap().contains("true"));
    bed.operator().make_all(&super::support::SMALL).unwrap();
    wait_for("the message again", || {
        (operator.count("KV_thalweg-priors") == 1).then_some(())
    });
}

#[test]
fn deleted_bucket_is_named_by_an_agent_that_reads_none() {
    let Some(bed) = Bed::new(&["a"]) else { return };
    let mut settings = bed.settings("a");
    settings.take = false;
    settings.pace.timeout = Duration::from_secs(60);
    let a = Fleet::start(&settings).unwrap();
    connected(&a);
    a.request_statuses(Duration::from_secs(60)).unwrap();
    let operator = bed.raw("operator");
    let deleted = operator.request("$JS.API.STREAM.DELETE.KV_thalweg-priors", "");
    assert!(deleted.unwrap().contains("true"));
    let told = a.request_statuses(Duration::from_secs(60)).unwrap_err();
    assert_eq!(told.kind, Kind::Bucket);
    assert!(told.text.contains("bucket thalweg-priors"), "{told}");
    // The fleet is away as long as the bucket is.
    fault(&a, Kind::Bucket);
    assert_eq!(a.state().connected, None);
    bed.operator().make_all(&super::support::SMALL).unwrap();
    connected(&a);
}
