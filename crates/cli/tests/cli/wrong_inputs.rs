//! Messages of commands about wrong inputs, as transcripts in `wrong_inputs/`.
//!
//! A case has a title, the existing files, the command, its exit code and its output:
//!
//! ```text
//! # a rate in bytes
//! @ l.toml
//! | name = "l"
//! $ thalweg-lab run l.toml
//! ? 1
//! > thalweg-lab: l.toml:3:8: …
//! ```
//!
//! With `THALWEG_GENERATE=1` codes and output are written anew; read them before you commit.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use thalweg_testbed::{command_of, privileged};

#[derive(Debug, Default, PartialEq)]
pub struct Case {
    pub title: String,
    pub files: Vec<(String, String)>,
    command: String,
    pub code: Option<i32>,
    pub said: Vec<String>,
}

impl Case {
    pub fn all(text: &str, file: &Path) -> Vec<Self> {
        let mut cases: Vec<Self> = Vec::new();
        for (line, number) in text.lines().zip(1..) {
            let (kind, rest) = line.split_at_checked(1).unwrap_or((line, ""));
            let rest = rest.strip_prefix(' ').unwrap_or(rest);
            if kind == "#" {
                cases.push(Self::default());
            }
            let Some(case) = cases.last_mut() else {
                panic!("{}:{number}: a case begins with `# TITLE`", file.display())
            };
            match kind {
                "#" => case.title = rest.to_owned(),
                "@" => case.files.push((rest.to_owned(), String::new())),
                "|" => {
                    let (_, text) = case.files.last_mut().expect("a file's name comes first");
                    text.push_str(rest);
                    text.push('\n');
                }
                "$" => case.command = rest.to_owned(),
                "?" => case.code = rest.parse().ok(),
                ">" => case.said.push(rest.to_owned()),
                "" => {}
                _ => panic!("{}:{number}: no such line: {line}", file.display()),
            }
        }
        cases
    }

    fn write(&self, text: &mut String) {
        let _ = writeln!(text, "# {}", self.title);
        for (name, content) in &self.files {
            let _ = writeln!(text, "@ {name}");
            for line in content.lines() {
                text.push_str(format!("| {line}").trim_end());
                text.push('\n');
            }
        }
        let code = self.code.unwrap_or_default();
        let _ = writeln!(text, "$ {}\n? {code}", self.command);
        for line in &self.said {
            text.push_str(format!("> {line}").trim_end());
            text.push('\n');
        }
        text.push('\n');
    }

    /// As `self`, with the command's present output, in a directory of its own.
    fn now(&self) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in &self.files {
            fs::write(directory.path().join(name), content).unwrap();
        }
        let words: Vec<&str> = self.command.split(' ').collect();
        let output = command_of(&words)
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        let mut left: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let mut given: Vec<_> = self.files.iter().map(|(name, _)| name.clone()).collect();
        given.sort();
        assert_eq!(left, given, "{}: files are left, or gone", self.title);
        Self {
            title: self.title.clone(),
            files: self.files.clone(),
            command: self.command.clone(),
            code: output.status.code(),
            said: said
                .lines()
                .map(|line| line.trim_end().to_owned())
                .collect(),
        }
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn each_has_a_message_with_place_and_expectation() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/wrong_inputs");
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let mut count = 0;
    let mut changed = Vec::new();
    for file in &files {
        if file.ends_with("privileged.txt") && !privileged() {
            continue;
        }
        let cases = Case::all(&fs::read_to_string(file).unwrap(), file);
        let mut text = String::new();
        for case in &cases {
            let now = case.now();
            assert!(now.code.is_some_and(|code| code != 0), "{now:#?}");
            assert!(!now.said.is_empty(), "{now:#?}");
            if now != *case {
                changed.push(format!("{}:\n{now:#?}\nbefore: {case:#?}", file.display()));
            }
            now.write(&mut text);
            count += 1;
        }
        if std::env::var_os("THALWEG_GENERATE").is_some() {
            fs::write(file, text.trim_end().to_owned() + "\n").unwrap();
        }
    }
    assert!(count >= 50, "{count}");
    let generates = std::env::var_os("THALWEG_GENERATE").is_some();
    assert!(generates || changed.is_empty(), "{}", changed.join("\n"));
}
