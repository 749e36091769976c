//! `docs/reference/policy.md` agrees with the program.

use thalweg_policy::catalogue::{KEYS, markdown_table};

use crate::{compile, parse};

const PAGE: &str = include_str!("../../../../docs/reference/policy.md");

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
