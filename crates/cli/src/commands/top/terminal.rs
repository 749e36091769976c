//! The terminal while `top` has it: whatever happens, it is given back as it was.

use std::io::{self, BufWriter, IsTerminal as _, Stdout, stdin, stdout};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use thalweg_process::signals::Signals;

use thalweg_terminal::Failure;

/// Terminals that cannot place the cursor, or know neither a second screen nor its attributes.
const UNFIT: [&str; 5] = ["", "dumb", "unknown", "vt52", "vt100"];

/// Whether the terminal is ours now.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal; dropping it gives it back.
pub struct Screen(Terminal<CrosstermBackend<BufWriter<Stdout>>>);

/// Why the wait has ended.
#[derive(Default)]
pub struct Woken {
    /// A signal asks to end.
    pub end: bool,
    /// The size has changed.
    pub resized: bool,
}

/// Fails where nothing can be drawn, and names what to use there.
pub fn check_terminal() -> Result<()> {
    let fault = |text: String| Err(Failure::Usage(text).into());
    let instead = "use thalweg status, thalweg hosts, with --json for programs";
    for (is_terminal, what) in [
        (stdout().is_terminal(), "standard output"),
        (stdin().is_terminal(), "standard input"),
    ] {
        if !is_terminal {
            return fault(format!(
                "{what} is no terminal, and top draws on one; use `thalweg status --json` and \
                 `thalweg hosts --json`"
            ));
        }
    }
    let kind = std::env::var("TERM").unwrap_or_default();
    if UNFIT.contains(&kind.as_str()) {
        return fault(format!(
            "TERM={} cannot show top: expected a terminal that knows xterm's sequences, such as \
             xterm, screen, tmux or linux; {instead}",
            kind.escape_default()
        ));
    }
    Ok(())
}

impl Screen {
    /// Takes the terminal.
    pub fn take_terminal() -> Result<Self> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
        enter_screen().context("cannot set up the terminal")?;
        let backend = CrosstermBackend::new(BufWriter::with_capacity(1 << 16, stdout()));
        Ok(Self(Terminal::new(backend)?))
    }

    /// Draws; after another size everything is drawn anew.
    pub fn draw_with(&mut self, by: impl FnOnce(&mut ratatui::buffer::Buffer)) -> io::Result<()> {
        self.0.draw(|frame| by(frame.buffer_mut())).map(|_| ())
    }

    /// Gives the terminal back, and stops until the shell goes on with us.
    pub fn suspend_process(&mut self) -> Result<()> {
        give_back();
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGTSTP)?;
        enter_screen()?;
        self.0.clear()?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn enter_screen() -> io::Result<()> {
    TAKEN.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, Hide)
}

/// Once for each time that it was taken; a terminal that has gone cannot be mended.
fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

/// Waits for keys, signals, or a byte of `wake`.
pub fn wait_for_input(signals: &Signals, wake: &UnixStream) -> Result<Woken> {
    let input = stdin();
    let mut watched = [
        PollFd::new(input.as_fd(), PollFlags::POLLIN),
        PollFd::new(signals.descriptor(), PollFlags::POLLIN),
        PollFd::new(wake.as_fd(), PollFlags::POLLIN),
    ];
    match poll(&mut watched, PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(errno) => return Err(errno).context("waiting for keys"),
    }
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    let mut woken = Woken {
        end: watched[0]
            .revents()
            .is_some_and(|events| events.intersects(gone)),
        resized: false,
    };
    while let Some(caught) = signals.next()? {
        woken.end |= caught.ends_process();
        woken.resized |= caught.number == nix::libc::SIGWINCH;
    }
    Ok(woken)
}

/// The next key that has been pressed, if any; other input is passed over.
pub fn next_key() -> Result<Option<event::KeyEvent>> {
    while event::poll(Duration::ZERO).context("reading keys")? {
        if let Event::Key(key) = event::read().context("reading keys")? {
            return Ok(Some(key));
        }
    }
    Ok(None)
}
