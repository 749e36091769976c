//! `docs/reference/cli.md`: every command and option, from the text of `--help`.

use std::collections::BTreeMap;

use clap::{Arg, Command};

use super::shown;
use crate::options::EXIT_CODES;

/// Bytes from which on a line that repeats is replaced by a reference.
const LONG: usize = 90;
/// Beginning of the page.
const HEAD: &str = "\
# The command line

Written by `make docs` from `thalweg COMMAND --help`; not to be edited. `man thalweg` has the same.
[Conventions](conventions.md): files, tables, events.
";

/// The page of a built command and all its sub-commands.
pub(super) fn page(command: &Command) -> String {
    let mut text = HEAD.to_owned();
    text.push_str("\n## Options of every command\n\n");
    text.push_str(&list(command.get_arguments().filter(|it| listed(it))));
    let codes = EXIT_CODES.trim_start_matches("Exit codes:\n");
    text.push_str(&format!("\n## Exit codes\n\n```text\n{codes}\n```\n"));
    let mut seen = BTreeMap::new();
    for sub in shown(command) {
        section(sub, &mut text, &mut seen);
    }
    text
}

/// `seen` has the long lines of arguments so far, each with its first command.
fn section(command: &Command, text: &mut String, seen: &mut BTreeMap<String, String>) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let about = command.get_long_about().or(command.get_about());
    text.push_str(&format!("\n## `{name}`\n\n"));
    text.push_str(&format!(
        "{}\n",
        sentence(&about.map_or_else(String::new, ToString::to_string))
    ));
    let own = || {
        let arguments = command.get_arguments();
        arguments.filter(|it| listed(it) && !it.is_global_set())
    };
    if shown(command).next().is_none() || own().next().is_some() {
        let usage = command.clone().render_usage().to_string();
        let usage = usage
            .trim_start_matches("Usage: ")
            .replace("\n       ", "\n");
        text.push_str(&format!("\n```text\n{usage}\n```\n"));
    }
    if own().next().is_some() {
        text.push('\n');
        for (argument, line) in own().zip(list(own()).lines()) {
            if line.len() < LONG {
                text.push_str(&format!("{line}\n"));
            } else if let Some(first) = seen.get(line) {
                text.push_str(&format!("- `{argument}`: as of `{first}`.\n"));
            } else {
                seen.insert(line.to_owned(), name.to_owned());
                text.push_str(&format!("{line}\n"));
            }
        }
    }
    for sub in shown(command) {
        section(sub, text, seen);
    }
}

fn listed(argument: &Arg) -> bool {
    !argument.is_hide_set() && argument.get_id() != "help" && argument.get_id() != "version"
}

fn list<'a>(arguments: impl Iterator<Item = &'a Arg>) -> String {
    let mut text = String::new();
    for argument in arguments {
        text.push_str(&format!("- `{argument}`: {}\n", effect(argument)));
    }
    text
}

/// Help, values and default of one argument, in one line.
fn effect(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help());
    let mut text = sentence(&help.map_or_else(String::new, ToString::to_string));
    text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let values: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    // A switch has the values true and false, which nobody writes.
    let takes_value = argument.get_action().takes_values();
    if takes_value && !values.is_empty() {
        text.push_str(&format!(" One of {}.", values.join(", ")));
    }
    let defaults = argument.get_default_values();
    if takes_value && let Some(default) = defaults.first() {
        text.push_str(&format!(" Default: `{}`.", default.to_string_lossy()));
    }
    text
}

/// A help text with the final full stop that clap removes.
fn sentence(help: &str) -> String {
    let help = help.trim();
    if help.is_empty() || help.ends_with(['.', ':', '?']) {
        help.to_owned()
    } else {
        format!("{help}.")
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::options::Cli;
    use crate::watch;

    #[test]
    fn the_page_is_what_the_command_says() {
        let mut command = watch::offer(Cli::command()).disable_help_subcommand(true);
        command.build();
        let page = page(&command);
        let written = include_str!("../../../../../docs/reference/cli.md");
        let differs = page
            .lines()
            .zip(written.lines())
            .find(|(new, old)| new != old);
        assert!(
            page == written,
            "docs/reference/cli.md is stale, `make docs` writes it anew: {differs:?}"
        );
    }
}
