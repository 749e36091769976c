//! Trials of the learner: it scores connections, and moves one that stays open.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use thalweg_lab::host::Side;

use super::probe::{BYTES, Bench, PATIENCE, Sockets};
use crate::bed::{self, Agent};

/// Data of a scored transfer, bytes.
const SCORED_BYTES: usize = 1_000_000;
const TRANSFERS: usize = 4;

impl Bench<'_> {
    /// Transfers with an agent, which scores them.
    pub fn learn(&self, busy_time: bool) -> Result<String> {
        let pair = bed::pair("learn")?;
        let agent = Agent::start(self.binary, &pair, "learn")?;
        let status = agent.status()?;
        if status["kernel_busy_time"] != busy_time {
            let problems = status["problems"].as_array();
            let mut problems = problems.into_iter().flatten().filter_map(Value::as_str);
            bail!(
                "{}",
                problems.next().unwrap_or("the other variant was loaded")
            );
        }
        for _ in 0..TRANSFERS {
            bed::transfer(&pair, SCORED_BYTES, None)?;
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let known = agent.answer("hosts")?;
            let scored = known["hosts"][0]["scored"].as_u64().unwrap_or(0);
            let arms = known["hosts"][0]["arms"].as_array();
            let evidence = arms.into_iter().flatten();
            let evidence = evidence.filter_map(|arm| arm["evidence"].as_f64());
            let evidence: f64 = evidence.sum();
            if scored >= TRANSFERS as u64 && evidence > 0.0 {
                return Ok(format!("{scored} connections scored"));
            }
            if Instant::now() > deadline {
                bail!("{scored} connections scored, evidence {evidence}: {known}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// A connection that stays open: it is scored, and gets an arm known to be better.
    pub fn long(&self) -> Result<String> {
        let pair = bed::pair("long")?;
        let keys = "[arms]\nallow = [\"cubic\", \"reno\"]\n[learning]\nstretch = \"1s\"\n";
        let agent = Agent::start_with(self.binary, &pair, "long", keys)?;
        let status = agent.status()?;
        if !status["looks"].is_object() {
            let problem = status["problems"][0].as_str();
            bail!("{}", problem.unwrap_or("nobody looks at long connections"));
        }
        bed::transfer(&pair, SCORED_BYTES, None)?;
        until(|| Ok(agent.figure("/counters/scored")? > 0)).context("no connection was scored")?;
        let mut sockets = Sockets::open(&pair, pair.cgroup_path())?;
        sockets.expect("cubic")?;
        let mut known = agent.answer("export")?;
        let arms = &mut known["hosts"][0]["arms"];
        let mut better = arms["cubic"].clone();
        better["weight_q16"] = (8 << 16).into();
        arms["cubic"] = better.clone();
        let value = better["value"].as_u64().context("a value")?;
        better["value"] = (value - (3 << 16)).into();
        arms["reno"] = better;
        let file = tempfile::NamedTempFile::new()?;
        fs::write(&file, known.to_string())?;
        agent.command(&["import", file.path().to_str().context("a path")?])?;
        // More than the least that is scored on the way.
        for _ in 0..(2 << 20) / BYTES {
            sockets.send()?;
        }
        until(|| Ok(agent.figure("/counters/moved")? > 0)).with_context(|| {
            let counters = agent.status().map(|status| status["counters"].to_string());
            format!("no connection was moved: {}", counters.unwrap_or_default())
        })?;
        sockets.send_until("reno")?;
        Ok("a connection scored and moved on its way".to_owned())
    }

    /// A connection that stays open gets the clamp of its host.
    pub fn clamps(&self) -> Result<String> {
        let pair = bed::pair("clamps")?;
        let server = pair.first_address(Side::Server);
        let keys = format!("[arms]\nallow = [\"cubic\"]\n[clamp]\nprefixes = [\"{server}/32\"]\n");
        let agent = Agent::start_with(self.binary, &pair, "clamps", &keys)?;
        let status = agent.status()?;
        if !status["clamps"].is_object() {
            let problem = status["problems"][0].as_str();
            bail!("{}", problem.unwrap_or("nobody looks at connections"));
        }
        let mut sockets = Sockets::open(&pair, pair.cgroup_path())?;
        sockets.expect("cubic")?;
        until(|| {
            sockets.send()?;
            Ok(agent.figure("/clamps/connections")? > 0)
        })
        .context("no connection got a clamp")?;
        Ok("a connection bounded on its way".to_owned())
    }

    /// A connection that ends tells of its network.
    pub fn timers(&self) -> Result<String> {
        let pair = bed::pair("timers")?;
        let keys = "[timers]\nenabled = true\n";
        let agent = Agent::start_with(self.binary, &pair, "timers", keys)?;
        bed::transfer(&pair, SCORED_BYTES, None)?;
        until(|| Ok(agent.figure("/timers/networks")? > 0)).with_context(|| {
            let problems = agent.status().map(|status| status["problems"].to_string());
            format!(
                "nothing is known of a network: {}",
                problems.unwrap_or_default()
            )
        })?;
        Ok("round trips of a network measured".to_owned())
    }

    /// A connection of cubic gets the congestion control that keeps windows.
    pub fn idle(&self) -> Result<String> {
        let pair = bed::pair("idle")?;
        let keys = "[arms]\nallow = [\"cubic\"]\n[idle]\nenabled = true\n";
        let agent = Agent::start_with(self.binary, &pair, "idle", keys)?;
        refuse_problem(&agent, "after idle times")?;
        Sockets::open(&pair, pair.cgroup_path())?.expect("thalweg_cubic")?;
        Ok("a connection that keeps its window".to_owned())
    }

    /// The program of the control group runs: it is loaded by the first look at namespaces.
    pub fn buffers(&self) -> Result<String> {
        let pair = bed::pair("buffers")?;
        let keys = "[buffers]\nenabled = true\n";
        let agent = Agent::start_with(self.binary, &pair, "buffers", keys)?;
        until(|| Ok(agent.figure("/buffers/looks/number")? > 1)).context("nobody looks")?;
        refuse_problem(&agent, "larger buffers")?;
        Ok("a program that holds a share of the connections".to_owned())
    }
}

/// Fails with a problem of the agent that has these words.
fn refuse_problem(agent: &Agent, words: &str) -> Result<()> {
    let status = agent.status()?;
    let problems = status["problems"].as_array();
    let mut said = problems.into_iter().flatten().filter_map(Value::as_str);
    match said.find(|it| it.contains(words)) {
        Some(problem) => bail!("{problem}"),
        None => Ok(()),
    }
}

/// Waits for a condition, for at most [`PATIENCE`].
fn until(mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !holds()? {
        ensure!(Instant::now() < deadline, "waited for {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
