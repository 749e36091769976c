//! Causes of a problem, each of which ends by itself.

use std::collections::BTreeMap;

use anyhow::Result;

/// Causes of a problem of one kind. A cause stands until the failed action has succeeded, whatever
/// else succeeds meanwhile, and however long ago it was tried.
#[derive(Debug, Default)]
pub struct Causes(BTreeMap<&'static str, String>);

impl Causes {
    /// Notes the outcome of an action.
    pub fn note_outcome(&mut self, thing: &'static str, outcome: Result<()>) {
        match outcome {
            Ok(()) => drop(self.0.remove(thing)),
            Err(error) => drop(self.0.insert(thing, format!("{error:#}"))),
        }
    }

    /// Whether the last attempt at an action failed.
    pub fn is_failing(&self, thing: &str) -> bool {
        self.0.contains_key(thing)
    }

    /// All causes in words, each text once; `None`: there is none.
    pub fn in_words(&self) -> Option<String> {
        let mut texts: Vec<&str> = Vec::new();
        for text in self.0.values() {
            if !texts.contains(&text.as_str()) {
                texts.push(text);
            }
        }
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn cause_stands_until_the_thing_that_failed_works() {
        let mut causes = Causes::default();
        assert_eq!(causes.in_words(), None);
        causes.note_outcome("write", Err(anyhow!("no map").context("writing")));
        causes.note_outcome("read", Ok(()));
        assert_eq!(causes.in_words().as_deref(), Some("writing: no map"));
        assert!(causes.is_failing("write") && !causes.is_failing("read"));
        causes.note_outcome("read", Err(anyhow!("no room")));
        causes.note_outcome("list", Err(anyhow!("no room")));
        let both = "no room; writing: no map";
        assert_eq!(causes.in_words().as_deref(), Some(both));
        causes.note_outcome("write", Ok(()));
        causes.note_outcome("list", Ok(()));
        assert_eq!(causes.in_words().as_deref(), Some("no room"));
        causes.note_outcome("read", Ok(()));
        assert_eq!(causes.in_words(), None);
    }
}
