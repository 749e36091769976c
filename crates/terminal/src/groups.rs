//! `--help`: the sub-commands in groups, each with an example.

use clap::Command;

/// A group: title, sub-commands in order, an example.
pub type Group<'a> = (&'a str, &'a [&'a str], &'a str);

/// The command line, with grouped help.
pub fn with_groups(command: Command, list: &[Group<'_>]) -> Command {
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}Options of every command:\n{{options}}{{after-help}}",
        groups_text(&command, list)
    );
    command.help_template(template)
}

fn groups_text(command: &Command, list: &[Group<'_>]) -> String {
    let mut text = String::new();
    for (title, names, example) in list {
        text += &format!("{title}:\n");
        for name in *names {
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

/// Fails unless each command that is shown is in one group, and the help has at most 100 columns.
///
/// # Panics
/// See above.
pub fn assert_complete(command: &Command, list: &[Group<'_>]) {
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let mut own: Vec<&str> = shown.map(Command::get_name).chain(["help"]).collect();
    let mut grouped: Vec<&str> = list
        .iter()
        .flat_map(|group| group.1.iter().copied())
        .collect();
    own.sort_unstable();
    grouped.sort_unstable();
    assert_eq!(own, grouped);
    let text = groups_text(command, list);
    let is_narrow = text.lines().all(|line| line.chars().count() <= 100);
    assert!(is_narrow, "{text}");
}
