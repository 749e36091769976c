//! JSON Schemas of the files that users write: `schemas/`.
//!
//! The readers tell their keys, the pages what they mean. With `THALWEG_GENERATE=1` the files are
//! written anew.

mod validate;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thalweg_agent::config::Config;
use thalweg_lab::scenario::Scenario as LabScenario;
use thalweg_policy::Policy;
use thalweg_sim::scenario::Scenario as SimScenario;
use thalweg_units::schema;

use crate::inputs::kinds::{Inputs, KINDS};
use crate::wrong_inputs::Case;
use thalweg_testbed::command_of;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Names of kinds, titles, and schemas.
fn all() -> [(&'static str, &'static str, Value); 4] {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let mut configuration = Config::schema();
    describe(&mut configuration, configuration_keys());
    let mut lab = LabScenario::file_schema();
    describe(&mut lab, table_keys(&read("docs/reference/lab.md")));
    let mut sim = SimScenario::file_schema();
    describe(&mut sim, table_keys(&read("docs/reference/sim.md")));
    [
        ("configuration", "Configuration of Thalweg", configuration),
        ("policy", "Policy of Thalweg", Policy::json_schema()),
        ("lab", "Scenario of Thalweg's laboratory", lab),
        ("sim", "Scenario of Thalweg's simulator", sim),
    ]
}

/// Table, key, and effect.
fn configuration_keys() -> Vec<(String, String, String)> {
    let keys = Config::keys().into_iter().map(|key| {
        let (table, name) = key.key.rsplit_once('.').unwrap_or(("", &key.key));
        (table.to_owned(), name.to_owned(), key.plain_words())
    });
    keys.collect()
}

/// Table, key, and meaning, of the tables in a page whose first column has keys.
fn table_keys(page: &str) -> Vec<(String, String, String)> {
    let mut keys = Vec::new();
    let (mut table, mut head) = (String::new(), Vec::new());
    for line in page.lines() {
        let Some(row) = line
            .strip_prefix("| ")
            .and_then(|row| row.strip_suffix(" |"))
        else {
            if !line.starts_with("|--") {
                head.clear();
            }
            continue;
        };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if head.is_empty() {
            head = cells;
            continue;
        }
        if head[0] != "key" {
            continue;
        }
        let mut named = cells[0].split('`').skip(1).step_by(2).collect::<Vec<_>>();
        // A row of a table's name, or a table's name before its first key.
        if named.first().is_some_and(|name| name.starts_with('[')) {
            table = named.remove(0).trim_matches(['[', ']']).to_owned();
        }
        let said = |name: &str| {
            let place = head.iter().position(|title| *title == name)?;
            cells
                .get(place)
                .map(|cell| plain(cell))
                .filter(|cell| !cell.is_empty())
        };
        let mut words = said("meaning").unwrap_or_default();
        if let Some(value) = said("value") {
            words += &format!(" ({value})");
        }
        match said("default").as_deref() {
            None | Some("required") => {}
            Some(default) => words += &format!(". Default: {default}"),
        }
        keys.extend(
            named
                .into_iter()
                .map(|key| (table.clone(), key.to_owned(), words.clone())),
        );
    }
    keys
}

/// Markdown without links and quotes of code.
fn plain(cell: &str) -> String {
    let mut text = String::new();
    let mut rest = cell;
    while let Some((before, after)) = rest.split_once("](") {
        text += &before.replacen('[', "", 1);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    (text + rest).replace(['`', '*'], "")
}

/// Adds descriptions to keys that have none.
fn describe(schema: &mut Value, keys: Vec<(String, String, String)>) {
    for (table, key, words) in keys {
        let owner = match table.as_str() {
            "" => Some(&mut *schema),
            name => schema["properties"].get_mut(name),
        };
        if let Some(owner) = owner {
            add(owner, &key, &words);
        }
    }
}

fn add(owner: &mut Value, key: &str, words: &str) {
    if let Some(form) = owner
        .get_mut("properties")
        .and_then(|keys| keys.get_mut(key))
    {
        form["description"] = json!(words);
    }
    if let Some(items) = owner.get_mut("items") {
        add(items, key, words);
    }
    for one in owner
        .get_mut("anyOf")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        add(one, key, words);
    }
}

#[test]
fn files_are_those_of_the_readers() {
    let generates = std::env::var_os("THALWEG_GENERATE").is_some();
    for (kind, title, form) in all() {
        let file = root().join(format!("schemas/{kind}.json"));
        let text = schema::schema_file(title, form);
        if generates {
            fs::write(&file, &text).unwrap();
        }
        let kept = fs::read_to_string(&file).unwrap();
        assert!(
            kept == text,
            "{}: THALWEG_GENERATE=1 writes it anew",
            file.display()
        );
    }
}

#[test]
fn the_command_prints_them() {
    for (kind, _, _) in all() {
        let words = match kind {
            "lab" | "sim" => &["thalweg-lab", "schema", kind][..],
            kind => &["schema", kind],
        };
        let said = command_of(words).output().unwrap();
        let file = fs::read(root().join(format!("schemas/{kind}.json"))).unwrap();
        assert!(said.status.success() && said.stdout == file, "{kind}");
    }
}

/// Every key has a form: a reader that tells none would be seen here.
#[test]
fn every_key_has_a_form() {
    fn check(at: &str, form: &Value) {
        let forms = ["type", "enum", "const", "anyOf"];
        assert!(
            forms.iter().any(|key| form.get(key).is_some()),
            "{at}: {form}"
        );
        for (key, form) in form["properties"].as_object().into_iter().flatten() {
            check(&format!("{at}.{key}"), form);
        }
        let others = form["anyOf"].as_array().into_iter().flatten();
        others
            .chain(form.get("items"))
            .for_each(|form| check(at, form));
    }
    for (kind, _, form) in all() {
        check(kind, &form);
    }
}

/// A text as JSON, if it is TOML.
fn document(text: &[u8]) -> Option<Value> {
    let text = std::str::from_utf8(text).ok()?;
    serde_json::to_value(toml::from_str::<toml::Table>(text).ok()?).ok()
}

/// What a reader accepts, the schema accepts.
#[test]
fn schemas_are_never_stricter_than_readers() {
    for (name, _, form) in all() {
        let kind = KINDS.iter().find(|kind| kind.name == name).unwrap();
        let inputs = Inputs::new(kind, 1 << 10);
        let (mut accepted, mut refused_by_both) = (0, 0);
        for number in inputs.special()..inputs.special() + 3000 {
            let text = inputs.get(number);
            let Some(document) = document(&text) else {
                continue;
            };
            let faults = validate::faults(&form, &document);
            match ((kind.read)(&text), faults.first()) {
                (Ok(()), Some(fault)) => {
                    panic!(
                        "{name} {number}: {fault}\n{}",
                        String::from_utf8_lossy(&text)
                    )
                }
                (Ok(()), None) => accepted += 1,
                (Err(_), Some(_)) => refused_by_both += 1,
                (Err(_), None) => {}
            }
        }
        assert!(
            accepted > 100 && refused_by_both > 100,
            "{name}: {accepted}, {refused_by_both}"
        );
    }
}

/// Faults that no schema can tell: the words of the transcripts' titles, and why.
const BEYOND: [(&str, &str); 22] = [
    (
        "configuration: a prefix that is too long",
        "a number within a text",
    ),
    (
        "configuration: a prefix with host bits",
        "arithmetic on a text",
    ),
    (
        "configuration: a size that is no power of two",
        "arithmetic on a text",
    ),
    (
        "lab: a delay in minutes",
        "a quantity's range: arithmetic on a text",
    ),
    (
        "lab: an arm of the agents twice",
        "lists of some values tell nothing of repetition",
    ),
    ("lab: a policy without its file", "another file"),
    (
        "lab: a queue that holds no packet",
        "compared with another key",
    ),
    (
        "lab: a queue without its bottleneck",
        "compared with another key",
    ),
    ("lab: an arm without its file", "another file"),
    (
        "lab: an expectation in the wrong unit",
        "the unit is that of another key's value",
    ),
    ("lab: an expectation without a bound", "one of two keys"),
    ("policy: a prefix that is no prefix", "an address's form"),
    ("policy: a prefix with host bits", "arithmetic on a text"),
    ("policy: a rule without settings", "one of three keys"),
    (
        "policy: a time that is too long",
        "a quantity's range: arithmetic on a text",
    ),
    ("policy: ports in the wrong order", "arithmetic on a text"),
    (
        "policy: two rules of one name",
        "compared with another table",
    ),
    (
        "sim: a controller that there is not in an expectation",
        "the controllers' own grammar",
    ),
    (
        "sim: a network of one host",
        "a product of keys in other shapes",
    ),
    (
        "sim: a statistic that this workload does not have",
        "compared with another table",
    ),
    (
        "sim: a warm-up as long as the run",
        "compared with another key",
    ),
    (
        "sim: more senders than hosts",
        "compared with another table",
    ),
];

/// Wrong inputs whose form is at fault are refused by the schema.
#[test]
fn schemas_refuse_wrong_inputs() {
    let mut beyond = Vec::new();
    let mut refused = 0;
    for (kind, _, form) in all() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("tests/cli/wrong_inputs/{kind}.txt"));
        for case in Case::all(&fs::read_to_string(&file).unwrap(), &file) {
            for (name, text) in &case.files {
                // Faults of the command line have no place in a file.
                let place = format!("{name}:");
                let has_fault = case.said.iter().any(|line| {
                    let after = line.split_once(&place).map(|(_, after)| after);
                    after.is_some_and(|after| after.starts_with(|c: char| c.is_ascii_digit()))
                });
                let Some(document) = document(text.as_bytes()).filter(|_| has_fault) else {
                    continue;
                };
                match validate::faults(&form, &document).is_empty() {
                    true => beyond.push(format!("{kind}: {}", case.title)),
                    false => refused += 1,
                }
            }
        }
    }
    let mut known: Vec<&str> = BEYOND.iter().map(|(title, _)| *title).collect();
    known.sort_unstable();
    beyond.sort_unstable();
    assert_eq!(beyond, known);
    assert!(refused > 20, "{refused}");
}
