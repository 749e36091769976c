//! The cause of a kernel's end, from its console.

use std::fs;
use std::process::ExitStatus;

use crate::KernelKind;
use crate::error::{Error, Hint};

/// Lines of the console that an error quotes if the cause is unknown.
const LINES: usize = 40;
/// Texts of lines that name the cause of a later panic.
const CAUSES: [&str; 5] = ["errno = ", "Bus error", MEMORY[0], MEMORY[1], MEMORY[2]];
/// Texts of a kernel with too little memory.
const MEMORY: [&str; 3] = [
    "Out of memory",
    "Initramfs unpacking failed",
    "deadlocked on memory",
];
/// The remedy for that.
pub(crate) const MORE_MEMORY: &str = "give it more memory (--memory)";
/// The begin of the panic itself.
const PANIC: &str = "Kernel panic";

/// The error of a kernel that ended by itself.
pub fn kernel_ended_error(kind: KernelKind, status: ExitStatus, console: &str) -> Error {
    let console = strip_control(console);
    let line = decisive_line(&console).to_owned();
    Error::Ended {
        kind,
        status: status.to_string(),
        remedy: known_hint(&line, has_amx()),
        line,
    }
}

/// The line in which a kernel reports too little memory.
pub(crate) fn out_of_memory(console: &str) -> Option<String> {
    let console = strip_control(console);
    let says = |line: &&str| MEMORY.iter().any(|words| line.contains(words));
    console
        .lines()
        .find(says)
        .map(|line| line.trim().to_owned())
}

/// Whether the machine's processor has AMX.
pub(crate) fn has_amx() -> bool {
    lists_amx(&read_cpuinfo())
}

/// The last lines of a console.
pub fn last_lines(console: &str) -> String {
    let plain = strip_control(console);
    let lines: Vec<&str> = plain.lines().collect();
    if lines.is_empty() {
        return "(nothing)".to_owned();
    }
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// The text without control characters.
fn strip_control(text: &str) -> String {
    text.chars()
        .filter(|&c| c == '\n' || !c.is_control())
        .collect()
}

/// The line that tells why the kernel ended: the cause of its panic, or the panic, or the last
/// line.
fn decisive_line(console: &str) -> &str {
    let lines = || {
        let all = console.lines().map(|line| {
            // The kernel's own dump of its messages has their level in front.
            let level = line.strip_prefix('<').and_then(|line| line.split_once('>'));
            without_time(level.map_or(line, |(_, line)| line).trim())
        });
        all.filter(|line| !line.is_empty())
    };
    let cause = lines()
        .rev()
        .find(|line| CAUSES.iter().any(|cause| line.contains(cause)));
    cause
        .or_else(|| lines().find(|line| line.starts_with(PANIC)))
        .or_else(|| lines().next_back())
        .unwrap_or("nothing")
}

/// A line without the kernel's time stamp, such as `[    1.632753] `.
fn without_time(line: &str) -> &str {
    let time = line
        .strip_prefix('[')
        .and_then(|line| line.split_once("] "));
    match time {
        Some((time, rest)) if time.trim().parse::<f64>().is_ok() => rest,
        _ => line,
    }
}

/// The known remedy for a line.
fn known_hint(line: &str, amx: bool) -> Option<Hint> {
    if line.contains("fp regs failed") || line.contains("put_fp_registers") {
        let has = if amx {
            "has AMX (amx_tile), whose register state"
        } else {
            "has a register state that"
        };
        return Some(Hint {
            why: format!("this machine's processor {has} is larger than this kernel can set"),
            fix: "put a user-mode kernel of 6.14 or newer first on PATH",
        });
    }
    if out_of_memory(line).is_some() {
        return Some(Hint {
            why: "it has too little memory".to_owned(),
            fix: MORE_MEMORY,
        });
    }
    if line.starts_with("check_ptrace") || line.starts_with("ptrace: ") {
        return Some(Hint {
            why: "this system lets no program trace another".to_owned(),
            fix: "allow ptrace(2) (sysctl kernel.yama.ptrace_scope=1, a container's seccomp profile)",
        });
    }
    None
}

fn lists_amx(cpuinfo: &str) -> bool {
    cpuinfo
        .lines()
        .filter(|line| line.starts_with("flags"))
        .any(|line| line.split_ascii_whitespace().any(|flag| flag == "amx_tile"))
}

fn read_cpuinfo() -> String {
    // If it cannot be read, only a name is lost.
    fs::read_to_string("/proc/cpuinfo").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    /// From the console of 6.1.176.
    const STATE: &str = "mmapper_init - find_iomem failed\n\
        userspace - ptrace set fp regs failed, errno = 14\r\n\
        Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b\n\
        Call Trace:\n [<606944ba>] ? _printk+0x0/0x94\n\n";

    #[test]
    fn the_decisive_line() {
        for (console, line) in [
            (STATE, "userspace - ptrace set fp regs failed, errno = 14"),
            (
                "<3>Bus error - the host /dev/shm or /tmp mount likely just ran out of space\n\
                 <0>Kernel panic - not syncing: Kernel mode signal 7\n<4>CPU: 0 PID: 0\n",
                "Bus error - the host /dev/shm or /tmp mount likely just ran out of space",
            ),
            (
                "Failed to initialize ubd device 0\n\
                 Kernel panic - not syncing: Requested init /x failed (error -2).\nCPU: 0\n",
                "Kernel panic - not syncing: Requested init /x failed (error -2).",
            ),
            (
                "Operation not permitted\n/mnt must be not mounted noexec\n\n",
                "/mnt must be not mounted noexec",
            ),
            (
                "[    2.1] Out of memory: Killed process 1 (thalweg)\n\
                 [    2.2] Kernel panic - not syncing: System is gone\n[    2.3] Rebooting\n",
                "Out of memory: Killed process 1 (thalweg)",
            ),
            (
                "[    2.2] Kernel panic - not syncing: x\n[    2.3] Rebooting in 1 s\n",
                "Kernel panic - not syncing: x",
            ),
            ("", "nothing"),
        ] {
            assert_eq!(decisive_line(&strip_control(console)), line);
        }
    }

    #[test]
    fn amx_is_named_where_there_is_amx() {
        assert!(lists_amx(
            "model name\t: x\nflags\t\t: fpu amx_tile amx_int8\n"
        ));
        assert!(!lists_amx(
            "model name\t: amx_tile\nflags\t\t: fpu amx_tiles\n"
        ));
        let line = "userspace - ptrace set fp regs failed, errno = 14";
        let why = |amx| known_hint(line, amx).unwrap().why;
        assert!(why(true).contains("AMX") && !why(false).contains("AMX"));
        assert!(known_hint("Kernel panic - not syncing: x", true).is_none());
    }

    #[test]
    fn an_end_is_told_in_one_line() {
        let text =
            kernel_ended_error(KernelKind::UserMode, ExitStatus::from_raw(6), STATE).to_string();
        let begin = "user-mode Linux ended unexpectedly (signal: 6 (SIGABRT)), saying \
                     \"userspace - ptrace set fp regs failed, errno = 14\": this machine's \
                     processor has ";
        assert!(text.starts_with(begin), "{text}");
        assert!(text.ends_with("6.14 or newer first on PATH"), "{text}");
        assert_eq!(text.lines().count(), 1);
        let text =
            kernel_ended_error(KernelKind::UserMode, ExitStatus::from_raw(9), "").to_string();
        let all = "user-mode Linux ended unexpectedly (signal: 9 (SIGKILL)), saying \"nothing\"";
        assert_eq!(text, all);
    }

    #[test]
    fn the_end_of_a_console_is_quoted() {
        assert_eq!(last_lines(""), "(nothing)");
        assert_eq!(last_lines("a\r\nb\u{1b}[0m\r\n"), "a\nb[0m");
        let long: String = (0..100).map(|number| format!("{number}\n")).collect();
        assert!(last_lines(&long).starts_with("60\n") && last_lines(&long).ends_with("\n99"));
    }
}
