//! `thalweg top`.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Instant;

use anyhow::{Result, bail};
use asker::RoundRequest;
use choice::{Choice, KeyAction};
use clap::Args;
use nix::sys::signal::Signal;
use scene::Paint;
use seen::{AgentView, RoundAnswers};
use terminal::Screen;
use thalweg_process::signals::Signals;
use thalweg_terminal::Failure;
use thalweg_units::Delay;

use crate::options::Global;

mod asker;
mod choice;
mod figures;
mod scene;
mod screen;
mod seen;
mod table;
mod terminal;
#[cfg(test)]
mod tests;
mod views;

/// Shortest time between two rounds of questions.
const LEAST: Delay = Delay::from_us(200_000);

/// How often.
#[derive(Debug, Args)]
pub struct Options {
    /// Time from one round of figures to the next, from 200ms to 60s.
    #[arg(long, value_name = "TIME", default_value_t = Delay::from_us(2_000_000), value_parser = interval)]
    interval: Delay,
}

fn interval(text: &str) -> Result<Delay, String> {
    let expected = || "expected a time from 200ms to 60s, such as 2s".to_owned();
    let delay: Delay = text.parse().map_err(|_| expected())?;
    (delay >= LEAST).then_some(delay).ok_or_else(expected)
}

/// State while the screen is shown.
struct Top {
    known: AgentView,
    choice: Choice,
    paint: Paint,
    interval: Delay,
    answers: Receiver<RoundAnswers>,
    wanted: Sender<RoundRequest>,
    wake: UnixStream,
}

/// Shows the agent at work until the user has seen enough.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    if global.format.json {
        let text =
            "top draws on a terminal; use `thalweg status --json` and `thalweg hosts --json`";
        return Err(Failure::Usage(text.to_owned()).into());
    }
    terminal::check_terminal()?;
    let client = global.agent_client()?;
    let choice = Choice::default();
    // No agent at the start is an error like that of other commands.
    let status: thalweg_agent::view::Status = client.get("/v1/status")?;
    let mut known = AgentView::default();
    let first = RoundAnswers {
        status: Some(status),
        ..RoundAnswers::default()
    };
    let interval = options.interval;
    take(&mut known, first, interval);

    // Before the thread starts, so that signals reach the descriptor.
    let signals = Signals::catch(&[Signal::SIGWINCH])?;
    let (wake, waker) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    let (wanted, wants) = channel();
    let (sender, answers) = channel();
    let want = RoundRequest::from(&choice);
    wanted.send(want.clone())?;
    std::thread::spawn(move || {
        asker::run_requests(&client, want, interval.duration(), &wants, &sender, &waker);
    });
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let top = Top {
        known,
        choice,
        paint: Paint {
            colours: !no_colour,
        },
        interval,
        answers,
        wanted,
        wake,
    };
    top.show(&signals)
}

fn take(known: &mut AgentView, round: RoundAnswers, interval: Delay) {
    let time_ms = jiff::Timestamp::now().as_millisecond();
    // Half of it: a round may come a little early.
    known.take_round(round, Instant::now(), time_ms, interval.duration() / 2);
}

impl Top {
    fn show(mut self, signals: &Signals) -> Result<()> {
        let mut screen = Screen::take_terminal()?;
        let every = self.interval.to_string();
        loop {
            let drawn = screen.draw_with(|buffer| {
                screen::draw_screen(buffer, &self.known, &mut self.choice, self.paint, &every);
            });
            // The terminal has gone.
            if drawn.is_err() {
                return Err(Failure::OutputClosed.into());
            }
            let woken = terminal::wait_for_input(signals, &self.wake)?;
            if woken.end || !self.keys(&mut screen)? {
                return Ok(());
            }
            self.answers()?;
        }
    }

    /// Does what the keys say; false: it is the end.
    fn keys(&mut self, screen: &mut Screen) -> Result<bool> {
        let before = RoundRequest::from(&self.choice);
        while let Some(key) = terminal::next_key()? {
            match self.choice.handle_key(key) {
                KeyAction::Stay => {}
                KeyAction::Quit => return Ok(false),
                KeyAction::Suspend => screen.suspend_process()?,
            }
        }
        let want = RoundRequest::from(&self.choice);
        if want != before {
            // The thread has ended: `answers` says so.
            let _ = self.wanted.send(want);
        }
        Ok(true)
    }

    fn answers(&mut self) -> Result<()> {
        let mut bytes = [0; 64];
        while matches!((&self.wake).read(&mut bytes), Ok(count) if count > 0) {}
        loop {
            match self.answers.try_recv() {
                // What was on its way when the screen was frozen.
                Ok(_) if self.choice.frozen => {}
                Ok(round) => take(&mut self.known, round, self.interval),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => {
                    bail!("the thread that asks the agent has ended")
                }
            }
        }
    }
}
