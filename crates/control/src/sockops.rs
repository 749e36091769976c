//! `sockops` programs of others: a compiled object is loaded, attached to a cgroup by pinned links,
//! and removed again.
//!
//! Each object has a directory `sockops/NAME` in the agent's directory of the BPF file system. It
//! has files `prog_PROGRAM` and `link_PROGRAM` per program, `map_MAP` per map, and `cgroup`, a
//! symbolic link; earlier versions pinned no programs. It is pinned whole as `NAME~new` and then
//! renamed. The next call removes the rest of an interrupted one.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use libbpf_rs::libbpf_sys::BPF_CGROUP_SOCK_OPS;
use libbpf_rs::query::{LinkInfo, LinkTypeInfo};
use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, Program, ProgramType,
};
use serde::Serialize;

use crate::attempts::{Attempts, confirm_faults};
use crate::error::{Context, Error, Result, bail};
use crate::links::{self, Attachment, LinkProblem, cgroup_path};
use crate::object;
use crate::pins::{self, Locked, RecoverablePins, directory_entries};
use crate::{kernel_objects, privileges, system};
use thalweg_units::printable;

pub(crate) const DIRECTORY: &str = "sockops";
const PROGRAM: &str = "prog_";
const LINK: &str = "link_";
const MAP: &str = "map_";
/// Symbolic link to the cgroup of an object.
const CGROUP: &str = "cgroup";
/// Suffix of an incomplete directory; no name has a '~', and the file system allows no '.'.
const NEW: &str = "~new";
/// Longest name: it is the name of a file, and has a column in tables.
const NAME_MAX: usize = 32;

/// A loaded object.
#[derive(Clone, Debug, Serialize)]
pub struct Loaded {
    /// Name of the object.
    pub name: String,
    /// The cgroup's directory; none if it was removed, and the programs with it.
    pub cgroup: Option<PathBuf>,
    /// Names of its programs.
    pub programs: Vec<String>,
    /// Names of its maps.
    pub maps: Vec<String>,
    /// Faults: what is not as it was loaded, a sentence each.
    pub faults: Vec<String>,
    /// Programs of the object that are not `sockops` programs and were left out. Known only when it
    /// is loaded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// Loads an object, attaches its `sockops` programs to a cgroup and pins everything. The default
/// name is the file's, without its extensions.
///
/// # Errors
/// A fault of the file, the name, the cgroup or the program. Nothing is left behind.
pub fn load(pin: &Path, file: &Path, cgroup: &Path, name: Option<&str>) -> Result<Loaded> {
    object::check_file(file)?;
    let name = match name {
        Some(name) => name.to_owned(),
        None => file_name(file),
    };
    check_name(&name)?;
    system::check_cgroup2(cgroup)?;
    privileges::check_privileges()?;
    system::ensure_bpffs(pin)?;
    let all = ObjectPins::create(pin)?;
    let loaded = all.load_object(file, cgroup, &name);
    all.0.remove_if_empty(pin);
    loaded
}

/// All loaded objects, by name.
///
/// # Errors
/// [`Error`] if they cannot be read.
pub fn list(pin: &Path) -> Result<Vec<Loaded>> {
    privileges::check_privileges()?;
    let Some(all) = ObjectPins::open(pin)? else {
        return Ok(Vec::new());
    };
    let names = pins::entries_without(NEW, &all.0.directory)?;
    names.iter().map(|name| all.read_loaded(name)).collect()
}

/// Objects that are not as they were loaded, a sentence each.
///
/// # Errors
/// [`Error`] if pins cannot be read, or the kernel does not tell.
pub fn find_problems(pin: &Path) -> Result<Vec<String>> {
    confirm_faults(|| problems_in(&pin.join(DIRECTORY)))
}

fn problems_in(directory: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for name in pins::entries_without(NEW, directory)? {
        let own = problems_of(&directory.join(&name), &name)?;
        faults.extend(
            own.iter()
                .map(|why| format!("sockops object {name}: {why}")),
        );
    }
    Ok(faults)
}

/// Faults: what is not as it was loaded of one object, a sentence each.
fn problems_of(own: &Path, name: &str) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let programs = pinned_programs(own)?;
    if programs.is_empty() {
        faults.push("its links are gone: load it again".to_owned());
    }
    let path = fs::read_link(own.join(CGROUP)).ok();
    let cgroup = path.as_ref().map(|path| (path, File::open(path)));
    for program in &programs {
        match &cgroup {
            Some((_, Ok(cgroup))) => {
                let fault = program.attachment(program.source.as_fd()).find_problem(cgroup)?;
                faults.extend(fault.map(|(LinkProblem::Detached(why) | LinkProblem::Unpinned(why))| why));
            }
            Some((path, Err(_))) => faults.push(format!(
                "{} does not run: the cgroup {} is gone; start its service, or remove the object \
                 with `thalweg sockops unload {name}`",
                program.name,
                path.display()
            )),
            // An earlier version did not note the cgroup.
            None if !is_attached(&program.link) => faults.push(format!(
                "{} does not run: its cgroup was removed, or its link detached; unload it, and load \
                 it again",
                program.name
            )),
            None => {}
        }
    }
    Ok(faults)
}

/// Whether a pinned link attaches a program to a cgroup.
fn is_attached(link: &Path) -> bool {
    let link = links::open_link(link).ok().flatten();
    link.is_some_and(|link| matches!(links::attached_to(&link), Ok(Some(id)) if id != 0))
}

/// A program of an object.
struct PinnedProgram {
    name: String,
    /// The kernel's number of the program.
    id: u32,
    /// Pin of its link.
    link: PathBuf,
    source: Source,
}

/// The pinned object that tells which program it is.
enum Source {
    Program(OwnedFd),
    /// A version that pinned no programs loaded it: a program in the place of its own is not found.
    Link(Link),
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Program(program) => program.as_fd(),
            Self::Link(link) => link.as_fd(),
        }
    }
}

/// The programs of an object, by name.
fn pinned_programs(own: &Path) -> Result<Vec<PinnedProgram>> {
    let mut programs = Vec::new();
    for name in program_names(&directory_entries(own)?) {
        let link = own.join(format!("{LINK}{name}"));
        let pinned = Program::fd_from_pinned_path(own.join(format!("{PROGRAM}{name}")));
        let (id, source) = match pinned {
            Ok(program) => (
                Program::id_from_fd(program.as_fd())?,
                Source::Program(program),
            ),
            // The object may have gone meanwhile.
            Err(_) => match links::open_link(&link) {
                Ok(Some(link)) => (link.info()?.prog_id, Source::Link(link)),
                _ => continue,
            },
        };
        programs.push(PinnedProgram {
            name,
            id,
            link,
            source,
        });
    }
    Ok(programs)
}

/// Names of the programs to which files of an object belong.
fn program_names(files: &[String]) -> BTreeSet<String> {
    let names = files.iter().filter_map(|file| {
        let name = file.strip_prefix(PROGRAM);
        name.or_else(|| file.strip_prefix(LINK))
    });
    names.map(str::to_owned).collect()
}

impl PinnedProgram {
    fn attachment<'a>(&'a self, program: BorrowedFd<'a>) -> Attachment<'a> {
        Attachment {
            name: &self.name,
            program,
            id: self.id,
            hook: BPF_CGROUP_SOCK_OPS,
            pin: &self.link,
        }
    }
}

/// Attaches programs to their cgroup that were detached, as by its end.
///
/// # Errors
/// [`Error`] if pins cannot be listed. What cannot be put back is among the attempts.
pub fn put_back(pin: &Path) -> Result<Attempts> {
    let mut attempts = Attempts::default();
    if find_problems(pin)?.is_empty() {
        return Ok(attempts);
    }
    let Some(all) = Locked::open(&pin.join(DIRECTORY))? else {
        return Ok(attempts);
    };
    for name in pins::entries_without(NEW, &all.directory)? {
        let own = all.entry_path(&name);
        let Ok(cgroup) = fs::read_link(own.join(CGROUP)).and_then(File::open) else {
            continue;
        };
        for program in pinned_programs(&own)? {
            let attached = attach_again(&program, &cgroup)
                .with_context(|| format!("sockops object {name}"))
                .map(|done| {
                    done.map(|what| format!("attached again: {what} of sockops object {name}"))
                });
            attempts.record_outcome(attached);
        }
    }
    Ok(attempts)
}

/// Attaches a program, unless it is attached. Returns its name.
fn attach_again(pinned: &PinnedProgram, cgroup: &File) -> Result<Option<String>> {
    if pinned
        .attachment(pinned.source.as_fd())
        .find_problem(cgroup)?
        .is_none()
    {
        return Ok(None);
    }
    match &pinned.source {
        Source::Program(program) => pinned.attachment(program.as_fd()).put_back(cgroup)?,
        Source::Link(_) => {
            let program = privileges::with_raised(|| Program::fd_from_id(pinned.id));
            let program = program.context("opening its program (CAP_SYS_ADMIN)")?;
            pinned.attachment(program.as_fd()).put_back(cgroup)?;
        }
    }
    Ok(Some(pinned.name.clone()))
}

/// Removes an object from the kernel: programs first, then maps.
///
/// # Errors
/// [`Error`] if there is none of that name.
pub fn unload(pin: &Path, name: &str) -> Result<()> {
    privileges::check_privileges()?;
    let all = ObjectPins::open(pin)?
        .filter(|all| check_name(name).is_ok() && all.0.entry_path(name).exists());
    let all = all.ok_or_else(|| missing_error(name))?;
    // An interrupted call leaves no object without links, which would be a fault.
    let old = all.0.entry_path(&format!("{name}{NEW}"));
    let own = all.0.entry_path(name);
    fs::rename(&own, &old)
        .with_context(|| format!("renaming {}", own.display()))
        .map_err(|error| match detach_links(&own) {
            Ok(()) => error.context(
                "its programs are detached, but its pins stay, and an agent that runs attaches them \
                 again: mend this, and unload it again",
            ),
            Err(why) => error.context(format!(
                "its programs stay attached ({why:#}): mend this, and unload it again"
            )),
        })?;
    remove_pins(&old)?;
    all.0.remove_if_empty(pin);
    Ok(())
}

/// Detaches the links of an object whose pins cannot be removed, as where the file system is
/// read-only.
fn detach_links(own: &Path) -> Result<()> {
    let detach = |file: &String| -> Result<()> {
        match links::open_link(&own.join(file))? {
            Some(link) => Ok(link.detach()?),
            None => Ok(()),
        }
    };
    let files = directory_entries(own)?;
    let mut pinned = files.iter().filter(|file| file.starts_with(LINK));
    if pinned.try_for_each(detach).is_ok() {
        return Ok(());
    }
    // Where the whole file system is read-only, maps alone can be opened.
    let maps = kernel_objects::maps_below(own);
    let is_own = |link: &LinkInfo| {
        let used = || kernel_objects::map_ids_of(link.prog_id).unwrap_or_default();
        matches!(link.info, LinkTypeInfo::Cgroup(_)) && used().iter().any(|id| maps.contains(id))
    };
    let detached = kernel_objects::detach_found(is_own)?;
    match detached {
        0 => bail!(NotFound, "no link is found by the maps of the object"),
        _ => Ok(()),
    }
}

/// Prefixes of the lines that an object prints by `bpf_printk`: its formats up to the first `%`.
/// Empty if they are unknown, or a format starts with `%`.
///
/// # Errors
/// [`Error`] if there is no object of that name.
pub fn printed_prefixes(pin: &Path, name: &str) -> Result<Vec<String>> {
    privileges::check_privileges()?;
    let own = pin.join(DIRECTORY).join(name);
    if check_name(name).is_err() || !own.exists() {
        return Err(missing_error(name));
    }
    let mut prefixes = Vec::new();
    for file in directory_entries(&own)? {
        if !file.starts_with(MAP) || !file.contains("rodata") {
            continue;
        }
        let map = MapHandle::from_pinned_path(own.join(&file))
            .with_context(|| format!("opening map {file}"))?;
        let key = vec![0; map.key_size() as usize];
        prefixes.extend(format_texts(
            &map.lookup(&key, MapFlags::ANY)?.unwrap_or_default(),
        ));
    }
    if prefixes.iter().any(String::is_empty) {
        prefixes.clear();
    }
    Ok(prefixes)
}

/// The texts in a section of constants, each up to its first `%`.
fn format_texts(section: &[u8]) -> Vec<String> {
    section
        .split(|&byte| byte == 0)
        .filter(|text| !text.is_empty())
        .filter_map(|text| std::str::from_utf8(text).ok())
        .map(|text| text.split('%').next().unwrap_or(text).to_owned())
        .collect()
}

/// The kernel's stream of printed lines.
///
/// # Errors
/// [`Error`] if tracefs is not mounted, or may not be read.
pub fn trace_pipe() -> Result<File> {
    let path = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
        .iter()
        .map(|directory| Path::new(directory).join("trace_pipe"))
        .find(|path| path.exists());
    let Some(path) = path else {
        let filesystems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        if !filesystems.lines().any(|line| line.ends_with("tracefs")) {
            bail!(
                Unsupported,
                "this kernel has no tracefs (CONFIG_TRACING), so programs cannot print"
            );
        }
        bail!(
            Unsupported,
            "tracefs is not mounted; mount it with: \
             mount -t tracefs tracefs /sys/kernel/tracing"
        );
    };
    File::open(&path).with_context(|| format!("opening {}", path.display()))
}

fn file_name(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

fn check_name(name: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(plain) {
        bail!(
            Invalid,
            "{name:?} cannot be a name: expected 1 to {NAME_MAX} letters, digits, '-' and '_'; \
             choose one with --name"
        );
    }
    Ok(())
}

fn missing_error(name: &str) -> Error {
    Error::NotFound(format!(
        "nothing is loaded under the name {name:?}; `thalweg sockops list` shows what is"
    ))
}

/// The directory of all objects, without the rest of interrupted calls. An object whose links were
/// taken away stays: it is to be said.
struct ObjectPins(Locked);

impl RecoverablePins for ObjectPins {
    const DIRECTORY: &str = DIRECTORY;
    const OF: fn(Locked) -> Self = Self;

    fn recover(&self) -> Result<()> {
        for name in directory_entries(&self.0.directory)? {
            let own = self.0.entry_path(&name);
            if name.ends_with(NEW) || directory_entries(&own)?.is_empty() {
                remove_pins(&own)?;
            }
        }
        Ok(())
    }
}

impl ObjectPins {
    fn load_object(&self, file: &Path, cgroup: &Path, name: &str) -> Result<Loaded> {
        let own = self.0.entry_path(name);
        let is_link = |file: &String| file.starts_with(LINK);
        if own.exists() && !directory_entries(&own)?.iter().any(is_link) {
            remove_pins(&own)?;
        }
        if own.exists() {
            bail!(
                Busy,
                "the name {name:?} is taken; choose another with --name, or remove that one with \
                 `thalweg sockops unload {name}`"
            );
        }
        let new = self.0.entry_path(&format!("{name}{NEW}"));
        // Only the first error matters.
        let left_out = load_into(&new, file, cgroup).inspect_err(|_| drop(remove_pins(&new)))?;
        fs::rename(&new, &own).with_context(|| format!("renaming {}", new.display()))?;
        let loaded = self.read_loaded(name)?;
        Ok(Loaded { left_out, ..loaded })
    }

    fn read_loaded(&self, name: &str) -> Result<Loaded> {
        let own = self.0.entry_path(name);
        let mut loaded = Loaded {
            name: name.to_owned(),
            cgroup: None,
            programs: Vec::new(),
            maps: Vec::new(),
            faults: problems_of(&own, name).unwrap_or_else(|error| vec![format!("{error:#}")]),
            left_out: Vec::new(),
        };
        let mut files = directory_entries(&own)?;
        files.sort();
        loaded.programs = program_names(&files).into_iter().collect();
        for file in files {
            if file.starts_with(LINK) {
                if loaded.cgroup.is_none() {
                    let link = links::open_link(&own.join(&file))?;
                    let id = link.as_ref().map(links::attached_to).transpose()?.flatten();
                    loaded.cgroup = id.and_then(cgroup_path);
                }
            } else if let Some(map) = file.strip_prefix(MAP) {
                loaded.maps.push(map.to_owned());
            }
        }
        Ok(loaded)
    }
}

fn load_into(own: &Path, file: &Path, cgroup: &Path) -> Result<Vec<String>> {
    let (mut object, left_out) = load_object(file)?;
    pins::create_directory(own, false)?;
    for map in object.maps_mut() {
        let name = map.name().to_string_lossy().replace('.', "_");
        links::pin_object(map.as_fd(), &own.join(format!("{MAP}{name}")))?;
    }
    let cgroup_file = links::open_cgroup(cgroup)?;
    for mut program in object.progs_mut() {
        if program.prog_type() != ProgramType::SockOps || !program.autoload() {
            continue;
        }
        let name = program.name().to_string_lossy().into_owned();
        links::pin_object(program.as_fd(), &own.join(format!("{PROGRAM}{name}")))?;
        let path = own.join(format!("{LINK}{name}"));
        // Its pin keeps it attached.
        drop(links::attach_and_pin(&mut program, &cgroup_file, &path)?);
    }
    let path = own.join(CGROUP);
    symlink(fs::canonicalize(cgroup)?, &path)
        .with_context(|| format!("making {}", path.display()))?;
    Ok(left_out)
}

/// libbpf's reasons, with advice on the source where it is known.
fn with_advice(reasons: String) -> String {
    let advice = if reasons.contains("extern '") || reasons.contains("extern (") {
        "; a BPF program has no C library: declare functions static, and write \
         __builtin_memcmp of a constant length, or a loop, for memcmp"
    } else if reasons.contains("legacy map definition") {
        "; declare maps in section \".maps\", with __uint and __type of bpf_helpers.h"
    } else {
        ""
    };
    reasons + advice
}

/// Opens and loads an object; also returns the names of programs that are not loaded.
fn load_object(file: &Path) -> Result<(Object, Vec<String>)> {
    object::with_libbpf_log(|| load_quietly(file))
}

fn load_quietly(file: &Path) -> Result<(Object, Vec<String>)> {
    let shown = file.display();
    let mut open = ObjectBuilder::default().open_file(file).map_err(|error| {
        Error::Invalid(format!(
            "{shown} cannot be read as a BPF object: {}",
            with_advice(object::fault_words(&error))
        ))
    })?;
    let mut left_out = Vec::new();
    let mut wanted = 0;
    for mut program in open.progs_mut() {
        if program.prog_type() == ProgramType::SockOps {
            wanted += 1;
        } else {
            program.set_autoload(false);
            left_out.push(printable(&program.name().to_string_lossy()));
        }
    }
    for mut map in open.maps_mut() {
        if map.map_type() == MapType::StructOps {
            map.set_autocreate(false)?;
        }
    }
    if wanted == 0 {
        let found = if left_out.is_empty() {
            "no program at all".to_owned()
        } else {
            format!("only {}", left_out.join(", "))
        };
        bail!(
            Invalid,
            "{shown} has no program in a section \"sockops\" ({found})"
        );
    }
    let object = open.load().map_err(|error| {
        let reasons = with_advice(object::refusal_words(&error));
        Error::Refused(format!("the kernel refused {shown}: {reasons}"))
    })?;
    Ok((object, left_out))
}

fn remove_pins(own: &Path) -> Result<()> {
    pins::remove_directory(own, LINK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_files_without_extensions() {
        assert_eq!(file_name(Path::new("/tmp/iw.bpf.o")), "iw");
        assert_eq!(file_name(Path::new("iw")), "iw");
        for name in ["", ".", "a/b", "a.b", "ä", &"a".repeat(NAME_MAX + 1)] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert!(check_name("tcp_iw-40").is_ok());
    }

    #[test]
    fn formats_end_at_their_first_value() {
        assert_eq!(
            format_texts(b"rtt %u us\0done\0\0%d"),
            ["rtt ", "done", ""].map(String::from)
        );
    }
}
