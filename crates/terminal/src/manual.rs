//! The hidden command `manual`: manual pages, from the text of `--help`. `make install` calls it.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use thalweg_units::file::replace_file;

/// Sections of every page beside the text of `--help`.
pub struct Pages {
    /// Lines of exit codes, after a title: code, two spaces, meaning.
    pub exit_codes: &'static str,
    /// The section FILES: path, and description.
    pub files: &'static [(&'static str, &'static str)],
}

/// Options of `manual`.
#[derive(Debug, Args)]
pub struct Options {
    /// Directory for the pages; it is made if it does not exist.
    pub directory: PathBuf,
}

/// Writes a page for the command and one per sub-command: `thalweg.1`, `thalweg-policy-apply.1`, ….
///
/// # Errors
/// A page cannot be written.
pub fn run(options: &Options, command: Command, all: &Pages) -> anyhow::Result<()> {
    let directory = &options.directory;
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let mut command = command.disable_help_subcommand(true);
    // Gives sub-commands their full names and the global options.
    command.build();
    let pages = page_names(&command);
    write_pages(&command, &pages, directory, all)
}

/// The names of the pages of a command and its sub-commands.
fn page_names(command: &Command) -> Vec<String> {
    let mut found = vec![page_name(command)];
    for sub in shown_commands(command) {
        found.extend(page_names(sub));
    }
    found
}

fn shown_commands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|it| !it.is_hide_set())
}

/// `thalweg policy apply` has the page `thalweg-policy-apply`.
fn page_name(command: &Command) -> String {
    let whole = command.get_bin_name().unwrap_or(command.get_name());
    whole.replace(' ', "-")
}

fn write_pages(
    command: &Command,
    pages: &[String],
    directory: &Path,
    all: &Pages,
) -> anyhow::Result<()> {
    let name = page_name(command);
    let path = directory.join(format!("{name}.1"));
    let mut page = Vec::new();
    render_page(command, &name, pages, all, &mut page)?;
    replace_file(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    shown_commands(command).try_for_each(|sub| write_pages(sub, pages, directory, all))
}

fn render_page(
    command: &Command,
    name: &str,
    pages: &[String],
    all: &Pages,
    out: &mut Vec<u8>,
) -> Result<(), io::Error> {
    // Exit codes have their own section on every page.
    let command = command.clone().after_help("").after_long_help("");
    let man = Man::new(command.clone())
        .title(name)
        .section("1")
        .manual("Thalweg")
        .source(format!("Thalweg {}", env!("CARGO_PKG_VERSION")));
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;

    let mut end = Roff::new();
    if shown_commands(&command).next().is_some() {
        end.control("SH", ["COMMANDS"]);
        for sub in shown_commands(&command) {
            end.control("TP", []);
            let page = format!("{name}-{}(1)", sub.get_name());
            end.text([roman(page)]);
            let about = sub.get_about().map(ToString::to_string);
            end.text([roman(about.unwrap_or_default())]);
        }
    }
    end.control("SH", ["EXIT STATUS"]);
    for line in all.exit_codes.lines().skip(1) {
        match line.trim_start().split_once("  ") {
            Some((code, meaning)) => {
                end.control("TP", []);
                end.text([roman(code)]);
                end.text([roman(meaning)]);
            }
            None => {
                end.control("PP", []);
                end.text([roman(line)]);
            }
        }
    }
    end.control("SH", ["FILES"]);
    for (path, what) in all.files {
        end.control("TP", []);
        end.text([roman(*path)]);
        end.text([roman(*what)]);
    }
    end.control("SH", ["SEE ALSO"]);
    let others: Vec<String> = pages
        .iter()
        .filter(|other| is_related(other, name))
        .map(|other| format!("{other}(1)"))
        .collect();
    end.text([roman(others.join(", "))]);
    out.write_all(end.render().as_bytes())
}

/// The commands above a page, and directly below it.
fn is_related(other: &str, name: &str) -> bool {
    let below = other
        .strip_prefix(name)
        .and_then(|rest| rest.strip_prefix('-'))
        .is_some_and(|rest| !rest.contains('-') || rest == "build-kernel");
    let above = name.starts_with(&format!("{other}-"));
    below || above
}

/// Fails unless the pages of a command have the words, and the absent pages do not exist. `directory`
/// is filled with the pages.
///
/// # Panics
/// See above.
pub fn assert_pages(
    directory: &Path,
    command: Command,
    all: &Pages,
    pages: &[(&str, &[&str])],
    absent: &[&str],
) {
    let options = Options {
        directory: directory.to_owned(),
    };
    run(&options, command, all).expect("pages can be written");
    for (name, words) in pages {
        let text = fs::read_to_string(directory.join(name)).expect("a page of the command");
        for word in *words {
            assert!(text.contains(word), "{name}: no {word} in\n{text}");
        }
    }
    for name in absent {
        assert!(!directory.join(name).exists(), "{name}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_refer_to_what_is_near() {
        assert!(is_related("thalweg-policy", "thalweg"));
        assert!(is_related("thalweg", "thalweg-policy-apply"));
        assert!(is_related("thalweg-policy", "thalweg-policy-apply"));
        assert!(!is_related("thalweg-policy-apply", "thalweg"));
        assert!(!is_related("thalweg-policy", "thalweg-cc"));
    }
}
