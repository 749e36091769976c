//! `thalweg policy statistics`.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use thalweg_control::policy::{self, FlowStatistics};
use thalweg_terminal::output;

use crate::options::Global;

/// How long.
#[derive(Debug, Args)]
pub struct Options {
    /// End after so many reports.
    ///
    /// Default: never.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// End after so many seconds.
    ///
    /// Default: never.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
}

/// Prints reports, one a line; with `--json` one document each.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let (place, _) = super::paths_and_history(global, global.readable_or_warn()?)?;
    let end = options
        .seconds
        .map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let left = Cell::new(options.limit.unwrap_or(u64::MAX));
    let until = || left.get() == 0 || end.is_some_and(|end| Instant::now() >= end);
    policy::watch_statistics(&place.pin, until, |flow| {
        if left.get() == 0 {
            return Ok(());
        }
        left.set(left.get() - 1);
        if global.format.json {
            output::print_json_line(&flow)
        } else {
            output::print(&statistics_line(&flow))
        }
    })
}

fn statistics_line(flow: &FlowStatistics) -> String {
    let option = flow
        .received_option
        .map_or_else(String::new, |value| format!(" option {value}"));
    format!(
        "{} {} {} rule {} sent {} received {} delivered {} marked {} again {} twice {} \
         rtt {} cwnd {}{option}\n",
        output::time_text(flow.time_ms),
        SocketAddr::new(flow.local, flow.local_port),
        SocketAddr::new(flow.remote, flow.remote_port),
        flow.rule,
        output::bytes_text(flow.bytes_acked),
        output::bytes_text(flow.bytes_received),
        flow.delivered,
        flow.delivered_ce,
        flow.retransmitted,
        flow.dsack_dups,
        output::milliseconds_text(flow.srtt_us),
        flow.snd_cwnd
    )
}
