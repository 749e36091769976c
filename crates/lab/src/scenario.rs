//! A scenario: a path, its traffic, and the outcome that is expected, as a TOML
//! file. `docs/reference/lab.md` documents every key.
//!
//! Parsing is strict: an unknown key, a malformed quantity or a contradiction is
//! an error with file, line, column and what was expected, and nothing runs.

mod arm;
mod change;
mod host;
pub(crate) mod policy;
mod traffic;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};
use thalweg_units::file::read_text;
use thalweg_units::memory::check_toml;
use thalweg_units::with_suggestion;
use toml::Spanned;

use crate::error::Error;
use crate::expect::{self, Expectation};
use crate::ticks::{self, Timers};
use crate::units::grammar::is_congestion_control;
use crate::units::{Delay, Probability, Rate, Size};

pub use arm::Arm;
pub use change::Change;
pub use host::Host;
use policy::PolicyFault;
pub use policy::PolicyFile;
pub(crate) use policy::congestion_controls;
pub use thalweg_units::FileError as ScenarioError;
pub(crate) use thalweg_units::position;
pub use traffic::{Against, INCAST, Kind, LONG, SHORT, SMALL_CALLS, Traffic};

/// A whole scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scenario {
    /// Short name: names the report's directory.
    pub name: String,
    /// One sentence for the reader of the report.
    pub description: String,
    /// Whose TCP the client has.
    // Absent where it is the default, so that older results can be compared with.
    #[serde(skip_serializing_if = "End::is_native")]
    pub sender: End,
    /// Whose TCP the server has.
    #[serde(skip_serializing_if = "End::is_native")]
    pub receiver: End,
    /// The link between the two hosts; where there are several remote hosts, what
    /// their paths have in common.
    pub path: PathModel,
    /// The remote hosts; empty where there is but one, at the end of `path`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<Host>,
    /// What is sent over it.
    pub traffic: Traffic,
    /// How the path changes in the course of the run, in order.
    pub changes: Vec<Change>,
    /// The policies that modes may run under.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PolicyFile>,
    /// Congestion controls that a run loads where its kernel has none of that name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arms: Vec<Arm>,
    /// The two hosts' settings.
    pub system: System,
    /// The outcome, checked after the run.
    pub expect: Vec<Expectation>,
}

/// Whose TCP a host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// That of the kernel that the run is on.
    #[default]
    Native,
    /// That of a kernel that is a process, as of `thalweg stack`.
    Stack,
}

impl End {
    pub(crate) fn is_native(&self) -> bool {
        *self == Self::Native
    }
}

/// The link. The data direction is from client to server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PathModel {
    /// Independent loss in the data direction.
    pub loss: Option<Probability>,
    /// Loss in bursts in the data direction, instead of `loss`.
    pub gilbert_elliott: Option<GilbertElliott>,
    /// Independent loss in the direction of the acknowledgements.
    pub reverse_loss: Probability,
    /// Whether a sender hears of its losses.
    pub drop: Drop,
    /// Bottleneck rate in the data direction; none: as fast as the machine.
    pub rate: Option<Rate>,
    /// Bytes that wait before the bottleneck; more are dropped. With `rate` only.
    pub queue: Option<Size>,
    /// What the bottleneck does about a queue that grows. With `rate` only.
    // Absent where it is the default, so that older results can be compared with.
    #[serde(skip_serializing_if = "Aqm::is_tail_drop")]
    pub aqm: Aqm,
    /// Whether it marks packets of flows that understand ECN instead of dropping
    /// them. With an `aqm` only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ecn: bool,
    /// With `aqm = "step"`: packets that will wait longer than this are marked or dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mark: Option<Delay>,
    /// How long a packet is under way, in each direction: the round trip takes
    /// twice as long.
    pub delay: Delay,
    /// Each packet's delay lies evenly between `delay` less this and `delay`
    /// plus this, in each direction. Packets may overtake each other.
    pub jitter: Delay,
    /// Share of the packets in the data direction that are not delayed, and so
    /// overtake those before them.
    pub reorder: Probability,
    /// Whether packets of up to 64 KiB cross the link whole (segmentation
    /// offload), as one unit of loss.
    pub offload: bool,
    /// Largest IP packet, bytes.
    pub mtu: u32,
    /// The version of IP.
    pub family: Family,
    /// Seed of the loss.
    pub seed: u64,
}

impl Default for PathModel {
    fn default() -> Self {
        Self {
            loss: None,
            gilbert_elliott: None,
            reverse_loss: Probability::ZERO,
            drop: Drop::Silent,
            rate: None,
            queue: None,
            aqm: Aqm::default(),
            ecn: false,
            mark: None,
            delay: Delay::ZERO,
            jitter: Delay::ZERO,
            reorder: Probability::ZERO,
            offload: true,
            mtu: 1500,
            family: Family::Ipv4,
            seed: 1,
        }
    }
}

/// Bytes that wait before the bottleneck where a scenario does not say.
pub const DEFAULT_QUEUE: Size = Size::from_bytes(1_000_000);

/// Loss by a two-state chain (Gilbert 1960, Elliott 1963).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GilbertElliott {
    /// Probability per packet of going from the good to the bad state (p).
    pub to_bad: Probability,
    /// Probability per packet of going from the bad to the good state (r).
    pub to_good: Probability,
    /// Loss in the good state (1 − k).
    #[serde(default)]
    pub loss_good: Probability,
    /// Loss in the bad state (1 − h).
    #[serde(default = "certain")]
    pub loss_bad: Probability,
}

fn certain() -> Probability {
    Probability::ONE
}

impl GilbertElliott {
    /// The chain that loses independently with this probability.
    pub fn bernoulli(loss: Probability) -> Self {
        Self {
            to_bad: Probability::ZERO,
            to_good: Probability::ONE,
            loss_good: loss,
            loss_bad: Probability::ONE,
        }
    }

    /// The share of packets lost in the long run: (r·g + p·b)/(p + r).
    pub fn stationary_loss(&self) -> f64 {
        let (p, r) = (self.to_bad.fraction(), self.to_good.fraction());
        if p == 0.0 {
            return self.loss_good.fraction();
        }
        (r * self.loss_good.fraction() + p * self.loss_bad.fraction()) / (p + r)
    }
}

impl PathModel {
    /// The chain that drops packets in the data direction.
    pub fn forward_loss(&self) -> GilbertElliott {
        self.gilbert_elliott
            .unwrap_or_else(|| GilbertElliott::bernoulli(self.loss.unwrap_or_default()))
    }

    /// The path in one line, for a reader.
    pub fn describe(&self) -> String {
        let mut parts = Vec::new();
        match (&self.gilbert_elliott, self.loss) {
            (Some(chain), _) => parts.push(format!(
                "bursts of loss (Gilbert–Elliott: to bad {}, to good {}, loss {} and {}; {:.2}% in the long run)",
                chain.to_bad,
                chain.to_good,
                chain.loss_good,
                chain.loss_bad,
                chain.stationary_loss() * 100.0,
            )),
            (None, Some(loss)) if loss > Probability::ZERO => {
                parts.push(format!("{loss} random loss"));
            }
            _ => parts.push("no loss".to_owned()),
        }
        if self.reverse_loss > Probability::ZERO {
            parts.push(format!("{} loss of acknowledgements", self.reverse_loss));
        }
        if self.drop == Drop::Reported {
            parts.push("drops reported to the sender".to_owned());
        }
        match self.rate {
            Some(rate) => parts.push(format!(
                "{rate} bottleneck with a queue of {}{}",
                self.queue.unwrap_or(DEFAULT_QUEUE),
                match (self.aqm, self.ecn) {
                    (Aqm::TailDrop, _) => String::new(),
                    (Aqm::Red, false) => " (RED)".to_owned(),
                    (Aqm::Red, true) => " (RED that marks)".to_owned(),
                    (Aqm::Step, _) => {
                        format!(" (marks from {} on)", self.mark.unwrap_or(Delay::ZERO))
                    }
                }
            )),
            None => parts.push("no rate limit".to_owned()),
        }
        if self.delay > Delay::ZERO {
            let jitter = match self.jitter {
                Delay::ZERO => String::new(),
                jitter => format!(" ± {jitter}"),
            };
            parts.push(format!("{}{jitter} delay each way", self.delay));
        }
        if self.reorder > Probability::ZERO {
            parts.push(format!("{} reordered", self.reorder));
        }
        parts.push(format!("MTU {}", self.mtu));
        parts.push(format!(
            "offload {}",
            if self.offload { "on" } else { "off" }
        ));
        parts.push(self.family.to_string());
        parts.push(format!("seed {}", self.seed));
        parts.join(", ")
    }
}

/// What a sender hears of a packet that the loss program drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Drop {
    /// Nothing, as in a network: it misses the acknowledgement.
    #[default]
    Silent,
    /// The error of a full local queue, at once.
    Reported,
}

/// Active queue management: what a bottleneck does before its queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aqm {
    /// Nothing: what does not fit is dropped.
    #[default]
    TailDrop,
    /// Random early detection (Floyd and Jacobson 1993), tc-red(8).
    Red,
    /// Every packet that will wait longer than `mark` is marked, if it may be; the others wait
    /// as with tail drop (RFC 8257, section 3.1).
    Step,
}

impl Aqm {
    fn is_tail_drop(&self) -> bool {
        *self == Self::TailDrop
    }
}

/// The version of IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IP version 4.
    #[default]
    Ipv4,
    /// IP version 6.
    Ipv6,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}

/// What the sender's link queues with (its root queueing discipline).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Qdisc {
    /// What the kernel gives a veth link: none, packets go at once.
    #[default]
    Default,
    /// `fq`: one queue per flow, paced as TCP asks.
    Fq,
    /// `pfifo`: first in, first out, 1000 packets.
    Pfifo,
}

impl Qdisc {
    /// Its name in `tc`; none where the link keeps what it has.
    pub fn kind(self) -> Option<&'static str> {
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
    /// What the sender's link queues with.
    pub qdisc: Qdisc,
    /// Memory of a kernel of its own (user-mode Linux), bytes; none: the
    /// laboratory's default.
    pub memory: Option<Size>,
    /// Ticks a second of the kernel; none: whatever it has.
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    name: Spanned<String>,
    #[serde(default)]
    description: String,
    sender: Option<Spanned<End>>,
    receiver: Option<Spanned<End>>,
    #[serde(default)]
    path: Option<Spanned<PathModel>>,
    #[serde(default)]
    host: Vec<Spanned<host::Table>>,
    #[serde(default)]
    traffic: traffic::Table,
    #[serde(default)]
    change: Vec<Spanned<change::Table>>,
    #[serde(default)]
    system: SystemTable,
    #[serde(default)]
    policy: Vec<policy::Table>,
    #[serde(default)]
    arm: Vec<arm::Table>,
    #[serde(default)]
    expect: Vec<Spanned<expect::Table>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct SystemTable {
    default_cc: Option<Spanned<String>>,
    #[serde(default)]
    sysctl: BTreeMap<Spanned<String>, Spanned<SysctlValue>>,
    #[serde(default)]
    qdisc: Qdisc,
    memory: Option<Spanned<Size>>,
    hz: Option<Spanned<u32>>,
    #[serde(default)]
    timers: Timers,
}

#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(untagged)]
enum SysctlValue {
    Integer(i64),
    Text(String),
}

impl Scenario {
    /// Every remote host: those of `hosts`, or the one at the end of `path`, which
    /// has no name.
    pub fn remotes(&self) -> Vec<(&str, &PathModel)> {
        if self.hosts.is_empty() {
            return vec![("", &self.path)];
        }
        self.hosts
            .iter()
            .map(|host| (host.name.as_str(), &host.path))
            .collect()
    }

    /// Its first end that is a stack, by the key that says so.
    pub(crate) fn stack(&self) -> Option<&'static str> {
        let ends = [("sender", self.sender), ("receiver", self.receiver)];
        let stack = ends.into_iter().find(|(_, end)| *end == End::Stack);
        stack.map(|(key, _)| key)
    }

    /// The paths in one line, for a reader.
    pub fn describe_paths(&self) -> String {
        let paths: Vec<String> = self
            .remotes()
            .into_iter()
            .map(|(name, path)| match name {
                "" => path.describe(),
                name => format!("{name}: {}", path.describe()),
            })
            .collect();
        paths.join("; ")
    }
}

/// A message at a place in the text.
pub(crate) type Fault = (Range<usize>, String);

impl Scenario {
    /// Reads and checks a scenario file and the policies that it names.
    ///
    /// # Errors
    /// [`Error::Io`] where the file cannot be read, [`Error::Scenario`] where it or a
    /// policy is not valid.
    pub fn load(file: &Path) -> Result<Self, Error> {
        Self::load_in(file, folder(file))
    }

    /// The same, with policies looked for in another folder than beside the file.
    pub(crate) fn load_in(file: &Path, folder: &Path) -> Result<Self, Error> {
        Ok(Self::parse_in(&read_text(file)?, file, folder)?)
    }

    /// Checks the text of a scenario; `file` is for messages, and for finding the policies
    /// that it names.
    ///
    /// # Errors
    /// The first fault, with its place.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ScenarioError> {
        Self::parse_in(text, file, folder(file))
    }

    fn parse_in(text: &str, file: &Path, folder: &Path) -> Result<Self, ScenarioError> {
        let at = |(span, message): Fault| {
            let (line, column) = position(text, span.start);
            ScenarioError {
                file: file.to_owned(),
                line,
                column,
                message,
            }
        };
        check_toml(text).map_err(|error| at((error.at..error.at, error.to_string())))?;
        let mut document: Document = toml::from_str(text).map_err(|error| {
            at((
                error.span().unwrap_or(0..0),
                with_suggestion(error.message()),
            ))
        })?;
        let tables = std::mem::take(&mut document.policy);
        let policies = policy::load(tables, folder).map_err(|fault| match fault {
            PolicyFault::Here(fault) => at(fault),
            PolicyFault::There(error) => error,
        })?;
        let tables = std::mem::take(&mut document.arm);
        let arms = arm::check(tables, folder).map_err(at)?;
        document.check(policies, arms).map_err(at)
    }
}

impl Document {
    fn check(self, policies: Vec<PolicyFile>, arms: Vec<Arm>) -> Result<Scenario, Fault> {
        let name = self.name.get_ref();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.bytes().all(plain) {
            return Err((
                self.name.span(),
                format!(
                    "expected a name of 1 to 64 letters, digits, '-', '_' or '.', \
                     not beginning with '.', found {name:?}"
                ),
            ));
        }
        let path = match self.path {
            Some(path) => {
                let span = path.span();
                let path = path.into_inner();
                check_path(&path).map_err(|message| (span, message))?;
                path
            }
            None => PathModel::default(),
        };
        let traffic = self.traffic.check()?;
        let hosts = host::check(self.host, &path, &traffic)?;
        let changes = change::check(self.change, &path, &hosts, traffic.connections)?;
        let system = self.system.check()?;
        for (key, end) in [("sender", &self.sender), ("receiver", &self.receiver)] {
            if let Some(end) = end.as_ref().filter(|end| !end.get_ref().is_native()) {
                check_stack(key, &traffic, &hosts, &arms)
                    .map_err(|message| (end.span(), message))?;
            }
        }
        let expect = self
            .expect
            .into_iter()
            .map(|table| {
                let span = table.span();
                let table = table.into_inner();
                check_class(&table, &traffic)?;
                check_host(&table, &hosts)?;
                for mode in table.modes() {
                    policy::check_mode(mode, &policies)?;
                }
                table.check(span)
            })
            .collect::<Result<_, _>>()?;
        Ok(Scenario {
            name: self.name.into_inner(),
            description: self.description,
            sender: self.sender.map(Spanned::into_inner).unwrap_or_default(),
            receiver: self.receiver.map(Spanned::into_inner).unwrap_or_default(),
            path,
            hosts,
            traffic,
            changes,
            policies,
            arms,
            system,
            expect,
        })
    }
}

/// Whether an end can be a kernel that is a process.
fn check_stack(key: &str, traffic: &Traffic, hosts: &[Host], arms: &[Arm]) -> Result<(), String> {
    let stack = format!("`{key} = \"stack\"`");
    if traffic.kind != Kind::Bulk {
        return Err(format!(
            "{stack} goes with kind \"bulk\" only: other flows are timed by one clock at both ends"
        ));
    }
    if !hosts.is_empty() {
        return Err(format!("{stack} goes with one remote host, found [[host]]"));
    }
    if !arms.is_empty() {
        return Err(format!(
            "{stack} goes without [[arm]]: the kernel that is a process takes no congestion \
             control in BPF"
        ));
    }
    Ok(())
}

/// Where files that a scenario names are looked for.
pub(crate) fn folder(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new(""))
}

/// Whether the traffic has flows of the class that an expectation names.
fn check_class(table: &expect::Table, traffic: &Traffic) -> Result<(), Fault> {
    let known = traffic.kind.classes();
    match table.class() {
        Some(class) if !known.contains(&class.get_ref().as_str()) => Err((
            class.span(),
            if known.is_empty() {
                "this kind of traffic has no classes of flows".to_owned()
            } else {
                format!(
                    "expected one of the classes of this traffic ({}), found {:?}",
                    known.join(", "),
                    class.get_ref()
                )
            },
        )),
        _ => Ok(()),
    }
}

/// Whether an expectation names one of several hosts where it must.
fn check_host(table: &expect::Table, hosts: &[Host]) -> Result<(), Fault> {
    match table.host() {
        Some(name) => host::known(name, hosts),
        None => table.check_without_host(!hosts.is_empty()),
    }
}

fn check_path(path: &PathModel) -> Result<(), String> {
    if path.loss.is_some() && path.gilbert_elliott.is_some() {
        return Err("expected either `loss` or `gilbert_elliott`, found both".into());
    }
    if let Some(chain) = &path.gilbert_elliott
        && chain.to_bad > Probability::ZERO
        && chain.to_good == Probability::ZERO
    {
        return Err("`to_good` is 0%: the chain would never leave the bad state".into());
    }
    if path.queue.is_some() && path.rate.is_none() {
        return Err("`queue` has no effect without `rate`".into());
    }
    if path.aqm != Aqm::TailDrop && path.rate.is_none() {
        return Err("`aqm` has no effect without `rate`".into());
    }
    if path.aqm == Aqm::Step && (path.mark.is_none() || !path.ecn) {
        return Err("`aqm = \"step\"` needs `ecn = true` and `mark`, such as \"500us\"".into());
    }
    if path.mark.is_some() && path.aqm != Aqm::Step {
        return Err("`mark` goes with `aqm = \"step\"` only".into());
    }
    if path.ecn && path.aqm == Aqm::TailDrop {
        return Err("`ecn` has no effect without an `aqm` that marks, such as \"red\"".into());
    }
    if path.delay == Delay::ZERO {
        if path.jitter > Delay::ZERO {
            return Err("`jitter` has no effect without `delay`".into());
        }
        if path.reorder > Probability::ZERO {
            return Err("`reorder` has no effect without `delay`".into());
        }
    }
    if path.jitter > path.delay {
        return Err(format!(
            "`jitter` is {}: expected at most the `delay` of {}",
            path.jitter, path.delay
        ));
    }
    // RFC 8200 section 5 asks for 1280 of a link that carries IPv6; a veth takes
    // at most 65535. 576 keeps room for TCP options and some data.
    let least = match path.family {
        Family::Ipv4 => 576,
        Family::Ipv6 => 1280,
    };
    if !(least..=65_535).contains(&path.mtu) {
        return Err(format!(
            "expected an mtu from {least} to 65535 bytes, found {}",
            path.mtu
        ));
    }
    if let Some(queue) = path.queue
        && queue.bytes() < u64::from(path.mtu) + 14
    {
        return Err(format!(
            "`queue` is {queue}: too small for one packet of {} bytes",
            path.mtu
        ));
    }
    if path.aqm == Aqm::Red {
        // The lower threshold is a twelfth of the queue: a packet must fit below it.
        let least = 12 * (u64::from(path.mtu) + 14);
        let queue = path.queue.unwrap_or(DEFAULT_QUEUE);
        if queue.bytes() < least {
            return Err(format!(
                "`queue` is {queue}: `aqm = \"red\"` needs at least {least} bytes, \
                 twelve packets of {} bytes",
                path.mtu
            ));
        }
    }
    Ok(())
}

impl SystemTable {
    fn check(self) -> Result<System, Fault> {
        let mut system = System {
            qdisc: self.qdisc,
            timers: self.timers,
            ..System::default()
        };
        if let Some(memory) = self.memory {
            crate::guest::check_memory(*memory.get_ref()).map_err(|why| (memory.span(), why))?;
            system.memory = Some(memory.into_inner());
        }
        if let Some(hz) = self.hz {
            ticks::check_rate(*hz.get_ref()).map_err(|why| (hz.span(), why))?;
            system.hz = Some(hz.into_inner());
        }
        if let Some(name) = self.default_cc {
            if !is_congestion_control(name.get_ref()) {
                return Err((
                    name.span(),
                    format!(
                        "expected the name of a congestion control, found {:?}",
                        name.get_ref()
                    ),
                ));
            }
            system.default_cc = name.into_inner();
        }
        for (key, value) in self.sysctl {
            let name = key.get_ref().as_str();
            let parts_fine = name.split('.').all(|part| {
                !part.is_empty()
                    && part
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
            });
            if !name.starts_with("net.") || !parts_fine {
                return Err((
                    key.span(),
                    format!(
                        "expected a setting below net., such as \"net.ipv4.tcp_wmem\", found {name:?}"
                    ),
                ));
            }
            if name == "net.ipv4.tcp_congestion_control" {
                return Err((
                    key.span(),
                    "expected `default_cc` to set the congestion control".into(),
                ));
            }
            let text = match value.into_inner() {
                SysctlValue::Integer(value) => value.to_string(),
                SysctlValue::Text(value) => value,
            };
            system.sysctl.insert(key.into_inner(), text);
        }
        Ok(system)
    }
}

#[cfg(test)]
#[path = "scenario_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "scenario_policy_tests.rs"]
mod policy_tests;

#[cfg(test)]
#[path = "scenario_arm_tests.rs"]
mod arm_tests;
