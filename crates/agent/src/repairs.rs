//! Problems of the agent, their severity, and repairs since its start.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use thalweg_control::attempts::Attempts;

use crate::kernel::health::{CGROUP, PROGRAMS};
use crate::store::FILE_NAME;
use crate::view;

/// Kind of problem: the agent does not read the programs' events.
pub const EVENTS: &str = "events";
/// Kinds of problems that stop measurements or changes, or hide them.
const CRITICAL: [&str; 3] = [CGROUP, EVENTS, PROGRAMS];

/// Problems by kind, in words.
pub type Problems = BTreeMap<&'static str, String>;

/// Repairs since the agent's start, with the last failed attempts.
#[derive(Default)]
pub struct Repairs(Mutex<Done>);

#[derive(Default)]
struct Done {
    number: u64,
    last: Option<(Instant, String)>,
    /// Reasons that the last attempt of each kind failed.
    failed: BTreeMap<&'static str, String>,
}

impl Repairs {
    fn lock(&self) -> MutexGuard<'_, Done> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of repairs.
    pub fn number(&self) -> u64 {
        self.lock().number
    }

    /// The repairs as the API shows them; `None`: there were none.
    pub fn shown(&self) -> Option<view::Repairs> {
        let done = self.lock();
        let (at, text) = done.last.as_ref()?;
        Some(view::Repairs {
            number: done.number,
            last: text.clone(),
            last_age_s: at.elapsed().as_secs(),
        })
    }

    /// The text of a problem, with the reason that it could not be repaired.
    pub fn with_refusal(&self, kind: &str, text: String) -> String {
        match self.lock().failed.get(kind) {
            Some(why) => format!("{text}; it cannot be put back: {why}"),
            None => text,
        }
    }

    /// Notes the outcome of attempts.
    pub fn note(&self, kind: &'static str, attempts: impl Into<Attempts>) {
        let mut done = self.lock();
        let attempts = attempts.into();
        for text in attempts.done {
            tracing::warn!("{text}");
            done.number += 1;
            done.last = Some((Instant::now(), text));
        }
        match attempts.refused.is_empty() {
            true => drop(done.failed.remove(kind)),
            false => drop(done.failed.insert(kind, attempts.refused.join("; "))),
        }
    }
}

/// Severity of problems of these kinds.
pub fn severity<'a>(mut kinds: impl Iterator<Item = &'a &'static str>) -> view::Severity {
    match kinds.next() {
        None => view::Severity::Ok,
        Some(first) if is_critical(first) || kinds.any(|kind| is_critical(kind)) => {
            view::Severity::Critical
        }
        Some(_) => view::Severity::Warning,
    }
}

fn is_critical(kind: &str) -> bool {
    CRITICAL.contains(&kind)
}

/// Identity of the store's file and of its log; 0: there is no log. SQLite keeps one log as long as
/// the file is open.
pub fn store_file(state: &Path) -> Option<(u64, u64)> {
    let number = |name: &str| {
        let found = fs::metadata(state.join(name)).ok()?;
        Some(found.dev().rotate_left(32) ^ found.ino())
    };
    let log = number(&format!("{FILE_NAME}-wal"));
    Some((number(FILE_NAME)?, log.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::health::PINS;

    #[test]
    fn severity_is_that_of_the_worst_kind() {
        let of = |kinds: &[&'static str]| severity(kinds.iter());
        assert_eq!(of(&[]), view::Severity::Ok);
        assert_eq!(of(&["cc", PINS]), view::Severity::Warning);
        assert_eq!(of(&[PINS, PROGRAMS]), view::Severity::Critical);
        assert_eq!(of(&[CGROUP, PINS]), view::Severity::Critical);
    }

    #[test]
    fn a_failed_repair_is_remembered_until_one_succeeds() {
        let repairs = Repairs::default();
        assert!(repairs.shown().is_none());
        let mut attempts = Attempts::of(vec!["pinned again: hosts".to_owned()]);
        attempts.record_outcome(Err(anyhow::anyhow!("no room")));
        attempts.record_outcome(Err(anyhow::anyhow!("no right")));
        repairs.note(PINS, attempts);
        assert_eq!(repairs.lock().failed[PINS], "no room; no right");
        let shown = || repairs.shown().map(|it| (it.number, it.last));
        assert_eq!(shown(), Some((1, "pinned again: hosts".to_owned())));
        repairs.note(PINS, Err(anyhow::anyhow!("no directory")));
        assert_eq!(repairs.lock().failed[PINS], "no directory");
        repairs.note(PINS, Attempts::of(vec!["pinned again: hosts".to_owned()]));
        assert!(repairs.lock().failed.is_empty());
        assert_eq!(shown(), Some((2, "pinned again: hosts".to_owned())));
    }
}
