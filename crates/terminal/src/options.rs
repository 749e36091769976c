//! Options that every command has.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::Args;

use crate::output::{self, Json};

const GLOBAL: &str = "Options of every command";

/// The form of answers.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Format {
    /// Answer in JSON.
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub json: bool,
    /// Answer in JSON, each entry of a list on a line of its own.
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub json_lines: bool,
}

impl Format {
    /// Puts the form in force; `one_line`: a document in JSON takes one line. `--json-lines` implies
    /// `--json`.
    pub fn apply(&mut self, one_line: bool) {
        output::set_json_form(match (self.json_lines, one_line) {
            (true, _) => Json::Lines,
            (false, true) => Json::Line,
            (false, false) => Json::Pretty,
        });
        self.json |= self.json_lines;
    }
}

/// Reads a whole number within a range.
pub fn whole_number<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            format!("expected a whole number from {least} to {most}")
        })
    }
}
