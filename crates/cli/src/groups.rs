//! `thalweg --help`: the sub-commands in groups, each with an example.

use clap::{Command, CommandFactory as _};

use crate::options::Cli;
use crate::watch;

/// Groups: title, sub-commands in order, an example.
const GROUPS: [(&str, &[&str], &str); 7] = [
    (
        "The agent, which learns per remote host which congestion control works best",
        &[
            "run", "reload", "status", "top", "metrics", "web", "arms", "hosts", "networks",
            "windows", "clamps", "explain", "events", "advise", "gain", "replay", "reset",
            "export", "import", "detach",
        ],
        "thalweg explain 192.0.2.7",
    ),
    (
        "Policies",
        &["policy"],
        "thalweg policy check policies/*.toml",
    ),
    (
        "Agents together",
        &["fleet"],
        "thalweg fleet init fleet --server nats.example.com --agent web1",
    ),
    (
        "Congestion controls and programs in BPF",
        &["cc", "model", "sockops"],
        "thalweg cc load models/adpg-plus.safetensors",
    ),
    (
        "Commands on other paths and kernels",
        &["link", "stack"],
        "thalweg link --delay 20ms --rate 100mbit -- bash",
    ),
    (
        "Simulator and laboratory",
        &["sim", "lab"],
        "thalweg lab run scenarios/lab/loss-5.toml --mode baseline --mode thalweg",
    ),
    (
        "This machine",
        &["doctor", "config", "schema", "completions", "help"],
        "thalweg doctor",
    ),
];

/// The command line, with grouped help.
pub fn command() -> Command {
    let command = watch::offer(Cli::command());
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}Options of every command:\n{{options}}{{after-help}}",
        groups(&command)
    );
    command.help_template(template)
}

fn groups(command: &Command) -> String {
    let mut text = String::new();
    for (title, names, example) in GROUPS {
        text += &format!("{title}:\n");
        for name in names {
            let about = match command.find_subcommand(name) {
                Some(sub) => sub.get_about().map(ToString::to_string).unwrap_or_default(),
                None => "Print this message or the help of a command".to_owned(),
            };
            text += &format!("  {name:11} {about}\n");
        }
        text += &format!("  Example: {example}\n\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let command = Cli::command();
        let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        let mut own: Vec<&str> = shown.map(Command::get_name).chain(["help"]).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|group| group.1).copied().collect();
        own.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(own, grouped);
        let text = groups(&command);
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
    }
}
