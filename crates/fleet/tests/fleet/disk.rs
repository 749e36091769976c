//! A server whose disk is full.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use thalweg_fleet::{Kind, Outgoing};

use super::exchange::arrives;
use super::support::{Bed, SMALL, priors, skip, wait_for};

/// A file system of its own for a directory; unmounted with this value.
struct Disk(PathBuf);

impl Disk {
    /// None without the right to mount.
    fn new(directory: &Path, size: &str) -> Option<Self> {
        fs::create_dir_all(directory).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "thalweg-test"])
            .arg(directory)
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(directory.to_owned())),
            _ => {
                skip("no right to mount a file system");
                None
            }
        }
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    fn fill(&self) {
        let mut file = fs::File::create(self.filler()).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    fn free(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: the server may still have files open on it.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_full_disk_then_space() {
    let Some(mut bed) = Bed::new(&["a", "b"]) else {
        return;
    };
    bed.servers[0].kill();
    let store = bed.servers[0].store();
    fs::remove_dir_all(&store).unwrap();
    let Some(disk) = Disk::new(&store, "4m") else {
        return;
    };
    bed.servers[0].restart();
    bed.operator().make_all(&SMALL).unwrap();
    let (a, b) = (bed.agent("a"), bed.agent("b"));
    a.offer_message(&Outgoing::Priors(priors("a", 1, 1)))
        .unwrap();
    arrives(&b, &priors("a", 1, 1));

    disk.fill();
    let mut cost = 1;
    let (kind, text) = wait_for("a full disk", || {
        cost += 1;
        a.offer_message(&Outgoing::Priors(priors("a", 1, cost)))
            .unwrap();
        let fault = a.state().last?.fault;
        Some((fault.kind, fault.text))
    });
    // nats-server 2.9.10 does not answer for such a bucket until it starts again; it should refuse.
    assert!([Kind::Full, Kind::Slow].contains(&kind), "{kind:?}: {text}");
    assert!(text.starts_with("bucket thalweg-priors: "), "{text}");
    // The last message waits in the agent, whatever it says meanwhile.
    cost += 1;
    a.offer_message(&Outgoing::Priors(priors("a", 1, cost)))
        .unwrap();
    disk.free();
    bed.servers[0].kill();
    bed.servers[0].restart();
    arrives(&b, &priors("a", 1, cost));
    // An agent that begins now hears it from the store.
    arrives(&bed.agent("b"), &priors("a", 1, cost));
}
