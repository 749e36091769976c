//! Congestion controls in BPF (`struct_ops`): loaded, replaced while in use, listed, removed.
//!
//! A loaded one needs no process. Each has a directory with its name below `cc` in the agent's
//! directory of the BPF file system:
//!
//! ```text
//! cc/NAME/link       keeps it registered with TCP; gone while it drains
//! cc/NAME/struct_ops its callbacks
//! cc/NAME/map_MAP    its other maps
//! cc/NAME/wanted     there until it is unloaded: a link that is gone before is put back
//! cc/NAME-new        the same for a version being loaded: not in force yet, or not in its place
//! ```
//!
//! A version is pinned whole as `NAME-new` and moves into place by one rename. The next call
//! finishes or undoes an interrupted one: `NAME-new` is in force if its link keeps this very
//! version registered. The kernel keeps a version as long as a socket uses it, whatever is pinned.

mod flows;
mod list;
mod program;
mod rate;
mod support;
mod trace;

use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libbpf_rs::query::{LinkInfo, LinkTypeInfo};
use libbpf_rs::{Link, MapCore, MapMut, MapType, Object};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::error::{Context, Error, Result, bail};
use crate::pins::{self, Locked, RecoverablePins, directory_entries, remove_file};
use crate::{kernel_objects, links, privileges, system};

pub use crate::error::Unavailable;
pub use flows::{Usage, count_usage};
pub use list::{
    Control, State, find_problems, list_controls, loaded_controls, needing_ecn, put_back,
    scan_controls,
};
pub use program::{Fill, Program};
pub use rate::{LoadedModel, ModelReference, is_model, with_model};
pub use support::{Support, check_kernel_support};
pub use trace::{Decision, stream_decisions};

/// The directory, below the agent's.
pub(crate) const DIRECTORY: &str = "cc";
const LINK: &str = "link";
pub(crate) const OPS: &str = "struct_ops";
const MAP: &str = "map_";
/// Symbolic link, to nothing, that marks what was not unloaded.
const WANTED: &str = "wanted";
/// Suffix of the directory of a version being loaded; no name has a '-'.
const NEW: &str = "-new";
/// Longest name (net/tcp.h, TCP_CA_NAME_MAX less the final 0).
const NAME_MAX: usize = 15;
/// Longest time until the kernel has removed a name, which it does from a work queue.
const UNREGISTER_LIMIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Interval between two counts of the remaining flows.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Congestion controls that come with Thalweg, with descriptions.
const BUILT_IN: [(&str, thalweg_bpf_objects::Packed, &str); 2] = [
    ("htcp", thalweg_bpf_objects::HTCP, "H-TCP"),
    ("dctcp", thalweg_bpf_objects::DCTCP, "DCTCP, RFC 8257"),
];

/// The program that a word of the command line names: one that comes with Thalweg, or an object
/// file. For models there is [`with_model`].
///
/// # Errors
/// There is neither, or the file is not a BPF object.
pub fn named_or_file(word: &Path) -> Result<Program<'static>> {
    let built_in = BUILT_IN.iter().find(|(name, ..)| word == Path::new(name));
    if let Some((name, packed, _)) = built_in {
        return Ok(Program::built_in(name, packed.unpack()));
    }
    if word == Path::new(rate::NAME) {
        bail!(
            Invalid,
            "{} runs a model: give the model's file (NAME.safetensors); --name gives it another \
             name",
            rate::NAME
        );
    }
    if !word.exists() && word.components().count() == 1 && word.extension().is_none() {
        let names: Vec<&str> = BUILT_IN.iter().map(|(name, ..)| *name).collect();
        bail!(
            NotFound,
            "there is neither a file {} nor does Thalweg bring a congestion control of that name \
             (it brings {})",
            word.display(),
            names.join(", ")
        );
    }
    Program::from_file(word)
}

/// Loads a congestion control and registers it with TCP, under a name of its own or another.
/// Returns the name.
///
/// # Errors
/// A fault of the program, the name or the kernel. Nothing is left behind.
pub fn load(pin: &Path, program: &Program<'_>, name: Option<&str>) -> Result<String> {
    let name = match name {
        Some(name) => name.to_owned(),
        None => program.own_name()?,
    };
    check_name(&name)?;
    privileges::check_privileges()?;
    let support = check_kernel_support()?;
    // The kernel's own module is preferred, so it is loaded first.
    system::load_modules(std::slice::from_ref(&name));
    system::ensure_bpffs(pin)?;
    let all = ControlPins::create(pin)?;
    let loaded = all.load(program, &name, &support);
    all.0.remove_if_empty(pin);
    loaded.map(|()| name)
}

/// A congestion control that is registered as long as this value lives.
pub struct Registered {
    /// Name in the kernel.
    pub name: String,
    _link: Link,
    // Dropped last.
    _object: Object,
}

/// The link and the object are only kept.
// SAFETY: nothing is ever called on them.
unsafe impl Send for Registered {}
// SAFETY: as for Send.
unsafe impl Sync for Registered {}

/// Registers a congestion control for as long as the value lives, without pins. Where its name is
/// taken, it gets a number.
///
/// # Errors
/// A fault of the program or the kernel, or nine names are taken.
pub fn register(program: &Program<'_>) -> Result<Registered> {
    let support = check_kernel_support()?;
    let own = program.own_name()?;
    let taken = system::available_ccs()?;
    let numbered = (2..10).map(|number| format!("{own}{number}"));
    let mut names = std::iter::once(own.clone()).chain(numbered);
    let name = names.find(|it| !taken.contains(it));
    let name = name.with_context(|| format!("the names {own} to {own}9 are taken"))?;
    let mut object = program.load_object(&name, &support)?;
    let link = struct_ops_map(&mut object)?
        .attach_struct_ops()
        .with_context(|| format!("registering {name} with TCP"))?;
    Ok(Registered {
        name,
        _link: link,
        _object: object,
    })
}

/// Replaces a loaded congestion control. Open connections keep the old version until they end; new
/// ones get the new version. At no moment is there none.
///
/// # Errors
/// A fault of the program or the kernel. Then the old version stays.
pub fn swap(pin: &Path, name: &str, program: &Program<'_>) -> Result<()> {
    privileges::check_privileges()?;
    let support = check_kernel_support()?;
    let all = ControlPins::open_control(pin, name)?;
    let swapped = all.swap(program, name, &support);
    all.0.remove_if_empty(pin);
    swapped
}

/// Removes a loaded congestion control.
///
/// # Errors
/// There is none of that name, or sockets use it.
pub fn unload(pin: &Path, name: &str) -> Result<()> {
    privileges::check_privileges()?;
    let all = ControlPins::open_control(pin, name)?;
    let used = used_by(name)?;
    check_defaults(name, used)?;
    if used.has_sockets() {
        bail!(
            Busy,
            "{} {}; `thalweg cc unload {name} --drain` gives it to no more connections and waits \
             for the end of these",
            describe_sockets(used),
            if used.flows + used.listeners == 1 {
                "uses it"
            } else {
                "use it"
            },
        );
    }
    all.unregister_name(name)?;
    all.remove_pins(name)?;
    all.0.remove_if_empty(pin);
    Ok(())
}

/// Withdraws a loaded congestion control from new connections at once, and removes it with the last
/// socket that uses it. `progress` is called whenever their number changes. Another call can resume
/// an interrupted wait.
///
/// # Errors
/// There is none of that name, or it is a default: then it would never end.
pub fn drain(pin: &Path, name: &str, mut progress: impl FnMut(Usage)) -> Result<()> {
    privileges::check_privileges()?;
    let all = ControlPins::open_control(pin, name)?;
    check_defaults(name, used_by(name)?)?;
    all.unregister_name(name)?;
    drop(all);
    let link = pin.join(DIRECTORY).join(name).join(LINK);
    let mut before = None;
    loop {
        // Others may have loaded the name anew once no socket had it: that one stays.
        if link.exists() {
            return Ok(());
        }
        let used = used_by(name)?;
        if !used.has_sockets() {
            break;
        }
        if before.replace(used) != Some(used) {
            progress(used);
        }
        std::thread::sleep(DRAIN_POLL_INTERVAL);
    }
    // Another process may have finished it meanwhile, or have loaded the name anew.
    if let Some(all) = ControlPins::open(pin)? {
        if !link.exists() {
            all.remove_pins(name)?;
        }
        all.0.remove_if_empty(pin);
    }
    Ok(())
}

/// Numbers of connections and listeners in words.
pub fn describe_sockets(used: Usage) -> String {
    let counts = [(used.flows, "connection"), (used.listeners, "listener")];
    let counted = counts.map(|(number, what)| match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    });
    match (used.flows, used.listeners) {
        (_, 0) => counted[0].clone(),
        (0, _) => counted[1].clone(),
        _ => counted.join(" and "),
    }
}

fn used_by(name: &str) -> Result<Usage> {
    Ok(count_usage()?.get(name).copied().unwrap_or_default())
}

fn check_defaults(name: &str, used: Usage) -> Result<()> {
    if used.default_in == 0 {
        return Ok(());
    }
    bail!(
        Busy,
        "{name} is the default of {} network namespace{}; give each another first, with: sysctl \
         net.ipv4.tcp_congestion_control=cubic",
        used.default_in,
        if used.default_in == 1 { "" } else { "s" }
    )
}

/// Why a draining name can neither be loaded nor swapped, and the remedy.
fn draining_error(name: &str, used: Usage) -> Error {
    if !used.has_sockets() {
        return Error::NotFound(format!(
            "{name} was unloaded, so there is nothing to replace; `thalweg cc load` loads it anew"
        ));
    }
    Error::Busy(format!(
        "{name} is draining: {} had it before it was unloaded, and the name is taken until they \
         end; wait for that with `thalweg cc unload {name} --drain` and load it then, or load it \
         now under another name with `thalweg cc load --name`",
        describe_sockets(used)
    ))
}

fn check_name(name: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(plain) {
        bail!(
            Invalid,
            "{name:?} cannot be the name of a congestion control: expected 1 to {NAME_MAX} \
             of a-z, 0-9 and _; choose one with --name"
        );
    }
    Ok(())
}

/// The directory of all congestion controls, after recovery.
struct ControlPins(Locked);

impl RecoverablePins for ControlPins {
    const DIRECTORY: &str = DIRECTORY;
    const OF: fn(Locked) -> Self = Self;

    fn recover(&self) -> Result<()> {
        for file in directory_entries(&self.0.directory)? {
            let Some(name) = file.strip_suffix(NEW) else {
                continue;
            };
            let new = self.0.directory.join(&file);
            let registered = Link::open(new.join(LINK)).ok();
            let registered = registered.as_ref().map(map_of).transpose()?.flatten();
            let pinned = kernel_objects::pinned_map(&new.join(OPS));
            if registered.is_some() && registered == pinned {
                self.put_in_place(name)?;
            } else {
                remove_version_pins(&new)?;
            }
        }
        Ok(())
    }
}

impl ControlPins {
    /// The pins of a loaded or draining name.
    fn open_control(pin: &Path, name: &str) -> Result<Self> {
        let missing = || {
            if system::available_ccs().is_ok_and(|names| names.iter().any(|have| have == name)) {
                return Error::NotFound(format!(
                    "{name} is the system's own congestion control, or of somebody else; Thalweg \
                     has not loaded it"
                ));
            }
            Error::NotFound(format!(
                "no congestion control {name:?} is loaded; `thalweg cc list` shows what is"
            ))
        };
        if check_name(name).is_err() {
            return Err(missing());
        }
        let all = Self::open(pin)?;
        all.filter(|all| all.0.entry_path(name).exists())
            .ok_or_else(missing)
    }

    fn new_of(&self, name: &str) -> PathBuf {
        self.0.entry_path(&format!("{name}{NEW}"))
    }

    fn load(&self, program: &Program<'_>, name: &str, support: &Support) -> Result<()> {
        let own = self.0.entry_path(name);
        if own.exists() && !own.join(LINK).exists() {
            let used = used_by(name)?;
            if used.has_sockets() {
                return Err(draining_error(name, used));
            }
            remove_version_pins(&own)?;
        }
        if own.exists() {
            bail!(
                Busy,
                "the name {name} is taken: it is loaded already; `thalweg cc swap {name} …` \
                 replaces it, --name loads this one beside it"
            );
        }
        if system::available_ccs()?.iter().any(|have| have == name) {
            bail!(
                Busy,
                "the name {name} is taken: the system has such a congestion control; --name loads \
                 this one beside it"
            );
        }
        let new = self.new_of(name);
        // Only the first error matters.
        load_into(&new, program, name, support).inspect_err(|_| drop(remove_version_pins(&new)))?;
        self.put_in_place(name)
    }

    fn swap(&self, program: &Program<'_>, name: &str, support: &Support) -> Result<()> {
        let path = self.0.entry_path(name).join(LINK);
        if !path.exists() {
            return Err(draining_error(name, used_by(name)?));
        }
        let link = Link::open(&path).with_context(|| format!("opening {}", path.display()))?;
        let new = self.new_of(name);
        // Only the first error matters.
        swap_into(&new, &link, program, name, support)
            .inspect_err(|_| drop(remove_version_pins(&new)))?;
        self.put_in_place(name)
    }

    /// Moves a new version, which is in force, to the place of the old one, if there is one.
    fn put_in_place(&self, name: &str) -> Result<()> {
        let (own, new) = (self.0.entry_path(name), self.new_of(name));
        let flags = if own.exists() {
            RenameFlags::RENAME_EXCHANGE
        } else {
            RenameFlags::RENAME_NOREPLACE
        };
        fail_point!("cc::in_force");
        renameat2(AT_FDCWD, &new, AT_FDCWD, &own, flags)
            .with_context(|| format!("renaming {} to {}", new.display(), own.display()))?;
        fail_point!("cc::in_place");
        remove_version_pins(&new)
    }

    /// Unregisters the name from TCP, so that no new connection gets it.
    fn unregister_name(&self, name: &str) -> Result<()> {
        let own = self.0.entry_path(name);
        let path = own.join(LINK);
        // Where pins cannot be removed, as from a read-only file system, nothing stays registered.
        let link = links::open_link(&path).map_err(|error| {
            let _ = detach_by_callbacks(&own);
            with_outcome(error, name)
        })?;
        let Some(link) = link else {
            return Ok(());
        };
        remove_file(&own.join(WANTED)).map_err(|error| {
            let _ = link.detach();
            with_outcome(error, name)
        })?;
        fail_point!("cc::unwanted");
        remove_file(&path)?;
        fail_point!("cc::unpinned");
        // Kernels before 6.11 cannot detach; they do so once the link is closed everywhere.
        let _ = link.detach();
        drop(link);
        let deadline = Instant::now() + UNREGISTER_LIMIT;
        while system::available_ccs()?.iter().any(|have| have == name) {
            if Instant::now() > deadline {
                bail!(
                    Busy,
                    "{name} is still registered: another process holds its link, or has \
                     registered one of the same name"
                );
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn remove_pins(&self, name: &str) -> Result<()> {
        remove_version_pins(&self.0.entry_path(name))
    }
}

/// Detaches the link of pinned callbacks. Where the whole file system is read-only, maps alone can be
/// opened.
fn detach_by_callbacks(own: &Path) -> Result<usize> {
    let id = kernel_objects::pinned_map(&own.join(OPS));
    let id = id.context("its callbacks cannot be opened")?;
    kernel_objects::detach_found(|link| registers_map(link, id))
}

/// Whether a link keeps the callbacks of a map registered.
fn registers_map(link: &LinkInfo, map: u32) -> bool {
    matches!(&link.info, LinkTypeInfo::StructOps(it) if it.map_id == map)
}

/// Adds to a fault of pins whether TCP still has the name.
fn with_outcome(error: Error, name: &str) -> Error {
    // Kernels before 6.11 detach no link of callbacks.
    let is_gone = system::available_ccs().is_ok_and(|names| names.iter().all(|have| have != name));
    error.context(match is_gone {
        true => {
            "it is no longer registered, but its pins stay, and an agent that runs registers it \
             again: mend this, and unload it again"
        }
        false => "it is still registered: mend this, and unload it again",
    })
}

/// The map of callbacks.
fn struct_ops_map(object: &mut Object) -> Result<MapMut<'_>> {
    object
        .maps_mut()
        .find(|map| map.map_type() == MapType::StructOps)
        .context("the BPF object has no struct_ops map")
}

fn load_into(new: &Path, program: &Program<'_>, name: &str, support: &Support) -> Result<()> {
    let mut object = program.load_object(name, support)?;
    pin_maps(&mut object, new)?;
    fail_point!("cc::prepared");
    let mut link = struct_ops_map(&mut object)?
        .attach_struct_ops()
        .with_context(|| format!("registering {name} with TCP"))?;
    fail_point!("cc::registered");
    let path = new.join(LINK);
    link.pin(&path)
        .with_context(|| format!("pinning {}", path.display()))
}

fn swap_into(
    new: &Path,
    link: &Link,
    program: &Program<'_>,
    name: &str,
    support: &Support,
) -> Result<()> {
    let mut object = program.load_object(name, support)?;
    pin_maps(&mut object, new)?;
    // Already pinned, which libbpf does only once.
    links::pin_object(link.as_fd(), &new.join(LINK))?;
    fail_point!("cc::linked");
    let mut ops = struct_ops_map(&mut object)?;
    fill_struct_ops(&mut ops, name)?;
    links::update_link(link.as_fd(), ops.as_fd()).with_context(|| format!("replacing {name}"))
}

/// Fills the map of callbacks. libbpf does so only while attaching, and can update only links that
/// it attached itself. So it attaches while this process may open no file. The link fails for want
/// of a descriptor, before TCP would refuse a taken name and log it.
fn fill_struct_ops(ops: &mut MapMut<'_>, name: &str) -> Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, 0, hard)?;
    let attached = ops.attach_struct_ops();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
    // Other failures show when the link is updated.
    if attached.is_ok() {
        bail!(
            Damaged,
            "{name} vanished from the kernel while it was being replaced"
        );
    }
    Ok(())
}

fn pin_maps(object: &mut Object, directory: &Path) -> Result<()> {
    pins::create_directory(directory, false)?;
    let mark = directory.join(WANTED);
    symlink("nothing", &mark).with_context(|| format!("making {}", mark.display()))?;
    for map in object.maps_mut() {
        let file = if map.map_type() == MapType::StructOps {
            OPS.to_owned()
        } else {
            format!("{MAP}{}", map.name().to_string_lossy().replace('.', "_"))
        };
        links::pin_object(map.as_fd(), &directory.join(file))?;
        fail_point!("cc::map");
    }
    Ok(())
}

/// The id of the callbacks' map that a link keeps registered.
fn map_of(link: &Link) -> Result<Option<u32>> {
    Ok(match link.info()?.info {
        LinkTypeInfo::StructOps(info) => Some(info.map_id),
        _ => None,
    })
}

/// Names that are loaded or draining, in order.
fn control_names(directory: &Path) -> Result<Vec<String>> {
    pins::entries_without(NEW, directory)
}

/// Removes the pins of a version, its mark first.
fn remove_version_pins(own: &Path) -> Result<()> {
    remove_file(&own.join(WANTED))?;
    pins::remove_directory(own, LINK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_the_kernel_and_its_file_system_take() {
        for name in ["", "a-b", "a.b", "../x", "abcdefghijklmnop", "ä"] {
            assert!(check_name(name).is_err(), "{name}");
        }
        for name in ["a", "thalweg_rl", "abcdefghijklmno"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn sockets_are_counted_in_words() {
        let used = |flows, listeners| Usage {
            flows,
            listeners,
            default_in: 0,
        };
        assert_eq!(describe_sockets(used(1, 0)), "1 connection");
        assert_eq!(describe_sockets(used(2, 1)), "2 connections and 1 listener");
        assert_eq!(describe_sockets(used(0, 3)), "3 listeners");
    }

    #[test]
    fn the_built_in_are_named_as_they_call_themselves() {
        for (name, packed, _) in BUILT_IN {
            let program = Program::built_in(name, packed.unpack());
            assert_eq!(program.own_name().ok().as_deref(), Some(name));
        }
    }
}
