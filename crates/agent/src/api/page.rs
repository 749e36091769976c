//! The page: files that are part of the program, for browsers.

use std::borrow::Cow;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use axum::routing::get;

use crate::features;

/// Content security policy: the page may load its own files and ask its own server. Text can never
/// become HTML.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Lines of the first file that become the links to views of features, and the views.
const LINKS: &str = "    <!-- links of features -->\n";
const VIEWS: &str = "<!-- views of features -->\n";

/// Path, type and text of each file, without those of features.
const FILES: [(&str, &str, &str); 11] = [
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
    ("/page/kernel.js", SCRIPT, include_str!("../page/kernel.js")),
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
    let files = page_files().into_iter();
    files.fold(Router::new(), |router, (path, kind, text)| {
        router.route(&path, get(async move || file_response(kind, text)))
    })
}

/// Path, type and text of each file.
fn page_files() -> Vec<(String, &'static str, Cow<'static, str>)> {
    let own = FILES.map(|(path, kind, text)| (path.to_owned(), kind, Cow::from(text)));
    let (mut files, mut links, mut bodies) = (Vec::from(own), String::new(), Vec::new());
    for feature in features::all() {
        let (name, Some(view)) = (feature.name(), feature.page_view()) else {
            continue;
        };
        if let Some(title) = view.title {
            let hidden = if view.is_hidden { " hidden" } else { "" };
            links += &format!("    <a href=\"#{name}\" id=\"{name}-link\"{hidden}>{title}</a>\n");
        }
        bodies.push(view.body);
        files.push((format!("/page/{name}.js"), SCRIPT, view.script.into()));
    }
    let page = files[0].2.replace(LINKS, &links);
    files[0].2 = page.replace(VIEWS, &bodies.join("\n")).into();
    files
}

fn file_response(kind: &'static str, text: Cow<'static, str>) -> Response<Body> {
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
        let files = page_files();
        let text = |path: &str| files.iter().find(|file| file.0 == path).map(|file| &file.2);
        let page = text("/").unwrap();
        assert!(!page.contains("of features -->"));
        let mut views = features::all().into_iter().filter_map(|it| it.page_view());
        assert!(views.all(|it| page.contains(it.body)));
        for part in page.split(['"']).filter(|part| part.starts_with("page/")) {
            assert!(text(&format!("/{part}")).is_some(), "{part}");
        }
        for (path, kind, script) in &files {
            assert!(
                !script.contains("http:") || path == "/page/icon.svg" || path == "/page/dom.js"
            );
            let imports = script.split("from \"./").skip(1);
            for name in imports.filter_map(|rest| rest.split('"').next()) {
                assert!(*kind == SCRIPT && text(&format!("/page/{name}")).is_some());
            }
        }
    }

    #[test]
    fn the_page_is_small() {
        let files = page_files();
        let bytes: usize = files[..FILES.len()].iter().map(|file| file.2.len()).sum();
        assert!(bytes < 60_000, "{bytes}");
        // Scripts of features are loaded once their views are opened.
        for (path, ..) in &files[FILES.len()..] {
            let name = path.trim_start_matches("/page");
            assert!(!files.iter().any(|file| file.2.contains(name)), "{name}");
        }
    }
}
