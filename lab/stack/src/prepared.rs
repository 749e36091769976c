//! Wires that root prepares once for a user, who then needs no privilege.
//!
//! Each is a TAP device that this user may attach to, with addresses and rules for translation. It
//! lasts until it is removed or the machine restarts. The kernel runs as the user, and has the
//! user's rights on this machine.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::ifaddrs::getifaddrs;
use nix::libc;
use nix::unistd::{User, geteuid};
use thalweg_link::outside::machine;
use thalweg_link::tun;
use thalweg_process::capabilities::may_administrate;
use thalweg_process::signals::Signals;

use crate::control::WireAddresses;
use crate::error::Error;
use crate::wire::Number;
use crate::{check_tools, names, nat, run_ip, system_error};

/// Number of wires per user.
const EACH: usize = 4;
/// Directory of the lock files of wires. Each belongs to the wire's user, and no other user can open
/// it. A wire without one is incomplete: it is made last and removed first.
const LOCKS: &str = "/run/thalweg-stack";
/// The system's directory of network devices.
const DEVICES: &str = "/sys/class/net";

/// Prepares wires for a user, by name or number, and returns the user's number of wires.
///
/// # Errors
/// There is no such user, the right is missing, or the machine lacks something. Nothing was
/// prepared then.
pub fn prepare_wires(user: &str) -> Result<usize, Error> {
    let uid = may_prepare(user)?;
    if uid == 0 {
        return Err(Error::Options(
            "--user: expected a user other than root, who needs nothing prepared".to_owned(),
        ));
    }
    check_tools()?;
    let _lock = lock_changes()?;
    // A key or a signal must not interrupt it half-way.
    let _signals = Signals::catch(&[])?;
    // What has lost its lock file, or was left incomplete, is made anew.
    for number in wires_of(uid)? {
        if !Lock::lock_path(number)?.exists() {
            if has_reader(number)? {
                return Err(in_use(user, number));
            }
            take_away(number)?;
        }
    }
    let mut made = Vec::new();
    while wires_of(uid)?.len() < EACH {
        match prepare_wire(uid) {
            Ok(number) => made.push(number),
            Err(error) => {
                for number in made {
                    take_away(number)?;
                }
                return Err(error);
            }
        }
    }
    Ok(EACH)
}

/// Removes the wires of a user.
///
/// # Errors
/// There is no such user, no wire, or one is in use: nothing was removed then. Or a removal failed;
/// the next call resumes it.
pub fn remove_wires(user: &str) -> Result<(), Error> {
    let uid = may_prepare(user)?;
    let _lock = lock_changes()?;
    let numbers = wires_of(uid)?;
    if numbers.is_empty() {
        return Err(Error::Options(format!(
            "nothing is prepared for the user {user}"
        )));
    }
    let _signals = Signals::catch(&[])?;
    let mut held = Vec::new();
    for number in numbers {
        let lock = match Lock::take_lock(number)? {
            Attempt::Taken(lock) => Some(lock),
            Attempt::Absent if !has_reader(number)? => None,
            Attempt::Absent | Attempt::Held => return Err(in_use(user, number)),
        };
        held.push((number, lock));
    }
    held.iter().try_for_each(|(number, _)| take_away(*number))
}

/// The users, by number, for whom wires are prepared.
///
/// # Errors
/// The devices cannot be listed.
pub fn prepared_users() -> Result<BTreeSet<u32>, Error> {
    Ok(owned_wires()?.into_iter().map(|(owner, _)| owner).collect())
}

fn in_use(user: &str, number: Number) -> Error {
    Error::Options(format!(
        "a stack of the user {user} runs on {}: end it first",
        number.device_name()
    ))
}

/// The user's number, if the caller may prepare wires.
fn may_prepare(user: &str) -> Result<u32, Error> {
    let known = User::from_name(user).map_err(system_error("cannot read the list of users"))?;
    let number = known.map(|it| it.uid.as_raw()).or(user.parse().ok());
    let uid = number.ok_or_else(|| {
        Error::Options(format!(
            "--user: this machine has no user {user:?}: expected a name (getent passwd) or number"
        ))
    })?;
    if !may_administrate() {
        return Err(Error::Missing(
            "only root prepares wires (CAP_NET_ADMIN, CAP_SYS_ADMIN): sudo thalweg-lab stack …"
                .to_owned(),
        ));
    }
    Ok(uid)
}

/// Waits until no other process makes or removes wires: one that is being made looks like one that
/// was left incomplete. Users cannot open the file, and so hold nobody up.
fn lock_changes() -> Result<Flock<File>, Error> {
    let path = Path::new(LOCKS).join("changes");
    let opened = fs::create_dir_all(LOCKS).and_then(|()| {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        options.mode(0o600).open(&path)
    });
    let file = opened.map_err(Error::io("cannot open", &path))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, errno)| Error::io("cannot lock", path)(errno.into()))
}

/// Prepares a wire.
fn prepare_wire(uid: u32) -> Result<Number, Error> {
    let (number, device) = Number::claim_number(|device| {
        run_ip(&[format!("tuntap add dev {device} mode tap user {uid}")])
    })?;
    let name = number.device_name();
    let mut ends = number.free_addresses(&machine::route_destinations()?)?;
    device.bring_up(&mut ends)?;
    // The side inside belongs to others, and must not give routes to the machine.
    device.write_setting("ipv4", "accept_redirects", "0")?;
    if ends.v6.is_some() {
        device.write_setting("ipv6", "accept_redirects", "0")?;
    }
    let resolver = names::for_a_wire();
    if resolver.is_some() {
        device.write_setting("ipv4", "route_localnet", "1")?;
    }
    nat::prepare_nat(&name, &ends, resolver)?;
    // Only the first error matters.
    Lock::create_lock(number, uid).inspect_err(|_| drop(nat::remove_nat(&name)))?;
    device.keep_device();
    Ok(number)
}

/// Removes a wire. The device is last: the next call finds by it what an interrupted one has left.
fn take_away(number: Number) -> Result<(), Error> {
    let name = number.device_name();
    let path = Lock::lock_path(number)?;
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(Error::io("cannot remove", path)(error));
        }
        _ => {}
    }
    // No packet passes without translation.
    run_ip(&[format!("link set dev {name} down")])?;
    nat::remove_nat(&name)?;
    run_ip(&[format!("link delete dev {name}")])
}

/// The outcome of an attempt to take a lock.
enum Attempt {
    /// This process has it.
    Taken(Lock),
    /// Another process has it.
    Held,
    /// There is no lock file.
    Absent,
}

/// The process with this lock uses the wire. The system releases it when the process ends.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "held")] Flock<File>);

impl Lock {
    /// The lock file. Numbers belong to a network namespace.
    fn lock_path(number: Number) -> Result<PathBuf, Error> {
        let here = "/proc/thread-self/ns/net";
        let namespace = fs::metadata(here).map_err(Error::io("cannot read", here))?;
        Ok(Path::new(LOCKS).join(format!("{}-{}", namespace.ino(), number.device_name())))
    }

    /// Creates the file for a user.
    fn create_lock(number: Number, uid: u32) -> Result<(), Error> {
        let path = Self::lock_path(number)?;
        let made = fs::create_dir_all(LOCKS).and_then(|()| {
            // Whatever the umask: users must enter the directory, and only root may write there.
            fs::set_permissions(LOCKS, fs::Permissions::from_mode(0o755))?;
            // A file of a namespace that is gone.
            let _ = fs::remove_file(&path);
            let file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)?;
            fchown(&file, Some(uid), None)
        });
        made.map_err(Error::io("cannot create", path))
    }

    fn take_lock(number: Number) -> Result<Attempt, Error> {
        let path = Self::lock_path(number)?;
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Attempt::Absent),
            file => file.map_err(Error::io("cannot open", &path))?,
        };
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Attempt::Taken(Self(lock))),
            Err((_, Errno::EWOULDBLOCK)) => Ok(Attempt::Held),
            Err((_, errno)) => Err(Error::io("cannot lock", path)(errno.into())),
        }
    }
}

/// The numbers of a user's wires.
fn wires_of(uid: u32) -> Result<Vec<Number>, Error> {
    let mut numbers = owned_wires()?;
    numbers.retain(|(owner, _)| *owner == uid);
    let mut numbers: Vec<Number> = numbers.into_iter().map(|(_, number)| number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// All prepared wires, each after its user's number.
fn owned_wires() -> Result<Vec<(u32, Number)>, Error> {
    let entries = fs::read_dir(DEVICES).map_err(Error::io("cannot read", DEVICES))?;
    let all = entries
        .flatten()
        .filter_map(|entry| {
            let number = Number::from_device(entry.file_name().to_str()?)?;
            // Only TUN and TAP devices have this file.
            let owner = fs::read_to_string(entry.path().join("owner")).ok()?;
            Some((owner.trim().parse::<u32>().ok()?, number))
        })
        .collect();
    Ok(all)
}

/// Takes a free wire of this user, with its addresses.
pub(crate) fn take_wire() -> Result<(Number, Lock, WireAddresses), Error> {
    let numbers = wires_of(geteuid().as_raw())?;
    if numbers.is_empty() {
        return Err(Error::Missing(
            "this user may not make a wire to the network (CAP_NET_ADMIN, CAP_SYS_ADMIN): run it \
             as root (sudo thalweg-lab stack …), or have root prepare wires for this user once (sudo \
             thalweg-lab stack setup --user NAME)"
                .to_owned(),
        ));
    }
    let (mut busy, mut incomplete) = (None, None);
    for &number in &numbers {
        let lock = match Lock::take_lock(number)? {
            Attempt::Taken(lock) => lock,
            Attempt::Held => continue,
            Attempt::Absent => {
                incomplete = Some(number.device_name());
                continue;
            }
        };
        if !has_reader(number)? {
            return Ok((number, lock, wire_addresses(number)?));
        }
        busy = Some(number.device_name());
    }
    if let Some(name) = incomplete {
        return Err(Error::Missing(format!(
            "{name} has no lock file in {LOCKS}, and no other device is free: have root prepare it \
             again (sudo thalweg-lab stack setup --user NAME)"
        )));
    }
    Err(Error::Options(busy.map_or_else(
        || {
            format!(
                "the {} stacks that are prepared for this user run already: end one",
                numbers.len()
            )
        },
        |name| format!("another program has the TAP device {name}, and no other is free: end it"),
    )))
}

/// Whether another program has a wire's TAP device, or a process of a kernel that is still ending.
/// Found by attaching to it: a later refusal would show as a silent kernel.
fn has_reader(number: Number) -> Result<bool, Error> {
    let name = number.device_name();
    match tun::attach_as(&name, libc::IFF_TAP) {
        Ok(_) => Ok(false),
        Err((_, why)) if why.raw_os_error() == Some(libc::EBUSY) => Ok(true),
        Err((what, why)) => {
            let remedy = tun::open_hint(why.raw_os_error().unwrap_or(libc::EIO));
            Err(Error::Missing(format!(
                "cannot {what} ({name}): {why}; {remedy}"
            )))
        }
    }
}

/// The addresses of a prepared wire.
fn wire_addresses(number: Number) -> Result<WireAddresses, Error> {
    let name = number.device_name();
    let all = getifaddrs().map_err(system_error("cannot read the machine's addresses"))?;
    let addresses: Vec<IpAddr> = all
        .filter(|it| it.interface_name == name)
        .filter_map(|it| {
            let address = it.address?;
            let v4 = address.as_sockaddr_in().map(|it| it.ip().into());
            v4.or_else(|| address.as_sockaddr_in6().map(|it| it.ip().into()))
        })
        .collect();
    let machine = addresses.iter().find_map(|it| match it {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    });
    let machine = machine.ok_or_else(|| {
        Error::Missing(format!(
            "{name} has no address: have root prepare it again (sudo thalweg-lab stack remove --user \
             NAME, and setup)"
        ))
    })?;
    let mut ends = number.ends_from(machine.to_bits() - 1);
    // The machine forwards DNS questions from there.
    ends.resolver = ends.machine;
    ends.v6 = ends
        .v6
        .filter(|v6| addresses.contains(&v6.machine.into()))
        .map(|mut v6| {
            v6.is_gateway = machine::forwards_v6(&name);
            v6
        });
    Ok(ends)
}
