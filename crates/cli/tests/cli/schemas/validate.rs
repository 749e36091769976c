//! A validator of the part of JSON Schema that our schemas use.

use std::cell::RefCell;
use std::collections::HashMap;

use regex::Regex;
use serde_json::Value;

/// Why a document is not of a form; none if it is. An unknown keyword fails the test.
pub fn faults(form: &Value, document: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    check(form, document, "", &mut faults);
    faults
}

fn check(form: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
    for (keyword, rule) in form.as_object().expect("a form is an object") {
        if !holds(form, keyword, rule, value, at, faults) {
            faults.push(format!("{at}: {value} is not {keyword} {rule}"));
        }
    }
}

/// Whether a keyword holds for a value by itself. Faults of its parts are added.
fn holds(
    form: &Value,
    keyword: &str,
    rule: &Value,
    value: &Value,
    at: &str,
    faults: &mut Vec<String>,
) -> bool {
    let number = |test: fn(f64, f64) -> bool| match (value.as_f64(), rule.as_f64()) {
        (Some(value), Some(rule)) => test(value, rule),
        _ => true,
    };
    let list = value.as_array();
    let table = value.as_object();
    let most = || rule.as_u64().unwrap() as usize;
    match keyword {
        "$schema" | "title" | "description" | "default" => true,
        "type" => match rule.as_array() {
            Some(types) => types.iter().any(|name| is_of(value, name)),
            None => is_of(value, rule),
        },
        "enum" => rule.as_array().unwrap().contains(value),
        "const" => rule == value,
        "minimum" => number(|value, least| value >= least),
        "maximum" => number(|value, most| value <= most),
        "pattern" => value.as_str().is_none_or(|text| matches(rule, text)),
        "minItems" => list.is_none_or(|items| items.len() >= most()),
        "maxItems" => list.is_none_or(|items| items.len() <= most()),
        "uniqueItems" => list.is_none_or(|items| {
            (1..items.len()).all(|place| !items[..place].contains(&items[place]))
        }),
        "minProperties" => table.is_none_or(|keys| keys.len() >= most()),
        "required" => table.is_none_or(|keys| {
            let required = rule.as_array().unwrap();
            required
                .iter()
                .all(|key| keys.contains_key(key.as_str().unwrap()))
        }),
        "anyOf" => {
            let forms = rule.as_array().unwrap();
            forms
                .iter()
                .any(|form| self::faults(form, value).is_empty())
        }
        "items" => {
            for (item, place) in list.into_iter().flatten().zip(1..) {
                check(rule, item, &format!("{at} {place}"), faults);
            }
            true
        }
        "properties" => {
            for (key, form) in rule.as_object().unwrap() {
                if let Some(value) = table.and_then(|keys| keys.get(key)) {
                    check(form, value, &format!("{at}.{key}"), faults);
                }
            }
            true
        }
        "patternProperties" => {
            for (pattern, form) in rule.as_object().unwrap() {
                for (key, value) in table.into_iter().flatten() {
                    if matches(&Value::from(pattern.as_str()), key) {
                        check(form, value, &format!("{at}.{key}"), faults);
                    }
                }
            }
            true
        }
        "additionalProperties" => {
            let named = |key: &String| form["properties"].get(key).is_some();
            let patterns = form["patternProperties"].as_object();
            let fits = |key: &String| {
                let mut patterns = patterns.into_iter().flatten();
                patterns.any(|(pattern, _)| matches(&Value::from(pattern.as_str()), key))
            };
            rule == true || table.is_none_or(|keys| keys.keys().all(|key| named(key) || fits(key)))
        }
        other => panic!("{at}: the keyword {other} is not known here"),
    }
}

fn is_of(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => panic!("no type {other}"),
    }
}

fn matches(pattern: &Value, text: &str) -> bool {
    thread_local! {
        static COMPILED: RefCell<HashMap<String, Regex>> = RefCell::default();
    }
    let pattern = pattern.as_str().unwrap();
    COMPILED.with_borrow_mut(|compiled| {
        let new = || Regex::new(pattern).unwrap();
        let regex = compiled.entry(pattern.to_owned()).or_insert_with(new);
        regex.is_match(text)
    })
}
