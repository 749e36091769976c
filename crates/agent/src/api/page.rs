//! The page: files that are part of the program, for browsers.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use axum::routing::get;

/// Content security policy: the page may load its own files and ask its own server. Text can never
/// become HTML.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A script that is loaded once its view is opened, where the agent is in a fleet.
const LATER: &str = "/page/fleet.js";

/// Path, type and text of each file.
const FILES: [(&str, &str, &str); 14] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("../page/index.html"),
    ),
    (
        "/page/style.css",
        "text/css; charset=utf-8",
        include_str!("../page/style.css"),
    ),
    (
        "/page/icon.svg",
        "image/svg+xml",
        include_str!("../page/icon.svg"),
    ),
    ("/page/main.js", SCRIPT, include_str!("../page/main.js")),
    ("/page/dom.js", SCRIPT, include_str!("../page/dom.js")),
    ("/page/format.js", SCRIPT, include_str!("../page/format.js")),
    ("/page/agent.js", SCRIPT, include_str!("../page/agent.js")),
    (
        "/page/overview.js",
        SCRIPT,
        include_str!("../page/overview.js"),
    ),
    ("/page/gain.js", SCRIPT, include_str!("../page/gain.js")),
    ("/page/arms.js", SCRIPT, include_str!("../page/arms.js")),
    ("/page/hosts.js", SCRIPT, include_str!("../page/hosts.js")),
    (
        "/page/networks.js",
        SCRIPT,
        include_str!("../page/networks.js"),
    ),
    ("/page/kernel.js", SCRIPT, include_str!("../page/kernel.js")),
    (LATER, SCRIPT, include_str!("../page/fleet.js")),
];

/// Headers of every answer to a browser.
const HEADERS: [(header::HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::CACHE_CONTROL, "no-store"),
    (header::REFERRER_POLICY, "no-referrer"),
];

/// Routes to the page and its files.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES
        .iter()
        .fold(Router::new(), |router, &(path, kind, text)| {
            router.route(path, get(async move || file(kind, text)))
        })
}

fn file(kind: &'static str, text: &'static str) -> Response<Body> {
    let mut answer = Response::new(Body::from(text));
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_only_files_that_are_there() {
        let text = |path: &str| FILES.iter().find(|file| file.0 == path).map(|file| file.2);
        let page = text("/").unwrap();
        for part in page.split(['"']).filter(|part| part.starts_with("page/")) {
            assert!(text(&format!("/{part}")).is_some(), "{part}");
        }
        for (path, kind, script) in FILES {
            assert!(
                !script.contains("http:") || path == "/page/icon.svg" || path == "/page/dom.js"
            );
            let imports = script.split("from \"./").skip(1);
            for name in imports.filter_map(|rest| rest.split('"').next()) {
                assert!(kind == SCRIPT && text(&format!("/page/{name}")).is_some());
            }
        }
    }

    #[test]
    fn the_page_is_small() {
        let at_once = FILES.iter().filter(|file| file.0 != LATER);
        let bytes: usize = at_once.map(|file| file.2.len()).sum();
        assert!(bytes < 60_000, "{bytes}");
        let imported = "import(\"./fleet.js\")";
        let scripts = FILES.iter().filter(|file| file.2.contains("fleet.js\""));
        assert!(scripts.map(|file| file.2.contains(imported)).eq([true]));
    }
}
