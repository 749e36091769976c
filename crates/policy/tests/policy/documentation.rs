//! `docs/reference/policy.md` agrees with the program.

use thalweg_policy::Stage;
use thalweg_policy::catalogue::{KEYS, stages_in_mask};

use crate::{compile, parse};

const PAGE: &str = include_str!("../../../../docs/reference/policy.md");

/// The table of `docs/reference/policy.md`.
fn markdown_table() -> String {
    let mut text = "| Key | Accepts | Stages | Kernel option | Since | Effect |\n\
                    |---|---|---|---|---|---|\n"
        .to_owned();
    let names = |mask: u8| {
        let names: Vec<&str> = stages_in_mask(mask).map(Stage::name).collect();
        names.join(", ")
    };
    for key in KEYS {
        let option = match key.option {
            "" => String::new(),
            option => format!("`{option}`"),
        };
        let (set, on) = (names(key.set), names(key.on & !key.set));
        // The quotes and units of a range show its type.
        let accepts = key.accepted_values();
        let accepts = ["a whole number ", "a duration ", "a size ", "a rate "]
            .iter()
            .find_map(|kind| accepts.strip_prefix(kind))
            .unwrap_or(&accepts);
        // The stages of most keys; the page explains the word.
        let at = match (set.as_str(), on.as_str()) {
            ("connect, established", "listen, retransmission, rto, rtt") => "any".to_owned(),
            (_, "") => set,
            _ => format!("{set}; {on}"),
        };
        text.push_str(&format!(
            "| `{}` | `{}` | {at} | {option} | {} | {} |\n",
            key.name,
            accepts.strip_prefix("from ").unwrap_or(accepts),
            key.since,
            key.effect,
        ));
    }
    text
}

#[test]
fn the_table_of_keys_is_the_catalogue() {
    let table = markdown_table();
    assert!(
        PAGE.contains(&table),
        "docs/reference/policy.md must contain this table:\n{table}"
    );
}

#[test]
fn every_trap_is_explained() {
    // Keys with the same trap share a line.
    let mut lines: Vec<(&str, String)> = Vec::new();
    for key in KEYS {
        let Some(trap) = key.trap else { continue };
        match lines.iter_mut().find(|line| line.0 == trap) {
            Some((_, names)) => names.push_str(&format!(", `{}`", key.name)),
            None => lines.push((trap, format!("`{}`", key.name))),
        }
    }
    assert!(!lines.is_empty());
    for (trap, names) in lines {
        let line = format!("- {names}: {trap}\n");
        assert!(
            PAGE.contains(&line),
            "docs/reference/policy.md must contain this line:\n{line}"
        );
    }
}

#[test]
fn every_example_is_a_policy() {
    let mut examples = 0;
    for block in PAGE.split("```toml\n").skip(1) {
        let text = block.split("```").next().unwrap();
        let whole = if text.contains("name = ") && !text.starts_with("[[rule]]") {
            text.to_owned()
        } else {
            format!("name = \"t\"\n{text}")
        };
        compile(&parse(&whole));
        examples += 1;
    }
    assert!(examples >= 3, "{examples} examples");
}
