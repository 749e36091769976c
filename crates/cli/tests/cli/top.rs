//! `thalweg top` in a real terminal, tmux: what stands on the screen, with a real agent and real
//! connections.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use thalweg_testbed::{Bed, privileged, thalweg, wait_for};

/// Shell prompt of the tests.
const PROMPT: &str = "ready>";
/// Arms that are everywhere.
const ARMS: &str = "[arms]\nallow = [\"cubic\", \"reno\"]\n";

/// A terminal with a shell in it; dropping it ends both.
struct Terminal {
    socket: PathBuf,
    directory: PathBuf,
}

impl Terminal {
    /// A terminal of 80 x 24, its shell at the prompt. `environment`: as `NO_COLOR=1`.
    fn new(directory: &Path, environment: &[&str]) -> Self {
        let directory = directory.to_owned();
        static TERMINALS: AtomicU32 = AtomicU32::new(0);
        let number = TERMINALS.fetch_add(1, Ordering::Relaxed);
        let socket = directory.join(format!("tmux-{number}"));
        let terminal = Self { socket, directory };
        let prompt = format!("PS1={PROMPT}");
        let mut shell = vec!["env", "-u", "NO_COLOR", &prompt];
        shell.extend(environment);
        shell.push("sh");
        let size = ["-x", "80", "-y", "24"];
        terminal.tmux(&[&["new-session", "-d"], &size[..], &shell].concat());
        terminal.shows(PROMPT);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-f", "/dev/null", "-S"])
            .arg(&self.socket)
            .args(arguments)
            .current_dir(&self.directory)
            .env_remove("TMUX")
            .output()
            .expect("tmux (scripts/setup.sh --test)");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tmux {arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What stands on the screen.
    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until a condition holds for the screen; returns the screen.
    fn until(&self, what: &str, holds: impl Fn(&str) -> bool) -> String {
        let last = std::cell::RefCell::new(String::new());
        let told = scopeguard(|| eprintln!("the screen:\n{}", last.borrow()));
        let found = wait_for(what, || {
            last.replace(self.screen());
            holds(&last.borrow()).then(|| last.borrow().clone())
        });
        drop(told);
        found
    }

    fn shows(&self, text: &str) -> String {
        self.until(&format!("{text:?} on the screen"), |screen| {
            screen.contains(text)
        })
    }

    fn shows_no(&self, text: &str) -> String {
        self.until(&format!("no {text:?} on the screen"), |screen| {
            !screen.contains(text)
        })
    }

    /// Presses keys, by tmux's names of them.
    fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Has the shell run a command.
    fn run(&self, command: &str) {
        self.tmux(&["send-keys", "-l", command]);
        self.press(&["Enter"]);
    }

    fn resize(&self, columns: &str, lines: &str) {
        self.tmux(&["resize-window", "-x", columns, "-y", lines]);
    }

    /// Starts `top`, and waits for its first figures.
    fn top(&self, bed: &Bed) {
        // The process's own number is that of the shell that it replaces.
        self.run(&format!(
            "stty -g >before; sh -c 'echo $$ >pid; exec {} --config {} top --interval 200ms'; \
             echo it ended with $?; stty -g >after",
            thalweg(),
            bed.configuration().display()
        ));
        self.shows("q quit  ? help");
    }

    fn signal(&self, signal: Signal) {
        let pid = std::fs::read_to_string(self.directory.join("pid")).unwrap();
        kill(Pid::from_raw(pid.trim().parse().unwrap()), signal).unwrap();
    }

    /// Waits for the end of `top`; checks that the terminal is as it was.
    fn is_given_back(&self, how: &str) {
        let screen = self.shows("it ended with 0");
        assert!(!screen.contains("q quit"), "{how}: {screen}");
        let text = |name| std::fs::read_to_string(self.directory.join(name)).unwrap_or_default();
        wait_for("the terminal's settings", || {
            (!text("after").is_empty()).then_some(())
        });
        assert_eq!(text("before"), text("after"), "{how}");
        let flags = self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        assert_eq!(flags.trim(), "0 1", "{how}: second screen, or no cursor");
        self.run("clear; rm after");
        self.shows_no("it ended");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut end = Command::new("tmux");
        let _ = end.arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}

/// Runs something where a test fails.
fn scopeguard(by: impl Fn()) -> impl Sized {
    struct Guard<F: Fn()>(F);
    impl<F: Fn()> Drop for Guard<F> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                (self.0)();
            }
        }
    }
    Guard(by)
}

/// The words of the row that begins with a text.
fn row<'a>(screen: &'a str, begin: &str) -> Vec<&'a str> {
    let mut rows = screen
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.find(|row| row.first() == Some(&begin))
        .unwrap_or_default()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn each_view_shows_the_agent_at_work() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("top", ARMS);
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let terminal = Terminal::new(bed.directory.path(), &[]);
    terminal.top(&bed);
    terminal.shows("No hosts yet");
    bed.connect(&address, 20, 400_000);
    let screen = terminal.until("the host", |screen| {
        row(screen, &address).get(1) == Some(&"20")
    });
    assert!(screen.starts_with("thalweg top on "), "{screen}");
    assert!(screen.contains("1 Hosts  2 Arms"), "{screen}");

    terminal.press(&["2"]);
    terminal.until("arms", |screen| {
        screen.contains(" hosts by traffic; ") && row(screen, "cubic").len() == 9
    });
    terminal.press(&["Tab"]);
    let decided = bed.counter("decided").to_string();
    terminal.until("decisions", |screen| {
        row(screen, "decided").get(1) == Some(&decided.as_str())
            && screen.contains(&format!("to {address} port 5001"))
    });

    bed.apply(
        "name = \"watched\"\n[[rule]]\nname = \"all-of-it\"\nmatch.direction = \"active\"\n\
         set = { tos = 72 }\n",
    );
    terminal.press(&["4"]);
    bed.connect(&address, 3, 1000);
    terminal.until("the rule's flows", |screen| {
        row(screen, "all-of-it").get(1) == Some(&"3")
    });
    terminal.press(&["5"]);
    terminal.until("programs", |screen| {
        screen.contains("learn_sockops")
            && screen.contains("ns/run")
            && screen.contains("the kernel")
    });

    terminal.press(&["?"]);
    terminal.shows("Tab, 1-5       another view");
    terminal.press(&["End"]);
    terminal.shows("share of one processor");
    terminal.press(&["q"]);
    terminal.press(&["BTab", "1"]);
    terminal.shows("s sort: traffic");
    terminal.press(&["s"]);
    terminal.shows("s sort: recent");
    terminal.press(&["s", "/"]);
    terminal.shows("filter: _");
    terminal.press(&["x", "y"]);
    terminal.shows("by cost matches \"xy\".");
    terminal.press(&["C-u"]);
    terminal.tmux(&["send-keys", "-l", &format!("{address}/31")]);
    terminal.press(&["Enter"]);
    terminal.until("the filtered host", |screen| {
        !row(screen, &address).is_empty() && !screen.contains("Enter keeps")
    });

    terminal.press(&["Space"]);
    let frozen = terminal.shows("FROZEN at");
    let before = bed.counter("established");
    bed.connect(&address, 5, 1000);
    bed.counter_reaches("established", before + 5);
    assert_eq!(terminal.screen(), frozen);
    terminal.press(&["p"]);
    terminal.until("the new connections", |screen| {
        row(screen, &address).get(1) == Some(&"28")
    });

    for (columns, lines, text) in [
        ("40", "10", "Cost"),
        ("30", "5", "too small: 30 x 5"),
        ("132", "40", "Others"),
    ] {
        terminal.resize(columns, lines);
        terminal.shows(text);
    }
    terminal.press(&["C-c"]);
    terminal.is_given_back("Ctrl-C");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_screen_outlives_the_agent_and_every_end_gives_the_terminal_back() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("top-ends", ARMS);
    let terminal = Terminal::new(bed.directory.path(), &[]);
    terminal.top(&bed);
    assert!(bed.end(Signal::SIGTERM).success());
    terminal.shows("NO ANSWER, asking again every 200ms.");
    let colours = |terminal: &Terminal| {
        let shown = terminal.tmux(&["capture-pane", "-p", "-e"]);
        let codes = shown
            .split("\x1b[")
            .skip(1)
            .filter_map(|part| part.split_once('m'));
        let numbers = codes.flat_map(|(codes, _)| codes.split(';'));
        let numbers = numbers.filter_map(|code| code.parse::<u32>().ok());
        // 39 and 49 are the terminal's own colours.
        numbers
            .filter(|code| matches!(code, 30..=38 | 40..=48 | 90..=107))
            .count()
    };
    assert!(colours(&terminal) > 0);
    bed.start();
    terminal.shows_no("NO ANSWER");
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        terminal.signal(signal);
        terminal.is_given_back(signal.as_str());
        terminal.top(&bed);
    }
    for key in ["q", "Escape"] {
        terminal.press(&[key]);
        terminal.is_given_back(key);
        terminal.top(&bed);
    }
    let is_second = || terminal.tmux(&["display-message", "-p", "#{alternate_on}"]);
    terminal.press(&["C-z"]);
    terminal.shows("Stopped");
    assert_eq!(is_second().trim(), "0");
    terminal.run("fg");
    terminal.shows("q quit  ? help");
    terminal.press(&["q"]);
    terminal.shows_no("q quit  ? help");
    assert_eq!(is_second().trim(), "0");
    drop(terminal);

    let plain = Terminal::new(bed.directory.path(), &["NO_COLOR=1"]);
    plain.top(&bed);
    assert!(bed.end(Signal::SIGTERM).success());
    plain.shows("NO ANSWER");
    assert_eq!(colours(&plain), 0);
    plain.press(&["q"]);
    plain.is_given_back("q");
    // None to begin with.
    plain.run(&format!(
        "{} --config {} top",
        thalweg(),
        bed.configuration().display()
    ));
    plain.shows("the agent is not running");
}

#[test]
fn where_nothing_can_be_drawn_it_says_what_to_use() {
    let refused = |output: Output, part: &str| {
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), output.stdout.len()),
            (Some(2), 0),
            "{said}"
        );
        assert!(said.contains(part) && said.lines().count() == 1, "{said}");
    };
    let top = |arguments: &[&str]| {
        Command::new(thalweg())
            .arg("top")
            .args(arguments)
            .output()
            .unwrap()
    };
    let instead = "use `thalweg status --json` and `thalweg hosts --json`";
    refused(top(&[]), "standard output is no terminal");
    refused(top(&[]), instead);
    refused(top(&["--json"]), instead);
    for text in ["0s", "100ms", "61s", "2", "soon"] {
        refused(
            top(&["--interval", text]),
            "expected a time from 200ms to 60s, such as 2s",
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let terminal = Terminal::new(directory.path(), &[]);
    for kind in ["vt100", "dumb", ""] {
        terminal.run(&format!("TERM={kind} {} top; echo code $?", thalweg()));
        let screen = terminal.until("a refusal", |screen| screen.contains("code 2"));
        let flat = screen.replace('\n', "");
        assert!(
            flat.contains(&format!("TERM={kind} cannot show top")),
            "{screen}"
        );
        assert!(flat.contains("use thalweg status"), "{screen}");
        terminal.run("clear");
        terminal.shows_no("code 2");
    }
    terminal.run(&format!("{} top </dev/null", thalweg()));
    terminal.shows("standard input is no terminal");
}
