//! A user-mode kernel in simulated time, built from Debian's kernel sources.
//!
//! With `time-travel=inf-cpu` the clock stands still while a program computes, and jumps to the
//! next timer while all wait. The network then depends only on the path, not on the machine's
//! speed. Debian's own user-mode Linux is built without it (`CONFIG_UML_TIME_TRAVEL_SUPPORT`).

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use nix::poll::PollFlags;
use thalweg_process::Process;
use thalweg_process::interrupt::{self, OnSignal};
use thalweg_process::tool;

use crate::cache::{self, Scratch};
use crate::error::Error;
use crate::ticks;
use crate::uml::{self, Kernel};

/// The additions to the packaged kernel's configuration.
const FRAGMENT: &str = include_str!("virtual_kernel/fragment.config");
/// The changes of the sources.
const REPLACEMENTS: [Replacement; 4] = [
    // The only function through which a user-mode kernel gets randomness from the machine. The
    // replacement gives numbers from a seed.
    Replacement {
        file: "arch/um/os-Linux/util.c",
        from: "ssize_t os_getrandom(void *buf, size_t len, unsigned int flags)\n\
               {\n\treturn getrandom(buf, len, flags);\n}\n",
        to: include_str!("virtual_kernel/getrandom.c"),
    },
    // The kernel also takes randomness from its command line, which names the run's directory.
    Replacement {
        file: "drivers/char/random.c",
        from: "\t_mix_pool_bytes(command_line, strlen(command_line));\n",
        to: "\t(void)command_line; /* Thalweg: not the same in each run */\n",
    },
    // A configuration can set the tick rate only where Kconfig has a prompt.
    Replacement {
        file: "arch/um/Kconfig",
        from: "config HZ\n\tint\n\tdefault 100\n",
        to: "config HZ\n\tint \"Ticks a second\"\n\tdefault 100\n",
    },
    // Processors with AMX have more register state than these sources know.
    Replacement {
        file: "arch/x86/um/os-Linux/registers.c",
        from: concat!(
            "int restore_fp_registers(int pid, unsigned long *fp_regs)\n{\n",
            "#ifdef PTRACE_SETREGSET\n\tstruct iovec iov;\n\tif (have_xstate_support) {\n",
            "\t\tiov.iov_base = fp_regs;\n\t\tiov.iov_len = FP_SIZE * sizeof(unsigned long);\n",
            "\t\tif (ptrace(PTRACE_SETREGSET, pid, NT_X86_XSTATE, &iov) < 0)\n",
        ),
        to: concat!(
            include_str!("uml/xstate.c"),
            "int restore_fp_registers(int pid, unsigned long *fp_regs)\n{\n",
            "#ifdef PTRACE_SETREGSET\n\tif (have_xstate_support) {\n",
            "\t\tif (set_xstate(pid, fp_regs, FP_SIZE * sizeof(unsigned long)) < 0)\n",
        ),
    },
];
/// The package of the sources, and the name of its archive.
const SOURCES: &str = "linux-source-6.1";
/// Programs that the build calls, with their packages.
const TOOLS: [(&str, &str); 7] = [
    ("make", "make"),
    ("gcc", "gcc"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("xz", "xz-utils"),
    ("tar", "tar"),
];
/// The kernel's file in its directory of the cache.
const PROGRAM: &str = "linux";
/// Approximate steps of `make`, for the progress bar.
const STEPS: u64 = 1500;
/// Parts of the sources that no build for `ARCH=um` reads. Kconfig files stay, as they include each
/// other whatever the architecture.
const LEFT_OUT: [&str; 7] = [
    "*/arch/[!ux]*/*.[chS]",
    "*/boot/dts/*.dts*",
    "*/drivers/gpu/drm/*/*.[ch]",
    "*/drivers/net/ethernet/*/*.[ch]",
    "*/drivers/media/*/*.[ch]",
    "*/sound/*/*.[ch]",
    "*/tools/testing/*",
];

/// A change of the sources.
struct Replacement {
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

impl Replacement {
    fn apply_to(&self, tree: &Path) -> Result<(), Error> {
        let file = tree.join(self.file);
        let text = fs::read_to_string(&file).map_err(Error::io("cannot read", &file))?;
        if text.matches(self.from).count() != 1 {
            return Err(Error::Options(format!(
                "{} is not what the laboratory knows how to change: expected once:\n{}",
                file.display(),
                self.from
            )));
        }
        fs::write(&file, text.replace(self.from, self.to)).map_err(Error::io("cannot write", &file))
    }
}

/// The clock of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// The machine's.
    Real,
    /// A clock of the kernel's own, moved by timers.
    Simulated,
}

/// The kernel built with this tick rate. All its randomness comes from the seed.
///
/// # Errors
/// [`Error::Preconditions`] if there is none, with the command that builds it.
pub fn find_virtual(hz: u32, time: Time, seed: u64) -> Result<Kernel, Error> {
    let missing = uml::missing_requirements();
    if !missing.is_empty() {
        return Err(Error::Preconditions(missing));
    }
    let ending = format!("-{}", recipe_hash(&kernel_configuration(hz)?));
    let cache = cache::cache_directory();
    let mut built: Vec<PathBuf> = fs::read_dir(&cache)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|directory| directory.join(PROGRAM).is_file())
        .collect();
    built.sort();
    let current = built
        .iter()
        .rfind(|directory| directory.to_string_lossy().ends_with(&ending));
    let Some(program) = current.map(|directory| directory.join(PROGRAM)) else {
        return Err(Error::Preconditions(vec![absent_message(
            &cache, &built, hz,
        )]));
    };
    Ok(Kernel {
        program,
        modules: Vec::new(),
        words: match time {
            Time::Real => Vec::new(),
            Time::Simulated => repeatable_arguments(),
        },
        environment: vec![("THALWEG_SEED".to_owned(), seed.to_string())],
        slowness: match time {
            Time::Real => 1,
            Time::Simulated => 60,
        },
        sets_all_state: true,
    })
}

/// The message if no kernel is as it would be built now. Older builds may lack a change of the
/// sources that they need to run here.
fn absent_message(cache: &Path, built: &[PathBuf], hz: u32) -> String {
    let option = match hz {
        ticks::DEFAULT => String::new(),
        other => format!(" --hz {other}"),
    };
    let build = format!("`thalweg-lab build-kernel{option}` (some ten minutes on two CPUs)");
    let mut programs = built.iter().map(|directory| directory.join(PROGRAM));
    match programs.find(|program| has_rate(program, hz)) {
        Some(old) => format!(
            "{} has {hz} ticks a second, but was built by another version of Thalweg or from \
             another configuration: build it anew with {build}",
            old.display()
        ),
        None => format!(
            "no kernel of the laboratory's own with {hz} ticks a second in {}: build it with \
             {build}",
            cache.display()
        ),
    }
}

/// Whether a kernel reports this tick rate.
fn has_rate(program: &Path, hz: u32) -> bool {
    let mut command = Command::new(program);
    let output = command.arg("--showconfig").stdin(Stdio::null()).output();
    output.is_ok_and(|output| {
        let configuration = String::from_utf8_lossy(&output.stdout).into_owned();
        configuration.lines().any(|line| line == tick_rate_line(hz))
    })
}

/// The arguments that make two runs equal: time moved by timers only, a fixed begin of time, and no
/// randomness from the processor.
fn repeatable_arguments() -> Vec<String> {
    [
        "time-travel=inf-cpu",
        "time-travel-start=1700000000000000000",
        "random.trust_cpu=off",
        "random.trust_bootloader=off",
        "norandmaps",
    ]
    .map(str::to_owned)
    .into()
}

/// Builds the kernel with this tick rate (one of [`ticks::RATES`]), unless it exists, and returns
/// its path.
///
/// # Errors
/// [`Error::Options`] for another rate. [`Error::Preconditions`] with all missing packages. The end
/// of the build's output if it fails. Nothing is left in the cache then.
pub fn build_virtual(hz: u32, progress: bool) -> Result<PathBuf, Error> {
    ticks::check_rate(hz).map_err(|why| Error::Options(format!("--hz: {why}")))?;
    let mut missing = uml::missing_requirements();
    missing.extend(crate::missing_programs(TOOLS));
    let archive = PathBuf::from(format!("/usr/src/{SOURCES}.tar.xz"));
    if !archive.is_file() {
        missing.push(format!(
            "no {}: install the package {SOURCES} (apt-get install {SOURCES})",
            archive.display()
        ));
    }
    if !missing.is_empty() {
        return Err(Error::Preconditions(missing));
    }
    let configuration = kernel_configuration(hz)?;
    let name = format!(
        "{}-{}",
        source_version(&archive)?,
        recipe_hash(&configuration)
    );
    let cache = cache::cache_directory();
    let place = cache.join(name);
    if place.join(PROGRAM).is_file() {
        return Ok(place.join(PROGRAM));
    }
    let _signals = interrupt::Guard::install_handlers()?;
    let work = Scratch::create(&cache)?;
    let bar = progress_bar(progress);
    bar.set_message("unpacking the sources");
    let mut unpack = Command::new("tar");
    unpack.arg("--extract").arg("--file").arg(&archive);
    unpack.arg("--directory").arg(work.path());
    for pattern in LEFT_OUT {
        unpack.arg(format!("--exclude={pattern}"));
    }
    run_build_step(&mut unpack, work.path(), &bar)?;
    let tree = work.path().join(SOURCES);
    for replacement in &REPLACEMENTS {
        replacement.apply_to(&tree)?;
    }
    let file = tree.join(".config");
    fs::write(&file, &configuration).map_err(Error::io("cannot write", &file))?;
    run_build_step(make_command(&tree).arg("olddefconfig"), work.path(), &bar)?;
    let settled = fs::read_to_string(&file).map_err(Error::io("cannot read", &file))?;
    if let Some(line) = dropped_line(&settled, hz) {
        return Err(Error::Options(format!(
            "these sources have no {line}, which the laboratory's kernel needs"
        )));
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    run_build_step(
        make_command(&tree)
            .arg(format!("--jobs={cpus}"))
            .arg("linux"),
        work.path(),
        &bar,
    )?;
    bar.finish_and_clear();
    let ready = work.path().join("ready");
    fs::create_dir(&ready).map_err(Error::io("cannot create", &ready))?;
    let built = tree.join("linux");
    fs::rename(&built, ready.join(PROGRAM)).map_err(Error::io("cannot keep", &built))?;
    // Renamed at once, so that nobody finds half a kernel.
    match fs::rename(&ready, &place) {
        Err(_) if place.join(PROGRAM).is_file() => {}
        done => done.map_err(Error::io("cannot create", &place))?,
    }
    Ok(place.join(PROGRAM))
}

fn make_command(tree: &Path) -> Command {
    let mut command = Command::new("nice");
    command
        .args(["-n", "10", "make", "ARCH=um", "SUBARCH=x86_64"])
        .args([
            "KBUILD_BUILD_TIMESTAMP=1970-01-01",
            "KBUILD_BUILD_USER=thalweg",
        ])
        .arg("KBUILD_BUILD_HOST=thalweg")
        .current_dir(tree);
    command
}

/// Runs a step of the build. Its output counts as progress, and errors quote it.
fn run_build_step(command: &mut Command, work: &Path, bar: &ProgressBar) -> Result<(), Error> {
    let path = work.join("log");
    let mut log = File::create(&path).map_err(Error::io("cannot create", &path))?;
    let (mut output, input) = std::io::pipe().map_err(Error::system("cannot create a pipe"))?;
    let errors = input
        .try_clone()
        .map_err(Error::system("cannot duplicate a descriptor"))?;
    let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(input).stderr(errors))?;
    // The parent's ends of the pipe would keep it open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let never = || Instant::now() + Duration::from_secs(3600);
    let mut bytes = [0u8; 16 << 10];
    loop {
        if !interrupt::wait_for_event(output.as_fd(), PollFlags::POLLIN, never(), OnSignal::Fail)? {
            continue;
        }
        let count = output
            .read(&mut bytes)
            .map_err(Error::system("cannot read what the build says"))?;
        if count == 0 {
            break;
        }
        log.write_all(&bytes[..count])
            .map_err(Error::io("cannot write", &path))?;
        let text = String::from_utf8_lossy(&bytes[..count]);
        bar.inc(text.matches('\n').count() as u64);
        if let Some(line) = text.trim_end().lines().last() {
            bar.set_message(line.trim().to_owned());
        }
    }
    match process.wait_until(never(), OnSignal::Fail)? {
        Some(status) if status.success() => Ok(()),
        status => {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = &lines[lines.len().saturating_sub(30)..];
            Err(thalweg_process::Error::Command {
                command: format!("{command:?}"),
                status: status.map_or("no end".to_owned(), |status| status.to_string()),
                stderr: last.join("\n"),
            }
            .into())
        }
    }
}

fn progress_bar(wanted: bool) -> ProgressBar {
    if !wanted {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(STEPS);
    if let Ok(style) = ProgressStyle::with_template("kernel [{bar:32}] {elapsed}  {wide_msg}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// The packaged kernel's configuration without modules, then the laboratory's lines. Of two lines
/// on one option the later counts (kconfig warns and takes it).
fn kernel_configuration(hz: u32) -> Result<String, Error> {
    let output = tool::program_command(uml::PROGRAM)
        .arg("--showconfig")
        .output()
        .map_err(Error::system("cannot start linux.uml"))?;
    let packaged = without_modules(&String::from_utf8_lossy(&output.stdout));
    Ok(format!("{packaged}{FRAGMENT}{}\n", tick_rate_line(hz)))
}

/// The configuration line of the tick rate.
fn tick_rate_line(hz: u32) -> String {
    format!("CONFIG_HZ={hz}")
}

fn without_modules(configuration: &str) -> String {
    configuration
        .lines()
        .map(|line| match line.strip_suffix("=m") {
            Some(name) => format!("# {name} is not set\n"),
            None => format!("{line}\n"),
        })
        .collect()
}

/// The first required line that a settled configuration lacks: those of the fragment that switch
/// something on, and the tick rate.
fn dropped_line(settled: &str, hz: u32) -> Option<String> {
    FRAGMENT
        .lines()
        .filter(|line| line.ends_with("=y"))
        .map(str::to_owned)
        .chain([tick_rate_line(hz)])
        .find(|line| !settled.lines().any(|has| has == line))
}

/// The version of the sources: the package's, or without a package the archive's size.
fn source_version(archive: &Path) -> Result<String, Error> {
    let asked = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${Version}", SOURCES])
        .stderr(Stdio::null())
        .output();
    if let Ok(output) = asked
        && output.status.success()
    {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let size = fs::metadata(archive).map_err(Error::io("cannot read", archive))?;
    Ok(format!("6.1-{}", size.len()))
}

/// A hash of configuration and changes, by which kernels of the same sources differ.
fn recipe_hash(configuration: &str) -> String {
    let changes: String = REPLACEMENTS.iter().map(|one| one.to).collect();
    hash(&format!("{configuration}{changes}"))
}

/// FNV-1a, 64 bits, in hexadecimal.
fn hash(text: &str) -> String {
    let digest = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
            (digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    format!("{digest:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_left_out_before_the_fragment() {
        let text =
            without_modules("CONFIG_A=y\nCONFIG_B=m\n# CONFIG_C is not set\nCONFIG_D=\"m\"\n");
        assert_eq!(
            text,
            "CONFIG_A=y\n# CONFIG_B is not set\n# CONFIG_C is not set\nCONFIG_D=\"m\"\n"
        );
    }

    #[test]
    fn what_the_sources_lack_is_noticed() {
        let all = format!("{FRAGMENT}CONFIG_HZ=1000\n");
        assert_eq!(dropped_line(&all, 1000), None);
        assert_eq!(dropped_line(&all, 100).as_deref(), Some("CONFIG_HZ=100"));
        let without = all.replace("CONFIG_NET_SCH_NETEM=y", "");
        assert_eq!(
            dropped_line(&without, 1000).as_deref(),
            Some("CONFIG_NET_SCH_NETEM=y")
        );
        assert!(FRAGMENT.contains("CONFIG_UML_TIME_TRAVEL_SUPPORT=y"));
    }

    #[test]
    fn sources_are_changed_in_the_one_place_or_not_at_all() {
        let tree = tempfile::tempdir().unwrap();
        for replacement in &REPLACEMENTS {
            let file = tree.path().join(replacement.file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, format!("a\n{}b\n", replacement.from)).unwrap();
            replacement.apply_to(tree.path()).unwrap();
            let changed = fs::read_to_string(&file).unwrap();
            assert_eq!(changed, format!("a\n{}b\n", replacement.to));
            let error = replacement.apply_to(tree.path()).unwrap_err().to_string();
            let words = format!("{} is not what the laboratory", replacement.file);
            assert!(error.contains(&words), "{error}");
        }
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        // Test vectors of the FNV authors (draft-eastlake-fnv, appendix C).
        assert_eq!(hash(""), "cbf29ce484222325");
        assert_eq!(hash("a"), "af63dc4c8601ec8c");
        assert_eq!(hash("foobar"), "85944171f73967e8");
    }
}
