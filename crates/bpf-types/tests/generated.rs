//! `src/raw.rs` is the output of bindgen for the ABI headers.

use std::fs;
use std::path::Path;

const HEAD: &str = "\
//! Structs, enums and constants of `thalweg_abi.h`. Generated; to make it anew after a change of
//! the header: `THALWEG_GENERATE=1 cargo test -p thalweg-bpf-types --test generated`
";

/// Removes formatting that depends on the version of rustfmt.
fn tokens(text: &str) -> String {
    let kept = |c: &char| !c.is_whitespace() && *c != ',';
    text.chars().filter(kept).collect()
}

#[test]
fn the_types_are_those_of_the_header() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = here.join("../../bpf/include/thalweg_abi.h");
    let committed = here.join("src/raw.rs");
    let generated = bindgen::Builder::default()
        .header(header.display().to_string())
        .allowlist_file(".*thalweg_((policy|network|rate|timers|idle|buffers)_)?abi\\.h")
        .derive_default(true)
        .prepend_enum_name(false)
        // Of integers `repr(C)` leaves one layout: see `pod.rs`.
        .layout_tests(false)
        .disable_header_comment()
        .rustfmt_configuration_file(Some(here.join("../../rustfmt.toml")))
        .generate()
        .expect("libclang reads the header")
        .to_string();
    let generated = format!("{HEAD}\n{generated}");
    if std::env::var_os("THALWEG_GENERATE").is_some() {
        fs::write(&committed, &generated).expect("the working tree can be written");
    }
    let text = fs::read_to_string(&committed).expect("the file is in the repository");
    assert!(
        tokens(&text) == tokens(&generated),
        "src/raw.rs is not what the headers say; its first lines say how to make it anew"
    );
}
