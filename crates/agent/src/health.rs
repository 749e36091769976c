//! Health of the agent: the wanted state of kernel and disk compared with the present one, and
//! repairs of what is missing.

use std::time::Duration;

use anyhow::Result;
use thalweg_control::attempts::Attempts;
use thalweg_control::{cc, sockops, system};

use crate::kernel::health::{CGROUP, Look, PINS, PROGRAMS};
use crate::lock::PinLock;
use crate::repairs::{EVENTS, Problems, store_file};
use crate::shared::Shared;
use crate::store::FILE_NAME;

/// Kind of problem: a congestion control in BPF is not as it was loaded.
const CONTROLS: &str = "cc";
/// Kind of problem: a sockops object of others is not as it was loaded.
const SOCKOPS: &str = "sockops";
/// Kind of problem: the store's file or its log is gone.
const STORE_FILE: &str = "store-file";
/// Kind of problem: writing to the store takes long.
const UNSAVED: &str = "unsaved";
/// Intervals of saving within which one save should have ended.
const SAVES: u32 = 3;
/// Kind of problem: the API's socket is gone.
const SOCKET: &str = "socket";
/// Kinds of problems that each request checks.
const LOOKED: [&str; 8] = [
    CONTROLS, CGROUP, EVENTS, PINS, PROGRAMS, SOCKOPS, STORE_FILE, UNSAVED,
];
/// Idle time after which the event loop hangs. It passes five times a second; an iteration takes
/// seconds at most.
const STUCK: Duration = Duration::from_secs(60);

/// Health of the agent at one moment.
pub struct Health {
    /// Problems.
    pub problems: Problems,
    /// Programs that the learner attaches, and whether the cgroup runs each.
    pub attached: [(&'static str, bool); 2],
}

impl Shared {
    /// Checks programs, links, pins, maps, the cgroup, congestion controls, the store's file, the event
    /// loop and features, and adds the problems that other parts of the agent have reported.
    pub fn health(&self) -> Health {
        let look = self.kernel.look();
        let mut problems = self.noted_problems();
        for kind in LOOKED {
            problems.remove(kind);
        }
        let attached = look.attached();
        let (context, repairs) = (self.feature_context(), &self.statistics.repairs);
        let features = context.features.iter();
        for (kind, found) in features.flat_map(|it| it.find_problems(&context)) {
            match found {
                Some(text) => drop(problems.insert(kind, repairs.with_refusal(kind, text))),
                None => drop(problems.remove(kind)),
            }
        }
        problems.extend(self.look(look));
        Health { problems, attached }
    }

    /// Problems of the kinds [`LOOKED`].
    fn look(&self, look: Look) -> Problems {
        let mut problems = look.problems;
        let state = &self.config.paths.state;
        let in_words = |found: thalweg_control::Result<Vec<String>>| match found {
            Ok(texts) => texts.join("; "),
            Err(error) => format!("{error:#}"),
        };
        let mut note = |kind, text: String| {
            if !text.is_empty() {
                problems.insert(kind, text);
            }
        };
        note(
            CONTROLS,
            in_words(cc::find_problems(&self.kernel.setup().pin)),
        );
        note(
            SOCKOPS,
            in_words(sockops::find_problems(&self.kernel.setup().pin)),
        );
        if store_file(state) != self.store_file {
            let path = state.join(FILE_NAME);
            note(
                STORE_FILE,
                format!(
                    "the store {0} or its log {0}-wal is gone, or another file has the name",
                    path.display()
                ),
            );
        }
        let unsaved = self.unsaved_for();
        if unsaved
            > self
                .config
                .snapshot
                .interval
                .max(STUCK)
                .saturating_mul(SAVES)
        {
            let text = format!(
                "what was learned has not been saved for {} s: the disk of the store fails or does \
                 not answer",
                unsaved.as_secs()
            );
            note(UNSAVED, text);
        }
        let idle = self.idle();
        if idle > STUCK {
            let text = format!(
                "the agent has not read events for {} s: its event loop hangs",
                idle.as_secs()
            );
            note(EVENTS, text);
        }
        let repairs = &self.statistics.repairs;
        let explained = problems.into_iter();
        explained
            .map(|(kind, text)| (kind, repairs.with_refusal(kind, text)))
            .collect()
    }

    /// Checks programs, links and pins, and restores missing ones; `pins` follows the directory.
    pub fn attend_programs(&self, pins: &PinLock) {
        let kinds = [CGROUP, PINS, PROGRAMS];
        let mut problems = self.kernel.look().problems;
        // An ending agent restores nothing: somebody may be removing the pins.
        if !self.is_stopping() && kinds.iter().any(|kind| problems.contains_key(kind)) {
            // Report the problem before the repair, so that the log has its begin and end.
            self.note_problems(&kinds, &problems);
            let pin = &self.kernel.setup().pin;
            let outcome = self.kernel.put_back(|| pins.follow(pin));
            if outcome.as_ref().is_ok_and(|it| it.is_reattached) {
                for feature in &self.statistics.features {
                    feature.reattach(&self.kernel);
                }
            }
            let kind = kinds
                .into_iter()
                .rev()
                .find(|kind| problems.contains_key(kind));
            let outcome = outcome.map(|it| it.attempts);
            self.statistics.repairs.note(kind.unwrap_or(PINS), outcome);
            problems = self.kernel.look().problems;
        }
        self.note_problems(&kinds, &problems);
    }

    /// Checks congestion controls and sockops objects, and restores missing ones.
    pub fn attend_others(&self) {
        let kinds = [CONTROLS, EVENTS, SOCKOPS, STORE_FILE, UNSAVED];
        let problems = self.look(Look::default());
        self.note_problems(&kinds, &problems);
        if self.is_stopping() {
            return;
        }
        if problems.contains_key(CONTROLS) {
            let outcome = cc::put_back(&self.kernel.setup().pin);
            self.statistics.repairs.note(CONTROLS, outcome);
        }
        if problems.contains_key(SOCKOPS) {
            let outcome = sockops::put_back(&self.kernel.setup().pin);
            self.statistics.repairs.note(SOCKOPS, outcome);
        }
        if kinds.iter().any(|kind| problems.contains_key(kind)) {
            self.note_problems(&kinds, &self.look(Look::default()));
        }
    }

    /// Notes the outcome of a poll of the API's socket. Returns the listener if the socket's file
    /// was gone.
    pub fn note_socket<T>(&self, bound: Result<Option<T>>) -> Option<T> {
        let path = self.config.paths.socket.display();
        let fault = bound.as_ref().err();
        let fault = fault.map(|error| format!("the socket {path} is gone: {error:#}"));
        self.problem(SOCKET, fault);
        let listener = bound.ok().flatten()?;
        let done = format!("bound again: the socket {path}, which was gone");
        self.statistics
            .repairs
            .note(SOCKET, Attempts::of(vec![done]));
        Some(listener)
    }

    fn note_problems(&self, kinds: &[&'static str], found: &Problems) {
        for kind in kinds {
            self.problem(kind, found.get(kind).cloned());
        }
    }

    /// Time since the event loop's last pass.
    fn idle(&self) -> Duration {
        let passed_ns = self.passed_ns.load(std::sync::atomic::Ordering::Relaxed);
        Duration::from_nanos(system::monotonic_ns().saturating_sub(passed_ns))
    }

    /// Notes a pass of the event loop.
    pub fn note_pass(&self) {
        let now_ns = system::monotonic_ns();
        self.passed_ns
            .store(now_ns, std::sync::atomic::Ordering::Relaxed);
    }
}
