//! Namespaces, joined by a bridge. Each has one link, which can be cut.

use anyhow::Result;
use thalweg_process::owned::PREFIX;
use thalweg_process::tool;

/// Addresses: few networks have these.
const NETWORK: &str = "10.97.255";

/// The address at an end.
pub fn address(end: usize) -> String {
    format!("{NETWORK}.{}", end + 11)
}

/// The namespaces. Dropped, they are removed.
pub struct Wires {
    hub: String,
    ends: Vec<String>,
}

impl Wires {
    /// So many ends.
    pub fn new(ends: usize) -> Result<Self> {
        let name = format!("{PREFIX}{}-soak", std::process::id());
        let hub = format!("{name}-hub");
        let ip = |words: String| tool::run_tool("ip", &words);
        ip(format!("netns add {hub}"))?;
        let mut wires = Self {
            hub,
            ends: Vec::new(),
        };
        let hub = wires.hub.clone();
        ip(format!(
            "-n {hub} link add bridge type bridge forward_delay 0"
        ))?;
        ip(format!("-n {hub} link set bridge up"))?;
        for end in 0..ends {
            let namespace = format!("{name}-{end}");
            ip(format!("netns add {namespace}"))?;
            wires.ends.push(namespace.clone());
            ip(format!(
                "link add end{end} netns {hub} type veth peer name wire netns {namespace}"
            ))?;
            ip(format!("-n {hub} link set end{end} master bridge up"))?;
            ip(format!(
                "-n {namespace} address add {}/24 dev wire",
                address(end)
            ))?;
            ip(format!("-n {namespace} link set lo up"))?;
            ip(format!("-n {namespace} link set wire up"))?;
        }
        Ok(wires)
    }

    /// The name of an end's namespace.
    pub fn namespace(&self, end: usize) -> &str {
        &self.ends[end]
    }

    /// Joins an end, or cuts its link.
    pub fn set(&self, end: usize, up: bool) -> Result<()> {
        let word = if up { "up" } else { "down" };
        Ok(tool::run_tool(
            "ip",
            &format!("-n {} link set end{end} {word}", self.hub),
        )?)
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        for namespace in self.ends.iter().chain([&self.hub]) {
            if let Err(why) = tool::run_tool("ip", &format!("netns delete {namespace}")) {
                eprintln!("{why}");
            }
        }
    }
}
