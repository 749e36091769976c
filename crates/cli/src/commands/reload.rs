//! `thalweg reload`.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use thalweg_agent::shared::NOT_TAKEN;
use thalweg_agent::view::Status;
use thalweg_terminal::output;

use crate::client::Client;
use crate::options::Global;

/// How long the agent may take to go on with another configuration.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Between two looks whether it has.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Deserialize, Serialize)]
struct Answer {
    changed: bool,
    /// The number that the status has once the new configuration is in force.
    session: u64,
}

/// Has the agent read its configuration again, and waits until it is in force.
pub fn run(global: &Global) -> Result<()> {
    // A fault of the file is in the agent's answer.
    let paths = global.readable_config()?.config.paths;
    let client = Client::new(paths.socket, paths.pin);
    let answer: Answer = client.post("/v1/reload")?;
    if answer.changed {
        wait_for_session(&client, answer.session)?;
    }
    let text = match answer.changed {
        true => "the new configuration is in force\n",
        false => "the configuration is as it was\n",
    };
    output::show_value(&global.format, &answer, || text.to_owned())
}

/// Waits until the agent has gone on with that session.
fn wait_for_session(client: &Client, session: u64) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let outcome = client.get::<Status>("/v1/status");
        if let Ok(status) = &outcome
            && status.session >= session
        {
            let refused = |problem: &&String| problem.starts_with(NOT_TAKEN);
            return match status.problems.iter().find(refused) {
                Some(refused) => bail!("{refused}"),
                None => Ok(()),
            };
        }
        if Instant::now() >= deadline {
            outcome?;
            bail!(
                "the agent does not go on with the new configuration within {} s; its log says why",
                TIMEOUT.as_secs()
            );
        }
        // Between two configurations it answers nobody.
        std::thread::sleep(POLL_INTERVAL);
    }
}
