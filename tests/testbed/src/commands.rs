//! Where the commands under test are.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;
use std::{env, fs, io};

/// The directory of the commands, where it is not that of this test's build.
const COMMANDS: &str = "THALWEG_TEST_COMMANDS";
/// Makes the commands, with the points at which tests end the agent.
const BUILD: &str = "cargo build --workspace --all-targets";

static THALWEG: OnceLock<String> = OnceLock::new();

/// Path of `thalweg`.
pub fn thalweg() -> &'static str {
    THALWEG.get_or_init(|| find("thalweg"))
}

/// Whether [`thalweg`] has found the command.
pub(crate) fn has_thalweg() -> bool {
    THALWEG.get().is_some()
}

/// Path of `thalweg-lab`.
pub fn laboratory() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| find("thalweg-lab"))
}

fn find(name: &str) -> String {
    if crate::virtual_time::is_inside() {
        return format!("/usr/bin/{name}");
    }
    let folder = env::var_os(COMMANDS).map(PathBuf::from);
    let path = folder.unwrap_or_else(built).join(name);
    let path = path.to_str().expect("plain path");
    if let Err(why) = is_fresh(Path::new(path)) {
        panic!("{why}: run `{BUILD}`, or name a directory in {COMMANDS}");
    }
    path.to_owned()
}

/// The directory of built programs: tests are in `deps` there.
fn built() -> PathBuf {
    let own = env::current_exe().expect("this program's path");
    let folder = own.parent().and_then(Path::parent);
    folder.expect("cargo's folders").to_owned()
}

/// Cargo builds a command before the tests of its own package alone. Before others it may be missing,
/// or older than its sources, which cargo lists beside it.
fn is_fresh(command: &Path) -> Result<(), String> {
    let changed = |file: &Path| -> io::Result<SystemTime> { fs::metadata(file)?.modified() };
    let built = changed(command).map_err(|error| format!("{}: {error}", command.display()))?;
    let listed = fs::read_to_string(command.with_extension("d")).unwrap_or_default();
    let (_, sources) = listed.split_once(": ").unwrap_or_default();
    let is_newer = |file: &&str| changed(Path::new(file)).is_ok_and(|changed| changed > built);
    match sources.split_whitespace().find(is_newer) {
        Some(source) => Err(format!("{} is older than {source}", command.display())),
        None => Ok(()),
    }
}
