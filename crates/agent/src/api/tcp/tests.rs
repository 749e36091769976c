//! Tokens and hosts.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use axum::body::Body;

use super::*;

const GOOD: &str = "0123456789abcdef";

#[test]
fn a_token_is_itself_alone() {
    let token = Token::new(&format!("  {GOOD}\n")).unwrap();
    assert!(token.is(GOOD));
    for other in [
        "",
        "0123456789abcde",
        "0123456789abcdeg",
        "0123456789abcdef0",
    ] {
        assert!(!token.is(other), "{other}");
    }
    let brings = |value: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        token.is_in(&headers)
    };
    assert!(brings(&format!("Bearer {GOOD}")) && brings(&format!("bearer  {GOOD}")));
    assert!(!brings(GOOD) && !brings("Bearer") && !brings(&format!("Basic {GOOD}")));
    assert!(!token.is_in(&HeaderMap::new()));
    assert_eq!(format!("{token:?}"), "Token");
}

#[test]
fn a_file_that_others_may_read_has_no_token() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("token");
    let with = |text: &str, mode: u32| {
        // One without the right to write stays for ordinary users.
        let _ = fs::remove_file(&file);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        Token::read(&file).map_err(|error| format!("{error:#}"))
    };
    assert!(with(GOOD, 0o600).unwrap().is(GOOD));
    assert!(with(GOOD, 0o400).is_ok());
    for (text, mode, expected) in [
        (
            GOOD,
            0o640,
            "may be read or written by others (mode 640): chmod 600",
        ),
        (GOOD, 0o604, "may be read or written by others (mode 604)"),
        ("\n", 0o600, "it is empty; expected 16 to 512 characters"),
        ("short", 0o600, "it has 5 bytes; expected 16 to 512"),
        (&"x".repeat(5000), 0o600, "expected 16 to 512"),
        ("0123456789 abcdef", 0o600, "visible ASCII"),
        ("0123456789abcdefé", 0o600, "visible ASCII"),
    ] {
        let told = with(text, mode).unwrap_err();
        assert!(told.contains(expected), "{told}");
        assert!(!told.contains("0123456789"), "{told}");
    }
    let told = Token::read(&place.path().join("none")).unwrap_err();
    assert!(
        format!("{told:#}").contains("none: No such file"),
        "{told:#}"
    );
    let told = Token::read(place.path()).unwrap_err().to_string();
    assert!(told.contains("is not a file"), "{told}");
}

#[test]
fn a_host_is_loopback_or_refused() {
    let named = |hosts: &[&str], uri: &str| {
        let mut request = Request::builder().uri(uri);
        for host in hosts {
            request = request.header(header::HOST, *host);
        }
        names_loopback(&request.body(Body::empty()).unwrap())
    };
    for host in [
        "localhost",
        "LOCALHOST:80",
        "127.0.0.1:9471",
        "127.9.9.9",
        "[::1]:1",
        "[::1]",
    ] {
        assert!(named(&[host], "/metrics"), "{host}");
    }
    for host in [
        "",
        "example.com",
        "127.0.0.1.example.com",
        "localhost.example.com:80",
    ] {
        assert!(!named(&[host], "/metrics"), "{host}");
    }
    for host in [
        "192.0.2.7:9471",
        "[2001:db8::1]:9471",
        "0.0.0.0",
        "127.0.0.1@example.com",
        "::1",
    ] {
        assert!(!named(&[host], "/metrics"), "{host}");
    }
    assert!(!named(&[], "/metrics"));
    assert!(!named(&["localhost", "example.com"], "/metrics"));
    assert!(!named(&["localhost"], "http://example.com/metrics"));
    assert!(named(&["localhost"], "http://127.0.0.1:9471/metrics"));
}

#[test]
fn a_port_is_taken_over_from_whoever_has_it_here_and_refused_otherwise() {
    let probe = TcpListener::bind("127.0.0.1:0").unwrap();
    let http = Http {
        listen: Some(probe.local_addr().unwrap()),
        token_file: None,
    };
    let told = format!("{:#}", PortListener::new(&http, &[]).unwrap_err());
    let address = http.listen.unwrap();
    assert_eq!(
        told,
        format!("http.listen: {address}: Address already in use (os error 98)")
    );
    // At the start it is left to others until it is free.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    let inside = runtime.enter();
    let waiting = PortListener::at_start(&http).unwrap().unwrap();
    let why = waiting.listen().unwrap_err();
    assert!(waiting.refused(&why).contains("another process has it"));
    let same = PortListener::new(&http, &[&waiting]).unwrap().unwrap();
    drop(probe);
    assert!(waiting.listen().is_ok());
    // A session after it has the port, too.
    assert!(same.lock().is_some());
    drop(inside);
    drop((waiting, same));
    let first = PortListener::new(&http, &[]).unwrap().unwrap();
    let second = PortListener::new(&http, &[&first]).unwrap().unwrap();
    assert!(Arc::ptr_eq(&first.listener, &second.listener) && first == second);
    let none = Http {
        listen: None,
        token_file: Some("/nonexistent".into()),
    };
    assert!(PortListener::new(&none, &[]).unwrap().is_none());
    // Once it is closed, another may have the port, though this one is still there.
    first.close();
    assert!(PortListener::new(&http, &[]).unwrap().is_some());
}
