//! What `thalweg fleet init` writes, as it is written.

use std::fs;
use std::net::{IpAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use thalweg_fleet::setup::{self, Plan};
use thalweg_fleet::{Fleet, Identity, Kind, Operator, Settings};

use super::support::{
    QUICK, SMALL, Server, connected, fault, is_there, name, usual_plan, wait_for,
};

/// A plan with one server on loopback.
fn plan(directory: &Path, agents: &[&str]) -> Plan {
    let listener = TcpListener::bind("127.0.0.1:0").expect("it works");
    Plan {
        servers: vec!["127.0.0.1".to_owned()],
        agents: agents.iter().map(|agent| name(agent)).collect(),
        listen: IpAddr::from([127, 0, 0, 1]),
        port: listener.local_addr().expect("it works").port(),
        at: directory.join("servers/127.0.0.1"),
        store: directory.join("store"),
        store_bytes: 1 << 30,
        ..usual_plan()
    }
}

fn settings(directory: &Path, address: &str, user: &str, seed: &str) -> Settings {
    let key = Identity::Nkey(directory.join(seed));
    let mut settings = Settings::new(vec![format!("tls://{address}")], name(user), key);
    settings.ca = Some(directory.join("ca.pem"));
    settings.pace = QUICK;
    settings
}

#[test]
fn a_server_as_written_and_an_agent_more() {
    if !is_there() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut plan = plan(directory, &["a"]);
    let report = setup::set_up_fleet(directory, &plan).unwrap();
    assert_eq!((report.agents.len(), report.servers.len()), (1, 1));
    let address = format!("127.0.0.1:{}", plan.port);
    let conf = plan.at.join("nats-server.conf");
    let mut server = Server::new(conf, address.clone());
    assert!(server.start(), "{}", server.log());
    let operator = settings(directory, &address, setup::OPERATOR, "operator.nk");
    wait_for("buckets", || {
        Operator::connect(&operator).ok()?.make_all(&SMALL).ok()
    });
    let agent = |agent: &str| {
        settings(
            directory,
            &address,
            agent,
            &format!("agents/{agent}/agent.nk"),
        )
    };
    let a = Fleet::start(&agent("a")).unwrap();
    connected(&a);

    // One more; keys and certificates stay.
    let kept = [
        "ca.pem",
        "ca.key",
        "policy.pub",
        "agents/a/agent.nk",
        "servers/127.0.0.1/server.pem",
    ];
    let before = kept.map(|file| fs::read(directory.join(file)).unwrap());
    plan.agents = vec![name("b")];
    let again = setup::set_up_fleet(directory, &plan).unwrap();
    assert_eq!(again.agents, [name("a"), name("b")]);
    assert_eq!(again.policy_key, report.policy_key);
    assert_eq!(
        kept.map(|file| fs::read(directory.join(file)).unwrap()),
        before
    );
    let b = Fleet::start(&agent("b")).unwrap();
    fault(&b, Kind::Credentials);
    server.kill();
    server.restart();
    connected(&b);
    wait_for("both", || a.state().connected.and(b.state().connected));

    // An agent whose public key is gone has lost its access.
    fs::remove_file(directory.join("users/b.pub")).unwrap();
    plan.agents.clear();
    setup::set_up_fleet(directory, &plan).unwrap();
    let refused = b.state().faults[&Kind::Credentials];
    server.kill();
    server.restart();
    wait_for("a refusal", || {
        let now = b.state().faults[&Kind::Credentials];
        (now > refused).then_some(())
    });
    connected(&a);

    // The key that was revoked does not come back with the name.
    let seed = directory.join("agents/b/agent.nk");
    let revoked = fs::read(&seed).unwrap();
    plan.agents = vec![name("b")];
    setup::set_up_fleet(directory, &plan).unwrap();
    assert_ne!(fs::read(&seed).unwrap(), revoked);
}

#[test]
fn secrets_are_their_owners() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    setup::set_up_fleet(directory, &plan(directory, &["a"])).unwrap();
    for secret in [
        "ca.key",
        "operator.nk",
        "policy.nk",
        "agents/a/agent.nk",
        "servers/127.0.0.1/server.key",
    ] {
        let mode = fs::metadata(directory.join(secret))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
}

#[test]
fn plans_that_cannot_be() {
    let directory = tempfile::tempdir().unwrap();
    let good = plan(directory.path(), &["a"]);
    let wrong = |change: fn(&mut Plan)| {
        let mut plan = good.clone();
        change(&mut plan);
        let error = setup::set_up_fleet(&directory.path().join("new"), &plan).unwrap_err();
        assert!(!directory.path().join("new").exists());
        error.to_string()
    };
    assert!(wrong(|plan| plan.servers.push("a b".to_owned())).contains("expected a host name"));
    assert!(wrong(|plan| plan.servers.push("../x".to_owned())).contains("expected a host name"));
    assert!(wrong(|plan| plan.at = "relative".into()).contains("an absolute path"));
    assert!(wrong(|plan| plan.store = "/a\"b".into()).contains("plain characters"));
    assert!(wrong(|plan| plan.agents.push(name("operator"))).contains("the operator's name"));
}

/// Agents of several calls at a time are known to the server, and have its CA.
#[test]
fn set_ups_at_once_come_one_after_the_other() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let agents = ["a", "b", "c", "d"];
    std::thread::scope(|scope| {
        let calls = agents.map(|agent| {
            let plan = plan(directory, &[agent]);
            scope.spawn(move || setup::set_up_fleet(directory, &plan))
        });
        for call in calls {
            call.join().unwrap().unwrap();
        }
    });
    let authority = fs::read(directory.join("ca.pem")).unwrap();
    let server = directory.join("servers/127.0.0.1");
    assert_eq!(fs::read(server.join("ca.pem")).unwrap(), authority);
    let users = fs::read_to_string(server.join("users.conf")).unwrap();
    for agent in agents {
        let own = directory.join("agents").join(agent).join("ca.pem");
        assert_eq!(fs::read(own).unwrap(), authority, "{agent}");
        let key = fs::read_to_string(directory.join(format!("users/{agent}.pub"))).unwrap();
        assert!(users.contains(key.trim()), "{agent}");
    }
}
