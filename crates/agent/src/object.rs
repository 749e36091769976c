//! Compiled BPF objects that come from outside: what is wrong with them, in words.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result, bail};
use libbpf_rs::PrintLevel;

/// Lines of the verifier's log that an error shows. The last ones say what was wrong.
const LOG_LINES: usize = 6;
/// `e_machine` of a BPF object (linux/elf-em.h, EM_BPF).
const EM_BPF: u16 = 247;

/// Says what is wrong with a file in words that libbpf does not have.
pub fn check_file(file: &Path) -> Result<()> {
    let shown = file.display();
    let mut header = Vec::new();
    File::open(file)
        .and_then(|file| file.take(20).read_to_end(&mut header))
        .with_context(|| format!("opening {shown}"))?;
    let expected = "expected an object that clang compiled with -target bpf";
    if header.len() < 20 || !header.starts_with(b"\x7fELF") {
        bail!("{shown} is not an ELF file; {expected}");
    }
    let is_little = header[5] == 1;
    let bytes = [header[18], header[19]];
    let machine = if is_little {
        u16::from_le_bytes(bytes)
    } else {
        u16::from_be_bytes(bytes)
    };
    if machine != EM_BPF {
        bail!("{shown} is an ELF file for another machine (number {machine}); {expected}");
    }
    Ok(())
}

/// What libbpf has said since it was last asked, the verifier's log included.
static SAID: Mutex<String> = Mutex::new(String::new());

fn listen(_: PrintLevel, text: String) {
    if let Ok(mut said) = SAID.lock() {
        said.push_str(&text);
    }
}

/// Runs something while what libbpf says is kept for [`take_said`] and not printed.
pub fn listening<T>(what: impl FnOnce() -> T) -> T {
    let before = libbpf_rs::set_print(Some((PrintLevel::Warn, listen)));
    take_said();
    let outcome = what();
    libbpf_rs::set_print(before);
    outcome
}

/// What libbpf has said, and forgets it.
pub fn take_said() -> String {
    SAID.lock()
        .map(|mut said| std::mem::take(&mut *said))
        .unwrap_or_default()
}

/// The last lines of the verifier's log, which say what was wrong; where there is no log,
/// of what libbpf said itself.
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
    lines[lines.len().saturating_sub(LOG_LINES)..].join("; ")
}

#[cfg(test)]
mod tests {
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
}
