//! Tables of kind "timers": how late timers are, and a picture of the distributions.

use std::fmt::Write;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use thalweg_units::file::replace;

use super::{Head, Page};
use crate::error::Error;
use crate::report::picture::{Line, Panel, panels};
use crate::worker::timers::Lateness;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    condition: String,
    /// Further words for `lab timers`.
    #[serde(default)]
    options: Vec<String>,
}

/// Where the distributions are shown, µs.
const AT_US: [f64; 14] = [
    0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0,
];

impl Page<'_> {
    pub(super) fn timers(&mut self, head: &Head, picture: &str, rows: &[Row]) -> Result<(), Error> {
        self.head(head);
        self.body.push_str(
            "| timers of | the kernel: median, µs | 90 % | 99 % | latest | \
             a program's sleep: median, µs | 90 % | 99 % | latest |\n\
             |---|---|---|---|---|---|---|---|---|\n",
        );
        let mut foot = Vec::new();
        let [mut kernel, mut program] = [const { Vec::new() }; 2];
        for row in rows {
            let mut words = vec!["lab".to_owned(), "timers".to_owned()];
            words.extend(row.options.iter().cloned());
            let name = words[1..].join("-").replace("--", "-");
            let given = self.made(&name, words, "", &mut foot)?;
            let Some(late) = given.ok().and_then(|result| of(&result)) else {
                self.row(&row.condition, &vec!["not run".to_owned(); 8]);
                continue;
            };
            let mut cells = Vec::new();
            for (us, lines) in [
                (late.kernel_us, &mut kernel),
                (late.program_us, &mut program),
            ] {
                cells.extend([0.5, 0.9, 0.99, 1.0].map(|part| figure(at(&us, part))));
                let points = AT_US.iter().enumerate();
                lines.push(Line {
                    name: row.condition.clone(),
                    points: points
                        .map(|(place, bound)| (place, [share(&us, *bound); 3]))
                        .collect(),
                });
            }
            self.row(&row.condition, &cells);
        }
        let _ = write!(self.body, "\n![{}]({picture})\n", head.title);
        self.foot(foot);
        let values: Vec<String> = AT_US.iter().map(ToString::to_string).collect();
        let shown = [
            ("timers of the kernel: part that is no later", kernel),
            ("sleep of a program: part that is no later", program),
        ];
        let shown = shown.map(|(title, lines)| Panel {
            title: title.to_owned(),
            lines,
        });
        let folder = self.options.page.parent().unwrap_or(Path::new("."));
        let file = folder.join(picture);
        let text = panels(&head.title, "µs", &values, &shown);
        replace(&file, text.as_bytes()).map_err(Error::io("cannot write", file))
    }
}

fn of(result: &Value) -> Option<Lateness> {
    let lateness: Lateness = serde_json::from_value(result["timers"].clone()).ok()?;
    let whole = !lateness.kernel_us.is_empty() && !lateness.program_us.is_empty();
    whole.then_some(lateness)
}

/// The lateness that this part of the timers does not exceed, µs.
fn at(quantiles_us: &[f64], part: f64) -> f64 {
    let last = quantiles_us.len() - 1;
    quantiles_us[(part * last as f64).round() as usize]
}

/// The part of the timers that is late by no more than this.
fn share(quantiles_us: &[f64], bound_us: f64) -> f64 {
    let within = quantiles_us.partition_point(|late_us| *late_us <= bound_us);
    within as f64 / quantiles_us.len() as f64
}

fn figure(us: f64) -> String {
    if us < 10.0 {
        format!("{us:.1}")
    } else {
        format!("{us:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_is_read_from_both_sides() {
        let late: Vec<f64> = (0..=1000).map(f64::from).collect();
        assert_eq!(
            [0.0, 0.5, 0.99, 1.0].map(|part| at(&late, part)),
            [0.0, 500.0, 990.0, 1000.0]
        );
        assert!((share(&late, 500.0) - 0.5).abs() < 1e-2);
        assert_eq!((share(&late, -1.0), share(&late, 1e9)), (0.0, 1.0));
    }
}
