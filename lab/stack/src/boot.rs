//! Starts the kernel in its network namespace. For root it is also the first process of a process
//! namespace: none of its processes outlives it, and it does not outlive this process.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::sched::{CloneFlags, setns, unshare};
use thalweg_guest::CONSOLE;
use thalweg_guest::uml::{self, Kernel, Machine};
use thalweg_process::{Process, interrupt};
use thalweg_units::Size;

use crate::contact::Contact;
use crate::control::MTU_BYTES;
use crate::error::Error;
use crate::system_error;

/// The seed of the kernel's random numbers, in the work directory.
pub(crate) const SEED: &str = "seed";
/// Length of the seed, bytes.
pub(crate) const SEED_BYTES: usize = 64;

/// The device of the kernel's interface `vec0`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wire<'a> {
    /// A TAP device with this name, with segments of 64 KiB.
    Device(&'a str),
    /// An open TAP device, with packets of this many bytes.
    Open(&'a File, usize),
}

/// Starts the kernel; `binary` is this program.
pub(crate) fn boot_kernel(
    kernel: &Kernel,
    memory: Size,
    work: &Path,
    binary: &Path,
    contact: &Contact,
    wire: Wire<'_>,
) -> Result<Process, Error> {
    let seed = random_bytes::<SEED_BYTES>()?;
    let path = work.join(SEED);
    std::fs::write(&path, seed).map_err(Error::io("cannot write", &path))?;
    let path = work.join(CONSOLE);
    let console = File::create(&path).map_err(Error::io("cannot create", &path))?;
    let errors = console
        .try_clone()
        .map_err(Error::io("cannot create", &path))?;
    let machine = Machine {
        kernel,
        memory,
        work,
    };
    let (devices, handed) = kernel_interfaces(contact, wire);
    let inside = [
        "stack".to_owned(),
        "guest".to_owned(),
        work.display().to_string(),
    ];
    let processor = uml::next_processor();
    if let (Some(place), Wire::Device(name), Some(own)) = (contact.place(), &wire, processor) {
        let others = uml::allowed_processors();
        place.receive_on(name, others.into_iter().filter(|&it| it != own))?;
    }
    let mut command = machine.kernel_command(binary, &devices, &inside, processor)?;
    uml::in_time(&mut command)?;
    command
        .current_dir(work)
        // The seed of a kernel that was built for repeatable runs.
        .env("THALWEG_SEED", u64::from_ne_bytes(random_bytes()?).to_string())
        .stdin(Stdio::null())
        .stdout(console)
        .stderr(errors)
        .process_group(0);
    let place = contact
        .place()
        .map(|it| it.descriptor().try_clone_to_owned());
    let place = place
        .transpose()
        .map_err(Error::system("cannot duplicate a descriptor"))?;
    let privileged = place.is_some();
    let this =
        interrupt::open_pidfd(std::process::id()).map_err(Error::system("cannot find myself"))?;
    in_place(&mut command, place, this, handed);
    let mut start = || Ok(Process::spawn_tied(&mut command)?);
    if privileged {
        in_process_namespace(start)
    } else {
        // An ordinary user gets process namespaces only with a user namespace, where other users'
        // files are nobody's.
        start()
    }
}

/// The kernel's interfaces as on its command line, and the descriptors that it inherits.
fn kernel_interfaces(contact: &Contact, wire: Wire<'_>) -> ([String; 2], Vec<RawFd>) {
    let control = contact.device();
    // A TAP device takes single packets only, no vectors of them.
    let open = |device: &File, bytes: usize| {
        format!("transport=fd,fd={},vec=0,mtu={bytes}", device.as_raw_fd())
    };
    let (interface, own) = match wire {
        Wire::Device(name) => {
            let interface = format!("transport=tap,ifname={name},depth=128,gro=1");
            (interface, None)
        }
        Wire::Open(device, bytes) => (open(device, bytes), Some(device.as_raw_fd())),
    };
    let devices = [
        format!("vec0:{interface}"),
        format!("vec1:{}", open(control, MTU_BYTES as usize)),
    ];
    (
        devices,
        own.into_iter().chain([control.as_raw_fd()]).collect(),
    )
}

/// Makes a command enter its network namespace, die with this process, and inherit descriptors.
fn in_place(command: &mut Command, place: Option<OwnedFd>, this: OwnedFd, handed: Vec<RawFd>) {
    // SAFETY: between fork and exec only system calls are made: setns(2), prctl(2), poll(2) and
    // fcntl(2).
    unsafe {
        command.pre_exec(move || {
            if let Some(place) = &place {
                setns(place, CloneFlags::CLONE_NEWNET)?;
            }
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before that call took effect. Its number cannot be seen from
            // another process namespace.
            let mut parent = libc::pollfd {
                fd: this.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            if libc::poll(&raw mut parent, 1, 0) != 0 {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            // These stay open in this process.
            for &descriptor in &handed {
                fcntl(
                    BorrowedFd::borrow_raw(descriptor),
                    FcntlArg::F_SETFD(FdFlag::empty()),
                )?;
            }
            Ok(())
        });
    }
}

/// Random bytes from the machine.
fn random_bytes<const BYTES: usize>() -> Result<[u8; BYTES], Error> {
    let mut bytes = [0; BYTES];
    // SAFETY: the buffer has this length. Up to 256 bytes come in one call.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), BYTES, 0) };
    if got == BYTES as isize {
        Ok(bytes)
    } else {
        Err(Error::system("getrandom")(io::Error::last_os_error()))
    }
}

/// Makes the started process the first of a process namespace.
fn in_process_namespace(start: impl FnOnce() -> Result<Process, Error>) -> Result<Process, Error> {
    let path = "/proc/self/ns/pid_for_children";
    let before = File::open(path).map_err(Error::io("cannot open", path))?;
    unshare(CloneFlags::CLONE_NEWPID).map_err(system_error("cannot create a process namespace"))?;
    let started = start();
    setns(&before, CloneFlags::CLONE_NEWPID)
        .map_err(system_error("cannot leave a process namespace"))?;
    started
}
