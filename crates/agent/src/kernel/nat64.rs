//! Prefixes behind which the programs take an address for IPv4.

use std::path::Path;
use std::sync::PoisonError;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags};
use thalweg_bpf_objects::names::learn::maps as names;
use thalweg_bpf_types::{bytes_of, from_bytes, raw};
use thalweg_policy::Prefix;
use thalweg_units::address::Nat64;

use super::{Kernel, pins};

impl Kernel {
    /// What the programs take for IPv4.
    pub fn nat64(&self) -> Nat64 {
        let nat64 = self.nat64.lock().unwrap_or_else(PoisonError::into_inner);
        nat64.clone()
    }

    /// Sets the prefixes of NAT64 beside the well-known one, for the next connection.
    ///
    /// # Errors
    /// The map cannot be written; then nothing changes.
    pub fn set_nat64(&self, further: &[Prefix]) -> Result<()> {
        let nat64 = Nat64::new(further);
        let mut table = raw::thalweg_nat64_table::default();
        for (entry, prefix) in table.prefixes.iter_mut().zip(nat64.prefixes()) {
            entry.prefix_len = prefix.length128().into();
            entry.addr = prefix.bits().to_be_bytes();
        }
        self.map(names::NAT64)
            .update(&0u32.to_ne_bytes(), bytes_of(&table), MapFlags::ANY)
            .context("writing the prefixes of NAT64")?;
        *self.nat64.lock().unwrap_or_else(PoisonError::into_inner) = nat64;
        Ok(())
    }
}

/// The prefixes of an earlier agent, by its pinned table; none where that cannot be read.
pub(super) fn pinned_prefixes(pin: &Path) -> Vec<Prefix> {
    let map = pins::open(&pin.join(names::NAT64)).ok().flatten();
    let bytes = map.and_then(|map| map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()?);
    let table: Option<raw::thalweg_nat64_table> = bytes.and_then(|bytes| from_bytes(&bytes));
    let entries = table.map(|table| table.prefixes).unwrap_or_default();
    let prefixes = entries.into_iter().filter_map(|entry| {
        let length = u8::try_from(entry.prefix_len).ok();
        let length = length.filter(|length| (1..=128).contains(length))?;
        Some(Prefix::of(u128::from_be_bytes(entry.addr), length))
    });
    prefixes.collect()
}
