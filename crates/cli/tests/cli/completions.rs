//! Completions, asked of the shells themselves.

use std::path::Path;
use std::process::Command;

use thalweg_testbed::{skip, thalweg};

/// The root of the sources, where shells run.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A line to complete, and what the shell makes of its last word: a command, an option, a word of
/// an option, a word of an argument, a file.
const LINES: [(&str, &str); 6] = [
    ("thalweg stat", "status"),
    ("thalweg policy ro", "rollback"),
    ("thalweg hosts --wat", "--watch"),
    ("thalweg hosts --sort rec", "recent"),
    ("thalweg schema pol", "policy"),
    ("thalweg policy check policies/clam", "policies/clamp.toml"),
];

/// A directory with a shell's completions, by the name that the shell looks for.
fn written(shell: &str, name: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let script = Command::new(thalweg())
        .args(["completions", shell])
        .output()
        .unwrap();
    assert!(script.status.success());
    std::fs::write(directory.path().join(name), script.stdout).unwrap();
    directory
}

/// What a shell prints; none if it is not installed and need not be.
fn said(shell: &str, options: &[&str], script: &str) -> Option<String> {
    let output = Command::new("timeout")
        .args(["30", shell])
        .args(options)
        .args(["-c", script])
        .current_dir(root())
        .output()
        .unwrap();
    if output.status.code() == Some(127) {
        skip(&format!("no {shell}"));
        return None;
    }
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "{shell}: {} {text} {error}",
        output.status
    );
    Some(text)
}

#[test]
fn bash_completes() {
    let place = written("bash", "thalweg");
    for (line, expected) in LINES {
        // compgen stands for the default of `complete -o default`: files.
        let script = format!(
            "source {}/thalweg; complete -p thalweg | grep -q -e '-o default' || exit 1\n\
             COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             word=${{COMP_WORDS[COMP_CWORD]}}; _thalweg thalweg \"$word\" \"${{COMP_WORDS[-2]}}\"\n\
             echo ${{COMPREPLY[@]:-$(compgen -f -- \"$word\")}}",
            place.path().display()
        );
        assert_eq!(
            said("bash", &["--norc"], &script).unwrap().trim(),
            expected,
            "{line}"
        );
    }
}

#[test]
fn fish_completes() {
    let place = written("fish", "thalweg.fish");
    for (line, expected) in LINES {
        let file = place.path().join("thalweg.fish");
        let script = format!("source {}; complete -C {line:?}", file.display());
        let Some(said) = said("fish", &["--no-config"], &script) else {
            return;
        };
        let words = said.lines().filter_map(|line| line.split('\t').next());
        assert_eq!(words.collect::<Vec<_>>(), [expected], "{line}");
    }
}

/// In a terminal of its own: zsh completes in its line editor only.
#[test]
fn zsh_completes() {
    let place = written("zsh", "_thalweg");
    let place = place.path().display();
    let mut script = format!(
        "zmodload zsh/zpty; zpty z zsh -f -i\n\
         zpty -w z \"PS1=; cd $PWD; fpath=({place} \\$fpath); autoload -U compinit; \
         compinit -u -D; echo rea''dy\"\n\
         zpty -r -m z out '*ready*'\n"
    );
    for (line, expected) in LINES {
        let (start, _) = line.rsplit_once(' ').unwrap();
        // The whole line stands there once it is complete; ^U empties it.
        script += &format!(
            "zpty -w -n z {line:?}$'\\t'; zpty -r -m z out '*{start} {expected}*' && echo {expected}\n\
             zpty -w -n z $'\\x15'\n"
        );
    }
    if let Some(said) = said("zsh", &["-f"], &script) {
        let expected: Vec<&str> = LINES.iter().map(|(_, expected)| *expected).collect();
        assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    }
}
