//! Inside the kernel: the first process sets it up and starts the command.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use thalweg_guest::system as kernel;
use thalweg_process::tool;

use crate::agent::{self, Reporter};
use crate::boot::{SEED, SEED_BYTES};
use crate::control::{self, FromInside, Job, WireAddresses};
use crate::error::Error;
use crate::place::NetworkNamespace;
use crate::program::Program;
use crate::session::COMPLAINT;
use crate::{run_ip, system_error};

/// Page size of user-mode Linux on x86.
const PAGE_BYTES: u64 = 4096;
/// `RNDRESEEDCRNG`, linux/random.h.
const RESEED: libc::Ioctl = 0x5207;
/// The file of the name servers.
const RESOLVER: &str = "/run/resolv.conf";
/// Each timer of fq is a signal of the machine, the greatest cost of pacing. Ten times fq's own
/// slack lets timers share one (docs/measurements/lab.md).
const FQ: &str = "qdisc replace dev vec0 root fq timer_slack 100us";

/// Runs as the first process of a kernel: sets it up and runs a command. The kernel stops when it
/// ends.
///
/// # Errors
/// This is not such a process.
pub fn main(work: &Path) -> Result<(), Error> {
    if std::process::id() != 1 || !kernel::is_user_mode() {
        return Err(Error::Options(
            "`stack guest` is what `stack` starts in a kernel of its own; it is of no use \
             elsewhere"
                .into(),
        ));
    }
    if let Err(error) = be_first_process(work) {
        eprintln!("{COMPLAINT}{error}");
    }
    nix::unistd::sync();
    let never = reboot(RebootMode::RB_POWER_OFF);
    Err(Error::system(format!("cannot stop the kernel: {never:?}"))(
        io::ErrorKind::Other.into(),
    ))
}

fn be_first_process(work: &Path) -> Result<(), Error> {
    kernel::mount_all()?;
    mount_devices()?;
    seed_randomness(&work.join(SEED))?;
    let link = Link::bring_up()?;
    let messages = link.connect_outside(control::MESSAGES)?;
    let mut lines = BufReader::new(messages.try_clone().map_err(broken_connection())?);
    let mut line = String::new();
    lines.read_line(&mut line).map_err(broken_connection())?;
    let job: Job = serde_json::from_str(&line)
        .map_err(|error| broken_connection()(io::Error::other(error)))?;
    let started = set_up(&job).and_then(|()| {
        let (cgroup, notes) = agent::prepare_agent(&job, work)?;
        for text in notes {
            control::send_message(&messages, &FromInside::Note { text })
                .map_err(broken_connection())?;
        }
        Program::start_program(&job, &link, cgroup)
    });
    let told = match started {
        Ok(Ok(program)) => {
            control::send_message(&messages, &FromInside::Started).map_err(broken_connection())?;
            let learns = job.learn.then(|| Reporter::start(work, &messages));
            program.wait_and_report(&messages, lines, learns.transpose()?.as_deref())
        }
        Ok(Err(errno)) => control::send_message(&messages, &FromInside::NotStarted { errno }),
        Err(error) => {
            let why = error.to_string();
            control::send_message(&messages, &FromInside::Failed { why })
        }
    };
    told.map_err(broken_connection())?;
    // The process outside ends the kernel after everything has arrived.
    let _ = messages.shutdown(Shutdown::Write);
    let _ = io::copy(&mut &messages, &mut io::sink());
    Ok(())
}

/// Mounts devices of this kernel over the machine's.
fn mount_devices() -> Result<(), Error> {
    match mount(
        Some("dev"),
        "/dev",
        Some("devtmpfs"),
        MsFlags::empty(),
        None::<&str>,
    ) {
        // The kernel has mounted it.
        Ok(()) | Err(Errno::EBUSY) => {}
        Err(errno) => return Err(system_error("cannot mount devtmpfs on /dev")(errno)),
    }
    for (kind, point, data) in [
        ("devpts", "/dev/pts", "gid=5,mode=620,ptmxmode=666"),
        ("tmpfs", "/dev/shm", "mode=1777"),
    ] {
        fs::create_dir_all(point).map_err(Error::io("cannot create", point))?;
        kernel::mount_one(kind, point, data)?;
    }
    for (name, target) in [
        ("fd", "fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
    ] {
        match symlink(format!("/proc/self/{target}"), format!("/dev/{name}")) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::io("cannot create", format!("/dev/{name}"))(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Mixes random bytes of the machine into the kernel's randomness. A kernel built for repeatable
/// runs has none of its own.
fn seed_randomness(file: &Path) -> Result<(), Error> {
    let bytes = fs::read(file).map_err(Error::io("cannot read", file))?;
    if bytes.len() != SEED_BYTES {
        return Err(Error::io("too short:", file)(
            io::ErrorKind::InvalidData.into(),
        ));
    }
    let path = "/dev/urandom";
    let mut device = File::options()
        .write(true)
        .open(path)
        .map_err(Error::io("cannot open", path))?;
    device
        .write_all(&bytes)
        .map_err(Error::io("cannot write", path))?;
    // SAFETY: the request takes no argument.
    if unsafe { libc::ioctl(device.as_raw_fd(), RESEED) } != 0 {
        return Err(Error::io("cannot reseed", path)(io::Error::last_os_error()));
    }
    fs::remove_file(file).map_err(Error::io("cannot remove", file))
}

/// The control interface, in a network namespace that the command is not in.
pub(crate) struct Link(NetworkNamespace);

impl Link {
    fn bring_up() -> Result<Self, Error> {
        let place = NetworkNamespace::create()?;
        run_ip(&[
            "link set dev lo up".to_owned(),
            format!("link set dev vec1 netns {}", place.path()),
        ])?;
        place.run_within(|| {
            run_ip(&[
                format!("address add {}/30 dev vec1", control::INSIDE),
                "link set dev vec1 up".to_owned(),
            ])
        })?;
        Ok(Self(place))
    }

    pub(crate) fn connect_outside(&self, purpose: u8) -> Result<TcpStream, Error> {
        self.0.run_within(|| {
            TcpStream::connect((control::HERE, control::PORT))
                .and_then(|connection| {
                    connection.set_nodelay(true)?;
                    (&connection).write_all(&[purpose])?;
                    Ok(connection)
                })
                .map_err(broken_connection())
        })
    }
}

/// Sets the kernel up as the job says.
fn set_up(job: &Job) -> Result<(), Error> {
    nix::unistd::sethostname(&job.host_name).map_err(system_error("cannot set the host's name"))?;
    for module in &job.modules {
        kernel::insert_module(module)?;
    }
    let all = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let there = fs::read_to_string(all).unwrap_or_default();
    for name in job
        .congestion_control
        .iter()
        .chain(&job.congestion_controls)
    {
        if !there.split_ascii_whitespace().any(|it| it == name) {
            return Err(Error::Options(format!(
                "this kernel has no congestion control {name:?}; it has {}",
                there.trim().replace(' ', ", ")
            )));
        }
    }
    if let Some(name) = &job.congestion_control {
        kernel::set_sysctl("net.ipv4.tcp_congestion_control", name)?;
    }
    if let Some(name) = &job.qdisc {
        kernel::set_sysctl("net.core.default_qdisc", name).map_err(|_| {
            Error::Options(format!("this kernel has no queueing discipline {name:?}"))
        })?;
    }
    match &job.ends {
        Some(ends) => configure_network(ends)?,
        None => run_ip(&job.network)?,
    }
    if job.qdisc.as_deref() == Some("fq") {
        tool::run_tool("tc", FQ)?;
    }
    give_memory_to_tcp()?;
    for (key, value) in &job.sysctls {
        let file = Path::new("/proc/sys").join(key.replace('.', "/"));
        fs::write(&file, value).map_err(Error::system(format!("cannot set {key} to {value:?}")))?;
    }
    if let Some(text) = &job.resolver {
        mount_resolv_conf(text)?;
    }
    let runtime = job
        .environment
        .iter()
        .find(|(key, _)| key == "XDG_RUNTIME_DIR");
    if let Some((_, path)) = runtime.filter(|(_, path)| Path::new(path).starts_with("/run/")) {
        fs::create_dir_all(path)
            .and_then(|()| fs::set_permissions(path, PermissionsExt::from_mode(0o700)))
            .and_then(|()| chown(path, Some(job.user), Some(job.group)))
            .map_err(Error::io("cannot create", path))?;
    }
    Ok(())
}

/// Lets TCP have half of this kernel's memory, and a quarter without pressure (`tcp_mem`, in
/// pages). Linux gives it a tenth, as other work needs memory, too. A socket under pressure gets no
/// larger send buffer, which halves the rate of a fast path with loss.
fn give_memory_to_tcp() -> Result<(), Error> {
    let memory =
        nix::sys::sysinfo::sysinfo().map_err(system_error("cannot read the memory's size"))?;
    let pages = memory.ram_total() / PAGE_BYTES;
    let limits = format!("{} {} {}", pages / 4, pages * 3 / 8, pages / 2);
    Ok(kernel::set_sysctl("net.ipv4.tcp_mem", &limits)?)
}

fn configure_network(ends: &WireAddresses) -> Result<(), Error> {
    let mut commands = vec![
        format!("address add {}/{} dev vec0", ends.inside, ends.prefix_v4),
        "link set dev vec0 up".to_owned(),
        format!("route add default via {}", ends.machine),
    ];
    let v6 = ends.v6.filter(|_| Path::new("/proc/sys/net/ipv6").exists());
    if let Some(v6) = v6 {
        // No router advertisements are sent there.
        kernel::set_sysctl("net.ipv6.conf.vec0.accept_ra", "0")?;
        commands.push(format!(
            "address add {}/{} dev vec0 nodad",
            v6.inside, v6.prefix
        ));
        if v6.is_gateway {
            commands.push(format!("route add default via {}", v6.machine));
        }
    }
    run_ip(&commands)
}

/// Mounts a resolv.conf(5) over the machine's.
fn mount_resolv_conf(text: &str) -> Result<(), Error> {
    const FILE: &str = "/etc/resolv.conf";
    fs::write(RESOLVER, text).map_err(Error::io("cannot write", RESOLVER))?;
    match fs::canonicalize(FILE) {
        Ok(file) => mount(
            Some(RESOLVER),
            &file,
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )
        .map_err(system_error("cannot mount over /etc/resolv.conf")),
        // A link below /run, which is this kernel's own.
        Err(_) => {
            let target = fs::read_link(FILE).map_err(Error::io("cannot read", FILE))?;
            let target = Path::new("/etc").join(target);
            let directory = target.parent().unwrap_or(Path::new("/"));
            fs::create_dir_all(directory)
                .and_then(|()| fs::write(&target, text))
                .map_err(Error::io("cannot write", &target))
        }
    }
}

fn broken_connection() -> impl FnOnce(io::Error) -> Error {
    Error::system("the connection to whoever started this kernel")
}
