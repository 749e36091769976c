//! The trie of the networks that the operator names.

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags};
use thalweg_bpf_objects::names::learn::maps as names;
use thalweg_bpf_types::{bytes_of, raw};

use super::{Kernel, Setup};

/// Prefixes written by one system call.
const BATCH: usize = 4096;

impl Setup {
    /// Size of the trie; a map has one entry at least.
    pub(super) fn named_max(&self) -> u32 {
        match self.has_named() {
            true => self.named.trie().count() as u32,
            false => 1,
        }
    }

    /// Flag `has_named` of the programs.
    pub(super) fn named_flag(&self) -> [u8; 4] {
        u32::from(self.has_named()).to_ne_bytes()
    }
}

impl Kernel {
    /// Fills the new trie.
    pub(super) fn write_named(&self) -> Result<()> {
        if !self.setup.has_named() {
            return Ok(());
        }
        let map = self.map(names::NAMED);
        let (mut keys, mut values, mut count) = (Vec::new(), Vec::new(), 0);
        let mut trie = self.setup.named.trie().peekable();
        while let Some((prefix, number)) = trie.next() {
            let key = raw::thalweg_policy_key6 {
                prefix_len: prefix.length128().into(),
                addr: prefix.bits().to_be_bytes(),
            };
            keys.extend_from_slice(bytes_of(&key));
            values.extend_from_slice(&number.to_be_bytes());
            count += 1;
            if count == BATCH || trie.peek().is_none() {
                map.update_batch(&keys, &values, count as u32, MapFlags::ANY, MapFlags::ANY)
                    .context("writing the networks of networks.table")?;
                (count, _, _) = (0, keys.clear(), values.clear());
            }
        }
        Ok(())
    }
}
