//! Credentials files, as servers with operators and accounts take them.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use nkeys::KeyPair;
use thalweg_fleet::{Fleet, Identity, Kind, Operator, Outgoing, Settings};

use super::exchange::arrives;
use super::support::{QUICK, SMALL, Server, connected, fault, is_there, name, priors, wait_for};

/// A server with one account, and the keys to it.
struct Bed {
    directory: tempfile::TempDir,
    account: KeyPair,
    server: Server,
}

/// URL-safe base 64 without padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let number = three
            .iter()
            .chain([0; 2].iter())
            .take(3)
            .fold(0u32, |number, byte| number << 8 | u32::from(*byte));
        for digit in 0..=three.len() {
            text.push(DIGITS[(number >> (18 - 6 * digit)) as usize & 63].into());
        }
    }
    text
}

/// What one key says of another, signed.
fn jwt(issuer: &KeyPair, subject: &str, nats: &str, expires_s: Option<u64>) -> String {
    let head = base64(br#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let expires = expires_s.map_or(String::new(), |time| format!(r#""exp":{time},"#));
    let claims = format!(
        r#"{{"jti":"{subject}","iat":1700000000,{expires}"iss":"{}","name":"test","sub":"{subject}","nats":{nats}}}"#,
        issuer.public_key()
    );
    let text = format!("{head}.{}", base64(claims.as_bytes()));
    let signature = issuer.sign(text.as_bytes()).unwrap();
    format!("{text}.{}", base64(&signature))
}

impl Bed {
    fn new() -> Option<Self> {
        is_there().then_some(())?;
        let directory = tempfile::tempdir().unwrap();
        let (operator, account) = (KeyPair::new_operator(), KeyPair::new_account());
        let public = account.public_key();
        let limits = r#"{"subs":-1,"data":-1,"payload":-1,"imports":-1,"exports":-1,"wildcards":true,
            "conn":-1,"leaf":-1,"mem_storage":-1,"disk_storage":-1,"streams":-1,"consumer":-1}"#;
        let of_operator = jwt(
            &operator,
            &operator.public_key(),
            r#"{"type":"operator","version":2}"#,
            None,
        );
        let claims = format!(r#"{{"limits":{limits},"type":"account","version":2}}"#);
        let of_account = jwt(&operator, &public, &claims, None);
        // JetStream needs an account of the server's own.
        let system = KeyPair::new_account().public_key();
        let limits = limits.replace(r#""streams":-1"#, r#""streams":0"#);
        let limits = limits.replace(
            r#""mem_storage":-1,"disk_storage":-1"#,
            r#""mem_storage":0"#,
        );
        let claims = format!(r#"{{"limits":{limits},"type":"account","version":2}}"#);
        let of_system = jwt(&operator, &system, &claims, None);
        let conf = directory.path().join("conf");
        let server = (0..10).find_map(|_| {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = free.local_addr().unwrap().to_string();
            drop(free);
            let text = format!(
                "listen: \"{address}\"\njetstream {{ store_dir: {:?} }}\noperator: {of_operator}\n\
                 resolver: MEMORY\nsystem_account: {system}\n\
                 resolver_preload: {{ {public}: {of_account}, {system}: {of_system} }}\n",
                directory.path().join("store"),
            );
            fs::write(&conf, text).unwrap();
            let mut server = Server::new(conf.clone(), address);
            server.start().then_some(server)
        });
        let log = fs::read_to_string(directory.path().join("log")).unwrap_or_default();
        let bed = Self {
            server: server.unwrap_or_else(|| panic!("{log}")),
            directory,
            account,
        };
        let operator = bed.settings("operator", &bed.credentials("operator", &bed.account, None));
        let mut operator = wait_for("the operator", || Operator::connect(&operator).ok());
        operator.make_all(&SMALL).unwrap();
        Some(bed)
    }

    /// A credentials file of a user, signed by an account.
    fn credentials(&self, user: &str, by: &KeyPair, expires_s: Option<u64>) -> PathBuf {
        let key = KeyPair::new_user();
        let nats =
            r#"{"pub":{},"sub":{},"subs":-1,"data":-1,"payload":-1,"type":"user","version":2}"#;
        let file = self.directory.path().join(format!("{user}.creds"));
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            jwt(by, &key.public_key(), nats, expires_s),
            key.seed().unwrap(),
        );
        write(&file, &text, 0o600);
        file
    }

    fn settings(&self, user: &str, credentials: &Path) -> Settings {
        let identity = Identity::Credentials(credentials.to_owned());
        let servers = vec![format!("nats://{}", self.server.address)];
        let mut settings = Settings::new(servers, name(user), identity);
        settings.pace = QUICK;
        settings
    }

    fn agent(&self, user: &str, credentials: &Path) -> Fleet {
        Fleet::start(&self.settings(user, credentials)).unwrap()
    }
}

fn write(file: &Path, text: &str, mode: u32) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
}

fn now_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

#[test]
fn agents_with_credentials_hear_each_other() {
    let Some(bed) = Bed::new() else { return };
    let a = bed.agent("a", &bed.credentials("a", &bed.account, None));
    let b = bed.agent(
        "b",
        &bed.credentials("b", &bed.account, Some(now_s() + 3600)),
    );
    a.offer_message(&Outgoing::Priors(priors("a", 1, 1)))
        .unwrap();
    arrives(&b, &priors("a", 1, 1));
}

#[test]
fn wrong_and_expired_credentials_are_refused() {
    let Some(bed) = Bed::new() else { return };
    let other = KeyPair::new_account();
    for (user, by, expires) in [
        ("stranger", &other, None),
        ("late", &bed.account, Some(now_s() - 60)),
    ] {
        let agent = bed.agent(user, &bed.credentials(user, by, expires));
        let told = fault(&agent, Kind::Credentials);
        assert!(told.contains("authorization violation"), "{user}: {told}");
        assert_eq!(agent.state().connected, None, "{user}");
    }
    // A user's right ends while it is connected.
    let soon = bed.agent(
        "soon",
        &bed.credentials("soon", &bed.account, Some(now_s() + 5)),
    );
    connected(&soon);
    fault(&soon, Kind::Credentials);
    wait_for("its end", || soon.state().connected.is_none().then_some(()));
}

#[test]
fn files_that_are_none_are_refused_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.creds");
    let refused = |expected: &str| {
        let identity = Identity::Credentials(file.clone());
        let settings = Settings::new(vec!["nats://127.0.0.1:1".to_owned()], name("a"), identity);
        let told = settings.check().unwrap_err().to_string();
        assert!(
            told.contains(expected) && told.lines().count() == 1,
            "{told}"
        );
        assert!(!told.contains("SUAM"), "{told}");
    };
    refused("No such file");
    write(&file, "SUAM and nothing else", 0o600);
    refused("found no JWT and seed, expected a credentials file");
    write(&file, "-----BEGIN NATS USER JWT-----\n", 0o644);
    refused("found mode 0644, expected 0600");
    write(&file, &"x".repeat(100_000), 0o600);
    refused("at most");
}
