//! Files that come from the keys: the sample configuration, and the tables of the page. With
//! `THALWEG_GENERATE=1` they are written anew.

use std::fs;
use std::path::{Path, PathBuf};

use super::Config;
use crate::config::KeyDescription;

const HEADER: &str = "\
#:schema ../schemas/configuration.json
# A configuration of Thalweg in which every key has its default: remove the # before the one to change.
# It goes to /etc/thalweg/thalweg.toml; `thalweg config check FILE` finds its faults.
";
/// Most characters of a line of the sample.
const WIDTH: usize = 100;
const TABLE_HEAD: &str = "| Key | Default | Accepts | Effect |";

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(file)
}

/// Fails unless the file has the text; or writes it.
fn check(file: &str, text: &str) {
    let path = path(file);
    if std::env::var_os("THALWEG_GENERATE").is_some() {
        fs::write(&path, text).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap();
    assert!(
        found == text,
        "{file} does not have the keys as they are: THALWEG_GENERATE=1 cargo test -p thalweg-agent \
         --lib config writes it"
    );
}

/// Section and name of a key; the section of general keys is empty.
fn split(key: &KeyDescription) -> (&str, &str) {
    key.key.rsplit_once('.').unwrap_or(("", &key.key))
}

fn comment(text: &str) -> String {
    let mut lines = vec![String::from("#")];
    for word in text.split(' ') {
        let line = lines.last_mut().unwrap();
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(format!("# {word}"));
        } else {
            *line += &format!(" {word}");
        }
    }
    lines.join("\n") + "\n"
}

#[test]
fn sample_has_every_key_with_its_default() {
    let mut text = HEADER.to_owned();
    let mut section = "";
    let keys = Config::keys();
    for key in &keys {
        let (table, name) = split(key);
        if table != section {
            text += &format!("\n[{table}]\n");
            section = table;
        }
        text += &format!(
            "\n{}{}#{name} = {}\n",
            comment(&key.plain_words()),
            comment(&format!("Accepts {}.", key.expected)),
            key.default
        );
    }
    check("packaging/thalweg.toml", &text);
}

/// The accepted values: the page adds to a range only what quotes and units do not show.
fn accepts(key: &KeyDescription) -> &str {
    let kinds = [
        "a whole number from ",
        "a number from ",
        "a duration from ",
        "a size from ",
    ];
    let kind = kinds.iter().find(|kind| key.expected.starts_with(**kind));
    &key.expected[kind.map_or(0, |kind| kind.len())..]
}

#[test]
fn page_has_a_table_of_each_section() {
    let keys = Config::keys();
    let file = "docs/reference/configuration.md";
    let page = fs::read_to_string(path(file)).unwrap();
    let (mut text, mut section, mut left) = (String::new(), "", keys.as_slice());
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        text += &format!("{line}\n");
        if let Some(title) = line.strip_prefix("## ") {
            section = title.trim_matches(['`', '[', ']']);
        }
        if line != TABLE_HEAD {
            continue;
        }
        text += "|---|---|---|---|\n";
        let wanted = if section == "General" { "" } else { section };
        let count = left.iter().take_while(|key| split(key).0 == wanted).count();
        assert!(
            count > 0,
            "{file} has a table of [{section}], which is not the next section"
        );
        for key in &left[..count] {
            text += &format!(
                "| `{}` | `{}` | `{}` | {} |\n",
                key.key,
                key.default,
                accepts(key),
                key.words
            );
        }
        left = &left[count..];
        while lines.next_if(|line| line.starts_with('|')).is_some() {}
    }
    let first = left.first().map(|key| &key.key);
    assert!(
        first.is_none(),
        "{file} has no table of the section of {first:?}"
    );
    check(file, &text);
}
