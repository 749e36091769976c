//! Labels, and the form of the text.

use std::fmt::Result;
use std::sync::Mutex;

use super::*;
use page::{KINDS, Rows};

type Writes = Box<dyn Fn(&mut Page<'_>) -> Result + Send>;

/// What a page has.
struct Written(Mutex<Writes>);

impl fmt::Debug for Written {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> Result {
        Ok(())
    }
}

impl Collector for Written {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result {
        (self.0.lock().unwrap())(&mut Page::new(encoder))
    }
}

fn written(by: impl Fn(&mut Page<'_>) -> Result + Send + 'static) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Written(Mutex::new(Box::new(by)))));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

#[test]
fn a_page_is_openmetrics() {
    let text = written(|page| {
        page.counter("a", "What it is.", 3u64)?;
        page.gauge("b", "Another.", 2.5)?;
        page.counters(
            "c",
            "By kind.",
            ["kind"],
            Rows::sums([(["x"], 1.0), (["x"], 2.0)]),
        )?;
        page.gauges("d", "None.", ["kind"], Rows::each([([""; 1], 0.0); 0]))
    });
    assert_eq!(
        text,
        "# HELP a What it is.\n# TYPE a counter\na_total 3\n\
         # HELP b Another.\n# TYPE b gauge\nb 2.5\n\
         # HELP c By kind.\n# TYPE c counter\nc_total{kind=\"x\"} 3.0\n# EOF\n"
    );
}

#[test]
fn labels_hold_whatever_names_hold() {
    let names = ["a \"b\" \\c", "line\nbreak\r\u{7}", "ü {} , = #"];
    let text = written(move |page| {
        page.gauges(
            "d",
            "By name.",
            ["name"],
            Rows::each(names.map(|name| ([name], 1.0))),
        )
    });
    let rows: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(
        rows,
        [
            "d{name=\"a \\\"b\\\" \\\\c\"} 1.0",
            "d{name=\"line, break\\\\r\\\\u{7}\"} 1.0",
            "d{name=\"ü {} , = #\"} 1.0",
        ]
    );
}

#[test]
fn a_label_has_a_bounded_number_of_values() {
    let many = || (0..KINDS + 50).map(|number| ([format!("{number:05}")], 1.0));
    let text = written(move |page| {
        page.counters("c", "Sums.", ["kind"], Rows::sums(many()))?;
        page.gauges("g", "Gauges.", ["kind"], Rows::each(many()))
    });
    let rows = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!((rows("c_total"), rows("g{")), (KINDS + 1, KINDS));
    assert!(text.contains("c_total{kind=\"(others)\"} 50.0"), "{text}");
}
