//! The thread that asks the agent, so that keys never wait for it.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::Result;
use thalweg_agent::view;

use super::choice::{Choice, View};
use super::seen::RoundAnswers;
use crate::client::Client;

/// Hosts that are asked for.
pub const HOSTS: usize = 250;
/// Hosts that are asked for where a filter looks among them; the agent tells no more.
pub const HOSTS_FILTERED: usize = 1000;
/// Latest events that are asked for.
pub const EVENTS: usize = 500;

/// Request for one round of data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundRequest {
    view: View,
    sort: &'static str,
    filtered: bool,
    frozen: bool,
}

impl From<&Choice> for RoundRequest {
    fn from(choice: &Choice) -> Self {
        Self {
            view: choice.view,
            sort: choice.sort.name(),
            filtered: !choice.filter.is_empty(),
            frozen: choice.frozen,
        }
    }
}

/// One round of requests: the status, and what the view shows.
pub fn request_round(client: &Client, want: &RoundRequest) -> RoundAnswers {
    let mut round = RoundAnswers::default();
    if let Err(error) = request_view(client, want, &mut round) {
        round.trouble = Some(format!("{error:#}"));
    }
    round
}

fn request_view(client: &Client, want: &RoundRequest, round: &mut RoundAnswers) -> Result<()> {
    round.status = Some(client.get("/v1/status")?);
    match want.view {
        View::Hosts | View::Arms => {
            let limit = if want.filtered { HOSTS_FILTERED } else { HOSTS };
            let path = format!("/v1/hosts?sort={}&limit={limit}", want.sort);
            let hosts: view::Hosts = client.get(&path)?;
            round.arms = Some(client.get("/v1/arms")?);
            round.hosts = Some(hosts.hosts);
        }
        View::Decisions => {
            round.events = Some(client.get(&format!("/v1/events?limit={EVENTS}"))?);
        }
        View::Rules | View::Health => round.kernel = Some(client.find_resource("/v1/kernel")?),
    }
    Ok(())
}

/// Asks every `interval`, and at once when something else is wanted, until nobody listens. Each
/// answer is announced by a byte to `wake`.
pub fn run_requests(
    client: &Client,
    mut want: RoundRequest,
    interval: Duration,
    wanted: &Receiver<RoundRequest>,
    answers: &Sender<RoundAnswers>,
    mut wake: &UnixStream,
) {
    let mut next = Instant::now() + interval;
    loop {
        let received = match want.frozen {
            true => wanted.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => wanted.recv_timeout(next.saturating_duration_since(Instant::now())),
        };
        match received {
            Ok(other) => want = wanted.try_iter().last().unwrap_or(other),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if want.frozen {
            continue;
        }
        let began = Instant::now();
        if answers.send(request_round(client, &want)).is_err() || wake.write_all(&[0]).is_err() {
            return;
        }
        // An agent with many hosts needs time: at most a tenth of it is ours.
        next = Instant::now() + interval.max(9 * began.elapsed());
    }
}
