//! The learned rate controller: a model as a congestion control.

use std::path::Path;

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object};
use serde::{Deserialize, Serialize};
use thalweg_bpf_objects::names::rate::maps;
use thalweg_bpf_types::{bytes_of, from_bytes, model_to_raw, raw};
use thalweg_rate::models::ModelFile;

use crate::error::{Context, Error, Result, bail};
use crate::kernel_objects::printed_name;

use super::program::Program;

/// Default name of the learned rate controller.
pub(super) const NAME: &str = "thalweg_rl";
/// Names of the controller's maps.
const SETTINGS: &str = maps::SETTINGS;
pub(super) const TRACE: &str = maps::TRACE;
pub(super) const DECISIONS: &str = maps::DECISIONS;
/// File extension of models.
const EXTENSION: &str = "safetensors";
/// One in the fixed point of the target, Q24.
const ONE_Q24: f64 = (1 << 24) as f64;

/// Units of a model's features. Flows that share a bottleneck converge to the same rate only if all
/// use the same units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelReference {
    /// The rate that counts as 1, bits per second.
    pub rate_bps: u64,
    /// Shorter round-trip times count as this one, microseconds.
    pub rtt_us: u32,
}

impl Default for ModelReference {
    fn default() -> Self {
        Self {
            rate_bps: u64::from(raw::THALWEG_RATE_DEFAULT_REFERENCE) * 8,
            rtt_us: raw::THALWEG_RATE_DEFAULT_REFERENCE_RTT_US,
        }
    }
}

/// The model of a loaded congestion control.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadedModel {
    /// The model's name, for people.
    pub name: String,
    /// Target of its signal.
    pub target: f64,
    /// The rate that counts as 1, bits per second.
    pub reference_rate_bps: u64,
    /// Shorter round-trip times count as this one, microseconds.
    pub reference_rtt_us: u32,
}

/// Whether a word of the command line names a model.
pub fn is_model(word: &Path) -> bool {
    word.extension()
        .is_some_and(|extension| extension == EXTENSION)
}

/// The congestion control that runs a file's model.
///
/// # Errors
/// The file is not a model, the kernel cannot run it, or the reference is out of range.
pub fn with_model(file: &Path, reference: ModelReference) -> Result<Program<'static>> {
    let read = ModelFile::read(file).map_err(Error::other)?;
    let model = read.policy.integer_model().ok_or_else(|| {
        Error::Invalid(format!(
            "{} holds no integers, so the kernel cannot run it: expected a quantised mlp \
             (python: thalweg.quantize) or trees",
            file.display()
        ))
    })?;
    let rate = reference.rate_bps / 8;
    if !(u64::from(raw::THALWEG_RATE_FLOOR)..1 << 40).contains(&rate) {
        bail!(
            Invalid,
            "the reference rate is {} bit/s; expected 200 kbit/s to 8 Tbit/s",
            reference.rate_bps
        );
    }
    if !(10..=10_000_000).contains(&reference.rtt_us) {
        bail!(
            Invalid,
            "the reference round-trip time is {} us; expected 10 us to 10 s",
            reference.rtt_us
        );
    }
    let mut settings = Box::new(raw::thalweg_rate_settings {
        reference_rate: rate,
        reference_rtt_us: reference.rtt_us,
        version: raw::THALWEG_RATE_VERSION,
        ..Default::default()
    });
    settings.model = *model_to_raw(model);
    let name = &read.document.name;
    // Cuts between characters.
    let mut length = name.len().min(settings.name.len());
    while !name.is_char_boundary(length) {
        length -= 1;
    }
    settings.name[..length].copy_from_slice(&name.as_bytes()[..length]);
    Ok(Program::built_in(NAME, thalweg_bpf_objects::RATE.unpack())
        .filled_by(move |object| fill_settings(object, bytes_of(settings.as_ref()))))
}

fn fill_settings(object: &mut Object, settings: &[u8]) -> Result<()> {
    let map = object.maps_mut().find(|map| map.name() == SETTINGS);
    let map = map.context("the program has no map for a model")?;
    map.update(&0u32.to_ne_bytes(), settings, MapFlags::ANY)
        .context("giving the kernel the model")
}

/// A learned rate controller that another version of Thalweg loaded: what its maps mean is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "loaded by another version of Thalweg: its interface to the kernel has version {version} \
     ({bytes} bytes of settings), this Thalweg's has {} ({} bytes)",
    raw::THALWEG_RATE_VERSION,
    size_of::<raw::thalweg_rate_settings>()
)]
pub(super) struct OtherVersion {
    version: u32,
    bytes: usize,
}

/// The settings of the learned rate controller in a directory; none if it is another program.
///
/// # Errors
/// Another version of Thalweg loaded it.
pub(super) fn settings_in(
    own: &Path,
) -> Result<Option<Box<raw::thalweg_rate_settings>>, OtherVersion> {
    let path = |map: &str| own.join(format!("{}{map}", super::MAP));
    // Any program may have settings; only this one has decisions, too.
    if !path(DECISIONS).exists() {
        return Ok(None);
    }
    let value = MapHandle::from_pinned_path(path(SETTINGS))
        .ok()
        .and_then(|map| map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()?);
    let Some(value) = value else {
        return Ok(None);
    };
    let at = std::mem::offset_of!(raw::thalweg_rate_settings, version);
    let version = value
        .get(at..at + 4)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u32::from_ne_bytes);
    let settings = from_bytes::<raw::thalweg_rate_settings>(&value)
        .filter(|_| version == raw::THALWEG_RATE_VERSION);
    let other = OtherVersion {
        version,
        bytes: value.len(),
    };
    settings
        .map(|settings| Some(Box::new(settings)))
        .ok_or(other)
}

/// The model of the congestion control in a directory; none if it is another program.
///
/// # Errors
/// Another version of Thalweg loaded it.
pub(super) fn model_in(own: &Path) -> Result<Option<LoadedModel>, OtherVersion> {
    let settings = settings_in(own)?;
    Ok(settings.map(|settings| LoadedModel {
        name: printed_name(&settings.name),
        target: f64::from(settings.model.target_q24) / ONE_Q24,
        reference_rate_bps: settings.reference_rate * 8,
        reference_rtt_us: settings.reference_rtt_us,
    }))
}
