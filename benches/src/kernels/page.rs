//! docs/reference/kernels.md, and its tables on a terminal.

use std::fmt::Write;

use thalweg_agent::doctor::requirements;

use super::Tried;
use super::probe::Object;

/// Largest number of instructions that the verifier walks through (linux/bpf.h,
/// BPF_COMPLEXITY_LIMIT_INSNS).
const MOST_INSTRUCTIONS: f64 = 1e6;
/// Prefix of the line that states how the page was made.
const MADE: &str = "Made by ";
const NOT_TRIED: &str = "not tried";
const NOT_LOADED: &str = "not loaded";
const HEAD: &str = "\
# Kernels

Written by

```
make kernels
```

which tries every feature on Debian's stock kernels in QEMU ([lab.md](lab.md#stock-kernels-in-virtual-time)) and on the
machine's own. *works*: it was done there, in the first row with the kernel's types hidden from the agent.
`thalweg-bench kernels --kernel NAME` tries another kernel of `thalweg-lab kernels list`, `--feature NAME` one row.
`thalweg doctor` checks the running kernel.

";
const SINCE: &str = "
## Other kernels

Expected from the kernel's history, not tried: the oldest kernel of each row, and the reason. None older than 6.1 has been
run.

";
const VERIFIER: &str = "
## The verifier

Instructions that the verifier looked at per program (`bpf_prog_info.verified_insns`), global functions included. It
refuses a program beyond a million; the last column is what is left of that on the worse kernel.

";

/// Result of a comparison.
pub enum Compared {
    /// Nothing has changed.
    Same,
    /// The page is about other kernels, or comes from another compiler: how it was made.
    Elsewhere(String),
    /// The page is stale; the first line that differs.
    Stale(String),
}

/// The page.
pub fn text(all: &[Tried], objects: &[Object]) -> String {
    let packages: Vec<&str> = all.iter().filter_map(|it| it.package.as_deref()).collect();
    let mut text = HEAD.to_owned();
    let _ = writeln!(
        text,
        "{MADE}`thalweg-bench kernels --write` with {}; programs compiled by {}.\n",
        packages.join(" and "),
        thalweg_bpf_objects::CLANG
    );
    text.push_str(&features(all));
    text.push_str(SINCE);
    text.push_str("| | Linux | because of |\n|---|---|---|\n");
    for feature in requirements() {
        let _ = writeln!(
            text,
            "| {} | {} | {} |",
            feature.name, feature.since, feature.because
        );
    }
    text.push_str(VERIFIER);
    text.push_str(&programs(all, objects));
    text
}

/// The tables for a terminal.
pub fn tables(all: &[Tried], objects: &[Object]) -> String {
    format!("{}\n{}", features(all), programs(all, objects))
}

/// Feature × kernel.
fn features(all: &[Tried]) -> String {
    let mut text = heading("", all, "needs");
    for feature in requirements() {
        let _ = write!(text, "| {}: {} |", feature.name, feature.means);
        for tried in all {
            let cell = match tried.column.features.get(feature.name) {
                Some(cell) if cell.works => "works".to_owned(),
                Some(cell) => format!("refused: {}", cell.said.replace('|', "&#124;")),
                None => NOT_TRIED.to_owned(),
            };
            let _ = write!(text, " {cell} |");
        }
        let options: Vec<String> = feature
            .options()
            .iter()
            .map(|option| format!("`{option}`"))
            .collect();
        let _ = writeln!(text, " {} |", options.join(", "));
    }
    text
}

/// Program × kernel.
fn programs(all: &[Tried], objects: &[Object]) -> String {
    let mut text = heading("object: program", all, "left, %");
    let names = |it: &'_ Object| -> Vec<(&'static str, String)> {
        let programs = it.programs.iter();
        programs.map(|name| (it.object, name.clone())).collect()
    };
    for (object, program) in objects.iter().flat_map(names) {
        let counts: Vec<Option<u32>> = all
            .iter()
            .map(|tried| tried.column.programs.get(object)?.get(&program).copied())
            .collect();
        let _ = write!(text, "| {object}: `{program}` |");
        for count in &counts {
            let count = count.map_or(NOT_LOADED.to_owned(), |it| it.to_string());
            let _ = write!(text, " {count} |");
        }
        let most = counts.iter().flatten().max().copied().unwrap_or(0);
        let left = 100.0 * (1.0 - f64::from(most) / MOST_INSTRUCTIONS);
        let _ = writeln!(text, " {left:.1} |");
    }
    text
}

fn heading(first: &str, all: &[Tried], last: &str) -> String {
    let releases = all.iter().map(|tried| tried.column.release.as_str());
    let names: Vec<&str> = [first].into_iter().chain(releases).chain([last]).collect();
    let rule = "---|".repeat(names.len());
    format!("| {} |\n|{rule}\n", names.join(" | "))
}

/// Compares a page with the results on all its kernels.
pub fn compare(old: &str, all: &[Tried], objects: &[Object]) -> Compared {
    let new = text(all, objects);
    if old == new {
        return Compared::Same;
    }
    let made = |text: &str| {
        let line = text.lines().find(|line| line.starts_with(MADE));
        line.unwrap_or_default().to_owned()
    };
    if made(old) != made(&new) {
        return Compared::Elsewhere(format!("it is {}", made(old)));
    }
    let differs = new.lines().zip(old.lines()).find(|(new, old)| new != old);
    Compared::Stale(differs.map_or("its end", |(new, _)| new).to_owned())
}

/// Compares a page with results for a part of it.
pub fn compare_part(old: &str, all: &[Tried], objects: &[Object]) -> Compared {
    let made = old.lines().find(|line| line.starts_with(MADE));
    let made = made.unwrap_or_default();
    let told = facts(old);
    for tried in all {
        let package = tried.package.as_deref().unwrap_or("no package");
        if !made.contains(package) || !made.contains(thalweg_bpf_objects::CLANG) {
            return Compared::Elsewhere(format!("it is {made}"));
        }
        let part = tables(std::slice::from_ref(tried), objects);
        let found = facts(&part).into_iter().filter(|fact| {
            fact.column == tried.column.release && ![NOT_TRIED, NOT_LOADED].contains(&fact.value)
        });
        for fact in found {
            if !told.contains(&fact) {
                return Compared::Stale(format!("{}: {}", fact.row, fact.value));
            }
        }
    }
    Compared::Same
}

/// A cell of a table.
#[derive(PartialEq, Eq)]
struct Fact<'a> {
    row: &'a str,
    column: &'a str,
    value: &'a str,
}

/// The cells of all tables of a text.
fn facts(text: &str) -> Vec<Fact<'_>> {
    let mut heading: Vec<&str> = Vec::new();
    let mut facts = Vec::new();
    for line in text.lines() {
        if !line.starts_with('|') {
            heading.clear();
            continue;
        }
        let row: Vec<&str> = line.split('|').map(str::trim).collect();
        if heading.is_empty() {
            heading = row;
            continue;
        }
        facts.extend(row.iter().zip(&heading).map(|(value, column)| Fact {
            row: row[1],
            column,
            value,
        }));
    }
    facts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::probe::{Cell, Column, objects};
    use super::*;

    fn tried(package: &str, works: bool, instructions: u32) -> Tried {
        let said = "there is | none".to_owned();
        let feature = requirements()[1].name.to_owned();
        let program = BTreeMap::from([("policy_mark".to_owned(), instructions)]);
        Tried {
            package: Some(package.to_owned()),
            column: Column {
                release: "6.1.1".to_owned(),
                features: BTreeMap::from([(feature, Cell { works, said })]),
                programs: BTreeMap::from([("policy_mark".to_owned(), program)]),
            },
        }
    }

    #[test]
    fn a_page_that_no_longer_holds_is_told_of() {
        let objects = objects().unwrap();
        let page = text(&[tried("linux 6.1.1", true, 58)], &objects);
        let judge = |now: Tried| {
            let now = [now];
            [compare, compare_part].map(|compare| match compare(&page, &now, &objects) {
                Compared::Same => "same",
                Compared::Elsewhere(_) => "elsewhere",
                Compared::Stale(_) => "stale",
            })
        };
        assert_eq!(judge(tried("linux 6.1.1", true, 58)), ["same"; 2]);
        assert_eq!(judge(tried("linux 6.1.1", false, 58)), ["stale"; 2]);
        assert_eq!(judge(tried("linux 6.1.1", true, 59)), ["stale"; 2]);
        assert_eq!(judge(tried("linux 6.1.2", false, 59)), ["elsewhere"; 2]);
        // A feature that was not tried is not compared.
        let mut part = tried("linux 6.1.1", true, 58);
        part.column.features.clear();
        part.column.programs.clear();
        assert_eq!(judge(part), ["stale", "same"]);
    }
}
