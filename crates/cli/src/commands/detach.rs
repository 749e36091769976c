//! `thalweg detach`.

use std::time::Duration;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use thalweg_control::system::Process;

use crate::failure::Failure;
use crate::options::Global;
use crate::output;

/// Longest wait for an agent's end after its response.
const END: Duration = Duration::from_secs(10);

/// The parts that were removed.
#[derive(Deserialize, Serialize)]
struct Removed {
    removed: Vec<String>,
    /// Why the records since the last snapshot are not in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unsaved: Option<String>,
}

/// The field of an agent's status that is needed here.
#[derive(Deserialize)]
struct Pid {
    pid: u32,
}

/// Makes the agent remove its programs and end, and waits for its end. Without an agent, it removes
/// them itself.
pub fn run(global: &Global) -> Result<()> {
    let client = global.client()?;
    let agent = client
        .get::<Pid>("/v1/status")
        .ok()
        .and_then(|status| Process::open(status.pid).ok());
    let answer = match client.post::<Removed>("/v1/detach") {
        Err(error) if is_down(&error) => {
            let pin = global.config()?.paths.pin;
            Removed {
                removed: thalweg_agent::kernel::detach(&pin)?,
                unsaved: None,
            }
        }
        answer => answer?,
    };
    output::show(global, &answer, || match answer.removed.join(", ") {
        removed if removed.is_empty() => "nothing was attached\n".to_owned(),
        removed => format!("removed from the kernel: {removed}\n"),
    })?;
    // A later start must not meet this agent.
    if agent.is_some_and(|agent| !agent.ends_within(END)) {
        bail!("the programs are gone, but the agent has not ended yet");
    }
    match answer.unsaved {
        None => Ok(()),
        Some(why) => bail!(
            "the programs are gone, but what was learned since the last snapshot was not saved: \
             {why}"
        ),
    }
}

fn is_down(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Failure::AgentDown { .. }))
}
