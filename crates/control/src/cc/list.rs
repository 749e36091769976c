//! All congestion controls: the system's, loaded ones, and those that can be loaded.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::{
    BUILT_IN, ControlPins, DIRECTORY, LINK, LoadedModel, MAP, NEW, OPS, Support, Usage, WANTED,
    check_kernel_support, control_names, count_usage, map_of, rate, registers_map,
};
use crate::attempts::{Attempts, confirm_faults};
use crate::error::{Context, Result, bail};
use crate::pins::{RecoverablePins, directory_entries, remove_file};
use crate::{kernel_objects, links, privileges, system};

/// `flags` of a congestion control: only for flows with ECN (net/tcp.h).
const TCP_CONG_NEEDS_ECN: u32 = 2;

/// State of a congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Not Thalweg's: built in, a module, or loaded by another program.
    System,
    /// Loaded by Thalweg.
    Loaded,
    /// Loaded by Thalweg and withdrawn: connections that have it keep it, new ones never get it.
    Draining,
    /// Loaded by Thalweg, and no longer registered, though it was not unloaded: new connections cannot
    /// get it.
    Lost,
    /// Comes with Thalweg and can be loaded.
    Loadable,
    /// Comes with Thalweg, and this kernel cannot run it.
    Unavailable,
}

/// One congestion control.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Control {
    /// Name of the congestion control.
    pub name: String,
    /// State in the kernel.
    pub state: State,
    /// Sockets and routes that use it; none if unknown.
    #[serde(rename = "use")]
    pub used: Option<Usage>,
    /// Only for flows with ECN; none if unknown.
    pub needs_ecn: Option<bool>,
    /// Name of the table of callbacks in the object that was loaded.
    pub program: Option<String>,
    /// Names of its maps.
    pub maps: Vec<String>,
    /// Loaded model; none if it has none.
    pub model: Option<LoadedModel>,
    /// Why it is unavailable, or its model cannot be told; for a loadable one, its description.
    pub note: Option<String>,
}

/// All congestion controls, by name: the system's, loaded ones, and those that can be loaded.
///
/// # Errors
/// [`crate::Error`] if pins cannot be read.
pub fn list_controls(pin: &Path) -> Result<Vec<Control>> {
    privileges::check_privileges()?;
    // Recovers from an interrupted call, and locks out other changes.
    let _all = ControlPins::open(pin)?;
    scan_controls(pin)
}

/// Names and states of those that Thalweg has loaded.
///
/// # Errors
/// [`crate::Error`] if pins cannot be read.
pub fn loaded_controls(pin: &Path) -> Result<Vec<(String, State)>> {
    let directory = pin.join(DIRECTORY);
    let names = control_names(&directory)?.into_iter();
    let with_state = names.map(|name| {
        let state = read_state(&directory.join(&name));
        (name, state)
    });
    Ok(with_state.collect())
}

fn read_state(own: &Path) -> State {
    match registered_map_id(own) {
        Some(_) => State::Loaded,
        None if is_lost(own) => State::Lost,
        None => State::Draining,
    }
}

/// The callbacks that the pinned link keeps registered with TCP, by the number of their map.
fn registered_map_id(own: &Path) -> Option<u32> {
    match links::open_link(&own.join(LINK)) {
        // A link that was detached has number 0.
        Ok(link) => map_of(&link?).ok()?.filter(|id| *id != 0),
        // Where the whole file system is read-only, maps alone can be opened.
        Err(_) => pinned_map_id(own).filter(|id| {
            let mut links = kernel_objects::all_links().into_iter();
            links.any(|link| registers_map(&link, *id))
        }),
    }
}

/// Faults: what is not as it was loaded, a sentence each.
///
/// # Errors
/// [`crate::Error`] if pins cannot be read.
pub fn find_problems(pin: &Path) -> Result<Vec<String>> {
    confirm_faults(|| problems_in(&pin.join(DIRECTORY)))
}

fn problems_in(directory: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for name in control_names(directory)? {
        let own = directory.join(&name);
        if !own.join(LINK).exists() {
            if is_lost(&own) {
                faults.push(format!(
                    "congestion control {name} is no longer registered: its pin {} is gone",
                    own.join(LINK).display()
                ));
            }
            continue;
        }
        let Some(id) = registered_map_id(&own) else {
            faults.push(format!(
                "congestion control {name} is no longer registered: its link was detached"
            ));
            continue;
        };
        // Another version is pinned while a swap is under way.
        if pinned_map_id(&own) != Some(id) && !is_locked(directory) {
            let path = own.join(OPS);
            let what = match directory.join(format!("{name}{NEW}")).exists() {
                true => "has the version before a swap that was interrupted",
                false if path.exists() => "is something else",
                false => "is gone",
            };
            faults.push(format!(
                "congestion control {name}: its pin {} {what}",
                path.display()
            ));
        }
    }
    Ok(faults)
}

/// Whether a congestion control is no longer registered and was not unloaded.
fn is_lost(own: &Path) -> bool {
    let is_wanted = || fs::symlink_metadata(own.join(WANTED)).is_ok();
    registered_map_id(own).is_none() && (own.join(LINK).exists() || is_wanted())
}

/// Whether a process changes what is below a directory at this moment.
fn is_locked(directory: &Path) -> bool {
    File::open(directory).is_ok_and(|file| Flock::lock(file, FlockArg::LockSharedNonblock).is_err())
}

/// The number of the pinned map of callbacks.
fn pinned_map_id(own: &Path) -> Option<u32> {
    kernel_objects::pinned_map(&own.join(OPS))
}

/// Pins callbacks whose pin is gone and that are registered still, and registers those whose link is
/// gone.
///
/// # Errors
/// [`crate::Error`] if pins cannot be listed. What cannot be put back is among the attempts.
pub fn put_back(pin: &Path) -> Result<Attempts> {
    let mut attempts = Attempts::default();
    if find_problems(pin)?.is_empty() {
        return Ok(attempts);
    }
    let Some(all) = ControlPins::open(pin)? else {
        return Ok(attempts);
    };
    for name in control_names(&all.0.directory)? {
        let own = all.0.entry_path(&name);
        attempts.record_outcome(pin_again(&own, &name));
        if is_lost(&own) {
            let registered = register_again(&own)
                .with_context(|| format!("registering {name} with TCP again"))
                .map(|()| Some(format!("registered again: congestion control {name}")));
            attempts.record_outcome(registered);
        }
    }
    Ok(attempts)
}

/// Pins callbacks whose pin is gone and that are registered still.
fn pin_again(own: &Path, name: &str) -> Result<Option<String>> {
    let path = own.join(OPS);
    let Some(id) = registered_map_id(own).filter(|id| pinned_map_id(own) != Some(*id)) else {
        return Ok(None);
    };
    if path.exists() {
        bail!(
            Damaged,
            "{} is something else, and is left as it is: remove it",
            path.display()
        );
    }
    let map = privileges::with_raised(|| MapHandle::from_map_id(id))?;
    links::pin_object(map.as_fd(), &path)?;
    Ok(Some(format!(
        "pinned again: {OPS} of congestion control {name}"
    )))
}

/// Registers pinned callbacks with TCP, by a new link.
fn register_again(own: &Path) -> Result<()> {
    let map = MapHandle::from_pinned_path(own.join(OPS))
        .context("its callbacks are gone, too: load it again")?;
    let path = own.join(LINK);
    // Without a pin it would be registered for a moment at each try.
    remove_file(&links::replacement_path(&path))?;
    let link = links::create_struct_ops(map.as_fd())?;
    links::pin_over(link.as_fd(), &path)
}

/// As [`list_controls`], but changes nothing and waits for nobody.
///
/// # Errors
/// [`crate::Error`] if pins cannot be read.
pub fn scan_controls(pin: &Path) -> Result<Vec<Control>> {
    let directory = pin.join(DIRECTORY);
    let support = check_kernel_support();
    let used = count_usage().ok();
    let of = |name: &str| Some(used.as_ref()?.get(name).copied().unwrap_or_default());
    let plain = |name: String, state, note| Control {
        used: of(&name),
        name,
        state,
        needs_ecn: None,
        program: None,
        maps: Vec::new(),
        model: None,
        note,
    };
    let mut all = BTreeMap::new();
    let with_model = (rate::NAME, "the learned rate controller: load a model");
    let built_in = BUILT_IN.map(|(name, _, what)| (name, what));
    for (name, what) in built_in.into_iter().chain([with_model]) {
        let (state, note) = match &support {
            Ok(_) => (State::Loadable, what),
            Err(why) => (State::Unavailable, why.reason()),
        };
        let control = plain(name.to_owned(), state, Some(note.to_owned()));
        all.insert(name.to_owned(), control);
    }
    for name in system::available_ccs()? {
        all.insert(name.clone(), plain(name, State::System, None));
    }
    for name in control_names(&directory)? {
        let own = directory.join(&name);
        let support = support.as_ref().ok();
        let flags = support.and_then(|support| loaded_flags(&own, support));
        let state = read_state(&own);
        let lost = "no longer registered; without an agent, unload it and load it again";
        let note = (state == State::Lost).then(|| lost.to_owned());
        let mut control = plain(name.clone(), state, note);
        control.needs_ecn = flags.map(|flags| flags & TCP_CONG_NEEDS_ECN != 0);
        control.program = MapHandle::from_pinned_path(own.join(OPS))
            .ok()
            .map(|map| map.name().to_string_lossy().into_owned());
        let maps = directory_entries(&own)?.into_iter();
        control.maps = maps
            .filter_map(|file| Some(file.strip_prefix(MAP)?.to_owned()))
            .collect();
        control.maps.sort();
        match rate::model_in(&own) {
            Ok(model) => control.model = model,
            Err(other) => control.note = Some(other.to_string()),
        }
        all.insert(name, control);
    }
    Ok(all.into_values().collect())
}

/// Names of loaded congestion controls that work only for flows with ECN.
pub fn needing_ecn(pin: &Path) -> BTreeSet<String> {
    let directory = pin.join(DIRECTORY);
    let names = control_names(&directory).unwrap_or_default();
    let support = (!names.is_empty()).then(check_kernel_support);
    let Some(Ok(support)) = support else {
        return BTreeSet::new();
    };
    // One that cannot be inspected (CAP_SYS_ADMIN) counts as one that needs it.
    let needs = |name: &String| {
        loaded_flags(&directory.join(name), &support)
            .is_none_or(|flags| flags & TCP_CONG_NEEDS_ECN != 0)
    };
    names.into_iter().filter(needs).collect()
}

/// `flags` of a loaded congestion control, from the version in force, whatever is pinned.
fn loaded_flags(own: &Path, support: &Support) -> Option<u32> {
    let link = Link::open(own.join(LINK)).ok();
    let pinned = MapHandle::from_pinned_path(own.join(OPS)).ok();
    let map = match link.and_then(|link| map_of(&link).ok().flatten()) {
        // An interrupted swap has left another version pinned.
        Some(id) if pinned_map_id(own) != Some(id) => {
            privileges::with_raised(|| MapHandle::from_map_id(id)).ok()?
        }
        _ => pinned?,
    };
    let value = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()??;
    let bytes = value.get(support.flags_offset..support.flags_offset + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}
