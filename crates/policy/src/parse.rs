//! From TOML to a [`Policy`]: every fault is found, and each has its place.
//!
//! Rules are read one after the other, so that a large policy takes the memory of its rules and
//! not that of its whole text as TOML.

mod document;
mod reader;
mod value;

use std::collections::HashMap;
use std::path::Path;

use toml::Spanned;
use toml::de::DeValue;

use crate::catalogue::{self, Key, Stage};
use crate::error::Faults;
use crate::model::{Action, Conditions, Policy, Rule};
use document::Document;
use reader::{Reader, Table};

/// Operations of one rule (`THALWEG_POLICY_MAX_OPS`).
pub(crate) const OPS_MAX: usize = thalweg_abi::raw::THALWEG_POLICY_MAX_OPS as usize;
/// Rules of one policy; each counts at least once (`THALWEG_POLICY_MAX_RULES`).
const RULES_MAX: usize = thalweg_abi::raw::THALWEG_POLICY_MAX_RULES as usize;
/// Longest description, in characters.
const DESCRIPTION_MAX: usize = 500;

impl Policy {
    /// Reads a policy; `file` serves for messages alone.
    ///
    /// # Errors
    /// Faults, in the order of the text, up to a hundred. Of a text that is not UTF-8 nothing is
    /// looked at, of a part that is not TOML nothing else; parts end before each `[[rule]]`.
    pub fn parse(bytes: &[u8], file: &Path) -> Result<Self, Faults> {
        match std::str::from_utf8(bytes) {
            Ok(text) => {
                let document = Document::new(file, text);
                let policy = read(&document);
                policy
                    .filter(|_| document.is_clean())
                    .ok_or_else(|| document.take_faults())
            }
            Err(error) => {
                let (valid, rest) = bytes.split_at(error.valid_up_to());
                // The valid part is text by the contract of `valid_up_to`.
                let valid = String::from_utf8_lossy(valid);
                let document = Document::new(file, &valid);
                let byte = rest.first().copied().unwrap_or_default();
                document.fault(
                    document.position(valid.len()),
                    None,
                    format!("the byte 0x{byte:02x}"),
                    "UTF-8 text",
                );
                Err(document.take_faults())
            }
        }
    }
}

/// The policy, which may not be whole where there are faults.
fn read(document: &Document<'_>) -> Option<Policy> {
    let starts = document.rules();
    if let Some(&at) = starts.get(RULES_MAX) {
        document.fault(
            document.position(at),
            Some("rule".into()),
            format!("{} rules", starts.len()),
            format!("at most {RULES_MAX}"),
        );
        return None;
    }
    let mut policy = Policy {
        file: document.file.to_path_buf(),
        name: String::new(),
        description: String::new(),
        rules: Vec::with_capacity(starts.len()),
    };
    let mut is_toml = true;
    let mut items = 0;
    let mut start = 0;
    for (part, end) in starts
        .iter()
        .copied()
        .chain([document.text.len()])
        .enumerate()
    {
        let reader = Reader::new(document, start..end);
        start = end;
        let Some(mut root) = reader.root() else {
            is_toml = false;
            continue;
        };
        if part == 0 {
            let name = root.required("name", "a name for the policy", name_text, NAME);
            policy.name = name.unwrap_or_default();
        } else {
            // Only a table can have this name here.
            root.optional("name", name_text, NAME);
        }
        if let Some(text) = root.optional("description", description_text, &description_rule()) {
            policy.description = text;
        }
        if let Some(value) = root.take("rule") {
            let at = value.span().start;
            match value.into_inner() {
                _ if part == 0 && !starts.is_empty() => {
                    let found = "`rule` before the first [[rule]]";
                    reader.fault(at, Some("rule".into()), found, "tables, [[rule]]");
                }
                DeValue::Array(list) => {
                    for item in list {
                        policy.rules.extend(rule(&reader, items, item));
                        items += 1;
                    }
                }
                other => {
                    let found = reader::describe(&other);
                    reader.fault(at, Some("rule".into()), found, "tables, [[rule]]");
                }
            }
        } else if starts.is_empty() {
            reader.fault(root.at, None, "no rule", "at least one [[rule]]");
        }
        root.finish();
        if document.is_full() {
            return None;
        }
    }
    // Of rules that are not there the names are not known.
    if !is_toml {
        return None;
    }
    let mut names = HashMap::new();
    for rule in policy.rules.iter().filter(|rule| !rule.name.is_empty()) {
        if let Some(first) = names.insert(&*rule.name, rule.at.line) {
            document.fault(
                rule.at,
                Some("rule".into()),
                format!("the name {:?} again, as in line {first}", rule.name),
                "each name once",
            );
        }
    }
    Some(policy)
}

const NAME: &str = "1 to 64 letters, digits, -, _ or ., not beginning with - or .";

fn name_text(value: &DeValue<'_>) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let text = value.as_str()?;
    let good =
        (1..=64).contains(&text.len()) && text.bytes().all(plain) && !text.starts_with(['-', '.']);
    good.then(|| text.to_owned())
}

fn description_text(value: &DeValue<'_>) -> Option<String> {
    let text = value.as_str()?;
    let good = text.chars().count() <= DESCRIPTION_MAX && !text.chars().any(char::is_control);
    good.then(|| text.to_owned())
}

fn description_rule() -> String {
    format!("a text of one line, at most {DESCRIPTION_MAX} characters")
}

fn rule(reader: &Reader<'_>, place: usize, item: Spanned<DeValue<'_>>) -> Option<Rule> {
    let at = item.span().start;
    let nameless = format!("rule {}", place + 1);
    let DeValue::Table(entries) = item.into_inner() else {
        reader.fault(at, Some(nameless), "no table", "a table, [[rule]]");
        return None;
    };
    // The name comes first, so that every other fault can tell the rule by it.
    let label = match entries
        .get("name")
        .and_then(|name| name_text(name.get_ref()))
    {
        Some(name) => format!("rule {name:?}: "),
        None => format!("{nameless}: "),
    };
    let sets = entries.contains_key("set") || entries.contains_key("on");
    let mut table = reader.table(label, String::new(), entries, at);
    let name = table.required("name", "a name for the rule", name_text, NAME);
    let description = table.optional("description", description_text, &description_rule());
    let never = table
        .optional("never", |value| value.as_bool(), "true or false")
        .unwrap_or(false);
    let conditions = table
        .sub("match")
        .map(|mut table| {
            let conditions = conditions(&mut table);
            table.finish();
            conditions
        })
        .unwrap_or_default();
    let actions = actions(reader, &mut table);
    let found_actions = actions.len();
    match actions.first() {
        Some(first) if never => reader.fault_at(
            first.at,
            Some(table.key(first.key.name)),
            "a setting in a rule with `never = true`",
            "none: such a rule protects flows from all settings",
        ),
        None if !never && !sets => reader.fault(
            at,
            Some(table.label()),
            "a rule that sets nothing",
            "[rule.set], [rule.on.STAGE] or `never = true`",
        ),
        _ => {}
    }
    if found_actions > OPS_MAX {
        reader.fault(
            at,
            Some(table.label()),
            format!("{found_actions} settings"),
            format!("at most {OPS_MAX}"),
        );
    }
    table.finish();
    Some(Rule {
        name: name.unwrap_or_default(),
        description: description.unwrap_or_default(),
        at: reader.position(at),
        never,
        conditions,
        actions,
    })
}

fn conditions(table: &mut Table<'_>) -> Conditions {
    Conditions {
        remote: table.list("remote", usize::MAX, value::PREFIX, value::prefix),
        local: table.list("local", usize::MAX, value::PREFIX, value::prefix),
        same_prefix: value::same_prefix(table),
        remote_port: table.list("remote_port", value::PORTS_MAX, value::PORTS, value::ports),
        local_port: table.list("local_port", value::PORTS_MAX, value::PORTS, value::ports),
        direction: table.optional("direction", value::direction, "\"active\" or \"passive\""),
        cgroup: table.list("cgroup", value::CGROUPS_MAX, value::CGROUP, value::cgroup),
        netns: table.optional("netns", value::netns, value::NETNS),
        // All flows is what there is without the condition.
        sample: table
            .optional("sample", value::share, value::SHARE)
            .and_then(|share| u32::try_from(share).ok()),
    }
}

/// `[rule.set]` and `[rule.on.STAGE]`, in the order of the file.
fn actions(reader: &Reader<'_>, table: &mut Table<'_>) -> Vec<Action> {
    let mut actions: Vec<(usize, Action)> = Vec::new();
    if let Some(mut on) = table.sub("on") {
        for stage in Stage::ALL {
            // What the kernel asks for is answered, never set: it is in [rule.set].
            if stage == Stage::Asked {
                continue;
            }
            if let Some(entries) = on.sub(stage.name()) {
                keys(entries, &mut actions, |key| {
                    if key.on & stage.bit() != 0 {
                        return Ok(stage.bit());
                    }
                    let names: Vec<&str> = catalogue::stages(key.on).map(Stage::name).collect();
                    Err(match &names[..] {
                        [] => "it in [rule.set]".to_owned(),
                        names => format!("it in [rule.set], or at {}", names.join(", ")),
                    })
                });
            }
        }
        on.finish();
    }
    let staged: Vec<(&str, u8)> = actions
        .iter()
        .map(|(_, action)| (action.key.name, action.stages))
        .collect();
    if let Some(entries) = table.sub("set") {
        keys(entries, &mut actions, |key| {
            let named = staged.iter().filter(|(name, _)| *name == key.name);
            match named.fold(key.set, |mask, (_, stage)| mask & !stage) {
                0 => Err("it once: [rule.on.STAGE] sets it at all stages of [rule.set]".to_owned()),
                mask => Ok(mask),
            }
        });
    }
    actions.sort_by_key(|(at, _)| *at);
    let mut actions: Vec<Action> = actions
        .into_iter()
        .map(|(at, action)| Action {
            at: reader.position(at),
            ..action
        })
        .collect();
    // It has the room that they took before, and there may be as many as there are rules.
    actions.shrink_to_fit();
    actions
}

/// Takes all keys of a table that sets things; `stages` says at which, or what was expected.
fn keys(
    mut table: Table<'_>,
    actions: &mut Vec<(usize, Action)>,
    stages: impl Fn(&'static Key) -> Result<u8, String>,
) {
    if table.is_empty() {
        table.fault_here("an empty table", "at least one setting");
    }
    for (name, at, value) in table.drain() {
        let Some(key) = catalogue::key(&name) else {
            let expected = match nearest(&name) {
                Some(near) => {
                    format!("a key of the table in docs/reference/policy.md, perhaps `{near}`")
                }
                None => "a key of the table in docs/reference/policy.md".to_owned(),
            };
            table.fault(
                at,
                None,
                format!("the unknown key {}", reader::quoted(&name)),
                expected,
            );
            continue;
        };
        let mask = match stages(key) {
            Ok(mask) => mask,
            Err(expected) => {
                table.fault(at, None, format!("`{name}`"), expected);
                continue;
            }
        };
        if let Some(value) = value::of(&table, key, &value) {
            let action = Action {
                key,
                stages: mask,
                value,
                at: Default::default(),
            };
            actions.push((at, action));
        }
    }
}

/// The key that a word was probably meant to be.
fn nearest(word: &str) -> Option<&'static str> {
    let close = |key: &&Key| distance(word, key.name) <= 1 + key.name.len() / 5;
    let near = catalogue::KEYS.iter().filter(close);
    near.min_by_key(|key| distance(word, key.name))
        .map(|key| key.name)
}

/// Edit distance; long words are not looked at.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() > 40 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = change.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
