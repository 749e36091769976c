//! Two agents with one name and key.

use std::fs;
use std::time::Duration;

use thalweg_fleet::{Fleet, Outgoing};

use super::support::{Bed, connected, name, status, wait_for};

/// Publishes a status, and waits for its confirmation.
fn publish(agent: &Fleet) {
    let before = agent.state().published;
    agent.offer_message(&Outgoing::Status(status("a"))).unwrap();
    wait_for("the status", || {
        (agent.state().published > before).then_some(())
    });
}

#[test]
fn clone_of_an_agent_is_seen_by_both_and_by_all() {
    let Some(bed) = Bed::new(&["a", "b"]) else {
        return;
    };
    let (first, clone, other) = (bed.agent("a"), bed.agent("a"), bed.agent("b"));
    let is_shared = || (first.state().is_shared, clone.state().is_shared);
    let told = || {
        let members = other.request_statuses(Duration::from_secs(10)).unwrap();
        let own = members.into_iter().find(|it| it.agent == name("a"));
        own.unwrap().status.unwrap()
    };
    connected(&other);
    publish(&first);
    publish(&first);
    assert_eq!(is_shared(), (false, false));
    let before = told().instance.unwrap();
    publish(&clone);
    // It may be the same agent, started again.
    assert_eq!(is_shared(), (false, false));
    assert_ne!(told().instance, Some(before));
    publish(&first);
    publish(&clone);
    assert_eq!(is_shared(), (true, true));
    publish(&first);
    assert!(told().is_shared);
    assert_eq!(told().instance, Some(before));
    // It is over when the clone is gone.
    drop(clone);
    publish(&first);
    publish(&first);
    assert!(!first.state().is_shared);
    publish(&first);
    assert!(!told().is_shared);
}

#[test]
fn clone_that_has_not_written_for_a_moment_is_still_there() {
    let Some(bed) = Bed::new(&["a"]) else { return };
    let mut settings = bed.settings("a");
    settings.pace.namesake = Duration::from_secs(3600);
    let first = Fleet::start(&settings).unwrap();
    let clone = bed.agent("a");
    publish(&first);
    publish(&clone);
    for _ in 0..4 {
        publish(&first);
    }
    assert!(first.state().is_shared);
}

#[test]
fn new_bucket_is_no_clone() {
    let Some(bed) = Bed::new(&["a"]) else { return };
    let a = bed.agent("a");
    for _ in 0..3 {
        publish(&a);
    }
    bed.raw("operator")
        .request("$JS.API.STREAM.DELETE.KV_thalweg-status", "")
        .unwrap();
    bed.operator().make_all(&super::support::SMALL).unwrap();
    a.offer_message(&Outgoing::Status(status("a"))).unwrap();
    wait_for("the status again", || {
        bed.raw("operator")
            .value("KV_thalweg-status", "$KV.thalweg-status.a")
    });
    assert!(!a.state().is_shared);
}

#[test]
fn status_that_was_deleted_is_no_clone() {
    let Some(bed) = Bed::new(&["a"]) else { return };
    let mut settings = bed.settings("a");
    settings.pace.namesake = Duration::from_secs(3600);
    let a = Fleet::start(&settings).unwrap();
    for operation in ["DEL", "PURGE"] {
        publish(&a);
        publish(&a);
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("KV-Operation", operation);
        bed.raw("a")
            .publish("$KV.thalweg-status.a", None, Some(headers), b"");
        publish(&a);
        publish(&a);
        assert!(!a.state().is_shared, "{operation}");
    }
}

#[test]
fn status_that_the_server_lost_is_no_clone() {
    let Some(mut bed) = Bed::new(&["a"]) else {
        return;
    };
    let a = bed.agent("a");
    publish(&a);
    publish(&a);
    let before = a.state().connections;
    bed.servers[0].kill();
    let streams = bed.servers[0].store().join("jetstream/FLEET/streams");
    let messages = streams.join("KV_thalweg-status/msgs");
    fs::remove_dir_all(&messages).unwrap();
    fs::create_dir(&messages).unwrap();
    bed.servers[0].restart();
    wait_for("another connection", || {
        let state = a.state();
        (state.connections > before).then_some(state.connected?)
    });
    publish(&a);
    assert!(!a.state().is_shared);
}
