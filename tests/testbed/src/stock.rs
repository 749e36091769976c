//! Stock kernels for `--backend qemu`: the one that tests boot, and a file that is not a kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use super::{laboratory, skip_unpackaged};

/// The emulator of `--backend qemu`.
pub const QEMU: &str = "/usr/bin/qemu-system-x86_64";
/// Downloaded if there is no kernel yet.
const PACKAGE: &str = "linux-image-6.12-cloud-amd64";
/// The release's own, older kernel.
const OLDER: &str = "linux-image-cloud-amd64";

/// The newest packaged kernel that supports congestion controls in BPF; downloaded if there is
/// none. If that fails, the test is skipped; on Debian it counts as one without privilege.
pub fn kernel() -> Option<&'static str> {
    static FOUND: OnceLock<Result<String, String>> = OnceLock::new();
    match FOUND.get_or_init(find) {
        Ok(name) => Some(name),
        Err(why) => {
            skip_unpackaged(why);
            None
        }
    }
}

fn find() -> Result<String, String> {
    if !Path::new(QEMU).exists() {
        return Err(format!("no {QEMU} (scripts/setup.sh)"));
    }
    let listed = || {
        let mut fit = all().into_iter().filter(|stock| {
            !stock["package"].is_null() && stock["fault"].is_null() && stock["struct_ops"] == true
        });
        fit.next_back()
            .map(|stock| stock["name"].as_str().unwrap().to_owned())
    };
    if let Some(name) = listed() {
        return Ok(name);
    }
    let added = kernels(&["add", PACKAGE]);
    listed().ok_or_else(|| String::from_utf8_lossy(&added.stderr).trim().to_owned())
}

/// All usable packaged kernels, including an older one if it is available.
pub fn several() -> Vec<Value> {
    if kernel().is_none() {
        return Vec::new();
    }
    // Quick if it is there; outside of Debian 12 there may be none.
    kernels(&["add", OLDER]);
    let mut all = all();
    all.retain(|stock| !stock["package"].is_null() && stock["fault"].is_null());
    all
}

/// Output of `thalweg-lab kernels list`.
pub fn all() -> Vec<Value> {
    serde_json::from_slice(&kernels(&["list"]).stdout).unwrap()
}

fn kernels(arguments: &[&str]) -> std::process::Output {
    Command::new(laboratory())
        .args(["--json", "kernels"])
        .args(arguments)
        .output()
        .unwrap()
}

/// The header of a bzImage (Documentation/arch/x86/boot.rst), and nothing after it.
pub fn image(release: &str) -> Vec<u8> {
    let mut head = vec![0; 0x400];
    head[0x202..0x206].copy_from_slice(b"HdrS");
    head[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
    let text = format!("{release} (builder@example) #1 SMP\0");
    head[0x300..0x300 + text.len()].copy_from_slice(text.as_bytes());
    head
}

/// Such an image in a directory, in the layout of packages; the modules of a run are built in.
pub fn no_kernel(directory: &Path) -> PathBuf {
    let release = "6.12.1-test";
    let modules = directory.join("lib/modules").join(release);
    fs::create_dir_all(&modules).unwrap();
    fs::create_dir(directory.join("boot")).unwrap();
    let names = "ipv6 veth sch_ingress cls_bpf sch_tbf sch_netem sch_red sch_fq tcp_bbr tcp_dctcp \
                 tcp_htcp tcp_cubic";
    let built_in: String = names
        .split(' ')
        .map(|name| format!("kernel/{name}.ko\n"))
        .collect();
    fs::write(modules.join("modules.builtin"), built_in).unwrap();
    fs::write(modules.join("modules.dep"), "").unwrap();
    let file = directory.join(format!("boot/vmlinuz-{release}"));
    fs::write(&file, image(release)).unwrap();
    file
}
