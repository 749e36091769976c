//! `thalweg reset`.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::{Context, Result};
use clap::Args;
use serde::{Deserialize, Serialize};
use thalweg_terminal::{Failure, output};

use crate::client::percent_encode;
use crate::options::{Global, parse_host};

/// Options of `reset`.
#[derive(Debug, Args)]
pub struct Options {
    /// Address of the remote host to forget, or its prefix as `thalweg hosts` shows it.
    /// Default: all hosts.
    #[arg(value_parser = parse_host)]
    host: Option<String>,
    /// Do not ask; needed without a terminal.
    #[arg(long, short)]
    yes: bool,
}

/// The agent's response.
#[derive(Deserialize, Serialize)]
struct Removed {
    removed: u64,
}

/// Removes records.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let what = options
        .host
        .as_deref()
        .map_or("all hosts".to_owned(), |host| host.to_owned());
    if !options.yes && !ask_confirmation(&what)? {
        return Err(Failure::Usage("nothing was forgotten".to_owned()).into());
    }
    let path = match &options.host {
        Some(host) => format!("/v1/hosts/{}", percent_encode(host)),
        None => "/v1/hosts".to_owned(),
    };
    let answer: Removed = global.agent_client()?.delete(&path)?;
    output::show_value(&global.format, &answer, || {
        format!("{} host records forgotten\n", answer.removed)
    })
}

fn ask_confirmation(what: &str) -> Result<bool> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        let message = "standard input is not a terminal to ask on; say --yes".to_owned();
        return Err(Failure::Usage(message).into());
    }
    let mut errors = std::io::stderr();
    write!(errors, "Forget what was learned of {what}? [y/N] ").context("cannot ask")?;
    errors.flush().context("cannot ask")?;
    let mut answer = String::new();
    input
        .lock()
        .read_line(&mut answer)
        .context("cannot read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
