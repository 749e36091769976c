//! Links of programs to cgroups, and their pins.

use std::fmt::{self, Display, Formatter};
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::libbpf_sys::{self, bpf_attach_type};
use libbpf_rs::query::{LinkInfo, LinkTypeInfo};
use libbpf_rs::{Link, ProgramMut};

use crate::error::{Context, Error, Result, bail, check_outcome};
use crate::pins::remove_file;
use crate::{kernel_objects, system};

/// Most programs of one kind that run for a cgroup: 64 of its own (BPF_CGROUP_MAX_PROGS), and those
/// of its ancestors.
const PROGRAMS_MAX: usize = 256;

/// A program that a pinned link attaches to a cgroup.
#[derive(Clone, Copy, Debug)]
pub struct Attachment<'a> {
    /// Name of the program.
    pub name: &'a str,
    /// The program.
    pub program: BorrowedFd<'a>,
    /// The kernel's number of the program.
    pub id: u32,
    /// Hook of the cgroup.
    pub hook: bpf_attach_type,
    /// Path of the link's pin.
    pub pin: &'a Path,
}

/// A difference between an attachment and the kernel's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkProblem {
    /// The cgroup does not run the program.
    Detached(String),
    /// The cgroup runs the program, and the pin does not keep it there.
    Unpinned(String),
}

/// State of a link's pin.
enum PinState {
    Right,
    Gone,
    /// Another object has the path.
    Foreign,
    /// The link was detached, or its cgroup removed.
    Detached,
    /// The link is on another cgroup.
    Elsewhere,
    /// The link runs another program.
    Replaced(Link, u32),
}

impl Attachment<'_> {
    fn pin_state(&self, cgroup: u64) -> PinState {
        if fs::symlink_metadata(self.pin).is_err() {
            return PinState::Gone;
        }
        let Ok(link) = Link::open(self.pin) else {
            return PinState::Foreign;
        };
        let Ok(info) = link.info() else {
            return PinState::Foreign;
        };
        match info.info {
            LinkTypeInfo::Cgroup(on) if on.cgroup_id == 0 => PinState::Detached,
            LinkTypeInfo::Cgroup(on) if on.cgroup_id != cgroup => PinState::Elsewhere,
            LinkTypeInfo::Cgroup(_) if info.prog_id != self.id => {
                PinState::Replaced(link, info.prog_id)
            }
            LinkTypeInfo::Cgroup(_) => PinState::Right,
            _ => PinState::Foreign,
        }
    }

    /// Compares with the kernel's state: the cgroup runs this very program, by the pinned link.
    ///
    /// # Errors
    /// The kernel's refusal to tell the programs of the cgroup.
    pub fn find_problem(&self, cgroup: &File) -> Result<Option<LinkProblem>> {
        let runs = programs_of(cgroup, self.hook, 0)?.contains(&self.id);
        let (name, pin) = (self.name, self.pin.display());
        let why = match self.pin_state(cgroup_id(cgroup)?) {
            PinState::Right if runs => return Ok(None),
            PinState::Right => "the cgroup does not run it".to_owned(),
            PinState::Gone => format!("its pin {pin} is gone"),
            PinState::Foreign => format!("its pin {pin} is something else"),
            PinState::Detached => "its link was detached, or its cgroup removed".to_owned(),
            PinState::Elsewhere => {
                "its link is on another cgroup, of the same name once".to_owned()
            }
            PinState::Replaced(_, id) => format!("its link runs another program (number {id})"),
        };
        Ok(Some(match runs {
            true => LinkProblem::Unpinned(format!("{name}: {why}")),
            false => LinkProblem::Detached(format!("{name} is not attached: {why}")),
        }))
    }

    /// Attaches the program to a cgroup by the pinned link, whatever is missing for that. A link
    /// that is there is kept: the order of the cgroup's programs stays.
    ///
    /// # Errors
    /// Another object has the path of the pin; or the kernel refuses.
    pub fn put_back(&self, cgroup: &File) -> Result<()> {
        let id = cgroup_id(cgroup)?;
        match self.pin_state(id) {
            PinState::Right => return Ok(()),
            PinState::Foreign => bail!(
                Damaged,
                "{} is no link of a program to a cgroup, and is left as it is: remove it",
                self.pin.display()
            ),
            PinState::Replaced(link, _) => {
                return update_link(link.as_fd(), self.program)
                    .context("giving a link its program back");
            }
            PinState::Gone | PinState::Detached | PinState::Elsewhere => {}
        }
        let link = match find_link(self.id, id) {
            Some(link) => link,
            // The program would run twice.
            None if programs_of(cgroup, self.hook, 0)?.contains(&self.id) => {
                bail!(
                    Refused,
                    "the link of {} cannot be opened (CAP_SYS_ADMIN)",
                    self.name
                )
            }
            None => {
                // Without a pin it would run for a moment at each try.
                remove_file(&replacement_path(self.pin))?;
                create_link(self.program, cgroup, self.hook)
                    .with_context(|| format!("attaching {} to the cgroup", self.name))?
            }
        };
        pin_over(link.as_fd(), self.pin)
    }
}

/// Pins an object, in place of another that may have the path.
///
/// # Errors
/// The kernel's.
pub fn pin_over(object: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let beside = replacement_path(path);
    remove_file(&beside)?;
    pin_object(object, &beside)?;
    fs::rename(&beside, path).with_context(|| format!("replacing {}", path.display()))
}

/// Path where an object is pinned before it replaces another.
pub fn replacement_path(pin: &Path) -> PathBuf {
    let mut name = pin.as_os_str().to_owned();
    name.push("_new");
    name.into()
}

/// Numbers of the programs at a hook of a cgroup, in the order in which they run. `flags`:
/// `BPF_F_QUERY_EFFECTIVE` for those of its ancestors, too.
///
/// # Errors
/// The kernel's.
pub fn programs_of(cgroup: &File, hook: bpf_attach_type, flags: u32) -> Result<Vec<u32>> {
    Ok(query_programs(cgroup, hook, flags)?.1)
}

/// How the programs at a hook of a cgroup are attached (`BPF_F_ALLOW_*`), and their numbers.
fn query_programs(cgroup: &File, hook: bpf_attach_type, flags: u32) -> Result<(u32, Vec<u32>)> {
    let mut ids = [0u32; PROGRAMS_MAX];
    let (mut count, mut attached) = (ids.len() as u32, 0);
    // SAFETY: the descriptor is open, and `ids` has room for `count` numbers for the whole call.
    check_outcome(unsafe {
        libbpf_sys::bpf_prog_query(
            cgroup.as_raw_fd(),
            hook,
            flags,
            &raw mut attached,
            ids.as_mut_ptr(),
            &raw mut count,
        )
    })
    .context("asking for the programs of the cgroup")?;
    let ids = ids[..(count as usize).min(ids.len())].to_vec();
    Ok((attached, ids))
}

/// A new link of a loaded program to a cgroup.
///
/// # Errors
/// The kernel's.
pub fn create_link(
    program: BorrowedFd<'_>,
    cgroup: &File,
    hook: bpf_attach_type,
) -> Result<OwnedFd> {
    make_link(program, cgroup.as_raw_fd(), hook)
}

/// A new link that registers callbacks of the kernel's (`struct_ops`).
///
/// # Errors
/// The kernel's.
pub fn create_struct_ops(map: BorrowedFd<'_>) -> Result<OwnedFd> {
    // There is no target.
    make_link(map, 0, libbpf_sys::BPF_STRUCT_OPS)
}

fn make_link(object: BorrowedFd<'_>, target: i32, hook: bpf_attach_type) -> Result<OwnedFd> {
    // SAFETY: the object is open for the whole call, and the target only read; no options are passed.
    let fd =
        unsafe { libbpf_sys::bpf_link_create(object.as_raw_fd(), target, hook, std::ptr::null()) };
    let fd = check_outcome(fd).context("making a link")?;
    // SAFETY: fd is a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Gives a link this program, or these callbacks, in place of another.
///
/// # Errors
/// The kernel's.
pub fn update_link(link: BorrowedFd<'_>, object: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: both descriptors are open for the whole call; no options are passed.
    check_outcome(unsafe {
        libbpf_sys::bpf_link_update(link.as_raw_fd(), object.as_raw_fd(), std::ptr::null())
    })?;
    Ok(())
}

/// A link of a program to a cgroup, pinned or not; `None` if there is none, or links may not be
/// searched (CAP_SYS_ADMIN).
fn find_link(program: u32, cgroup: u64) -> Option<OwnedFd> {
    // A program has one hook.
    let is_wanted = |link: &LinkInfo| {
        let is_on = matches!(&link.info, LinkTypeInfo::Cgroup(on) if on.cgroup_id == cgroup);
        is_on && link.prog_id == program
    };
    let link = kernel_objects::all_links().into_iter().find(is_wanted)?;
    kernel_objects::open_numbered(link.id).ok()
}

/// Opens a cgroup's directory.
///
/// # Errors
/// System errors.
pub fn open_cgroup(cgroup: &Path) -> Result<File> {
    File::open(cgroup).with_context(|| format!("opening cgroup {}", cgroup.display()))
}

/// The kernel's id of a cgroup.
///
/// # Errors
/// System errors.
pub fn cgroup_id(cgroup: &File) -> Result<u64> {
    Ok(cgroup.metadata()?.ino())
}

/// The directory of a cgroup. It is searched in the whole hierarchy, because cgroups may be
/// renamed.
pub fn cgroup_path(id: u64) -> Option<PathBuf> {
    let mut waiting = vec![system::cgroup2_mount().ok()?];
    while let Some(path) = waiting.pop() {
        if fs::metadata(&path).is_ok_and(|metadata| metadata.ino() == id) {
            return Some(path);
        }
        let Ok(entries) = fs::read_dir(&path) else {
            continue;
        };
        waiting.extend(
            entries
                .flatten()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path()),
        );
    }
    None
}

/// The pinned link; `None` if nothing is pinned.
///
/// # Errors
/// A pin that cannot be opened.
pub fn open_link(path: &Path) -> Result<Option<Link>> {
    if !path.exists() {
        return Ok(None);
    }
    let link = Link::open(path).with_context(|| format!("opening link {}", path.display()))?;
    Ok(Some(link))
}

/// The id of a link's cgroup: 0 if it was removed; `None` for a link to something else.
///
/// # Errors
/// The kernel's.
pub fn attached_to(link: &Link) -> Result<Option<u64>> {
    Ok(match link.info()?.info {
        LinkTypeInfo::Cgroup(info) => Some(info.cgroup_id),
        _ => None,
    })
}

/// The pinned link, if there is one and it is on this cgroup. A link on another cgroup (or on a
/// removed one) is removed.
///
/// # Errors
/// A pin that cannot be opened or removed.
pub fn open_on(path: &Path, cgroup_id: u64) -> Result<Option<Link>> {
    let Some(link) = open_link(path)? else {
        return Ok(None);
    };
    if attached_to(&link)? == Some(cgroup_id) {
        return Ok(Some(link));
    }
    remove_file(path)?;
    Ok(None)
}

/// Attaches a program to a cgroup. The link's pin keeps it attached.
///
/// # Errors
/// A refusal of the kernel.
pub fn attach_and_pin(program: &mut ProgramMut<'_>, cgroup: &File, path: &Path) -> Result<Link> {
    let mut link = attach_program(program, cgroup)?;
    link.pin(path)
        .with_context(|| format!("pinning {}", path.display()))?;
    Ok(link)
}

/// Attaches a program to a cgroup, for as long as the link is open.
///
/// # Errors
/// A refusal of the kernel.
pub fn attach_program(program: &mut ProgramMut<'_>, cgroup: &File) -> Result<Link> {
    let name = program.name().to_string_lossy().into_owned();
    program.attach_cgroup(cgroup.as_raw_fd()).map_err(|error| {
        let kind = program.attach_type() as u32;
        refusal_error(error.into(), &name, cgroup, kind)
    })
}

/// Why the kernel does not attach a program to a cgroup.
fn refusal_error(error: Error, name: &str, cgroup: &File, kind: u32) -> Error {
    let path = fs::read_link(format!("/proc/self/fd/{}", cgroup.as_raw_fd()));
    let path = path.unwrap_or_default();
    let what = format!("attaching {name} to {}", path.display());
    match find_exclusive(&path, kind) {
        Some(exclusive) => Error::Busy(format!("{what}: {exclusive}; {}", exclusive.hint())),
        None => error.context(what),
    }
}

/// A program that was attached to a cgroup so that the kernel attaches no other, there or below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExclusiveProgram {
    cgroup: PathBuf,
    /// Type of attachment (linux/bpf.h, `enum bpf_attach_type`).
    kind: u32,
    program: u32,
    name: String,
}

impl ExclusiveProgram {
    /// Hint how to let other programs in.
    pub fn hint(&self) -> String {
        let kind = match self.kind {
            libbpf_sys::BPF_CGROUP_SOCK_OPS => "sock_ops",
            libbpf_sys::BPF_CGROUP_SETSOCKOPT => "setsockopt",
            _ => "TYPE",
        };
        format!(
            "have its owner attach it with BPF_F_ALLOW_MULTI (bpftool: `multi`), or detach it: bpftool \
             cgroup detach {} {kind} id {}",
            self.cgroup.display(),
            self.program
        )
    }
}

impl Display for ExclusiveProgram {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "another program, {} (number {}), is attached to {} and lets no other in",
            self.name,
            self.program,
            self.cgroup.display()
        )
    }
}

/// The program that keeps others away from a cgroup (`hierarchy_allows_attach` and
/// `__cgroup_bpf_attach` in kernel/bpf/cgroup.c); `None`: there is none, or it cannot be asked for.
pub fn find_exclusive(cgroup: &Path, kind: u32) -> Option<ExclusiveProgram> {
    for (depth, directory) in cgroup.ancestors().enumerate() {
        if system::check_cgroup2(directory).is_err() {
            return None;
        }
        let (flags, programs) = query_programs(&File::open(directory).ok()?, kind, 0).ok()?;
        let Some(program) = programs.first() else {
            continue;
        };
        let lets_others_in = flags & libbpf_sys::BPF_F_ALLOW_MULTI != 0
            || depth > 0 && flags & libbpf_sys::BPF_F_ALLOW_OVERRIDE != 0;
        return (!lets_others_in).then(|| ExclusiveProgram {
            cgroup: directory.to_owned(),
            kind,
            program: *program,
            name: kernel_objects::name_of(*program).unwrap_or_else(|| "unnamed".to_owned()),
        });
    }
    None
}

/// Pins a map, a program or a link.
///
/// # Errors
/// The kernel's.
pub fn pin_object(object: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(Error::other)?;
    // SAFETY: the descriptor is open and the name is NUL-terminated for the whole call.
    check_outcome(unsafe { libbpf_sys::bpf_obj_pin(object.as_raw_fd(), name.as_ptr()) })
        .with_context(|| format!("pinning {}", path.display()))?;
    Ok(())
}
