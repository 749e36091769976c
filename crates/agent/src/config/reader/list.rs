//! Keys that are lists.

use std::fmt::Display;
use std::ops::RangeInclusive;

use thalweg_policy::{Prefix, PrefixError};
use thalweg_units::address::{Nat64, can_be_nat64};
use thalweg_units::grammar::{self, is_congestion_control};
use thalweg_units::schema::{self, Form};
use toml::de::DeValue;

use super::{Key, Read, Section, Wrong, string, text};

impl Section<'_> {
    /// A list of IPv4 and IPv6 prefixes, each once.
    pub fn prefixes(&mut self, key: Key, most: usize) -> Vec<Prefix> {
        let names = ("prefix", "prefixes");
        self.texts(key, most, names, schema::prefix(), |text| {
            Prefix::parse(text).map_err(|error| match error {
                PrefixError::HostBits(prefix) => {
                    format!("no bits beyond the length, \"{prefix}\"")
                }
                PrefixError::Malformed => {
                    "a prefix such as \"10.0.0.0/8\" or \"2001:db8::/32\"".to_owned()
                }
            })
        })
    }

    /// A list of prefixes of NAT64, each once, or `None` for `auto`.
    pub fn nat64_or_auto(&mut self, key: Key) -> Option<Vec<Prefix>> {
        let list = List {
            expected: format!(
                "\"auto\", or a list of at most {} prefixes, each once",
                Nat64::MOST
            ),
            once: "prefix",
            count: 0..=Nat64::MOST,
            auto: true,
            form: schema::prefix(),
            item: |text| match Prefix::parse(text) {
                Ok(prefix) if can_be_nat64(prefix) => Ok(prefix),
                _ => Err("an IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits, such as \
                          \"2001:db8:64::/96\", whose bits 64 to 71 are 0"
                    .to_owned()),
            },
        };
        self.list(key, list, None).value
    }

    /// A list of congestion controls, each once.
    pub fn arms(
        &mut self,
        key: Key,
        count: RangeInclusive<usize>,
        default: &[&str],
    ) -> Read<Vec<String>> {
        let default = default.iter().map(|name| (*name).to_owned()).collect();
        let read = self.list(key, arm_list(count, false), Some(default));
        Read {
            value: read.value.unwrap_or_default(),
            at: read.at,
            is_sound: read.is_sound,
        }
    }

    /// A list of congestion controls, each once, or `None` for `auto`.
    pub fn arms_or_auto(
        &mut self,
        key: Key,
        count: RangeInclusive<usize>,
    ) -> Read<Option<Vec<String>>> {
        self.list(key, arm_list(count, true), None)
    }

    /// A list of at most `most` texts, each once; `names` is what one and many are called. `item`
    /// parses one, or returns the expected form.
    pub fn texts<T: PartialEq + Display>(
        &mut self,
        key: Key,
        most: usize,
        (once, many): (&'static str, &str),
        form: Form,
        item: fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        let list = List {
            expected: format!("a list of at most {most} {many}, each once"),
            once,
            count: 0..=most,
            auto: false,
            form,
            item,
        };
        let read = self.list(key, list, Some(Vec::new()));
        read.value.unwrap_or_default()
    }

    fn list<T: PartialEq + Display>(
        &mut self,
        key: Key,
        list: List<T>,
        default: Option<Vec<T>>,
    ) -> Read<Option<Vec<T>>> {
        let show = |value: &Option<Vec<T>>| match value {
            None => string("auto"),
            Some(items) => {
                let items: Vec<String> = items.iter().map(|it| string(&it.to_string())).collect();
                format!("[{}]", items.join(", "))
            }
        };
        let items = schema::list(list.form.clone(), list.count.clone(), true);
        let form = match list.auto {
            true => schema::any_of([schema::only("auto"), items]),
            false => items,
        };
        self.read(key, &list.expected, form, default, show, |value| {
            let items = match value.get_ref() {
                DeValue::String(word) if list.auto && word == "auto" => return Ok(None),
                DeValue::Array(items) => items,
                _ => return Err(vec![Wrong::new(value, &*list.expected)]),
            };
            let mut read = Vec::new();
            let mut wrong = Vec::new();
            for item in items {
                // Not a text: the message lists the accepted texts.
                match (list.item)(text(item.get_ref()).unwrap_or_default()) {
                    Ok(it) if read.contains(&it) => {
                        wrong.push(Wrong::new(item, format!("each {} once", list.once)))
                    }
                    Ok(it) => read.push(it),
                    Err(expected) => wrong.push(Wrong::new(item, expected)),
                }
            }
            if !list.count.contains(&items.len()) {
                wrong.push(Wrong::new(value, &*list.expected));
            }
            if wrong.is_empty() {
                Ok(Some(read))
            } else {
                Err(wrong)
            }
        })
    }
}

/// A list whose elements are texts, each once.
struct List<T> {
    expected: String,
    /// Name of an element; each occurs once.
    once: &'static str,
    count: RangeInclusive<usize>,
    /// Whether "auto" is accepted instead of a list.
    auto: bool,
    /// The form of an element.
    form: Form,
    /// Parses one element, or returns the expected form.
    item: fn(&str) -> Result<T, String>,
}

fn arm_list(count: RangeInclusive<usize>, auto: bool) -> List<String> {
    let or = if auto { "\"auto\" or " } else { "" };
    let (least, most) = (count.start(), count.end());
    List {
        expected: format!(
            "{or}a list of {least} to {most} names of congestion controls, each once"
        ),
        once: "name",
        count,
        auto,
        form: schema::congestion_control(),
        item: |text| match is_congestion_control(text) {
            true => Ok(text.to_owned()),
            false => Err(grammar::CONGESTION_CONTROL.to_owned()),
        },
    }
}
