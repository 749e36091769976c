//! Token of a browser: once in the address, from then on as a cookie.
//!
//! The cookie has the port in its name, because browsers send cookies to all ports of a host.

use std::fmt::Write as _;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::Token;

#[derive(serde::Deserialize)]
struct Asked {
    token: Option<String>,
}

/// Whether the address of a request is that of the page, with the token.
pub(super) fn has_token(request: &Request, token: &Token) -> bool {
    if request.uri().path() != "/" {
        return false;
    }
    let asked = axum::extract::Query::<Asked>::try_from_uri(request.uri());
    let brought = asked.ok().and_then(|asked| asked.0.token);
    brought.is_some_and(|brought| token.is(&brought))
}

/// Sends the browser its cookie, and redirects it to the address without the token, which then is
/// neither in its history nor copied.
pub(super) fn enter(request: &Request, token: &Token) -> Response {
    let cookie = format!(
        "{}={}; Path=/; HttpOnly; SameSite=Strict",
        name(request),
        value(token)
    );
    let headers = [
        (header::LOCATION, "./"),
        (header::SET_COOKIE, &cookie),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (StatusCode::SEE_OTHER, headers).into_response()
}

/// Whether the browser has its cookie.
pub(super) fn is_known(request: &Request, token: &Token) -> bool {
    let (name, known) = (name(request), Token(value(token)));
    let cookies = request.headers().get_all(header::COOKIE).iter();
    let cookies = cookies.filter_map(|value| value.to_str().ok());
    cookies
        .flat_map(|all| all.split(';'))
        .filter_map(|cookie| cookie.trim().split_once('='))
        .any(|(its_name, its_value)| its_name == name && known.is(its_value))
}

/// Name of the cookie. The port is the browser's, which `ssh -L` may have changed.
fn name(request: &Request) -> String {
    let host = request.headers().get(header::HOST);
    let host: Option<Authority> = host.and_then(|host| host.to_str().ok()?.parse().ok());
    let port = host.and_then(|host| host.port_u16()).unwrap_or(80);
    format!("thalweg-{port}")
}

/// Value of the cookie, in digits: a token may have characters that cookies cannot.
fn value(token: &Token) -> String {
    token.0.bytes().fold(String::new(), |mut text, byte| {
        // Writing to a string succeeds.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str, cookie: &str) -> Request {
        let built = Request::get(uri)
            .header(header::HOST, "127.0.0.1:9472")
            .header(header::COOKIE, cookie);
        built.body(axum::body::Body::empty()).unwrap()
    }

    #[test]
    fn the_token_becomes_a_cookie() {
        let token = Token::new("0123456789;\"%+/=").unwrap();
        let first = request("/?token=0123456789%3B%22%25%2B%2F%3D", "");
        assert!(has_token(&first, &token));
        let answer = enter(&first, &token);
        let given = answer.headers()[header::SET_COOKIE].to_str().unwrap();
        assert!(given.ends_with("; HttpOnly; SameSite=Strict"), "{given}");
        let cookie = given.split(';').next().unwrap();
        assert!(is_known(&request("/", &format!("a=b; {cookie}")), &token));
        for wrong in [
            "",
            &cookie[..cookie.len() - 1],
            &cookie.replace("9472", "80"),
        ] {
            assert!(!is_known(&request("/", wrong), &token), "{wrong}");
        }
        assert!(!has_token(&request("/?token=0123456789", ""), &token));
        assert!(!has_token(&request("/", ""), &token));
    }
}
