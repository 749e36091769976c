//! `thalweg completions`.

use anyhow::Result;
use clap::Args;
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
    output::print(&String::from_utf8(script)?)
}
