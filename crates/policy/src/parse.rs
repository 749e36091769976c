//! From TOML to a [`Policy`]. Every fault is found and has its position.
//!
//! Rules are read one by one. So a large policy takes the memory of its rules, not that of its
//! whole text as TOML.

mod value;

use std::collections::HashMap;
use std::path::Path;

use toml::Spanned;
use toml::de::DeValue;

use crate::catalogue::{self, Key, Stage};
use crate::model::{Action, Conditions, Policy, Rule, Selector};
use thalweg_units::reader::{self, Document, Reader, Table};
use thalweg_units::{Faults, nearest_word, schema};
use toml_parser::Source;
use toml_parser::lexer::TokenKind;

/// Largest number of operations of a rule (`THALWEG_POLICY_MAX_OPS`).
pub(crate) const OPS_MAX: usize = thalweg_bpf_types::raw::THALWEG_POLICY_MAX_OPS as usize;
/// Largest number of rules of a policy; each counts at least once (`THALWEG_POLICY_MAX_RULES`).
const RULES_MAX: usize = thalweg_bpf_types::raw::THALWEG_POLICY_MAX_RULES as usize;
/// Longest description, in characters.
const DESCRIPTION_MAX: usize = 500;

impl Policy {
    /// The form of policy files.
    pub fn json_schema() -> schema::Form {
        reader::asked_of(|document| drop(read_policy(document)))
    }

    /// Reads a policy; `file` is for messages only.
    ///
    /// # Errors
    /// Up to a hundred faults, in the order of the text. A text that is not UTF-8 is not read
    /// further, nor is a part that is not TOML. Parts end before each `[[rule]]`.
    pub fn parse(bytes: &[u8], file: &Path) -> Result<Self, Faults> {
        let document = Document::new(file, reader::decode_text(bytes, file)?);
        read_policy(&document)
            .filter(|_| document.is_clean())
            .ok_or_else(|| document.take_faults())
    }
}

/// The policy, which may be incomplete if there are faults.
fn read_policy(document: &Document<'_>) -> Option<Policy> {
    let starts = rule_header_offsets(document.text);
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
            let name = root.required(
                "name",
                "a name for the policy",
                reader::file_name,
                reader::NAME,
                reader::name_form,
            );
            policy.name = name.unwrap_or_default();
        } else {
            // Only a table can have this name here.
            root.optional("name", reader::file_name, reader::NAME, reader::name_form);
        }
        if let Some(text) = root.optional(
            "description",
            description_text,
            &description_rule(),
            description_form,
        ) {
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
                        policy.rules.extend(read_rule(&reader, items, item));
                        items += 1;
                    }
                }
                other => {
                    let found = reader::describe_value(&other);
                    reader.fault(at, Some("rule".into()), found, "tables, [[rule]]");
                }
            }
        } else if let [table] = &mut root.asked_tables("rule")[..] {
            rule_keys(&reader, table);
        } else if starts.is_empty() {
            reader.fault(root.at, None, "no rule", "at least one [[rule]]");
        }
        root.refuse_unknown_keys();
        if document.is_full() {
            return None;
        }
    }
    // The names of unread rules are unknown.
    if !is_toml {
        return None;
    }
    check_names(document, &policy);
    Some(policy)
}

/// Checks that names of rules are unique.
fn check_names(document: &Document<'_>, policy: &Policy) {
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
}

/// Start of each line that can only be a rule's header, `[[rule]]`. From one to the next the text
/// is TOML by itself. (In quotes, the line may also be part of a list.)
fn rule_header_offsets(text: &str) -> Vec<usize> {
    use TokenKind::{Atom, LeftSquareBracket, RightSquareBracket};
    const HEADER: [TokenKind; 5] = [
        LeftSquareBracket,
        LeftSquareBracket,
        Atom,
        RightSquareBracket,
        RightSquareBracket,
    ];
    let mut rules = Vec::new();
    // Number of header tokens so far; `None` if the line is something else.
    let mut seen = Some(0);
    let mut at = 0;
    for token in Source::new(text).lex() {
        let span = token.span();
        match (token.kind(), seen) {
            (TokenKind::Newline, _) => seen = Some(0),
            (TokenKind::Whitespace, _) => {}
            (kind, Some(place))
                if HEADER.get(place) == Some(&kind)
                    && (kind != Atom || text[span.start()..span.end()] == *"rule") =>
            {
                if place == 0 {
                    at = span.start();
                }
                if place + 1 == HEADER.len() {
                    rules.push(at);
                }
                seen = Some(place + 1);
            }
            _ => seen = None,
        }
    }
    rules
}

fn description_text(value: &DeValue<'_>) -> Option<String> {
    let text = value.as_str()?;
    let good = text.chars().count() <= DESCRIPTION_MAX && !text.chars().any(char::is_control);
    good.then(|| text.to_owned())
}

fn description_form() -> schema::Form {
    schema::pattern(&format!("^.{{0,{DESCRIPTION_MAX}}}$"))
}

fn description_rule() -> String {
    format!("a text of one line, at most {DESCRIPTION_MAX} characters")
}

fn read_rule(reader: &Reader<'_>, place: usize, item: Spanned<DeValue<'_>>) -> Option<Rule> {
    let at = item.span().start;
    let nameless = format!("rule {}", place + 1);
    let DeValue::Table(entries) = item.into_inner() else {
        reader.fault(at, Some(nameless), "no table", "a table, [[rule]]");
        return None;
    };
    // The name comes first, so that every other fault can name the rule.
    let label = match entries
        .get("name")
        .and_then(|name| reader::file_name(name.get_ref()))
    {
        Some(name) => format!("rule {name:?}: "),
        None => format!("{nameless}: "),
    };
    let mut table = reader.table(label, String::new(), entries, at);
    let rule = rule_keys(reader, &mut table);
    Some(rule)
}

/// Takes the keys of a rule.
fn rule_keys(reader: &Reader<'_>, table: &mut Table<'_>) -> Rule {
    let at = table.at;
    let sets = table.peek("set").is_some() || table.peek("on").is_some();
    let name = table.required(
        "name",
        "a name for the rule",
        reader::file_name,
        reader::NAME,
        reader::name_form,
    );
    let description = table.optional(
        "description",
        description_text,
        &description_rule(),
        description_form,
    );
    let never = table
        .optional(
            "never",
            |value| value.as_bool(),
            "true or false",
            schema::boolean,
        )
        .unwrap_or(false);
    let overrides = table
        .optional(
            "override",
            |value| value.as_bool(),
            "true or false",
            schema::boolean,
        )
        .unwrap_or(false);
    let conditions = table
        .take_table("match")
        .map(|mut table| {
            let conditions = read_conditions(&mut table);
            table.refuse_unknown_keys();
            conditions
        })
        .unwrap_or_default();
    let actions = read_actions(reader, table);
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
    table.refuse_unknown_keys();
    Rule {
        name: name.unwrap_or_default(),
        description: description.unwrap_or_default(),
        at: reader.position(at),
        never,
        overrides,
        conditions,
        actions,
    }
}

fn read_conditions(table: &mut Table<'_>) -> Conditions {
    Conditions {
        remote: table.list(
            "remote",
            usize::MAX,
            value::PREFIX,
            value::parse_prefix,
            schema::prefix,
        ),
        local: table.list(
            "local",
            usize::MAX,
            value::PREFIX,
            value::parse_prefix,
            schema::prefix,
        ),
        same_prefix: value::same_prefix(table),
        remote_port: table.list(
            "remote_port",
            value::PORTS_MAX,
            value::PORTS,
            value::parse_ports,
            value::ports_form,
        ),
        local_port: table.list(
            "local_port",
            value::PORTS_MAX,
            value::PORTS,
            value::parse_ports,
            value::ports_form,
        ),
        direction: table.optional(
            "direction",
            value::parse_direction,
            "\"active\" or \"passive\"",
            value::direction_form,
        ),
        cgroup: table.list(
            "cgroup",
            value::CGROUPS_MAX,
            value::CGROUP,
            value::parse_cgroup,
            schema::text,
        ),
        container: read_containers(table),
        netns: table.optional("netns", value::parse_netns, value::NETNS, value::netns_form),
        // A sample of all flows equals no condition.
        sample: table
            .optional("sample", value::parse_share, value::SHARE, schema::percent)
            .and_then(|share| u32::try_from(share).ok()),
    }
}

/// `container`, which stands for cgroups: a rule has one mask of them.
fn read_containers(table: &mut Table<'_>) -> Vec<Selector> {
    const KEY: &str = "container";
    let containers = table.list(
        KEY,
        value::CGROUPS_MAX,
        value::CONTAINER,
        value::parse_container,
        schema::text,
    );
    if table.has("cgroup") && table.has(KEY) {
        table.wrong(KEY, "`container` beside `cgroup`", "one of them");
    }
    containers
}

/// `[rule.set]` and `[rule.on.STAGE]`, in the order of the file.
fn read_actions(reader: &Reader<'_>, table: &mut Table<'_>) -> Vec<Action> {
    let mut actions: Vec<(usize, Action)> = Vec::new();
    if let Some(mut on) = table.take_table("on") {
        for &stage in Stage::ALL {
            // Queries of the kernel are answered, never set: they are in [rule.set].
            if stage == Stage::Asked {
                continue;
            }
            if let Some(entries) = on.take_table(stage.name()) {
                read_settings(entries, &mut actions, |key| {
                    if key.on & stage.bit() != 0 {
                        return Ok(stage.bit());
                    }
                    let names: Vec<&str> =
                        catalogue::stages_in_mask(key.on).map(Stage::name).collect();
                    Err(match &names[..] {
                        [] => "it in [rule.set]".to_owned(),
                        names => format!("it in [rule.set], or at {}", names.join(", ")),
                    })
                });
            }
        }
        on.refuse_unknown_keys();
    }
    let staged: Vec<(&str, u8)> = actions
        .iter()
        .map(|(_, action)| (action.key.name, action.stages))
        .collect();
    if let Some(entries) = table.take_table("set") {
        read_settings(entries, &mut actions, |key| {
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
    // The vector has the capacity of the intermediate one, and there may be as many vectors as
    // rules.
    actions.shrink_to_fit();
    actions
}

/// Takes all keys of a table of settings; `stages` gives their stages, or the expected values.
fn read_settings(
    mut table: Table<'_>,
    actions: &mut Vec<(usize, Action)>,
    stages: impl Fn(&'static Key) -> Result<u8, String>,
) {
    table.declare_not_empty();
    for key in catalogue::KEYS {
        table.declare_key_if(key.name, || stages(key).is_ok().then(|| key.json_schema()));
    }
    if table.is_empty() {
        table.fault_here("an empty table", "at least one setting");
    }
    for (name, at, value) in table.drain() {
        let Some(key) = catalogue::find_key(&name) else {
            let known = catalogue::KEYS.iter().filter(|&key| stages(key).is_ok());
            let known: Vec<&str> = known.map(|key| key.name).collect();
            let expected = match nearest_word(&name, known.iter().copied()) {
                Some(near) => format!("a setting, perhaps `{near}`"),
                None => format!("one of {}", known.join(", ")),
            };
            table.fault(
                at,
                None,
                format!("the unknown key {}", reader::quote_piece(&name)),
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
        if let Some(value) = value::read_value(&table, key, &value) {
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
