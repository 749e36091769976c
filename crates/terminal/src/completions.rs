//! Completions of shells.

use anyhow::Result;
use clap::{Arg, Args, Command};
use clap_complete::Shell;

use crate::output;

/// The shell.
#[derive(Debug, Args)]
pub struct Options {
    /// The shell that is to read them.
    ///
    /// For NAME, the command: bash reads /usr/share/bash-completion/completions/NAME; zsh a file _NAME
    /// in a directory of $fpath; fish ~/.config/fish/completions/NAME.fish.
    shell: Shell,
}

/// Prints a shell's completions of a command line.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(options: &Options, mut command: Command) -> Result<()> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut command, &name, &mut script);
    let mut script = String::from_utf8(script)?;
    if options.shell == Shell::Fish {
        script += &fish_arguments(&command, &name);
    }
    output::print(&script)
}

/// The words of arguments for fish, which clap leaves out.
fn fish_arguments(command: &Command, program: &str) -> String {
    let function = program.replace('-', "_");
    let mut text = String::new();
    for sub in command.get_subcommands() {
        let words = sub.get_positionals().flat_map(Arg::get_possible_values);
        let words: Vec<String> = words.map(|word| word.get_name().to_owned()).collect();
        if !words.is_empty() {
            let (name, words) = (sub.get_name(), words.join(" "));
            text += &format!(
                "complete -c {program} -n \"__fish_{function}_using_subcommand {name}\" -f -a \"{words}\"\n"
            );
        }
    }
    text
}
