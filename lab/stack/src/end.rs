//! A kernel as an end of the laboratory's path. Its interface is an existing TAP device in a
//! network namespace of the laboratory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thalweg_guest::uml::Kernel;
use thalweg_units::Size;

use crate::Testbed;
use crate::boot::Wire;
use crate::contact::Contact;
use crate::control::Job;
use crate::error::Error;
use crate::place::NetworkNamespace;

/// An end of a path.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct End {
    /// The file of the network namespace.
    pub namespace: PathBuf,
    /// The TAP device there.
    pub tap: String,
    /// The kernel and its modules.
    pub kernel: Kernel,
    /// Memory of the kernel.
    pub memory: Size,
    /// Congestion control of the kernel; none: the kernel's default.
    pub congestion_control: Option<String>,
    /// The queueing discipline of its interface; none: the default.
    pub qdisc: Option<String>,
    /// Settings and their values.
    pub sysctls: Vec<(String, String)>,
    /// Commands of `ip` that make it a host, for its interface [`INTERFACE`].
    pub network: Vec<String>,
}

/// The kernel's interface to its TAP device.
pub const INTERFACE: &str = "vec0";

/// Runs a program at such an end, as [`crate::run_program`] does on the machine's network.
///
/// # Errors
/// As there.
pub fn run_end(end: &End, command: &[OsString], program: &Path) -> Result<u8, Error> {
    let Some(first) = command.first() else {
        return Err(Error::Options("expected a command to run".to_owned()));
    };
    let bed = Testbed::make_testbed(program)?;
    let contact = Contact::create(NetworkNamespace::open(&end.namespace)?)?;
    let job = Job {
        congestion_control: end.congestion_control.clone(),
        qdisc: end.qdisc.clone(),
        sysctls: end.sysctls.clone(),
        network: end.network.clone(),
        ..bed.job_without_network(command, &end.kernel)?
    };
    let wire = Wire::Device(&end.tap);
    bed.run_job(&end.kernel, end.memory, &job, &contact, wire, first)
}
