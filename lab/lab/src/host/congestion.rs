//! The default congestion control of a namespace.
//!
//! A namespace other than the first takes only a congestion control that
//! `net.ipv4.tcp_allowed_congestion_control` names (`tcp_set_default_congestion_control`,
//! net/ipv4/tcp_cong.c). That list belongs to the whole machine, as it says what unprivileged
//! programs may choose. A missing name is therefore added for the moment of the change, and then
//! removed.

use std::fs::{self, File};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

use super::netns::Namespace;
use crate::error::Error;

const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
/// Lock against a second run, which would restore the wrong list.
const LOCK: &str = "/run/thalweg-lab.lock";

/// The congestion controls that the kernel offers now, in its own order.
///
/// # Errors
/// [`Error::Process`] if the kernel's list cannot be read.
pub fn available_ccs() -> Result<Vec<String>, Error> {
    read_list(AVAILABLE)
}

fn read_list(path: &str) -> Result<Vec<String>, Error> {
    let text = fs::read_to_string(path).map_err(Error::io("cannot read", path))?;
    Ok(text.split_ascii_whitespace().map(str::to_owned).collect())
}

/// Makes a congestion control the default of the namespaces.
pub(crate) fn set_default(name: &str, namespaces: &[&Namespace]) -> Result<(), Error> {
    let failed = |why: String| Error::CongestionControl {
        name: name.to_owned(),
        why,
    };
    let lock = File::create(Path::new(LOCK)).map_err(Error::io("cannot create", LOCK))?;
    let _lock = Flock::lock(lock, FlockArg::LockExclusive)
        .map_err(|(_, errno)| Error::system(format!("cannot lock {LOCK}"))(errno.into()))?;
    let allowed = read_list(ALLOWED)?;
    let _allowance = if allowed.iter().any(|allowed| allowed == name) {
        None
    } else {
        let wider = format!("{} {name}", allowed.join(" "));
        fs::write(ALLOWED, wider).map_err(|error| {
            let offered = available_ccs().unwrap_or_default();
            if offered.iter().any(|offered| offered == name) {
                failed(format!(
                    "net.ipv4.tcp_allowed_congestion_control does not name it and cannot be \
                     changed from here ({error}); add it on the host with sysctl"
                ))
            } else {
                failed(format!(
                    "the kernel offers {} only; a module may add it (modprobe tcp_{name})",
                    offered.join(", ")
                ))
            }
        })?;
        Some(Allowance {
            before: allowed.join(" "),
        })
    };
    for namespace in namespaces {
        namespace.set_sysctl("net.ipv4.tcp_congestion_control", name)?;
    }
    Ok(())
}

/// The machine's list; dropped, its former value is restored.
struct Allowance {
    before: String,
}

impl Drop for Allowance {
    fn drop(&mut self) {
        if let Err(error) = fs::write(ALLOWED, &self.before) {
            tracing::warn!("cannot restore {ALLOWED} to {:?}: {error}", self.before);
        }
    }
}
