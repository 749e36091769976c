//! `pasta` of the package passt: carries packets of a user's namespace on by sockets of the
//! machine (pasta(1)).

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::SigSet;
use thalweg_process::interrupt::OnSignal;
use thalweg_process::{Process, tool};

use super::v6_of;
use crate::child::{Child, Group};
use crate::error::Error;
use crate::namespace::Endpoints;
use crate::tun::{Fault, MTU_BYTES};

/// The device at the far end.
const DEVICE: &str = "outside";
/// Number of the link whose IPv6 prefix the device has. No link has this number.
const NUMBER: u32 = 0x1000;
/// Time limit of its start.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the far end's routes are read meanwhile.
const INTERVAL: Duration = Duration::from_millis(5);

/// Address families that the machine has a way for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Families {
    pub(super) v4: bool,
    pub(super) v6: bool,
}

/// The program.
///
/// # Errors
/// [`Error::Missing`] names the package, and what works without.
pub(super) fn find_pasta() -> Result<PathBuf, Error> {
    tool::find_program("pasta").ok_or_else(|| {
        Error::Missing(
            "--outside needs pasta where the user is not root; install the package passt, or run \
             it as root (all but --outside works without)"
                .to_owned(),
        )
    })
}

/// The families for which the machine has a default route. pasta takes no others.
///
/// # Errors
/// [`Error::Missing`] if there is none.
pub(super) fn routed_families() -> Result<Families, Error> {
    let has = |family: &str| -> Result<bool, Error> {
        let routes = tool::read_tool("ip", &format!("{family} route show default"))?;
        Ok(routes.contains(" dev "))
    };
    let found = Families {
        v4: has("-4")?,
        v6: has("-6").unwrap_or(false),
    };
    if found.v4 || found.v6 {
        return Ok(found);
    }
    Err(Error::Missing(
        "--outside: this machine has no default route, which pasta needs; run it as root, or see \
         ip route"
            .to_owned(),
    ))
}

/// Starts it at the far end of a link, and returns once routes lead through it.
pub(super) fn start_pasta(
    program: &Path,
    ends: &Endpoints,
    families: Families,
) -> Result<Process, Error> {
    // It opens the network namespace from within the user namespace, where it may look into no
    // other process than one of that namespace.
    let mut holder = Command::new("sleep");
    holder.arg("60").stdin(Stdio::null()).stdout(Stdio::null());
    let mask = SigSet::empty();
    let holder = Child::spawn_at(&mut holder, ends, &ends.far, mask, Group::Own)?;
    let namespace = |kind: &str| format!("/proc/{}/ns/{kind}", holder.id());
    let said = memfd_create("pasta", MFdFlags::MFD_CLOEXEC)
        .map_err(|errno| Error::system("cannot make a file in memory")(errno.into()))?;
    let mut said = File::from(said);
    let errors = said
        .try_clone()
        .map_err(Error::system("cannot duplicate a descriptor"))?;
    let mut command = tool::program_command("pasta");
    command
        .args(["--foreground", "--quiet", "--stderr", "--config-net"])
        .args(["--ns-ifname", DEVICE, "--mtu", &MTU_BYTES.to_string()])
        // No port of the machine leads inside, and no address inside to its loopback.
        .args("-t none -u none -T none -U none --no-map-gw".split(' '))
        .args("--no-dhcp --no-dhcpv6 --no-ra".split(' '))
        .args(["--userns", &namespace("user")])
        .args(["--netns", &namespace("net"), "--no-netns-quit"]);
    // Addresses of its own: with the machine's, the machine would not be reached.
    let far = ends.addresses[1].v4.to_bits();
    let v4 = |host| std::net::Ipv4Addr::from_bits(far - 1 + host).to_string();
    let v6 = |host| format!("fd74:6861:6c77:{:x}::{host}", v6_of(NUMBER));
    match families {
        Families { v4: true, v6: true } => {}
        Families { v6: true, .. } => drop(command.arg("-6")),
        Families { .. } => drop(command.arg("-4")),
    }
    if families.v4 {
        command.args(["-a", &v4(6), "-n", "30", "-g", &v4(5)]);
    }
    if families.v6 {
        command.args(["-a", &v6(2), "-g", &v6(1)]);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors);
    let mut routes = Routes::routes_of(ends)?;
    let mut process = Process::spawn(&mut command)?;
    let deadline = Instant::now() + START_TIMEOUT;
    while !routes.lead_outside(families)? {
        let ended = process.wait_until(Instant::now(), OnSignal::Fail)?;
        if ended.is_some() || Instant::now() > deadline {
            let mut text = String::new();
            let read = said.rewind().and_then(|()| said.read_to_string(&mut text));
            read.map_err(Error::system("cannot read what pasta says"))?;
            return Err(Error::Missing(format!(
                "{} {}: {}",
                program.display(),
                ended.map_or("does not start".to_owned(), |it| format!("ended ({it})")),
                last_line(&text)
            )));
        }
        // Nothing tells of a new route but a socket in that namespace.
        sleep(INTERVAL);
    }
    Ok(process)
}

/// Last line of pasta's error output, without complaints about the missing system log.
fn last_line(text: &str) -> &str {
    let mut lines = text.lines().rev();
    lines
        .find(|line| !line.is_empty() && !line.starts_with("Failed to send"))
        .unwrap_or("it says nothing")
}

/// Tables of the far end's routes.
struct Routes {
    v4: File,
    v6: Option<File>,
}

impl Routes {
    fn routes_of(ends: &Endpoints) -> Result<Self, Error> {
        let open = |path: &str| -> Result<OwnedFd, Fault> {
            let file = File::open(path).map(OwnedFd::from);
            file.map_err(|why| ("open a file of /proc/self", why))
        };
        let [v4] = ends.open_at(&ends.far, || Ok([open("/proc/self/net/route")?]))?;
        let v6 = match ends.has_v6 {
            true => {
                let [v6] = ends.open_at(&ends.far, || Ok([open("/proc/self/net/ipv6_route")?]))?;
                Some(v6.into())
            }
            false => None,
        };
        Ok(Self { v4: v4.into(), v6 })
    }

    /// Whether there is a default route of each family through pasta's device.
    fn lead_outside(&mut self, families: Families) -> Result<bool, Error> {
        let has = |file: &mut File, is: fn(&str) -> bool| -> Result<bool, Error> {
            let mut text = String::new();
            let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
            read.map_err(Error::system("cannot read the far end's routes"))?;
            Ok(text.lines().any(is))
        };
        let v4 = |line: &str| line.starts_with(&format!("{DEVICE}\t00000000\t"));
        let v6 = |line: &str| line.starts_with(&format!("{:032} 00 ", 0)) && line.ends_with(DEVICE);
        Ok((!families.v4 || has(&mut self.v4, v4)?)
            && match &mut self.v6 {
                Some(file) if families.v6 => has(file, v6)?,
                _ => true,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_complaint_is_the_last_line_that_is_one() {
        let text = "Failed to send 46 bytes to syslog\nNo external routable interface for IPv4\n\
                    Failed to send 36 bytes to syslog\nExternal interface not usable\n";
        assert_eq!(last_line(text), "External interface not usable");
        assert_eq!(last_line(""), "it says nothing");
    }
}
