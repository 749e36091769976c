//! The page: one file that needs neither network nor script.

use std::fmt::Write;

use thalweg_units::is_unseen;

use crate::Table;

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--soft:#5b6470;--line:#d9dee4;--ok:#1a7f37;--bad:#b42318;
--c0:#0072b2;--c1:#c75000;--c2:#00795a;--c3:#a3478a;--c4:#8a6d00;--c5:#2a7fb8;--c6:#555;--c7:#7a3db8}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--paper:#14181d;--soft:#9aa4b0;--line:#2f3741;--ok:#56d364;--bad:#ff8a80;
--c0:#5ab4ee;--c1:#ff9a4d;--c2:#3ecf9f;--c3:#e58fcb;--c4:#e0c341;--c5:#8fd0ff;--c6:#b0b0b0;--c7:#c09bff}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:76rem;margin:2rem auto;padding:0 1rem}
h1{margin-bottom:0}h2{margin-top:2.5rem}.soft{color:var(--soft)}
svg{width:100%;height:auto;max-width:1000px;font-size:12px}svg text{fill:var(--ink)}.end{text-anchor:end}.middle{text-anchor:middle}
.grid{stroke:var(--line)}svg g{stroke:currentColor;fill:currentColor}polyline{fill:none}.plain{color:var(--ink)}
.reference polyline,.reference line{stroke-width:1.2;stroke-dasharray:5 3;opacity:.8}.learner polyline,.learner line{stroke-width:2}
.box rect{fill-opacity:.25}.box .median{stroke-width:3}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}.c5{color:var(--c5)}.c6{color:var(--c6)}.c7{color:var(--c7)}
h3{margin:1.5rem 0 .3rem;font-size:1em}
@media print{:root{color-scheme:light;--ink:#000;--paper:#fff;--soft:#333;--line:#bbb;--ok:#000;--bad:#b42318;
--c0:#0072b2;--c1:#c75000;--c2:#00795a;--c3:#a3478a;--c4:#8a6d00;--c5:#2a7fb8;--c6:#555;--c7:#7a3db8}
body{font-size:11px;max-width:none;margin:0}svg,tr,h2,h3{break-inside:avoid}h2,h3{break-after:avoid}.wide{overflow:visible!important}th,td{padding:.1rem .3rem!important}}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}caption{text-align:left;font-weight:600;padding:.4rem 0}
th,td{padding:.25rem .7rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}th:first-child,td:first-child{text-align:left}
.checks td:first-child{white-space:normal}.met{color:var(--ok)}.missed{color:var(--bad);font-weight:700}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}code{font-size:.9em}
";

/// Text escaped for an element or a quoted attribute.
pub fn escape_html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // XML 1.0 section 2.2 excludes the other control characters.
            other if is_unseen(other) && !matches!(other, '\n' | '\t' | '\r') => {
                escaped.push('\u{fffd}');
            }
            other => escaped.push(other),
        }
    }
    escaped
}

/// The start of a page, up to and with `<main>`.
pub fn page_head(title: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n",
        escape_html(title)
    )
}

/// End of a page that starts with [`page_head`].
pub const FOOT: &str = "</main>\n</body>\n</html>\n";

/// A table as HTML, under a caption, with the style sheet's class for the whole.
pub fn html_table(table: &Table, caption: &str, class: &str) -> String {
    let mut html = format!(
        "<div class=\"wide\"><table class=\"{class}\"><caption>{}</caption>\n<thead><tr>",
        escape_html(caption)
    );
    for heading in &table.header {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape_html(heading));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        html.push_str("<tr>");
        for cell in row {
            let class = match cell.as_str() {
                "MISSED" => " class=\"missed\"",
                "met" => " class=\"met\"",
                _ => "",
            };
            let _ = write!(html, "<td{class}>{}</td>", escape_html(cell));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    html
}
