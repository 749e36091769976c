//! `thalweg web`.

use std::net::SocketAddr;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use thalweg_agent::web::Web;
use thalweg_terminal::output;

use crate::options::Global;

/// Where the page is.
#[derive(Debug, Args)]
pub struct Options {
    /// Loopback address and port; port 0 is a free one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9472", value_parser = parse_loopback)]
    listen: SocketAddr,
}

fn parse_loopback(text: &str) -> Result<SocketAddr, String> {
    let expected = "expected a loopback address and a port, such as 127.0.0.1:9472 or [::1]:9472";
    let numeric = text.replacen("localhost:", "127.0.0.1:", 1);
    let address: SocketAddr = numeric.parse().map_err(|_| expected.to_owned())?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err(format!(
        "{expected}: nothing is encrypted. From another machine: ssh -L 9472:127.0.0.1:9472 HOST"
    ))
}

/// Serves the page until it is interrupted.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let socket = global.agent_client()?.socket().to_owned();
    let web = Web::bind(options.listen)?;
    match global.format.json {
        true => output::print_json_line(&json!({ "url": web.url() }))?,
        false => output::print(&format!("{}\nCtrl-C ends it.\n", web.url()))?,
    }
    web.run(socket)
}
