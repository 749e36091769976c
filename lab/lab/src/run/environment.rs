//! The report's facts about the machine, the time and the command.

use thalweg_process::tool;

use crate::error::Error;
use crate::host;
use crate::options::{Backend, Options, current_time};
use crate::outcome::Environment;
use crate::stack_endpoints::Stacks;
use crate::ticks::Ticks;

/// The environment of a run.
pub(super) fn describe_environment(
    options: &Options,
    stacks: Option<&Stacks>,
) -> Result<Environment, Error> {
    let name = nix::sys::utsname::uname().map_err(|errno| Error::system("uname")(errno.into()))?;
    let version = tool::program_command("iperf3").arg("--version").output();
    let iperf3 = version
        .map(|output| {
            String::from_utf8_lossy(&output.stdout)
                .lines()
                .next()
                .unwrap_or("")
                .to_owned()
        })
        .map_err(Error::system("cannot start iperf3"))?;
    let ticks = Ticks::current_kernel()?;
    Ok(Environment {
        hz: ticks.hz,
        timers: ticks.timers,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: format!(
            "{} {} {}",
            name.sysname().to_string_lossy(),
            name.release().to_string_lossy(),
            name.machine().to_string_lossy()
        ),
        cpus: std::thread::available_parallelism().map_or(1, Into::into),
        congestion_controls: host::available_congestion_controls()?,
        iperf3,
        command: options.origin.command_line(),
        started: match options.origin.place.name {
            // The kernel's time, like all times of the run.
            Backend::Virtual | Backend::Qemu => current_time(),
            _ => options.origin.start_time(),
        },
        backend: options.origin.place.clone(),
        stack: stacks.map(|stacks| stacks.text.clone()),
    })
}
