//! Terminals and signals of `thalweg-lab stack`: both reach the command inside.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::libc;
use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::stack::{Net, available, text};
use thalweg_testbed::wait_for;

/// A stack whose streams are a terminal, and the terminal's other side.
fn on_a_terminal(mut command: Command) -> (Child, fs::File) {
    let size = libc::winsize {
        ws_row: 33,
        ws_col: 101,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let ends = openpty(&size, None).unwrap();
    let copy = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
    command
        .stdin(copy(&ends.slave))
        .stdout(copy(&ends.slave))
        .stderr(copy(&ends.slave));
    let master = ends.master.as_raw_fd();
    // SAFETY: only system calls are made.
    unsafe {
        command.pre_exec(move || {
            libc::close(master);
            nix::unistd::setsid()?;
            match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
    nix::fcntl::fcntl(&ends.master, flags).unwrap();
    (command.spawn().unwrap(), ends.master.into())
}

/// Reads from a terminal until these words have arrived.
fn await_words(terminal: &mut fs::File, words: &str) {
    let mut said = String::new();
    let mut bytes = [0; 1024];
    wait_for(words, || {
        match terminal.read(&mut bytes) {
            Ok(count) => said += &text(&bytes[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}; {words} not in {said}"),
        }
        said.contains(words).then_some(())
    });
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_shell_on_a_terminal_has_job_control() {
    if !available() {
        return;
    }
    let net = Net::new();
    let (mut child, mut terminal) =
        on_a_terminal(net.stack(&[], &["bash", "--norc", "--noprofile", "-i"]));
    terminal
        .write_all(b"tty; stty size; echo re''ady\n")
        .unwrap();
    await_words(&mut terminal, "/dev/pts/0\r\n33 101\r\nready");
    // The program does not echo its input, and reports when keys reach it. It is bash: dash starts
    // programs by vfork(2), and a child that is stopped before its execve(2) holds its parent,
    // which then never reports that it stopped.
    let job = "bash -c 'trap \"echo \\$((50+1))on\" CONT; echo $((40+2))up; while :; do sleep 0.1; done'\n";
    terminal.write_all(job.as_bytes()).unwrap();
    await_words(&mut terminal, "42up");
    terminal.write_all(b"\x1a").unwrap();
    await_words(&mut terminal, "Stopped");
    let larger = libc::winsize {
        ws_row: 44,
        ws_col: 102,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: reads a structure that lives throughout.
    unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const larger) };
    // The shell gets the signal when it has crossed.
    terminal
        .write_all(b"until [ \"$(stty size)\" = '44 102' ]; do :; done; echo lar''ger\n")
        .unwrap();
    await_words(&mut terminal, "larger");
    terminal.write_all(b"fg\n").unwrap();
    await_words(&mut terminal, "51on");
    terminal.write_all(b"\x03").unwrap();
    await_words(&mut terminal, "# ");
    terminal.write_all(b"echo \"code:$?\"; exit 5\n").unwrap();
    await_words(&mut terminal, "code:130");
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert_eq!(net.leftovers(), Vec::<String>::new());
}

/// A stack whose command has run the first part, and then runs the rest; and its output.
fn running(net: &Net, first: &str, rest: &str) -> (Child, impl Read) {
    let mut child = net
        .stack(&[], &["sh", "-c", &format!("{first} echo up; {rest}")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut begin = [0; 3];
    output.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"up\n");
    (child, output)
}

fn end_by(net: &Net, child: &mut Child, signal: Signal) -> ExitStatus {
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
    let status = child.wait().unwrap();
    wait_for("nothing to be left", || {
        net.leftovers().is_empty().then_some(())
    });
    status
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn signals_reach_the_command_and_nothing_outlives_this_process() {
    if !available() {
        return;
    }
    let net = Net::new();
    let (mut child, mut output) = running(
        &net,
        "trap 'echo one' USR1; trap 'echo two; exit 9' TERM;",
        "while :; do sleep 0.1; done",
    );
    kill(Pid::from_raw(child.id() as i32), Signal::SIGUSR1).unwrap();
    let mut heard = [0; 4];
    output.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"one\n");
    assert_eq!(end_by(&net, &mut child, Signal::SIGTERM).code(), Some(9));
    output.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"two\n");

    let (mut child, _output) = running(&net, "", "exec sleep 1000");
    assert_eq!(end_by(&net, &mut child, Signal::SIGINT).code(), Some(130));

    let (mut child, _output) = running(&net, "", "exec sleep 1000");
    let status = end_by(&net, &mut child, Signal::SIGKILL);
    assert_eq!(status.signal(), Some(libc::SIGKILL));
}
