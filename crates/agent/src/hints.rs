//! Hints for each kind of problem that `status` shows.

use crate::feature::Hint;
use crate::features;

/// Hints by kind of problem: sentences for a page that shows the problem's text before them.
const HINTS: [Hint; 29] = [
    (
        "arms",
        "Restart the agent: its maps cannot be read. Connections keep their CC meanwhile.",
    ),
    (
        "cc",
        "Nothing must be done if it is put back within seconds. Else remove it with `thalweg cc unload`, and load it again. Connections that have it keep it.",
    ),
    (
        "cgroup",
        "Make the cgroup again, as by starting its service: the agent attaches within a second. Else name another in `cgroup`, and reload.",
    ),
    (
        "configuration",
        "Correct the file and ask again: `thalweg config check`, then `thalweg reload`. The agent goes on with the old one.",
    ),
    (
        "count",
        "Restart the agent if it stays: its maps cannot be read.",
    ),
    (
        "discovery",
        "Look at `thalweg doctor`: the kernel's list of CCs cannot be read.",
    ),
    (
        "events",
        "Restart the agent: decisions go on in the kernel, and nobody stores their events.",
    ),
    (
        "kernel-btf",
        "Nothing must be done; a kernel with BTF and its current updates measures better. `thalweg doctor` says more.",
    ),
    (
        "long-connections",
        "Nothing must be done: connections are scored when they end. `thalweg doctor` says what the kernel lacks.",
    ),
    (
        "namespaces",
        "Look at `thalweg doctor`. Connections of namespaces that cannot be read are left alone.",
    ),
    (
        "nat64",
        "Nothing must be done if it passes: it is tried again. Else set `hosts.nat64`. Hosts behind an unknown prefix share records meanwhile.",
    ),
    (
        "networks",
        "Restart the agent if it stays: what networks know of each other is weighed as before.",
    ),
    (
        "overridden",
        "Have the other program leave `TCP_CONGESTION` and the initial window alone and keep the callback flags that are set, or detach it: `bpftool cgroup tree`. A CC may also fall back by itself, as dctcp does without ECN. `thalweg policy show` says what the kernel refuses of a rule.",
    ),
    (
        "pins",
        "Nothing must be done: the agent pins again what is gone. Remove an object of others that has a pin's place.",
    ),
    (
        "port",
        "Find who has the port (`ss -ltnp`), and end it or name another in `http.listen`. If tokens were sent there, write a new one to `http.token_file`.",
    ),
    (
        "programs",
        "Nothing must be done if they are attached again within a second. Else look at `bpftool cgroup tree` and the agent's log.",
    ),
    (
        "refused",
        "Load the module of the CC, or name it in `arms.deny`. It is tried again after ten minutes.",
    ),
    (
        "retention",
        "Look at the disk of the store: `df`, and the agent's log.",
    ),
    (
        "room",
        "Raise `hosts.max`, or restart the agent if it stays: its maps cannot be read, and new hosts may find no room.",
    ),
    (
        "snapshot",
        "Free space on the disk of the store, or mend it. What was learned stays in the kernel until the machine restarts.",
    ),
    (
        "socket",
        "Make the socket's directory again, or restart the agent. Until then only its TCP port answers.",
    ),
    (
        "sockops",
        "Nothing must be done if it is attached again within seconds. Else start the service that has the cgroup, or remove the object with `thalweg sockops unload NAME`.",
    ),
    (
        "store",
        "Free space on the disk of the store, or mend it. Learning goes on; events are lost meanwhile.",
    ),
    (
        "store-behind",
        "Give the store a faster disk, or a smaller `events.retention_max`. Learning goes on.",
    ),
    (
        "store-file",
        "Restart the agent: what was learned is in the kernel, and is saved to a new file.",
    ),
    (
        "store-records",
        "Nothing must be done: these hosts are learned anew.",
    ),
    (
        "store-set-aside",
        "Nothing must be done: learning began anew. Remove the file that was set aside once nobody needs it.",
    ),
    (
        "strangers",
        "Look at `thalweg doctor`. Connections of unknown namespaces are left alone.",
    ),
    (
        "unsaved",
        "Look at the disk of the store. Learning goes on in the kernel; a restart of the machine loses what was learned since.",
    ),
];

/// All kinds of problems.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    HINTS.into_iter().chain(features::hints()).map(|it| it.0)
}

/// Hint for a kind of problem.
pub fn hint_for(topic: &str) -> &'static str {
    let mut hints = HINTS.into_iter().chain(features::hints());
    let known = hints.find(|(kind, _)| *kind == topic);
    known.map_or(
        "Look at the agent's log: `journalctl -u thalweg`.",
        |(_, text)| text,
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn first_text(rest: &str) -> String {
        rest.split('"').next().unwrap().to_owned()
    }

    /// Kinds that sources of a folder report, with the names of their files.
    fn reported(folder: &Path, found: &mut Vec<(String, PathBuf)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with("hints.rs") {
                continue;
            }
            if path.is_dir() {
                reported(&path, found);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            for call in ["problem", "warning", "trouble"].map(|it| format!(".{it}(")) {
                let arguments = text.split(&call).skip(1);
                let kinds = arguments.filter_map(|it| it.trim_start().strip_prefix('"'));
                found.extend(kinds.map(|it| (first_text(it), path.clone())));
            }
            let constants = text.split("/// Kind of problem: ").skip(1);
            let kinds = constants.map(|it| first_text(it.split_once('"').unwrap().1));
            found.extend(kinds.map(|it| (it, path.clone())));
        }
    }

    #[test]
    fn each_reported_kind_has_a_row() {
        let mut found = Vec::new();
        reported(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
            &mut found,
        );
        assert!(found.len() > 30, "{found:?}");
        for (kind, file) in found {
            assert!(
                kinds().any(|it| it == kind),
                "{kind}, reported in {}",
                file.display()
            );
        }
    }

    #[test]
    fn each_kind_of_problem_has_its_remedy() {
        assert!(hint_for("store").contains("disk"));
        assert!(hint_for("something new").contains("journalctl"));
        assert!(HINTS.is_sorted_by_key(|(name, _)| *name));
    }
}
