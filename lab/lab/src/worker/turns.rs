//! Runs programs one after the other, for the holder of its standard streams. An order is a line on
//! standard input, its result a line on standard output.

use std::io::{self, BufRead, Write};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The line before the first order.
pub(crate) const READY: &str = "ready";

/// A program to run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) program: String,
    pub(crate) arguments: Vec<String>,
}

/// The result of an order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Success, or how it ended, in words.
    pub(crate) ended: Result<(), String>,
    /// Standard output of the program.
    pub(crate) output: String,
}

/// Runs orders until standard input ends.
pub(super) fn run_orders() -> Result<(), Error> {
    let broken = || Error::system("the streams that orders come by");
    write_line(READY).map_err(broken())?;
    for line in io::stdin().lock().lines() {
        let line = line.map_err(broken())?;
        let order: Order = serde_json::from_str(&line).map_err(|error| broken()(error.into()))?;
        let done = serde_json::to_string(&carry_out(&order));
        write_line(&done.map_err(|error| broken()(error.into()))?).map_err(broken())?;
    }
    Ok(())
}

fn write_line(line: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()
}

fn carry_out(order: &Order) -> Done {
    let result = Command::new(&order.program)
        .args(&order.arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    match result {
        Ok(result) => Done {
            ended: match result.status {
                status if status.success() => Ok(()),
                status => Err(format!("{} ended with {status}", order.program)),
            },
            output: String::from_utf8_lossy(&result.stdout).into_owned(),
        },
        Err(error) => Done {
            ended: Err(format!("cannot start {}: {error}", order.program)),
            output: String::new(),
        },
    }
}
