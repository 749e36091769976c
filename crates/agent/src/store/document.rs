//! Host records as a JSON document, to carry them from one machine to another.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use thalweg_core::ArmState;

use super::row::{HostRow, Snapshot, parse_key, parse_mode};

/// Says what the document is.
const FORMAT: &str = "thalweg-hosts";
/// Version of the document. Version 1 had no `queue_q16`, `base_rtt_us`,
/// `segs` and `retrans`.
const VERSION: u32 = 2;

/// Why a document cannot be imported. Nothing of it has been used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct ImportError {
    /// The offending field, such as `hosts[3].arms.bbr.weight_q16`.
    pub path: String,
    /// What is wrong with it.
    pub message: String,
}

/// What is read first, so that a document of another version is refused as such.
#[derive(Deserialize)]
struct Header {
    format: String,
    version: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    version: u32,
    mode: String,
    boot_id: String,
    own_netns: u64,
    saved_at_ms: i64,
    hosts: Vec<DocumentHost>,
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
    arms: BTreeMap<String, DocumentArm>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
}

/// The document of a snapshot.
pub fn export_json(snapshot: &Snapshot) -> Result<String, serde_json::Error> {
    let document = Document {
        format: FORMAT.to_owned(),
        version: VERSION,
        mode: snapshot.mode.name().to_owned(),
        boot_id: snapshot.boot_id.clone(),
        own_netns: snapshot.own_netns,
        saved_at_ms: snapshot.saved_at_ms,
        hosts: snapshot.hosts.iter().map(DocumentHost::from).collect(),
    };
    serde_json::to_string_pretty(&document)
}

/// The snapshot of a document; every field is checked before any is used.
pub fn import_json(text: &str) -> Result<Snapshot, ImportError> {
    let header: Header = parse(text)?;
    let error = |path: &str, message: String| ImportError {
        path: path.to_owned(),
        message,
    };
    if header.format != FORMAT {
        let message = format!("found {:?}, expected {FORMAT:?}", header.format);
        return Err(error("format", message));
    }
    if !(1..=VERSION).contains(&header.version) {
        let message = format!(
            "found {}, this version of Thalweg reads 1 to {VERSION}",
            header.version
        );
        return Err(error("version", message));
    }
    let document: Document = parse(text)?;
    let mode = parse_mode(&document.mode).ok_or_else(|| {
        error(
            "mode",
            format!(
                "found {:?}, expected \"thalweg\" or \"classic\"",
                document.mode
            ),
        )
    })?;
    let mut seen = BTreeSet::new();
    let mut hosts = Vec::with_capacity(document.hosts.len());
    for (index, host) in document.hosts.into_iter().enumerate() {
        let field = |name: &str| format!("hosts[{index}].{name}");
        let row = host
            .into_row()
            .map_err(|message| error(&field("address"), message))?;
        if let Some((name, why)) = row.fault(mode) {
            return Err(error(&field(&name), why));
        }
        if !seen.insert(row.key) {
            let message = format!("{} is there twice", row.key);
            return Err(error(&field("address"), message));
        }
        hosts.push(row);
    }
    Ok(Snapshot {
        mode,
        boot_id: document.boot_id,
        own_netns: document.own_netns,
        saved_at_ms: document.saved_at_ms,
        hosts,
    })
}

fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, ImportError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let parsed = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        // "." is the document itself.
        let path = if path == "." {
            "document".to_owned()
        } else {
            path
        };
        ImportError {
            path,
            message: error.into_inner().to_string(),
        }
    })?;
    deserializer.end().map_err(|error| ImportError {
        path: "document".to_owned(),
        message: error.to_string(),
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
                .map(|(name, arm)| (name.clone(), arm.into()))
                .collect(),
        }
    }
}

impl DocumentHost {
    fn into_row(self) -> Result<HostRow, String> {
        Ok(HostRow {
            key: parse_key(self.netns, &self.address, self.prefix)?,
            connections: self.connections,
            scored: self.scored,
            switched: self.switched,
            min_rtt_us: self.min_rtt_us,
            max_rate: self.max_rate,
            queue_q16: self.queue_q16,
            base_rtt_us: self.base_rtt_us,
            seen_age_ms: self.seen_age_ms,
            forgot_age_ms: self.forgot_age_ms,
            arms: self
                .arms
                .into_iter()
                .map(|(name, arm)| (name, arm.into()))
                .collect(),
        })
    }
}

impl From<&ArmState> for DocumentArm {
    fn from(arm: &ArmState) -> Self {
        Self {
            value: arm.value,
            max_rate: arm.max_rate,
            weight_q16: arm.weight_q16,
            deviation_q16: arm.deviation_q16,
            log_rate_q16: arm.log_rate_q16,
            srtt_us: arm.srtt_us,
            min_rtt_us: arm.min_rtt_us,
            chosen: arm.chosen,
            greedy: arm.greedy,
            scored: arm.scored,
            segs: arm.segs,
            retrans: arm.retrans,
        }
    }
}

impl From<DocumentArm> for ArmState {
    fn from(arm: DocumentArm) -> Self {
        Self {
            value: arm.value,
            max_rate: arm.max_rate,
            weight_q16: arm.weight_q16,
            deviation_q16: arm.deviation_q16,
            log_rate_q16: arm.log_rate_q16,
            srtt_us: arm.srtt_us,
            min_rtt_us: arm.min_rtt_us,
            chosen: arm.chosen,
            greedy: arm.greedy,
            scored: arm.scored,
            segs: arm.segs,
            retrans: arm.retrans,
        }
    }
}
