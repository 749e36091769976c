//! `thalweg detach`.

mod agents;
mod units;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agents::Agent;
use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use thalweg_agent::{detach, features};
use thalweg_control::leftovers::{self, Learner, OtherPin};
use thalweg_control::system::{self, ProcessHandle, Signal};
use thalweg_terminal::output;

use crate::client::{Client, is_forbidden};
use crate::options::Global;

/// Longest wait for the end of an agent that was asked for it.
const END: Duration = Duration::from_secs(15);
/// Longest wait for the end of an agent that was killed.
const KILLED: Duration = Duration::from_secs(5);
/// How often agents are ended: a service manager may start another one meanwhile.
const ROUNDS: usize = 3;

/// An agent's answer: the parts that it removed.
#[derive(Deserialize)]
struct Removed {
    removed: Vec<String>,
    /// Why the records since the last snapshot are not in the store.
    #[serde(default)]
    unsaved: Option<String>,
    /// Why a feature could not undo what it did, by its key; `None`: nothing is left.
    #[serde(flatten)]
    leftovers: BTreeMap<String, Option<String>>,
}

/// The field of an agent's status that is needed here.
#[derive(Deserialize)]
struct Pid {
    pid: u32,
}

/// Outcome of the command, and objects that are still in the kernel.
#[derive(Default, Serialize)]
struct Outcome {
    /// Pins that were removed.
    removed: Vec<String>,
    /// Agents that did not do it themselves, and how they were ended; units that were stopped.
    ended: Vec<String>,
    /// Why the records since the last snapshot are not in the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    unsaved: Option<String>,
    /// Why features could not undo what they did, by key; `left` has it, too.
    #[serde(skip)]
    leftovers: BTreeMap<String, String>,
    /// Objects of the agent that are still in the kernel, or that may put them back.
    left: Vec<String>,
    /// Other objects of Thalweg in the kernel.
    others: Vec<OtherPin>,
}

/// Makes the agent remove its programs and end, and waits for its end. An agent that does not answer
/// is ended by signals. Then looks whether anything is left in the kernel.
pub fn run(global: &Global) -> Result<()> {
    global.expect_configuration()?;
    let config = global.readable_or_warn()?;
    let pin = &config.paths.pin;
    system::check_sees_pins(pin)?;
    let client = Client::new(config.paths.socket.clone(), pin.clone());
    let mut agents = agents::find_agents(pin);
    // One that fails again and again has a process only now and then.
    let mut units = units::find_waiting(|line| agents::starts_agent(line, pin));
    let mut learner = Learner::default();
    // Without a hierarchy there is nothing to attach to.
    if let Ok(cgroup) = config.cgroup.map_or_else(system::cgroup2_mount, Ok) {
        learner.note_cgroup(&cgroup);
    }
    let mut outcome = Outcome::default();
    learner.note_pins(pin);
    let is_stopped = agents.iter().any(Agent::is_stopped);
    let asked = match is_stopped {
        true => None,
        false => ask_agent(&client, &mut learner, &mut outcome)?,
    };
    for _ in 0..ROUNDS {
        for agent in &agents {
            units.extend(agent.unit.clone());
            learner.note_process(agent.pid);
            end_agent(agent, asked == Some(agent.pid), &mut outcome);
        }
        // What is left has failed already; a unit may wait for it without end.
        if outcome.left.is_empty() {
            stop_units(&units, &mut outcome);
        }
        // An agent that ends may have attached before.
        learner.note_pins(pin);
        match detach::detach(pin) {
            Ok(removed) => {
                outcome.removed.extend(removed.pins);
                let leftovers = removed.leftovers.into_iter();
                let failed = leftovers.filter_map(|(key, why)| Some((key.to_owned(), why?)));
                outcome.leftovers.extend(failed);
            }
            Err(error) => outcome.left.push(format!(
                "pins below {} ({error:#}): mend that, and detach again",
                pin.display()
            )),
        }
        agents = agents::find_agents(pin);
        // An agent that cannot be ended is named already.
        if agents.is_empty() || !outcome.left.is_empty() {
            break;
        }
    }
    for name in features::all().iter().filter_map(|it| it.leftover_name()) {
        let why = outcome.leftovers.get(name.key);
        outcome
            .left
            .extend(why.map(|why| format!("{}: {why}", name.stays)));
    }
    if outcome.left.is_empty()
        && let Some(Agent { pid, .. }) = agents.first()
    {
        outcome.left.push(format!(
            "an agent (process {pid}), which may attach again: end whatever starts it, as by \
             `systemctl stop thalweg`"
        ));
    }
    outcome.left.extend(learner.remove_rest());
    outcome.others = leftovers::other_pins(pin);
    output::show_value(&global.format, &outcome, || outcome_text(&outcome))?;
    if !outcome.left.is_empty() {
        bail!("still in the kernel: {}", outcome.left.join("; "));
    }
    // Success means that nothing is left in the kernel.
    if let Some(why) = &outcome.unsaved {
        output::print_warning(&format!(
            "what was learned since the last snapshot is not saved: {why}"
        ));
    }
    Ok(())
}

/// Asks the agent; returns the process that answered. `None`: it does not answer, or cannot do it.
///
/// # Errors
/// The agent refuses this user.
fn ask_agent(client: &Client, learner: &mut Learner, outcome: &mut Outcome) -> Result<Option<u32>> {
    let pid = match client.get::<Pid>("/v1/status") {
        Err(error) if is_forbidden(&error) => return Err(error),
        Err(_) => return Ok(None),
        Ok(status) => status.pid,
    };
    learner.note_process(pid);
    let agent = ProcessHandle::open(pid)
        .ok()
        .filter(|_| agents::is_agent(pid));
    match client.post::<Removed>("/v1/detach") {
        Err(error) if is_forbidden(&error) => return Err(error),
        Err(_) => return Ok(None),
        Ok(answer) => {
            outcome.removed = answer.removed;
            outcome.unsaved = answer.unsaved;
            let leftovers = answer.leftovers.into_iter();
            outcome.leftovers = leftovers
                .filter_map(|(key, why)| Some((key, why?)))
                .collect();
        }
    }
    // A later start must not meet this agent.
    if agent.is_some_and(|agent| !agent.ends_within(END)) {
        let left = format!("the agent (process {pid}), which has not ended yet");
        outcome.left.push(left);
    }
    Ok(Some(pid))
}

/// Stops units that would start their agents again.
fn stop_units(units: &BTreeSet<String>, outcome: &mut Outcome) {
    for unit in units {
        match units::stop_unit(unit) {
            Ok(false) => {}
            Ok(true) => outcome.ended.push(format!(
                "{unit} was stopped: systemd would have started the agent again"
            )),
            Err(error) => outcome.left.push(format!(
                "{unit}, by which systemd starts the agent again: {error}"
            )),
        }
    }
}

/// Ends an agent that has not been asked, or could not answer.
fn end_agent(agent: &Agent, is_asked: bool, outcome: &mut Outcome) {
    let Agent { pid, process, unit } = agent;
    if is_asked || process.ends_within(Duration::ZERO) {
        return;
    }
    let is_stopped = agent.is_stopped();
    let sent = process.send_signal(Signal::TERM);
    let sent = sent.and_then(|()| match is_stopped {
        true => process.send_signal(Signal::CONT),
        false => Ok(()),
    });
    let how = match is_stopped {
        true => "was stopped, continued, and ended",
        false => "was ended",
    };
    if process.ends_within(if sent.is_ok() { END } else { Duration::ZERO }) {
        return outcome.ended.push(format!("process {pid} {how}"));
    }
    // The agent hangs, and so does its signal handler.
    let killed = sent.and_then(|()| process.send_signal(Signal::KILL));
    match killed {
        Ok(()) if process.ends_within(KILLED) => outcome.ended.push(format!(
            "process {pid} did not end and was killed{}",
            match unit {
                Some(_) => "",
                None => "; a service manager other than systemd may start it again",
            }
        )),
        Ok(()) => outcome.left.push(format!(
            "an agent (process {pid}), which not even SIGKILL has ended yet"
        )),
        Err(error) => outcome.left.push(format!(
            "an agent (process {pid}), which cannot be ended: {error}"
        )),
    }
}

fn outcome_text(outcome: &Outcome) -> String {
    let mut text = String::new();
    for ended in &outcome.ended {
        text += &format!("agent: {ended}\n");
    }
    text += &match outcome.removed.join(", ") {
        removed if removed.is_empty() => "nothing was attached\n".to_owned(),
        removed => format!("removed from the kernel: {removed}\n"),
    };
    for OtherPin { what, command } in &outcome.others {
        text += &format!("not the agent's, and still there: {what}; `{command}` removes it\n");
    }
    text
}
