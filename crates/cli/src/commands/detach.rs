//! `thalweg detach`.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::options::Global;
use crate::output;

/// What was removed.
#[derive(Deserialize, Serialize)]
struct Removed {
    removed: Vec<String>,
}

/// Has the agent remove its programs and end; removes them itself where none runs.
pub fn run(global: &Global) -> Result<()> {
    let answer = match global
        .client()?
        .post::<Removed>("/v1/detach", String::new())
    {
        Err(error) if is_down(&error) => {
            let pin = global.config()?.paths.pin;
            Removed {
                removed: thalweg_agent::kernel::detach(&pin)?,
            }
        }
        answer => answer?,
    };
    if global.json {
        return output::print_json(&answer);
    }
    if answer.removed.is_empty() {
        return output::print("nothing was attached\n");
    }
    output::print(&format!(
        "removed from the kernel: {}\n",
        answer.removed.join(", ")
    ))
}

fn is_down(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Failure::AgentDown { .. }))
}
