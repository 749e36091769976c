//! Present state of programs, links, pins and maps, compared with those that the agent loaded; and
//! their repair.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use libbpf_rs::libbpf_sys::bpf_attach_type;
use libbpf_rs::{MapCore, MapHandle, Object, Program};
use thalweg_bpf_objects::names::learn::maps as names;
use thalweg_bpf_types::raw;
use thalweg_control::attempts::Attempts;
use thalweg_control::learner::LINKS;
use thalweg_control::links::{self, Attachment, LinkProblem};
use thalweg_control::{object, pins, privileges, system};

use super::{Kernel, pins::MAPS};

/// Kind of problem: the cgroup is gone.
pub const CGROUP: &str = "cgroup";
/// Kind of problem: pins are gone, or belong to other objects.
pub const PINS: &str = "pins";
/// Kind of problem: the cgroup does not run the programs.
pub const PROGRAMS: &str = "programs";
/// Repair of a program that the cgroup did not run.
const ATTACHED: &str = "attached again";

/// A loaded program of the learner that is attached to the cgroup.
pub(super) struct Loaded {
    name: &'static str,
    /// File name of the link's pin.
    file: &'static str,
    hook: bpf_attach_type,
    program: OwnedFd,
    /// The kernel's number of the program.
    id: u32,
}

impl Loaded {
    /// The programs of [`LINKS`].
    pub(super) fn all(object: &Object) -> Result<[Self; 2]> {
        let load = |(name, file, hook)| -> Result<Self> {
            let program = object::find_program(object, name)?;
            Ok(Self {
                name,
                file,
                hook,
                id: Program::id_from_fd(program.as_fd())?,
                program: program.as_fd().try_clone_to_owned()?,
            })
        };
        let [first, second] = LINKS;
        Ok([load(first)?, load(second)?])
    }

    fn at<'a>(&'a self, pin: &'a Path) -> Attachment<'a> {
        Attachment {
            name: self.name,
            program: self.program.as_fd(),
            id: self.id,
            hook: self.hook,
            pin,
        }
    }
}

/// State of the kernel side at one moment.
#[derive(Debug, Default)]
pub struct Look {
    /// Problems, by kind.
    pub problems: BTreeMap<&'static str, String>,
    /// Programs that the cgroup runs now.
    attached: Vec<&'static str>,
    /// Maps whose pins are gone.
    unpinned: Vec<&'static str>,
}

impl Look {
    /// The programs that the learner attaches, and whether the cgroup runs each.
    pub fn attached(&self) -> [(&'static str, bool); 2] {
        LINKS.map(|(program, ..)| (program, self.attached.contains(&program)))
    }

    fn note(&mut self, kind: &'static str, text: String) {
        let texts = self.problems.entry(kind).or_default();
        if !texts.is_empty() {
            texts.push_str("; ");
        }
        texts.push_str(&text);
    }
}

/// Outcome of [`Kernel::put_back`].
#[derive(Default)]
pub struct PutBack {
    /// Successful and failed repairs.
    pub attempts: Attempts,
    /// Whether a program was attached, perhaps to a new cgroup.
    pub is_reattached: bool,
}

/// Whether the agent let go of its programs; serialises repairs and polls.
#[derive(Default)]
pub(super) struct Keeps(Mutex<bool>);

impl Keeps {
    /// Locks the flag, which is true once the programs were detached on request.
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kernel {
    /// Polls the cgroup, the programs, their links, the pins and the maps.
    pub fn look(&self) -> Look {
        let _one_at_a_time = self.keeps.lock();
        self.looked()
    }

    /// Leaves programs and pins alone from now on: they are about to be removed.
    pub fn let_go(&self) {
        *self.keeps.lock() = true;
    }

    /// Whether programs and pins were removed on request, or are about to be.
    pub fn has_let_go(&self) -> bool {
        *self.keeps.lock()
    }

    /// Restores links to the cgroup and pins that [`Kernel::look`] misses, unless objects of others
    /// are in the way. `follow` locks the directory of pins, which may be a new one.
    ///
    /// # Errors
    /// The directory cannot be locked; then nothing is tried. Failed repairs are among the
    /// attempts.
    pub fn put_back(&self, follow: impl FnOnce() -> Result<()>) -> Result<PutBack> {
        let has_let_go = self.keeps.lock();
        let mut attempts = Attempts::default();
        let look = self.looked();
        if *has_let_go || look.problems.is_empty() {
            return Ok(PutBack::default());
        }
        let pin = &self.setup.pin;
        privileges::with_raised(|| system::ensure_bpffs(pin))?;
        pins::create_directory(pin, true)?;
        follow()?;
        self.pin_again(&look, &mut attempts);
        let is_reattached = self.attach_again(&mut attempts);
        Ok(PutBack {
            attempts,
            is_reattached,
        })
    }

    fn looked(&self) -> Look {
        let mut look = Look::default();
        match self.cgroup_now() {
            Ok(cgroup) => self.look_at_programs(&cgroup, &mut look),
            Err(error) => look.note(
                CGROUP,
                format!(
                    "{error:#}: no connection is measured or changed; the programs are attached \
                     again when it is back"
                ),
            ),
        }
        self.look_at_maps(&mut look);
        self.look_at_iterators(&mut look);
        look
    }

    /// The cgroup that the configured path names now.
    fn cgroup_now(&self) -> Result<File> {
        let cgroup = &self.setup.cgroup;
        let shown = cgroup.display();
        match fs::symlink_metadata(cgroup) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                anyhow::bail!("the cgroup {shown} is gone")
            }
            _ => system::check_cgroup2(cgroup)?,
        }
        Ok(links::open_cgroup(cgroup)?)
    }

    fn look_at_programs(&self, cgroup: &File, look: &mut Look) {
        for program in &self.programs {
            let pin = self.setup.pin.join(program.file);
            match program.at(&pin).find_problem(cgroup) {
                Ok(None) => look.attached.push(program.name),
                Ok(Some(LinkProblem::Detached(text))) => look.note(PROGRAMS, text),
                Ok(Some(LinkProblem::Unpinned(text))) => {
                    look.attached.push(program.name);
                    look.note(PINS, text);
                }
                Err(error) => look.note(PROGRAMS, format!("{}: {error:#}", program.name)),
            }
        }
    }

    fn look_at_maps(&self, look: &mut Look) {
        let pin = &self.setup.pin;
        let mut foreign = Vec::new();
        for map in &MAPS {
            let path = pin.join(map.name);
            if fs::symlink_metadata(&path).is_err() {
                look.unpinned.push(map.name);
                continue;
            }
            if let Some(fault) = self.misfit(map.name) {
                look.note(PINS, fault);
            }
            let pinned = MapHandle::from_pinned_path(&path);
            if !pinned.is_ok_and(|pinned| is_same(&pinned, self.map(map.name))) {
                foreign.push(map.name);
            }
        }
        let shown = pin.display();
        if look.unpinned.len() == MAPS.len() {
            look.note(PINS, format!("the pins of all maps below {shown} are gone"));
        } else if !look.unpinned.is_empty() {
            let names = look.unpinned.join(", ");
            look.note(
                PINS,
                format!("pins of maps below {shown} are gone: {names}"),
            );
        }
        if !foreign.is_empty() {
            let names = foreign.join(", ");
            look.note(
                PINS,
                format!(
                    "other objects are pinned below {shown} in place of the agent's, and are left \
                     as they are: {names}"
                ),
            );
        }
    }

    /// Fault of a map whose size differs from the configured one.
    fn misfit(&self, name: &str) -> Option<String> {
        let (value, entries) = match name {
            names::HOSTS => (size_of::<raw::thalweg_host>(), self.setup.table_max()),
            names::CONNS => (size_of::<raw::thalweg_conn>(), raw::THALWEG_CONNECTIONS),
            names::COUNTERS => (size_of::<raw::thalweg_counters>(), 1),
            names::META => (size_of::<raw::thalweg_meta>(), 1),
            names::EVENTS => (0, self.setup.ring_bytes),
            _ => return None,
        };
        let map = self.maps.get(name)?;
        let found = (map.value_size() as usize, map.max_entries());
        (found != (value, entries)).then(|| {
            format!(
                "map {name} has {} values of {} bytes, not {entries} of {value}",
                found.1, found.0
            )
        })
    }

    /// Pins maps whose pins are gone.
    fn pin_again(&self, look: &Look, attempts: &mut Attempts) {
        let mut pinned = Vec::new();
        for name in &look.unpinned {
            match links::pin_object(self.map(name).as_fd(), &self.setup.pin.join(name)) {
                Ok(()) => pinned.push(*name),
                Err(error) => attempts.record_refusal(&error),
            }
        }
        if !pinned.is_empty() {
            let what = format!("pinned again: {}", pinned.join(", "));
            attempts.done.push(what);
        }
    }

    /// Attaches programs that the cgroup does not run, and pins links again. Returns whether a
    /// program was attached, perhaps to a new cgroup.
    fn attach_again(&self, attempts: &mut Attempts) -> bool {
        let Ok(cgroup) = self.cgroup_now() else {
            return false;
        };
        let mut is_new = false;
        for program in &self.programs {
            let pin = self.setup.pin.join(program.file);
            let attached = put_back(program.at(&pin), &cgroup);
            is_new |= matches!(&attached, Ok(Some(what)) if *what == ATTACHED);
            let name = program.name;
            let attached = attached.with_context(|| name);
            attempts
                .record_outcome(attached.map(|what| what.map(|what| format!("{what}: {name}"))));
        }
        is_new
    }

    fn look_at_iterators(&self, look: &mut Look) {
        if let Ok(Some(iterator)) = &self.open
            && let Err(error) = iterator.check()
        {
            look.note("long-connections", format!("{error:#}"));
        }
    }
}

/// Restores the missing parts of an attachment. Returns the kind of repair; `None`: nothing was
/// missing.
fn put_back(attachment: Attachment<'_>, cgroup: &File) -> Result<Option<&'static str>> {
    let what = match attachment.find_problem(cgroup)? {
        None => return Ok(None),
        Some(LinkProblem::Unpinned(_)) => "pinned again",
        Some(LinkProblem::Detached(_)) => ATTACHED,
    };
    attachment.put_back(cgroup)?;
    let left = attachment.find_problem(cgroup)?;
    ensure!(left.is_none(), "not attached");
    Ok(Some(what))
}

/// Whether two handles refer to one map.
fn is_same(one: &MapHandle, other: &MapHandle) -> bool {
    let id = |map: &MapHandle| map.info().ok().map(|map| map.info.id);
    id(one).is_some() && id(one) == id(other)
}
