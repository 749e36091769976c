//! The first file system of a kernel in QEMU: this program, its tools with their libraries, the
//! kernel's modules, and the job. It has no path or time of the machine, so that every machine
//! gives the same.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use thalweg_process::tool;

use super::cpio::Archive;
use crate::error::Error;
use crate::{Job, TOOLS};

/// Directory of programs.
const PROGRAMS: &str = "/usr/bin";
/// Directory of modules.
const MODULES: &str = "/lib/modules";
/// The first bytes of a program (elf(5)).
const ELF: &[u8] = b"\x7fELF";
/// The directory of the job.
pub const JOB: &str = "/job";
/// Mount points, and directories that programs expect.
const DIRECTORIES: [&str; 6] = ["/dev", "/etc", "/proc", "/run", "/sys", "/tmp"];

/// This program's path in the guest.
pub fn program_path() -> PathBuf {
    Path::new(PROGRAMS).join("thalweg-lab")
}

/// A module's path in the guest.
pub(super) fn module_path(file: &Path) -> PathBuf {
    Path::new(MODULES).join(file.file_name().unwrap_or_default())
}

/// The guest's path of a file that a program reads.
pub(super) fn data_path(file: &Path) -> PathBuf {
    Path::new(JOB).join(file.file_name().unwrap_or_default())
}

/// Files that a job needs besides the usual tools: path on this machine, by path in the guest.
#[derive(Debug, Default)]
pub struct Needs {
    /// Programs with their libraries; files of other kinds are only copied.
    pub programs: Vec<(PathBuf, PathBuf)>,
    /// Files that programs read.
    pub data: Vec<(PathBuf, PathBuf)>,
    /// Directories that may have no file.
    pub directories: Vec<PathBuf>,
    /// Names of kernel modules beyond those of a network.
    pub modules: Vec<String>,
    /// Names of optional kernel modules: those that the kernel lacks are left out.
    pub wished: Vec<String>,
}

/// The guest's path of a program.
pub(super) fn program_of(path: &Path) -> PathBuf {
    Path::new(PROGRAMS).join(path.file_name().unwrap_or_default())
}

/// Writes the file system of a job.
pub(super) fn write_initial(
    file: &Path,
    job: &Job,
    modules: &[PathBuf],
    needs: &Needs,
) -> Result<(), Error> {
    let output = File::create(file).map_err(Error::io("cannot create", file))?;
    let mut archive = Archive::new(BufWriter::new(output));
    let failed = || Error::io("cannot write", file);
    let mut add = |place: &Path, mode: u32, content: &[u8]| {
        archive.add_file(place, mode, content).map_err(failed())
    };
    let mut libraries = BTreeMap::new();
    let tools = TOOLS
        .into_iter()
        .filter_map(|(name, _)| tool::find_program(name));
    let tools: Vec<(PathBuf, PathBuf)> = tools.map(|path| (program_of(&path), path)).collect();
    for (place, path) in needs.programs.iter().chain(&tools) {
        let content = read_file(path)?;
        // Scripts, for instance, have no libraries.
        if content.starts_with(ELF) {
            libraries.extend(needed_libraries(path)?);
        }
        add(place, 0o755, &loadable_part(content))?;
    }
    for (place, path) in libraries {
        add(&place, 0o755, &loadable_part(read_file(&path)?))?;
    }
    for path in modules {
        add(&module_path(path), 0o644, &read_file(path)?)?;
    }
    for (place, path) in &needs.data {
        add(place, 0o644, &read_file(path)?)?;
    }
    let (name, document) = job.as_document()?;
    add(&Path::new(JOB).join(name), 0o644, &document)?;
    DIRECTORIES
        .into_iter()
        .map(Path::new)
        .chain(needs.directories.iter().map(PathBuf::as_path))
        .try_for_each(|path| archive.add_directory(path))
        .and_then(|()| archive.add_device(Path::new("/dev/console"), (5, 1)))
        .and_then(|()| archive.finish_archive())
        .map(drop)
        .map_err(failed())
}

fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(Error::io("cannot read", path))
}

/// The libraries of a program, found by ld.so(8) here, by the path where the program looks for
/// them.
fn needed_libraries(program: &Path) -> Result<Vec<(PathBuf, PathBuf)>, Error> {
    let output = tool::program_command("ldd")
        .arg(program)
        .env("LC_ALL", "C")
        .output()
        .map_err(Error::system("cannot start ldd"))?;
    // A static program shows in the exit status.
    parse_ldd(&String::from_utf8_lossy(&output.stdout)).map_err(|name| {
        Error::Preconditions(vec![format!(
            "{} needs the library {name}, which is not there",
            program.display()
        )])
    })
}

/// The libraries that ldd(1) found; fails with the name of a missing one.
fn parse_ldd(text: &str) -> Result<Vec<(PathBuf, PathBuf)>, String> {
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        let path = match line.split_once(" => ") {
            Some((name, "not found")) => return Err(name.to_owned()),
            Some((_, path)) => path,
            None => line,
        };
        let path = path.split(" (").next().unwrap_or(path);
        if path.starts_with('/') {
            found.push((PathBuf::from(path), PathBuf::from(path)));
        }
    }
    Ok(found)
}

/// The loadable part of an ELF file (elf(5)), without debugging data, which is most of it.
fn loadable_part(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = end_of_segments(&bytes) {
        bytes.truncate(end);
        // No sections: offset, count, and index of the names' section are 0.
        bytes[0x28..0x30].fill(0);
        bytes[0x3c..0x40].fill(0);
    }
    bytes
}

/// The end of the last segment; none unless it is a 64-bit ELF file of this byte order.
fn end_of_segments(bytes: &[u8]) -> Option<usize> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    if bytes.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size, count) = (word(0x20)?, u64::from(half(0x36)?), u64::from(half(0x38)?));
    let mut end = table.checked_add(size * count)?;
    for index in 0..count {
        let header = usize::try_from(table + index * size).ok()?;
        end = end.max(word(header + 0x08)?.checked_add(word(header + 0x20)?)?);
    }
    let end = usize::try_from(end).ok()?;
    (0x40..=bytes.len()).contains(&end).then_some(end)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn what_is_loaded_of_a_program_runs() {
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join("true");
        let whole = fs::read("/bin/true").unwrap();
        let part = loadable_part(whole.clone());
        assert!(part.len() < whole.len());
        fs::write(&copy, part).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Command::new(&copy).status().unwrap().success());
        for other in [b"#!/bin/sh\n".to_vec(), whole[..0x30].to_vec(), Vec::new()] {
            assert_eq!(loadable_part(other.clone()), other);
        }
    }

    #[test]
    fn libraries_as_ldd_tells_of_them() {
        let text = "\tlinux-vdso.so.1 (0x00007ffe)\n\tlibm.so.6 => /lib/x/libm.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let found: Vec<PathBuf> = parse_ldd(text)
            .unwrap()
            .into_iter()
            .map(|it| it.0)
            .collect();
        assert_eq!(
            found,
            ["/lib/x/libm.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from)
        );
        assert_eq!(
            parse_ldd("\tlibx.so.1 => not found\n").unwrap_err(),
            "libx.so.1"
        );
        assert!(
            parse_ldd("\tnot a dynamic executable\n")
                .unwrap()
                .is_empty()
        );
    }
}
