//! Host records as a JSON document, for transfer between machines.

mod parts;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{BufReader, Read};

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde::{Deserialize, Serialize};
use serde_json::de::IoRead;
use thalweg_learner::ArmState;
use thalweg_learner::{HOSTS_FORMAT, HOSTS_VERSION};
use thalweg_units::one_line;
use thalweg_units::reader::quote_piece;

use super::row::{HostRow, Snapshot, parse_key, parse_mode};

use parts::Parts;

/// Size limit of a document, in bytes per host that an agent can keep: more than 16 arms take. It
/// is also the limit of each host and each other field.
pub const HOST_MAX_BYTES: u64 = 8 << 10;

/// Longest boot ID, as the kernel writes it.
const BOOT_ID_MAX_BYTES: usize = 36;

/// Reason that a document cannot be imported. None of it has been used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", one_line(path), one_line(message))]
pub struct ImportError {
    /// The offending field, such as `hosts[3].arms.bbr.weight_q16`.
    pub path: String,
    /// Fault of the field.
    pub message: String,
}

/// Head of a document, read first, so that another version is refused as such.
#[derive(Deserialize)]
struct Header {
    format: String,
    version: u32,
}

/// A document without its hosts, of which only the form is checked.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    version: u32,
    mode: String,
    boot_id: String,
    own_netns: u64,
    saved_at_ms: i64,
    hosts: Hosts,
}

/// The list of hosts; its elements are skipped.
struct Hosts;

impl Serialize for Hosts {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        [(); 0].serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Hosts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(EachHost(|_, _| Ok(())))?;
        Ok(Self)
    }
}

/// Passes each host of a list on, with its number.
struct EachHost<F>(F);

impl<'de, F: FnMut(usize, DocumentHost) -> Result<(), ImportError>> Visitor<'de> for EachHost<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of hosts")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        let mut index = 0;
        while let Some(host) = list.next_element()? {
            (self.0)(index, host).map_err(A::Error::custom)?;
            index += 1;
        }
        Ok(())
    }
}

impl<'de, F: FnMut(usize, DocumentHost) -> Result<(), ImportError>> DeserializeSeed<'de>
    for EachHost<F>
{
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

/// A document of which only the hosts are read.
struct HostsOf<F>(EachHost<F>);

impl<'de, F: FnMut(usize, DocumentHost) -> Result<(), ImportError>> Visitor<'de> for HostsOf<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a document of hosts")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut document: A) -> Result<(), A::Error> {
        while let Some(key) = document.next_key::<String>()? {
            if key == "hosts" {
                document.next_value_seed(EachHost(&mut self.0.0))?;
            } else {
                document.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DocumentHost {
    netns: u64,
    address: String,
    prefix: u32,
    connections: u32,
    scored: u32,
    switched: u32,
    min_rtt_us: u32,
    max_rate: u64,
    #[serde(default)]
    queue_q16: u32,
    #[serde(default)]
    base_rtt_us: u32,
    seen_age_ms: u64,
    forgot_age_ms: Option<u64>,
    arms: BTreeMap<String, Arm>,
}

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Arm(#[serde(with = "DocumentArm")] ArmState);

#[derive(Serialize, Deserialize)]
#[serde(remote = "ArmState", deny_unknown_fields)]
struct DocumentArm {
    value: u64,
    max_rate: u64,
    weight_q16: u32,
    deviation_q16: u32,
    log_rate_q16: u32,
    srtt_us: u32,
    min_rtt_us: u32,
    chosen: u32,
    greedy: u32,
    scored: u32,
    #[serde(default)]
    segs: u32,
    #[serde(default)]
    retrans: u32,
    /// Confidence penalty, recomputed when the record is restored.
    #[serde(skip)]
    caution_q16: u32,
    /// Number of slow measurements, counted again after a restart of the machine.
    #[serde(skip)]
    slow: u16,
    #[serde(skip)]
    counted: u16,
    /// Own part of a group's estimate; groups are not transferred.
    #[serde(skip)]
    own_q16: u32,
    #[serde(skip)]
    own_weight_q16: u32,
}

/// Start of a document, up to the first host; the hosts of `header` are ignored. The hosts
/// ([`export_host`]) follow with commas between them, then `]}`.
pub fn export_head(header: &Snapshot) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string(&Document {
        format: HOSTS_FORMAT.to_owned(),
        version: HOSTS_VERSION,
        mode: header.mode.name().to_owned(),
        boot_id: header.boot_id.clone(),
        own_netns: header.own_netns,
        saved_at_ms: header.saved_at_ms,
        hosts: Hosts,
    })?;
    // The end of the empty list and of the document.
    text.truncate(text.len() - "]}".len());
    Ok(text)
}

/// Text of one host of a document.
pub fn export_host(row: &HostRow) -> Result<String, serde_json::Error> {
    serde_json::to_string(&DocumentHost::from(row))
}

/// Parses one host of a document, in the form of [`export_host`].
pub fn import_host(text: &[u8]) -> Result<HostRow, ImportError> {
    let host: DocumentHost = parse(text)?;
    host.into_row().map_err(|message| ImportError {
        path: "address".to_owned(),
        message,
    })
}

/// Checks every field of a document, and returns it without its hosts. The document is read three
/// times, in bounded memory except for the hosts' addresses.
pub fn check_document<R: Read>(
    mut open: impl FnMut() -> std::io::Result<R>,
) -> Result<Snapshot, ImportError> {
    let mut open = || {
        open().map_err(|error| ImportError {
            path: "document".to_owned(),
            message: error.to_string(),
        })
    };
    let error = |path: &str, message: String| ImportError {
        path: path.to_owned(),
        message,
    };
    let header: Header = parse(open()?)?;
    if header.format != HOSTS_FORMAT {
        let message = format!("found {:?}, expected {HOSTS_FORMAT:?}", header.format);
        return Err(error("format", message));
    }
    if !(1..=HOSTS_VERSION).contains(&header.version) {
        let message = format!(
            "found {}, this version of Thalweg reads 1 to {HOSTS_VERSION}",
            header.version
        );
        return Err(error("version", message));
    }
    let document: Document = parse(open()?)?;
    let mode = parse_mode(&document.mode).ok_or_else(|| {
        error(
            "mode",
            format!(
                "found {:?}, expected \"thalweg\" or \"classic\"",
                document.mode
            ),
        )
    })?;
    let boot_id = document.boot_id.as_bytes();
    if boot_id.len() > BOOT_ID_MAX_BYTES || !boot_id.iter().all(u8::is_ascii_graphic) {
        let found = quote_piece(&document.boot_id);
        let message = format!("found {found}, expected at most 36 ASCII characters");
        return Err(error("boot_id", message));
    }
    let mut seen = BTreeSet::new();
    each_host(open()?, |index, row| {
        let field = |name: &str| format!("hosts[{index}].{name}");
        if let Some((name, why)) = row.fault(mode) {
            return Err(error(&field(&name), why));
        }
        if !seen.insert(row.key) {
            let message = format!("{} is there twice", row.key);
            return Err(error(&field("address"), message));
        }
        Ok(())
    })?;
    Ok(Snapshot {
        mode,
        boot_id: document.boot_id,
        own_netns: document.own_netns,
        saved_at_ms: document.saved_at_ms,
        hosts: Vec::new(),
    })
}

/// Calls `visit` with number and record of each host of a document. An error of `visit` ends the
/// walk.
pub fn each_host(
    document: impl Read,
    mut visit: impl FnMut(usize, HostRow) -> Result<(), ImportError>,
) -> Result<(), ImportError> {
    let mut fault = None;
    let mut deserializer = parser(document);
    let hosts = HostsOf(EachHost(|index, host: DocumentHost| {
        let row = host.into_row().map_err(|message| ImportError {
            path: format!("hosts[{index}].address"),
            message,
        });
        row.and_then(|row| visit(index, row)).inspect_err(|error| {
            fault = Some(error.clone());
        })
    }));
    let read = deserializer.deserialize_map(hosts);
    match (fault, read) {
        (Some(fault), _) => Err(fault),
        (None, Err(error)) => Err(ImportError {
            path: "document".to_owned(),
            message: error.to_string(),
        }),
        (None, Ok(())) => Ok(()),
    }
}

/// A parser of a document that refuses parts which would take much memory.
fn parser<R: Read>(document: R) -> serde_json::Deserializer<IoRead<BufReader<Parts<R>>>> {
    // The parser takes single bytes.
    let document = BufReader::new(Parts::new(document, HOST_MAX_BYTES));
    serde_json::Deserializer::from_reader(document)
}

fn parse<T: for<'a> Deserialize<'a>>(document: impl Read) -> Result<T, ImportError> {
    let mut deserializer = parser(document);
    let parsed = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        // "." is the document itself, "?" a part without a name.
        let path = if path == "." || path == "?" {
            "document".to_owned()
        } else {
            path
        };
        ImportError {
            path,
            message: one_line(&error.into_inner().to_string()),
        }
    })?;
    deserializer.end().map_err(|error| ImportError {
        path: "document".to_owned(),
        message: one_line(&error.to_string()),
    })?;
    Ok(parsed)
}

impl From<&HostRow> for DocumentHost {
    fn from(row: &HostRow) -> Self {
        Self {
            netns: row.key.netns,
            address: row.key.address().to_string(),
            prefix: row.key.own_prefix(),
            connections: row.connections,
            scored: row.scored,
            switched: row.switched,
            min_rtt_us: row.min_rtt_us,
            max_rate: row.max_rate,
            queue_q16: row.queue_q16,
            base_rtt_us: row.base_rtt_us,
            seen_age_ms: row.seen_age_ms,
            forgot_age_ms: row.forgot_age_ms,
            arms: row
                .arms
                .iter()
                .map(|(name, arm)| (name.clone(), Arm(*arm)))
                .collect(),
        }
    }
}

impl DocumentHost {
    fn into_row(self) -> Result<HostRow, String> {
        Ok(HostRow {
            key: parse_key(self.netns, &self.address, self.prefix, 0)?,
            connections: self.connections,
            scored: self.scored,
            switched: self.switched,
            min_rtt_us: self.min_rtt_us,
            max_rate: self.max_rate,
            queue_q16: self.queue_q16,
            base_rtt_us: self.base_rtt_us,
            usual_q16: 0,
            usual_log_rate_q16: 0,
            step: 0,
            step_scored: 0,
            seen_age_ms: self.seen_age_ms,
            forgot_age_ms: self.forgot_age_ms,
            arms: self
                .arms
                .into_iter()
                .map(|(name, Arm(arm))| (name, arm))
                .collect(),
        })
    }
}
