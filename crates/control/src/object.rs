//! Compiled BPF objects from outside: checks, and errors in words.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::sync::Mutex;

use libbpf_rs::btf::types::{MemberAttr, Struct};
use libbpf_rs::btf::{Btf, BtfType, HasSize, TypeId};
use libbpf_rs::{
    AsRawLibbpf, MapCore, MapHandle, Object, ObjectBuilder, OpenObject, ProgramMut, libbpf_sys,
};
use thalweg_bpf_objects::Packed;
use thalweg_units::file::{MAX_FILE_BYTES, read_bytes};
use thalweg_units::printable;

use crate::error::{Context, Result, bail};

/// Lines of the verifier's log in an error. The last ones have the reason.
const LOG_LINES: usize = 6;
/// Longest chain of types that name one another, libbpf's own limit (btf.c, MAX_RESOLVE_DEPTH).
const MOST_TYPES: usize = 32;
/// `e_machine` of a BPF object (linux/elf-em.h, EM_BPF).
const EM_BPF: u16 = 247;

/// Opens one of Thalweg's own objects under a name.
///
/// # Errors
/// Errors of libbpf.
pub fn open_object(name: &str, packed: Packed) -> Result<OpenObject> {
    ObjectBuilder::default()
        .name(name)
        .and_then(|builder| builder.open_memory(&packed.unpack()))
        .context("opening the BPF object")
}

/// A map of an object.
///
/// # Errors
/// There is none of that name.
pub fn find_map(object: &Object, name: &str) -> Result<MapHandle> {
    let map = object.maps().find(|map| map.name() == name);
    let map = map.with_context(|| format!("the BPF object lacks map {name}"))?;
    Ok(MapHandle::try_from(&map)?)
}

/// A program of an object.
///
/// # Errors
/// There is none of that name.
pub fn find_program<'o>(object: &'o Object, name: &str) -> Result<ProgramMut<'o>> {
    let mut programs = object.progs_mut();
    let program = programs.find(|program| program.name() == name);
    program.with_context(|| format!("the BPF object lacks program {name}"))
}

/// Checks a file for faults that libbpf does not name.
pub fn check_file(file: &Path) -> Result<()> {
    let shown = file.display();
    let header = read_bytes(file, MAX_FILE_BYTES)?;
    let expected = "expected an object that clang compiled with -target bpf";
    if header.len() < 20 || !header.starts_with(b"\x7fELF") {
        bail!(Invalid, "{shown} is not an ELF file; {expected}");
    }
    let is_little = header[5] == 1;
    let bytes = [header[18], header[19]];
    let machine = if is_little {
        u16::from_le_bytes(bytes)
    } else {
        u16::from_be_bytes(bytes)
    };
    if machine != EM_BPF {
        bail!(
            Invalid,
            "{shown} is an ELF file for another machine (number {machine}); {expected}"
        );
    }
    Ok(())
}

/// libbpf's messages since they were last taken, the verifier's log included.
static SAID: Mutex<String> = Mutex::new(String::new());

unsafe extern "C" {
    /// From the C library. A `va_list` argument is a pointer on every machine that runs BPF.
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
}

/// Receives libbpf's messages. libbpf-rs does too, but aborts on text that is not UTF-8, and names
/// in an object can be anything.
unsafe extern "C" fn listen(
    level: libbpf_sys::libbpf_print_level,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    if level != libbpf_sys::LIBBPF_WARN {
        return 0;
    }
    let mut text: *mut c_char = std::ptr::null_mut();
    // SAFETY: format and arguments are libbpf's and fit each other; the text is freed below.
    if unsafe { vasprintf(&raw mut text, format, arguments) } < 0 {
        return 0;
    }
    // SAFETY: it succeeded, so the text ends with a 0.
    let lossy = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    if let Ok(mut said) = SAID.lock() {
        said.push_str(&lossy);
    }
    drop(lossy);
    // SAFETY: vasprintf allocated it, and nobody refers to it any more.
    unsafe { libc::free(text.cast()) };
    0
}

/// Receives libbpf's messages and drops them.
unsafe extern "C" fn ignore(
    _: libbpf_sys::libbpf_print_level,
    _: *const c_char,
    _: *mut c_void,
) -> c_int {
    0
}

/// From now on libbpf prints nothing: what matters of its messages is in errors.
pub fn silence_libbpf() {
    // SAFETY: the types differ only in that of the arguments, a pointer in both.
    let ignore = unsafe {
        std::mem::transmute::<*const (), libbpf_sys::libbpf_print_fn_t>(ignore as *const ())
    };
    // SAFETY: the function lives as long as the program.
    unsafe { libbpf_sys::libbpf_set_print(ignore) };
}

/// Runs a function while libbpf's messages are kept for [`take_libbpf_log`] and not printed.
pub fn with_libbpf_log<T>(what: impl FnOnce() -> T) -> T {
    // SAFETY: the types differ only in that of the arguments, a pointer in both.
    let listen = unsafe {
        std::mem::transmute::<*const (), libbpf_sys::libbpf_print_fn_t>(listen as *const ())
    };
    // SAFETY: both functions live as long as the program.
    let before = unsafe { libbpf_sys::libbpf_set_print(listen) };
    take_libbpf_log();
    let outcome = what();
    // SAFETY: as above.
    unsafe { libbpf_sys::libbpf_set_print(before) };
    outcome
}

/// Takes libbpf's messages.
pub fn take_libbpf_log() -> String {
    SAID.lock()
        .map(|mut said| std::mem::take(&mut *said))
        .unwrap_or_default()
}

/// Words on an object that libbpf could not read.
pub(crate) fn fault_words(error: &libbpf_rs::Error) -> String {
    last_line(&take_libbpf_log()).unwrap_or_else(|| error.to_string())
}

/// Words on an object that the kernel did not take.
pub(crate) fn refusal_words(error: &libbpf_rs::Error) -> String {
    let words = last_words(&take_libbpf_log());
    match words.is_empty() {
        true => error.to_string(),
        false => words,
    }
}

/// Whether the types of an object are consistent: each chain ends, and members are within their
/// struct. libbpf assumes this, and reads and writes accordingly.
pub fn is_sound(btf: &Btf<'_>) -> bool {
    let ends = |id| {
        let first = btf.type_by_id::<BtfType<'_>>(TypeId::from(id));
        let chain = std::iter::successors(first, BtfType::next_type);
        chain.take(MOST_TYPES + 1).count() <= MOST_TYPES
    };
    let fits = |id| {
        let Some(whole) = btf.type_by_id::<Struct<'_>>(TypeId::from(id)) else {
            return true;
        };
        whole.iter().all(|member| {
            let MemberAttr::Normal { offset } = member.attr else {
                return true;
            };
            // SAFETY: the pointer is that of `btf`, which outlives the call.
            let size = unsafe {
                libbpf_sys::btf__resolve_size(btf.as_libbpf_object().as_ptr(), member.ty.into())
            };
            usize::try_from(size).is_ok_and(|size| offset as usize / 8 + size <= whole.size())
        })
    };
    let ids = 1..u32::try_from(btf.len()).unwrap_or(u32::MAX);
    ids.clone().all(ends) && ids.clone().all(fits)
}

/// libbpf's last line when it could not read an object.
fn last_line(said: &str) -> Option<String> {
    said.lines().last().map(printable)
}

/// The last lines of the verifier's log, which have the reason. Without a log, the last lines of
/// libbpf.
pub fn last_words(said: &str) -> String {
    let log = said
        .split_once("BEGIN PROG LOAD LOG --")
        .and_then(|(_, rest)| rest.split_once("-- END PROG LOAD LOG"))
        .map_or(said, |(log, _)| log);
    let is_reason = |line: &&str| {
        let line = line.trim();
        let noise = [
            "processed ",
            "verification time",
            "stack depth",
            "libbpf: prog",
        ];
        !line.is_empty() && !noise.iter().any(|noise| line.starts_with(noise))
    };
    let lines: Vec<&str> = log.lines().filter(is_reason).map(str::trim).collect();
    printable(&lines[lines.len().saturating_sub(LOG_LINES)..].join("; "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]

    use super::*;

    #[test]
    fn the_last_words_of_the_verifier_are_kept() {
        let said = "libbpf: prog 'f': BPF program load failed: Permission denied\n\
                    libbpf: prog 'f': -- BEGIN PROG LOAD LOG --\n\
                    0: R1=ctx() R10=fp0\n0: (61) r0 = *(u32 *)(r1 +4000)\n\
                    invalid bpf_context access off=4000 size=4\n\
                    processed 1 insns (limit 1000000)\n\
                    -- END PROG LOAD LOG --\nlibbpf: prog 'f': failed to load: -13\n";
        let words = last_words(said);
        assert!(
            words.ends_with("invalid bpf_context access off=4000 size=4"),
            "{words}"
        );
        assert!(!words.contains("processed"), "{words}");
        let long: String = (0..100).map(|n| format!("line {n}\n")).collect();
        assert_eq!(last_words(&long).split("; ").count(), LOG_LINES);
    }

    #[test]
    fn members_beyond_their_struct_are_seen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("types.o");
        let source = directory.path().join("types.c");
        std::fs::write(&source, "struct { char a[0x1238]; long b; } v;").unwrap();
        let clang = std::process::Command::new("clang")
            .args(["-target", "bpf", "-g", "-c", "-o"])
            .args([&path, &source])
            .status();
        assert!(clang.unwrap().success());
        assert!(is_sound(&Btf::from_path(&path).unwrap()));
        // The member's offset in bits becomes one beyond the end.
        let mut bytes = std::fs::read(&path).unwrap();
        let (offset, beyond) = ((0x1238u32 * 8).to_le_bytes(), (0x1240u32 * 8).to_le_bytes());
        let places = (0..bytes.len() - 3).filter(|at| bytes[*at..at + 4] == offset);
        let places: Vec<usize> = places.collect();
        assert!(!places.is_empty());
        for at in places {
            bytes[at..at + 4].copy_from_slice(&beyond);
        }
        std::fs::write(&path, bytes).unwrap();
        assert!(!is_sound(&Btf::from_path(&path).unwrap()));
    }

    #[test]
    fn foreign_text_controls_no_terminal() {
        assert_eq!(last_line("a\nb\u{9b}c\n").unwrap(), "b\\u{9b}c");
        assert_eq!(last_words("a\tb\nc\n"), "a\\tb; c");
    }
}
