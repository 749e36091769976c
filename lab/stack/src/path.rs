//! A path to a far end in place of the machine's network, as of `thalweg-lab link`, without root.
//!
//! ```text
//!  kernel                near                                far
//!  vec0 ── TAP `wire` ── routes ── TUN ── this process ── TUN, the far command
//! ```
//!
//! The kernel has the near end's addresses, without translation: the near end is a router, one
//! hop. The kernel's TAP device is handed to it as a descriptor, so it need not be in the near
//! end's namespaces. The kernel sees the machine's users as they are.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::net::Ipv4Addr;

use nix::libc;
use thalweg_guest::uml::Kernel;
use thalweg_link::Settings;
use thalweg_link::namespace::{Endpoints, FAR, NEAR};
use thalweg_link::run::Link;
use thalweg_link::tun::{self, Fault, MTU_BYTES, NAME};
use thalweg_process::capabilities::may_administrate;
use thalweg_units::Size;

use crate::boot::Wire;
use crate::contact::Contact;
use crate::control::Job;
use crate::end::INTERFACE;
use crate::error::Error;
use crate::place::NetworkNamespace;
use crate::{Finished, Testbed, run_ip};

/// The kernel's TAP device at the near end.
const WIRE: &str = "wire";
/// The router's address at the near end.
const ROUTER: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 254);
const ROUTER_V6: &str = "fe80::1";

/// A path, with the command at its far end.
#[derive(Debug, Clone)]
pub struct Emulated {
    /// Effect of the path on packets.
    pub settings: Settings,
    /// Command line for `sh -c` at the far end.
    pub far: Option<OsString>,
    /// The command starts when this port at the far end is listened on.
    pub far_port: Option<u16>,
}

impl Emulated {
    /// Does a job at the near end.
    pub(crate) fn run_at_near_end(
        &self,
        bed: &Testbed,
        kernel: &Kernel,
        memory: Size,
        job: Job,
        program: &OsStr,
    ) -> Result<Finished, Error> {
        let directions = self.settings.directions()?;
        // Children create these namespaces; a process with several threads could not start them
        // safely.
        let ends = Endpoints::create_pair()?;
        let [device] = ends.at_near(|| attach_router(ends.has_v6))?;
        let device = File::from(device);
        let contact = if may_administrate() {
            Contact::create(NetworkNamespace::create()?)?
        } else {
            Contact::create_as_user()?
        };
        let network = network_commands(ends.has_v6);
        let mut link = Link::start_link(ends, directions)?;
        link.start_far(self.far.as_deref(), self.far_port, &bed.signals)?;
        let variables = link.environment_variables().into_iter();
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        let mut environment = job.environment;
        environment.extend(variables);
        let job = Job {
            environment,
            network,
            ..job
        };
        let wire = Wire::Open(&device, MTU_BYTES);
        let exit = bed.run_job(kernel, memory, &job, &contact, wire, program)?;
        Ok(Finished {
            exit,
            report: Some(link.take_down(&self.settings)?),
        })
    }
}

/// Makes the near end a router between the TUN device and the kernel's TAP device.
fn attach_router(has_v6: bool) -> Result<[std::os::fd::OwnedFd; 1], Fault> {
    let device = tun::attach_as(WIRE, libc::IFF_TAP)?;
    let mut commands = vec![
        format!("address add {ROUTER}/32 dev {NAME}"),
        format!("address delete {}/24 dev {NAME}", NEAR.v4),
        format!("route replace default dev {NAME}"),
        format!("link set dev {WIRE} addrgenmode none up"),
        format!("route add {} dev {WIRE}", NEAR.v4),
    ];
    if has_v6 {
        commands.extend([
            format!("address delete {}/64 dev {NAME}", NEAR.v6),
            format!("route add {} dev {NAME}", FAR.v6),
            format!("address add {ROUTER_V6}/64 dev {WIRE} nodad"),
            format!("route add {} dev {WIRE}", NEAR.v6),
        ]);
        // For the near end only.
        fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")
            .map_err(|error| ("make the near end a router", error))?;
    }
    run_ip(&commands).map_err(|error| {
        (
            "set up the near end",
            std::io::Error::other(error.to_string()),
        )
    })?;
    Ok([device.into()])
}

/// Commands of `ip` that make the kernel a host behind the near end.
fn network_commands(has_v6: bool) -> Vec<String> {
    let mut commands = vec![
        format!("address add {}/32 dev {INTERFACE}", NEAR.v4),
        format!("link set dev {INTERFACE} up"),
        format!("route add {ROUTER} dev {INTERFACE}"),
        format!("route add default via {ROUTER} dev {INTERFACE}"),
    ];
    if has_v6 {
        commands.extend([
            format!("address add {}/128 dev {INTERFACE} nodad", NEAR.v6),
            format!("route add {} via {ROUTER_V6} dev {INTERFACE}", FAR.v6),
        ]);
    }
    commands
}
