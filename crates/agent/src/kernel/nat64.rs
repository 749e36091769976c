//! Prefixes behind which the programs take an address for IPv4.

use std::sync::PoisonError;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags};
use thalweg_bpf_objects::names::learn::maps as names;
use thalweg_bpf_types::{bytes_of, raw};
use thalweg_policy::Prefix;
use thalweg_units::address::Nat64;

use super::Kernel;

impl Kernel {
    /// Prefixes behind which the programs take an address for IPv4.
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
