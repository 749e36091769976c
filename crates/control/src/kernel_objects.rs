//! Programs, maps and links in the kernel by their numbers, whoever holds them, and by their pins.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use libbpf_rs::libbpf_sys::{self, bpf_prog_info};
use libbpf_rs::query::{LinkInfo, LinkInfoIter};
use libbpf_rs::{MapHandle, MapInfo, Program, ProgramType};

use crate::error::{Context, Result, check_outcome};
use crate::{privileges, system};

/// Most maps of a program (linux/bpf.h, MAX_USED_MAPS).
const MAPS_MAX: usize = 64;

/// Longest name of a program or a map (linux/bpf.h, BPF_OBJ_NAME_LEN, less the final 0).
pub(crate) const NAME_MAX: usize = 15;

/// A name as far as the kernel keeps it.
pub(crate) fn kept_name(name: &str) -> &str {
    &name[..name.len().min(NAME_MAX)]
}

/// A program in the kernel.
pub(crate) struct LoadedProgram {
    pub name: String,
    pub kind: ProgramType,
    /// Number of runs since it was loaded, and their time; 0 unless the kernel measures programs.
    pub runs: u64,
    pub run_time_ns: u64,
    /// Numbers of its maps.
    pub maps: Vec<u32>,
}

/// A program by its number; none if there is none.
///
/// # Errors
/// The kernel's refusal to show it.
pub(crate) fn query_program(id: u32) -> Result<Option<LoadedProgram>> {
    let program = match privileges::with_raised(|| Program::fd_from_id(id)) {
        Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => return Ok(None),
        program => program.context("opening it (CAP_SYS_ADMIN)")?,
    };
    let mut maps = vec![0; MAPS_MAX];
    let mut info = bpf_prog_info {
        nr_map_ids: MAPS_MAX as u32,
        map_ids: maps.as_mut_ptr() as u64,
        ..Default::default()
    };
    let mut bytes = size_of::<bpf_prog_info>() as u32;
    // SAFETY: the descriptor is open, the kernel writes at most `bytes` bytes to `info`, and `maps` has
    // room for `nr_map_ids` numbers.
    check_outcome(unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(
            program.as_raw_fd(),
            (&raw mut info).cast(),
            &raw mut bytes,
        )
    })
    .context("asking about it")?;
    maps.truncate(info.nr_map_ids as usize);
    Ok(Some(LoadedProgram {
        name: printed_name(&info.name.map(|byte| byte as u8)),
        kind: ProgramType::from(info.type_),
        runs: info.run_cnt,
        run_time_ns: info.run_time_ns,
        maps,
    }))
}

/// Text of the kernel, up to its 0.
pub(crate) fn printed_name(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Name of a program, by its number.
pub(crate) fn name_of(program: u32) -> Option<String> {
    let name = query_program(program).ok()??.name;
    (!name.is_empty()).then_some(name)
}

/// Numbers of the maps that a program uses; `None`: it is gone, or may not be looked at.
pub(crate) fn map_ids_of(program: u32) -> Option<Vec<u32>> {
    Some(query_program(program).ok()??.maps)
}

/// Number of a map.
pub(crate) fn map_id(map: BorrowedFd<'_>) -> Option<u32> {
    Some(MapInfo::new(map).ok()?.info.id)
}

/// Number of a pinned map, also on a read-only file system.
pub(crate) fn pinned_map(path: &Path) -> Option<u32> {
    let map = MapHandle::from_pinned_path_with_file_flags(path, libbpf_sys::BPF_F_RDONLY).ok()?;
    // Kernels before 5.13 open programs and links in this way, too.
    let target = fs::read_link(format!("/proc/self/fd/{}", map.as_fd().as_raw_fd())).ok()?;
    let is_map = target.to_string_lossy().contains("bpf-map");
    is_map.then(|| map_id(map.as_fd())).flatten()
}

/// Numbers of the maps that are pinned below a directory. Where a whole file system is read-only, no
/// other pin can be opened.
pub(crate) fn maps_below(directory: &Path) -> BTreeSet<u32> {
    maps_of_directories(directory, |_| true)
}

/// As [`maps_below`], without the directories that a test excludes.
pub(crate) fn maps_of_directories(
    directory: &Path,
    enters: impl Fn(&Path) -> bool,
) -> BTreeSet<u32> {
    let mut maps = BTreeSet::new();
    let mut waiting = Vec::new();
    if system::has_pins(directory) {
        waiting.push(directory.to_owned());
    }
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => {
                    waiting.extend(Some(entry.path()).filter(|it| enters(it)))
                }
                Ok(kind) if kind.is_file() => maps.extend(pinned_map(&entry.path())),
                _ => {}
            }
        }
    }
    maps
}

/// All links that may be looked at.
pub(crate) fn all_links() -> Vec<LinkInfo> {
    privileges::with_raised(|| LinkInfoIter::default().collect())
}

/// A link by its number.
///
/// # Errors
/// The kernel's.
pub(crate) fn open_numbered(link: u32) -> io::Result<OwnedFd> {
    // SAFETY: a plain call with a number.
    let fd = privileges::with_raised(|| unsafe { libbpf_sys::bpf_link_get_fd_by_id(link) });
    // SAFETY: it is a fresh descriptor that nobody else owns.
    check_outcome(fd).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Detaches a link, whoever holds it.
pub(crate) fn detach_link(id: u32) -> Result<()> {
    let link = match open_numbered(id) {
        // The object has gone meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        link => link.context("opening it (CAP_SYS_ADMIN)")?,
    };
    // SAFETY: the descriptor is open for the whole call.
    check_outcome(unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) })
        .context("detaching it")?;
    Ok(())
}

/// Detaches the links that a test finds, whoever holds them; returns their number.
///
/// # Errors
/// One that cannot be detached.
pub(crate) fn detach_found(is_wanted: impl Fn(&LinkInfo) -> bool) -> Result<usize> {
    let mut wanted = all_links();
    wanted.retain(is_wanted);
    wanted.iter().try_for_each(|link| detach_link(link.id))?;
    Ok(wanted.len())
}
