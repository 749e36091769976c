//! The fuzzers of `fuzz/` with a fixed number of inputs; `make fuzz` runs them for longer.

mod privileged;

use std::path::Path;
use std::process::{Command, Output};

/// `scripts/fuzz.sh` with these arguments.
fn fuzz(arguments: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/fuzz.sh");
    Command::new(script)
        .args(arguments)
        .output()
        .expect("the script starts")
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes))
        .concat()
}

/// Some installations of clang lack libFuzzer: `scripts/setup.sh --fuzz`.
fn available() -> bool {
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("empty.c");
    let program = "int LLVMFuzzerTestOneInput(const unsigned char *data, unsigned long size);\n\
                   int LLVMFuzzerTestOneInput(const unsigned char *data, unsigned long size)\n\
                   { (void)data; (void)size; return 0; }\n";
    std::fs::write(&source, program).expect("a file");
    let built = Command::new("clang")
        .args(["-fsanitize=fuzzer,address,undefined", "-o"])
        .arg(directory.path().join("empty"))
        .arg(&source)
        .output();
    if built.is_ok_and(|output| output.status.success()) {
        return true;
    }
    privileged::skip("clang builds no fuzzers here (scripts/setup.sh --fuzz)")
}

#[test]
#[ignore = "slow: a minute"]
fn fuzzing_finds_nothing() {
    if !available() {
        return;
    }
    let output = fuzz(&["--runs", "20000"]);
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("nothing found").count(), 2, "{said}");
    println!("{said}");
}

/// The script builds with the sanitizers, and reports their findings.
#[test]
#[ignore = "slow: builds a fuzzer"]
fn what_is_wrong_is_found() {
    if !available() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let planted = |name: &str, fault: &str| {
        let file = directory.path().join(format!("{name}.c"));
        let program = format!(
            "#include \"input.h\"\n\
             int LLVMFuzzerTestOneInput(const __u8 *data, size_t size)\n\
             {{\n\tstruct input input = {{ data, size }};\n\t\
             volatile int by = take(&input, 1), row[8] = {{}};\n\t\
             {fault}\n\treturn row[0] == by;\n}}\n"
        );
        std::fs::write(&file, program).expect("a file");
        let output = fuzz(&["--runs", "100000", &file.display().to_string()]);
        assert!(!output.status.success(), "{name} was not found");
        said(&output)
    };
    let found = planted("thalweg-planted-shift", "row[0] = 1 << by;");
    assert!(found.contains("shift exponent"), "{found}");
    let found = planted("thalweg-planted-read", "row[0] = row[by & 15];");
    assert!(found.contains("out of bounds"), "{found}");
    let found = planted(
        "thalweg-planted-check",
        "CHECK(by != 77, \"by is %d\", by);",
    );
    assert!(found.contains("by != 77; by is 77"), "{found}");
    // Its files for the analysis of a finding are not needed here.
    let findings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz-findings");
    for entry in std::fs::read_dir(&findings).expect("findings").flatten() {
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with("thalweg-planted-")
        {
            std::fs::remove_file(entry.path()).expect("removed");
        }
    }
    let _ = std::fs::remove_dir(&findings);
}
