//! A scenario: a path, its traffic and the expected outcome, as a TOML file.
//! `docs/reference/lab.md` documents every key.
//!
//! Parsing is strict: an unknown key, a malformed quantity or a contradiction is an error. It has
//! file, line, column and what was expected, and nothing runs.

mod agent;
mod arm;
mod change;
mod expect;
mod host;
mod path;
pub(crate) mod policy;
mod sizes;
pub(crate) mod trace;
mod traffic;
mod web;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;
use thalweg_guest as guest;
use thalweg_units::Faults;
use thalweg_units::file::read_text;
use thalweg_units::reader::{self, Table, whole_number};
use thalweg_units::schema;
use toml::de::DeValue;

use crate::error::Error;
use crate::mode::Mode;
use crate::ticks::Timers;
use crate::units::Size;
use crate::units::grammar::{CONGESTION_CONTROL, is_congestion_control};

pub use agent::Learning;
pub use arm::Arm;
pub use change::Change;
pub use expect::{Expectation, Reference};
pub use host::Host;
pub use path::{Aqm, DEFAULT_QUEUE, Drop, Family, GilbertElliott, PathModel};
pub use policy::PolicyFile;
pub use sizes::{Flows, Idle, Sizes, Tail};
pub use trace::Trace;
pub use traffic::{Against, INCAST, INCUMBENT, LONG, SHORT, SMALL_CALLS, Traffic, TrafficKind};
pub use web::{Web, WebServer};

/// A whole scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scenario {
    /// Short name: names the report's directory.
    pub name: String,
    /// One sentence for the reader of the report.
    pub description: String,
    /// The client's TCP.
    // The default is left out, so that older results stay comparable.
    #[serde(skip_serializing_if = "End::is_native")]
    pub sender: End,
    /// The server's TCP.
    #[serde(skip_serializing_if = "End::is_native")]
    pub receiver: End,
    /// The link between the two hosts. With several remote hosts, the default of their paths.
    pub path: PathModel,
    /// The remote hosts; empty if there is only one, at the end of `path`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<Host>,
    /// The traffic.
    pub traffic: Traffic,
    /// Changes of the path during the run, in order.
    pub changes: Vec<Change>,
    /// The policies that modes may run under.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PolicyFile>,
    /// Congestion controls that a run loads if its kernel has none of that name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arms: Vec<Arm>,
    /// Settings of the agents' learning.
    #[serde(skip_serializing_if = "Learning::is_default")]
    pub agent: Learning,
    /// The two hosts' settings.
    pub system: System,
    /// The expected outcome, checked after the run.
    pub expect: Vec<Expectation>,
    /// Whether the expectations only bound harm: a learner that always keeps the default meets them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub only_bounds_harm: bool,
}

/// The kernel whose TCP a host uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// The kernel that the run is on.
    #[default]
    Native,
    /// A kernel that is a process, as in `thalweg-lab stack`.
    Stack,
}

impl End {
    pub(crate) fn is_native(&self) -> bool {
        *self == Self::Native
    }
}

/// The root queueing discipline of the sender's link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Qdisc {
    /// The kernel's default for a veth link: no queue, packets leave at once.
    #[default]
    Default,
    /// `fq`: one queue per flow, paced as TCP asks.
    Fq,
    /// `pfifo`: first in, first out, 1000 packets.
    Pfifo,
}

impl Qdisc {
    /// Name in `tc`; none for the link's default.
    pub fn tc_name(self) -> Option<&'static str> {
        match self {
            Self::Default => None,
            Self::Fq => Some("fq"),
            Self::Pfifo => Some("pfifo"),
        }
    }
}

/// The two hosts' settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct System {
    /// `net.ipv4.tcp_congestion_control` of both, before any agent.
    pub default_cc: String,
    /// Other settings below `net.`, in both.
    pub sysctl: BTreeMap<String, String>,
    /// The queueing discipline of the sender's link.
    pub qdisc: Qdisc,
    /// Memory of a kernel of its own (user-mode Linux), bytes; none: the
    /// laboratory's default.
    pub memory: Option<Size>,
    /// Ticks a second of the kernel (HZ); none: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hz: Option<u32>,
    /// When the kernel's timers expire.
    #[serde(skip_serializing_if = "Timers::is_default")]
    pub timers: Timers,
}

impl Default for System {
    fn default() -> Self {
        Self {
            default_cc: "cubic".to_owned(),
            sysctl: BTreeMap::new(),
            qdisc: Qdisc::Default,
            memory: None,
            hz: None,
            timers: Timers::default(),
        }
    }
}

impl Scenario {
    /// Every remote host with its path. The only one, at the end of `path`, has no name.
    pub fn remote_paths(&self) -> Vec<(&str, &PathModel)> {
        if self.hosts.is_empty() {
            return vec![("", &self.path)];
        }
        let of = |host| Host::paths(host).map(|path| (host.name.as_str(), path));
        self.hosts.iter().flat_map(of).collect()
    }

    /// The remote hosts in each of their networks, in the order of the paths.
    pub(crate) fn hosts_per_network(&self) -> Vec<u8> {
        let counts = self.hosts.iter().map(|host| host.count() as u8);
        match self.hosts.is_empty() {
            true => vec![1],
            false => counts.collect(),
        }
    }

    /// Whether the agent's command is needed: by a mode, or for congestion controls of the scenario.
    pub(crate) fn needs_agent(&self, modes: &[Mode]) -> bool {
        !self.arms.is_empty() || modes.iter().any(Mode::uses_bpf)
    }

    /// The policy that a mode runs under.
    pub(crate) fn mode_policy(&self, mode: &Mode) -> Option<&PolicyFile> {
        match mode {
            Mode::Policy(name) => self.policies.iter().find(|one| one.name == *name),
            _ => None,
        }
    }

    /// The key of its first end that is a stack.
    pub(crate) fn first_stack(&self) -> Option<&'static str> {
        let ends = [("sender", self.sender), ("receiver", self.receiver)];
        let stack = ends.into_iter().find(|(_, end)| *end == End::Stack);
        stack.map(|(key, _)| key)
    }

    /// Whether a web server answers clients.
    pub(crate) fn has_nginx(&self) -> bool {
        matches!(&self.traffic.kind, TrafficKind::Web(web) if web.server == WebServer::Nginx)
    }

    /// The programs that its traffic needs beyond the laboratory's own, with their packages.
    pub(crate) fn needed_programs(&self) -> &'static [(&'static str, &'static str)] {
        match &self.traffic.kind {
            TrafficKind::Web(web) => web.server.needed_programs(),
            _ => &[],
        }
    }

    /// The paths in one line, for a reader.
    pub fn describe_paths(&self) -> String {
        if self.hosts.is_empty() {
            return self.path.describe();
        }
        let paths: Vec<String> = self.hosts.iter().map(Host::describe).collect();
        paths.join("; ")
    }
}

impl Scenario {
    /// Reads and checks a scenario file and its policies.
    ///
    /// # Errors
    /// [`Error::Read`] if the file cannot be read, [`Error::Scenario`] if it or a policy is not
    /// valid.
    pub fn load(file: &Path) -> Result<Self, Error> {
        Self::load_in(file, scenario_folder(file))
    }

    /// Reads and checks a scenario file, with the policies in a folder of their own.
    pub(crate) fn load_in(file: &Path, folder: &Path) -> Result<Self, Error> {
        Ok(Self::parse_in(&read_text(file)?, file, folder)?)
    }

    /// The form of scenario files.
    pub fn file_schema() -> schema::Form {
        reader::schema_of(|root| drop(Self::from_table(root, Path::new(""))))
    }

    /// Checks the text of a scenario. `file` is for messages, and its folder has the policies.
    ///
    /// # Errors
    /// All faults, with their places.
    pub fn parse(text: &str, file: &Path) -> Result<Self, Faults> {
        Self::parse_in(text, file, scenario_folder(file))
    }

    fn parse_in(text: &str, file: &Path, folder: &Path) -> Result<Self, Faults> {
        reader::parse_toml(text, file, |root| Self::from_table(root, folder))
    }

    fn from_table(root: &mut Table<'_>, folder: &Path) -> Option<Self> {
        let name = root.required(
            "name",
            "a name",
            reader::file_name,
            reader::NAME,
            reader::name_form,
        );
        let description = root.value("description").unwrap_or_default();
        let only_bounds_harm = root.value("only_bounds_harm").unwrap_or_default();
        let sender = root.value("sender").unwrap_or_default();
        let receiver = root.value("receiver").unwrap_or_default();
        let mut path = PathModel::default();
        let mut table = root.sub_or_empty("path");
        path.take_keys(&mut table, folder);
        table.refuse_unknown_keys();
        path.check_values(&table);
        // A path with faults is compared with nothing.
        let path = table.is_sound().then_some(path);
        let traffic = Traffic::from_table(root.sub_or_empty("traffic"));
        let hosts = host::read_hosts(
            root.take_tables("host"),
            folder,
            path.as_ref(),
            traffic.as_ref(),
        );
        let connections = traffic.as_ref().map(|traffic| traffic.connections);
        let tables = root.take_tables("change");
        let changes = change::read_changes(tables, path.as_ref(), hosts.as_deref(), connections);
        let system = System::from_table(root.sub_or_empty("system"));
        let policies = policy::read_policies(root.take_tables("policy"), folder);
        let arms = arm::read_arms(root.take_tables("arm"), folder);
        let agent = Learning::from_table(root.sub_or_empty("agent"));
        let known = expect::Known {
            traffic: traffic.as_ref(),
            hosts: hosts.as_deref(),
            policies: policies.as_deref(),
        };
        let tables = root.take_tables("expect").into_iter();
        let expect: Vec<_> = tables.map(|table| known.read_expectation(table)).collect();
        let scenario = Self {
            name: name?,
            description,
            sender,
            receiver,
            path: path?,
            hosts: hosts?,
            traffic: traffic?,
            changes: changes?,
            policies: policies?,
            arms: arms?,
            agent: agent?,
            system: system?,
            expect: expect.into_iter().collect::<Option<_>>()?,
            only_bounds_harm,
        };
        scenario.check_stack(root);
        Some(scenario)
    }

    /// Checks that a stack can be an end of this scenario.
    fn check_stack(&self, root: &Table<'_>) {
        let Some(key) = self.first_stack() else {
            return;
        };
        let why = if self.traffic.kind != TrafficKind::Bulk {
            "with kind \"bulk\" only: other flows are timed by one clock at both ends"
        } else if !self.hosts.is_empty() {
            "with one remote host, without [[host]]"
        } else if !self.arms.is_empty() {
            "without [[arm]]: the kernel that is a process takes no congestion control in BPF"
        } else {
            return;
        };
        root.wrong(key, "\"stack\"", format!("\"native\", or \"stack\" {why}"));
    }
}

/// The folder of the files that a scenario names.
pub(crate) fn scenario_folder(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new(""))
}

/// Reads the name of a congestion control.
fn congestion_control(value: &DeValue<'_>) -> Option<String> {
    let name = value.as_str().filter(|name| is_congestion_control(name));
    name.map(str::to_owned)
}

impl System {
    fn from_table(mut table: Table<'_>) -> Option<Self> {
        let mut system = Self::default();
        if let Some(name) = table.optional(
            "default_cc",
            congestion_control,
            CONGESTION_CONTROL,
            schema::congestion_control,
        ) {
            system.default_cc = name;
        }
        system.qdisc = table.value("qdisc").unwrap_or_default();
        system.timers = table.value("timers").unwrap_or_default();
        system.memory = table.value("memory");
        if let Some(memory) = system.memory
            && guest::check_memory(memory).is_err()
        {
            let (least, most) = (guest::LEAST_MEMORY, guest::MOST_MEMORY);
            let expected = format!("memory from {least} to {most}");
            table.wrong("memory", memory.to_string(), expected);
        }
        let rate = |value: &DeValue<'_>| {
            let hz = u32::try_from(whole_number(value)?).ok()?;
            guest::ticks::RATES.contains(&hz).then_some(hz)
        };
        let rates = || json!({ "enum": guest::ticks::RATES });
        system.hz = table.optional("hz", rate, "100, 250 or 1000", rates);
        if let Some(mut settings) = table.take_table("sysctl") {
            settings.declare_others(SYSCTL, || json!({ "type": ["string", "integer"] }));
            for (name, at, value) in settings.drain() {
                match sysctl_value(&name, value.get_ref()) {
                    Ok(text) => drop(system.sysctl.insert(name, text)),
                    Err(expected) => {
                        let found = reader::quote_piece(&name);
                        table.fault(at, Some("sysctl"), found, expected);
                    }
                }
            }
        }
        table.refuse_unknown_keys();
        table.is_sound().then_some(system)
    }
}

/// The names of settings, as a regular expression.
const SYSCTL: &str = r"^net(\.[A-Za-z0-9_-]+)+$";

/// Reads the value of a setting, or says what was expected.
fn sysctl_value(name: &str, value: &DeValue<'_>) -> Result<String, &'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let part = |part: &str| !part.is_empty() && part.bytes().all(plain);
    if !name.starts_with("net.") || !name.split('.').all(part) {
        return Err("a setting below net., such as \"net.ipv4.tcp_wmem\"");
    }
    if name == "net.ipv4.tcp_congestion_control" {
        return Err("`default_cc` to set the congestion control");
    }
    let text = value.as_str().map(str::to_owned);
    text.or_else(|| whole_number(value).map(|value| value.to_string()))
        .ok_or("a text or a whole number as the setting's value")
}

#[cfg(test)]
pub(crate) mod tests;
