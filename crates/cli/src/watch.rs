//! `--watch`: a list again and again.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Arg, ArgMatches, Command};
use console::Term;

use thalweg_terminal::{Failure, failure, output};
use thalweg_units::printable_lines;

use crate::options::Global;

/// The commands that have it.
const LISTS: [&[&str]; 9] = [
    &["status"],
    &["hosts"],
    &["arms"],
    &["explain"],
    &["gain"],
    &["advise"],
    &["policy", "show"],
    &["cc", "list"],
    &["sockops", "list"],
];

/// Shortest and longest time between two rounds, s.
const SECONDS: std::ops::RangeInclusive<f64> = 0.1..=86_400.0;

/// The command line with `--watch` where it belongs.
pub fn add_watch_option(mut command: Command) -> Command {
    for path in LISTS {
        add_to_subcommand(&mut command, path);
    }
    command
}

/// In place: clap's `mut_subcommand` moves what it changes to the end of the help.
fn add_to_subcommand(command: &mut Command, path: &[&str]) {
    let [name, rest @ ..] = path else {
        let option = Arg::new("watch")
            .long("watch")
            .value_name("SECONDS")
            .value_parser(parse_seconds)
            .help("Show it again every SECONDS (at least 0.1), until interrupted")
            .long_help(
                "Show it again every SECONDS (at least 0.1), until interrupted.\n\nOn a terminal \
                 in the same place. Otherwise one after the other; with --json each is one line. A \
                 failure is shown, and the next round tried.",
            );
        let has_check = command.get_arguments().any(|arg| arg.get_id() == "check");
        let option = match has_check {
            true => option.conflicts_with("check"),
            false => option,
        };
        *command = std::mem::take(command).arg(option);
        return;
    };
    if let Some(inner) = command.find_subcommand_mut(name) {
        add_to_subcommand(inner, rest);
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds| SECONDS.contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| {
        let (least, most) = (SECONDS.start(), SECONDS.end());
        format!("expected a number of seconds from {least} to {most}")
    })
}

/// The time between rounds, if the command line asks for them.
pub fn watch_interval(matches: &ArgMatches) -> Option<Duration> {
    match matches.subcommand() {
        Some((_, matches)) => watch_interval(matches),
        None => matches.try_get_one("watch").ok().flatten().copied(),
    }
}

/// Shows rounds without end.
///
/// # Errors
/// Standard output cannot be written, or has been closed.
pub fn run_rounds(
    global: &Global,
    interval: Duration,
    round: impl Fn() -> Result<()>,
) -> Result<()> {
    let paints = std::io::stdout().is_terminal() && !global.format.json;
    let mut is_first = true;
    loop {
        let start = Instant::now();
        let (text, outcome) = output::capture_output(&round);
        let failed = outcome.err();
        if let Some(Failure::OutputClosed) = failed.as_ref().and_then(|it| it.downcast_ref()) {
            return Err(Failure::OutputClosed.into());
        }
        if paints {
            let failed = failed.map(|error| format!("thalweg: {error:#}\n"));
            let text = text + &printable_lines(&failed.unwrap_or_default());
            output::write_bytes(
                painted_screen(&title_line(interval), &text, Term::stdout().size()).as_bytes(),
            )?;
        } else {
            let gap = if is_first || global.format.json {
                ""
            } else {
                "\n"
            };
            output::write_bytes(format!("{gap}{text}").as_bytes())?;
            if let Some(error) = failed {
                failure::report_error(&error, global.format.json);
            }
        }
        is_first = false;
        std::thread::sleep(interval.saturating_sub(start.elapsed()));
    }
}

/// As watch(1) has it: how often, the command, the time.
fn title_line(interval: Duration) -> String {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let now = jiff::Timestamp::now().strftime("%F %T UTC");
    let every = output::decimal_text(interval.as_secs_f64());
    format!("Every {every} s: thalweg {}  {now}", words.join(" "))
}

/// Writes over what is on a screen of that height and width. What does not fit is left out, so
/// that nothing scrolls, and no line is empty for a moment.
fn painted_screen(title: &str, text: &str, (height, width): (u16, u16)) -> String {
    let (height, width) = (usize::from(height.max(2)), usize::from(width.max(1)));
    let lines: Vec<&str> = [title, ""].into_iter().chain(text.lines()).collect();
    let mut screen = "\x1b[H".to_owned();
    for line in lines.iter().take(height - 1) {
        screen += &console::truncate_str(line, width, "…");
        screen += "\x1b[K\n";
    }
    screen + "\x1b[J"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory as _;

    #[test]
    fn every_list_has_the_option() {
        let command = add_watch_option(Cli::command());
        for path in LISTS {
            let mut at = &command;
            for name in path {
                at = at.find_subcommand(name).unwrap();
            }
            assert!(at.get_arguments().any(|arg| arg.get_id() == "watch"));
            assert!(at.get_about().is_some(), "{path:?} is a command of its own");
        }
    }

    #[test]
    fn times_are_within_bounds() {
        assert_eq!(parse_seconds("0.1"), Ok(Duration::from_millis(100)));
        assert_eq!(parse_seconds("2"), Ok(Duration::from_secs(2)));
        for text in ["", "0", "0.05", "-1", "nan", "inf", "1s", "86401"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_screen_is_never_overrun() {
        let screen = painted_screen("title", "one\ntwo is long\nthree\n", (4, 6));
        assert_eq!(screen, "\x1b[Htitle\x1b[K\n\x1b[K\none\x1b[K\n\x1b[J");
        let screen = painted_screen("t", "two is long\n", (24, 6));
        assert!(screen.contains("two i…\x1b[K\n"), "{screen:?}");
    }
}
