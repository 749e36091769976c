//! Names of agents and labels, as they are in keys of buckets.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest name, bytes.
pub const NAME_MAX: usize = 63;

/// The name of an agent or label: 1 to 63 of `a-z`, `A-Z`, `0-9`, `-` and `_`. It is one token of a
/// NATS subject, so that permissions can name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// A text is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found {0:?}, expected 1 to 63 of a-z, A-Z, 0-9, - and _")]
pub struct NameError(String);

impl Name {
    /// The name of this text.
    ///
    /// # Errors
    /// The name is empty, too long, or has other characters.
    pub fn new(text: &str) -> Result<Self, NameError> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if text.is_empty() || text.len() > NAME_MAX || !text.bytes().all(good) {
            return Err(NameError(text.chars().take(NAME_MAX + 1).collect()));
        }
        Ok(Self(text.to_owned()))
    }

    /// The name of a host: a dot becomes `_`, and `_` becomes `__`. Two hosts never get the same name.
    ///
    /// # Errors
    /// As [`Name::new`], and where a dot is at an end of the host's name or beside another dot or `_`.
    pub fn of_host(host: &str) -> Result<Self, NameError> {
        let is_unclear = host.starts_with('.')
            || host.ends_with('.')
            || ["..", "._", "_."].iter().any(|it| host.contains(it));
        if is_unclear {
            return Err(NameError(host.chars().take(NAME_MAX + 1).collect()));
        }
        Self::new(&host.replace('_', "__").replace('.', "_"))
    }

    /// The label that every agent has.
    pub fn all() -> Self {
        Self("all".to_owned())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        Self::new(&text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_single_tokens_of_subjects() {
        assert_eq!(Name::new("web-1_a").unwrap().as_str(), "web-1_a");
        for wrong in ["", "a.b", "*", ">", "a b", "ä", &"a".repeat(64), "a\n"] {
            assert!(Name::new(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(
            Name::of_host("web1.example.com").unwrap().as_str(),
            "web1_example_com"
        );
    }

    #[test]
    fn hosts_with_different_names_never_get_the_same() {
        let letters = ['a', '.', '_', '-'];
        let hosts = (0..4u32.pow(6)).map(|number| -> String {
            let letter = |place| letters[(number / 4u32.pow(place) % 4) as usize];
            (0..6).map(letter).collect()
        });
        let mut names = std::collections::BTreeMap::new();
        for host in hosts {
            if let Ok(name) = Name::of_host(&host) {
                assert_eq!(names.insert(name, host.clone()), None, "{host}");
            }
        }
        assert!(names.len() > 1000, "{}", names.len());
    }
}
