//! The caller's terminal.

use std::io::{IsTerminal, stderr, stdin, stdout};
use std::os::fd::AsRawFd;

use nix::libc;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

use crate::control::{Streams, WindowSize};
use crate::error::Error;
use crate::system_error;

/// The standard streams that are terminals.
pub(crate) fn terminal_streams() -> Streams {
    Streams([
        stdin().is_terminal(),
        stdout().is_terminal(),
        stderr().is_terminal(),
    ])
}

/// The size of the output's terminal; 80 by 24 if it does not tell.
pub(crate) fn window_size() -> WindowSize {
    let sizes = [stdout().as_raw_fd(), stderr().as_raw_fd()].map(|fd| {
        // SAFETY: plain data, for which all zeroes is a value; the call fills it.
        unsafe {
            let mut size: libc::winsize = std::mem::zeroed();
            let asked = libc::ioctl(fd, libc::TIOCGWINSZ, &raw mut size);
            (asked == 0 && size.ws_row > 0 && size.ws_col > 0).then_some(size)
        }
    });
    let size = sizes.into_iter().flatten().next();
    WindowSize {
        rows: size.map_or(24, |it| it.ws_row),
        columns: size.map_or(80, |it| it.ws_col),
    }
}

/// While it lives, standard input's terminal passes every key on. Dropped, the terminal is as
/// before.
#[derive(Debug)]
pub(crate) struct Raw(Termios);

impl Raw {
    pub(crate) fn set_raw() -> Result<Self, Error> {
        let before =
            tcgetattr(stdin()).map_err(system_error("cannot read the terminal's settings"))?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(stdin(), SetArg::TCSADRAIN, &raw)
            .map_err(system_error("cannot set up the terminal"))?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs no settings.
        let _ = tcsetattr(stdin(), SetArg::TCSADRAIN, &self.0);
    }
}
