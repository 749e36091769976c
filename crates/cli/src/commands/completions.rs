//! `thalweg completions`.

use anyhow::Result;
use clap::{Arg, Args, Command};
use clap_complete::Shell;

use crate::{groups, output};

/// The shell.
#[derive(Debug, Args)]
pub struct Options {
    /// The shell that is to read them.
    ///
    /// bash: /usr/share/bash-completion/completions/thalweg; zsh: a file _thalweg in a directory of
    /// $fpath; fish: ~/.config/fish/completions/thalweg.fish.
    shell: Shell,
}

/// Prints a shell's completions.
pub fn run(options: &Options) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(
        options.shell,
        &mut groups::command(),
        "thalweg",
        &mut script,
    );
    let mut script = String::from_utf8(script)?;
    if options.shell == Shell::Fish {
        script += &arguments(&groups::command());
    }
    output::print(&script)
}

/// The words of arguments for fish, which clap leaves out.
fn arguments(command: &Command) -> String {
    let mut text = String::new();
    for sub in command.get_subcommands() {
        let words = sub.get_positionals().flat_map(Arg::get_possible_values);
        let words: Vec<String> = words.map(|word| word.get_name().to_owned()).collect();
        if !words.is_empty() {
            let (name, words) = (sub.get_name(), words.join(" "));
            text += &format!(
                "complete -c thalweg -n \"__fish_thalweg_using_subcommand {name}\" -f -a \"{words}\"\n"
            );
        }
    }
    text
}
