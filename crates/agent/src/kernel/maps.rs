//! Host records, counters, defaults and events of the running programs.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsRawFd;
use std::sync::atomic::{Ordering, fence};

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use thalweg_bpf_objects::names::learn::maps as names;
use thalweg_bpf_types::{
    CopyState, bytes_of, check_copy, from_bytes, host_from_raw, host_to_raw, key_from_raw,
    key_to_raw, raw,
};
use thalweg_control::batch::{self, Cursor};
use thalweg_learner::{Host, HostKey};
use thalweg_policy::Prefix;

use super::Kernel;
use crate::eviction::{Entry, surplus};
use crate::view::Counters;

/// Records per page, unless a bucket of the kernel's table has more.
const PAGE: u32 = 64;
/// Records per batch: a walk over a full table stays below a few hundred KiB.
const BATCH: usize = 256;
/// A record that is being written is read again at most this often.
const RETRIES: u32 = 100;

/// Cookies of network namespaces are below this, counted from 1; a larger one has no slot.
const NETNS_END: u64 = 1 << 56;

/// Slot of a network namespace among the default arms that programs read first.
fn namespace_slot(netns: u64) -> u32 {
    (netns as u32).wrapping_mul(raw::THALWEG_NAMESPACE_FACTOR) >> raw::THALWEG_NAMESPACE_SHIFT
}

/// Entries of a trie of prefixes, with value 1. An entry of value 0 keeps IPv4 out of IPv6 prefixes
/// that cover its form.
pub fn trie_entries(prefixes: &[Prefix]) -> Vec<(raw::thalweg_policy_key6, u32)> {
    let ipv4 = Prefix::all(true);
    let guard = (!prefixes.contains(&ipv4)).then_some((ipv4, 0));
    let own = prefixes.iter().map(|prefix| (*prefix, 1));
    let key = |prefix: Prefix| raw::thalweg_policy_key6 {
        prefix_len: prefix.length128().into(),
        addr: prefix.bits().to_be_bytes(),
    };
    // The guard first: IPv4 is in ::/0 at no time.
    let all = guard.into_iter().chain(own);
    all.map(|(prefix, value)| (key(prefix), value)).collect()
}

/// A batch of records.
pub type HostBatch = Vec<(HostKey, Host)>;

/// Calls `visit` with batches of records. Each record that exists during the whole walk comes once
/// ([`batch::visit_entries`]).
pub(super) fn walk(map: &MapHandle, mut visit: impl FnMut(HostBatch) -> Result<()>) -> Result<()> {
    let mut hosts = Vec::with_capacity(BATCH);
    batch::visit_entries(map, |key, value| -> Result<()> {
        hosts.extend(host_of(map, key, value)?);
        if hosts.len() == BATCH {
            visit(std::mem::replace(&mut hosts, Vec::with_capacity(BATCH)))?;
        }
        Ok(())
    })?;
    if hosts.is_empty() {
        Ok(())
    } else {
        visit(hosts)
    }
}

/// Key and record of an entry; `None` if it was evicted between two reads.
fn host_of(map: &MapHandle, key: &[u8], value: &[u8]) -> Result<Option<(HostKey, Host)>> {
    let key: raw::thalweg_host_key =
        from_bytes(key).context("a host's key has an unexpected size")?;
    let key = key_from_raw(&key);
    Ok(untorn(map, &key, value)?.map(|host| (key, host)))
}

/// All records of a map, of hosts and groups.
pub(super) fn read_all(map: &MapHandle) -> Result<HostBatch> {
    let mut all = Vec::new();
    walk(map, |mut batch| {
        all.append(&mut batch);
        Ok(())
    })?;
    Ok(all)
}

/// A consistent record, read again while a program writes it; `None` if it is gone.
fn untorn(map: &MapHandle, key: &HostKey, first: &[u8]) -> Result<Option<Host>> {
    let raw_key = key_to_raw(key);
    settled(key, first, READS_IN_ORDER, || {
        Ok(map.lookup(bytes_of(&raw_key), MapFlags::ANY)?)
    })
}

/// Whether this machine reads memory in program order. Otherwise the kernel may have copied a
/// record's sequence numbers after its data. Then a copy counts only if the next one is equal. A
/// program writes the first number before anything else, so after a partial copy the next one has
/// another number.
const READS_IN_ORDER: bool = cfg!(any(target_arch = "x86", target_arch = "x86_64"));

/// A consistent record, from the first copy or a later one from `again`.
fn settled(
    key: &HostKey,
    first: &[u8],
    in_order: bool,
    mut again: impl FnMut() -> Result<Option<Vec<u8>>>,
) -> Result<Option<Host>> {
    let mut value = Cow::Borrowed(first);
    let mut seen = false;
    for _ in 0..RETRIES {
        let host: raw::thalweg_host =
            from_bytes(&value).context("a host record has an unexpected size")?;
        let whole = match check_copy(key, &host) {
            CopyState::Whole if in_order || seen => return Ok(Some(host_from_raw(&host))),
            CopyState::Recycled => return Ok(None),
            CopyState::Whole => true,
            CopyState::Written => false,
        };
        fence(Ordering::Acquire);
        let Some(bytes) = again()? else {
            return Ok(None);
        };
        seen = whole && bytes == *value;
        value = Cow::Owned(bytes);
    }
    anyhow::bail!("a host record was being written {RETRIES} times in a row")
}

impl Kernel {
    /// Calls `visit` with batches of all records, of hosts and groups.
    pub fn walk_records(&self, visit: impl FnMut(HostBatch) -> Result<()>) -> Result<()> {
        walk(self.map(names::HOSTS), visit)
    }

    /// Calls `visit` with batches of the agent's own records: all except those of the fleet.
    pub fn walk_own_records(&self, mut visit: impl FnMut(HostBatch) -> Result<()>) -> Result<()> {
        self.walk_records(|mut batch| {
            batch.retain(|(key, _)| !key.level.is_fleet());
            visit(batch)
        })
    }

    /// Calls `visit` with batches of host records.
    pub fn walk_hosts(&self, mut visit: impl FnMut(HostBatch) -> Result<()>) -> Result<()> {
        self.walk_records(|mut batch| {
            batch.retain(|(key, _)| !key.level.is_group());
            visit(batch)
        })
    }

    /// The host records of the page at a cursor (`None`: the first), and the cursor of the next
    /// page (`None`: the end). For readers that return later. The pages together have the records
    /// of a walk.
    pub fn hosts_page(&self, from: Option<&Cursor>) -> Result<(HostBatch, Option<Cursor>)> {
        let map = self.map(names::HOSTS);
        let mut hosts = Vec::with_capacity(PAGE as usize);
        let next = batch::visit_page(PAGE, map, from, |key, value| -> Result<()> {
            let host = host_of(map, key, value)?;
            hosts.extend(host.filter(|(key, _)| !key.level.is_group()));
            Ok(())
        })?;
        Ok((hosts, next))
    }

    /// The record of one host.
    pub fn host(&self, key: &HostKey) -> Result<Option<Host>> {
        let map = self.map(names::HOSTS);
        let raw_key = key_to_raw(key);
        match map.lookup(bytes_of(&raw_key), MapFlags::ANY)? {
            Some(value) => untorn(map, key, &value),
            None => Ok(None),
        }
    }

    /// Calls `visit` with each measured connection.
    pub(super) fn walk_conns(&self, mut visit: impl FnMut(&raw::thalweg_conn)) -> Result<()> {
        batch::visit_entries(self.map(names::CONNS), |_, value| {
            // Most slots are free: their first field, the cookie, is 0.
            if value.starts_with(&[0; 8]) {
                return Ok(());
            }
            let conn: raw::thalweg_conn =
                from_bytes(value).context("a connection's record has an unexpected size")?;
            visit(&conn);
            Ok(())
        })
    }

    /// Number of host records.
    pub fn count_hosts(&self) -> Result<u64> {
        let mut count = 0;
        batch::visit_entries(self.map(names::HOSTS), |key, _| -> Result<()> {
            let key: raw::thalweg_host_key =
                from_bytes(key).context("a host's key has an unexpected size")?;
            count += u64::from(key.level == raw::THALWEG_LEVEL_HOST);
            Ok(())
        })?;
        Ok(count)
    }

    /// Writes a record, new or replacing an old one. A full table loses others.
    pub fn insert_host(&self, key: &HostKey, host: &Host) -> Result<()> {
        let raw_host = host_to_raw(key, host);
        let map = self.map(names::HOSTS);
        let insert = || {
            map.update(
                bytes_of(&key_to_raw(key)),
                bytes_of(&raw_host),
                MapFlags::ANY,
            )
        };
        match insert() {
            Err(error) if error.kind() == libbpf_rs::ErrorKind::TooBig => {
                self.make_room()?;
                insert()?;
            }
            outcome => outcome?,
        }
        Ok(())
    }

    /// Removes the least valuable records if there are too many, but none of the fleet. Returns the
    /// number of records that stay.
    pub fn make_room(&self) -> Result<u64> {
        let map = self.map(names::HOSTS);
        let (mut entries, mut of_fleet) = (Vec::new(), 0);
        batch::visit_entries(map, |key, value| -> Result<()> {
            let key: raw::thalweg_host_key =
                from_bytes(key).context("a host's key has an unexpected size")?;
            let host: raw::thalweg_host =
                from_bytes(value).context("a host record has an unexpected size")?;
            let key = key_from_raw(&key);
            if key.level.is_fleet() {
                of_fleet += 1;
            } else {
                entries.push(Entry {
                    key,
                    scored: host.scored,
                    seen_ns: host.seen_ns,
                });
            }
            Ok(())
        })?;
        let most = self.setup.records_max() as usize;
        let mut records = entries.len() + of_fleet;
        if records <= most {
            return Ok(records as u64);
        }
        // Remove as many again, so that the next removal is not soon.
        let room = (self.setup.records_spare() as usize).min(most / 16);
        for key in surplus(&entries, (most - room).saturating_sub(of_fleet)) {
            records -= usize::from(self.remove_host(&key)?);
        }
        Ok(records as u64)
    }

    /// Number of records above which room must be made.
    pub fn records_high(&self) -> u64 {
        u64::from(self.setup.records_max() + self.setup.records_spare() / 2)
    }

    /// Writes records of an earlier agent, but not over one with more data.
    pub fn insert_left(&self, hosts: &[(HostKey, Host)]) -> Result<()> {
        for (key, host) in hosts {
            let known = self.host(key)?.map_or(0, |known| known.scored);
            if host.scored >= known {
                self.insert_host(key, host)?;
            }
            fail_point!("carry::host");
        }
        Ok(())
    }

    /// Writes measured connections of an earlier agent, whose programs still run. A connection that
    /// ends at this moment keeps its slot until another needs it.
    pub fn insert_conns(&self, conns: &[(u32, raw::thalweg_conn)]) -> Result<()> {
        for (slot, conn) in conns {
            let slot = slot.to_ne_bytes();
            self.map(names::CONNS)
                .update(&slot, bytes_of(conn), MapFlags::ANY)?;
        }
        Ok(())
    }

    /// Clears some arms of a host's record, given by their mask, under the record's lock, which
    /// only programs can take.
    pub(super) fn forget_arms_of(&self, key: &HostKey, arms: u16) -> Result<()> {
        let forget = raw::thalweg_forget {
            key: key_to_raw(key),
            arms: arms.into(),
            reserved: 0,
        };
        let packet = bytes_of(&forget);
        let mut options = libbpf_rs::libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_test_run_opts>() as _,
            data_in: packet.as_ptr().cast(),
            data_size_in: packet.len() as u32,
            ..Default::default()
        };
        // SAFETY: the descriptor is open and the packet lives for the whole call.
        let failed = unsafe {
            libbpf_rs::libbpf_sys::bpf_prog_test_run_opts(self.forget.as_raw_fd(), &mut options)
        };
        if failed != 0 {
            return Err(std::io::Error::from_raw_os_error(-failed))
                .context("running the program that forgets arms");
        }
        anyhow::ensure!(
            options.retval == 0,
            "the program that forgets arms did not understand what it was told"
        );
        Ok(())
    }

    /// Removes one host; false if there was no record.
    pub fn remove_host(&self, key: &HostKey) -> Result<bool> {
        let key = key_to_raw(key);
        Ok(batch::delete_entry(self.map(names::HOSTS), bytes_of(&key))?)
    }

    /// Removes all records except those of the fleet. Returns the number of hosts.
    pub fn clear_hosts(&self) -> Result<u64> {
        let mut removed = 0;
        for bytes in batch::collect_keys(self.map(names::HOSTS))? {
            let key: raw::thalweg_host_key =
                from_bytes(&bytes).context("a host's key has an unexpected size")?;
            if key_from_raw(&key).level.is_fleet() {
                continue;
            }
            let was_there = batch::delete_entry(self.map(names::HOSTS), &bytes)?;
            removed += u64::from(was_there && key.level == raw::THALWEG_LEVEL_HOST);
        }
        self.keep_fleet()?;
        Ok(removed)
    }

    /// Counters, summed over the CPUs.
    pub fn counters(&self) -> Result<Counters> {
        let per_cpu = self
            .map(names::COUNTERS)
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)?
            .context("the counters map is empty")?;
        let mut sum = Counters::default();
        for bytes in per_cpu {
            let one: raw::thalweg_counters =
                from_bytes(&bytes).context("the counters have an unexpected size")?;
            sum.add_processor(&one);
        }
        Ok(sum)
    }

    /// Number of measurement intervals that ended with another congestion control than their arm,
    /// by its name.
    pub fn overridden(&self) -> Result<BTreeMap<String, u64>> {
        let mut found = BTreeMap::new();
        batch::visit_entries(self.map(names::OVERRIDDEN), |key, value| -> Result<()> {
            let name = String::from_utf8_lossy(key);
            let count = value.try_into().map(u64::from_ne_bytes);
            let count = count.context("a count has an unexpected size")?;
            found.insert(name.trim_end_matches('\0').to_owned(), count);
            Ok(())
        })?;
        Ok(found)
    }

    /// Sets a namespace's default arm (`None`: the default is not an arm). The programs then decide
    /// on its connections.
    pub fn set_default(&self, netns: u64, arm: Option<usize>) -> Result<()> {
        let arm = arm.map_or(raw::THALWEG_NO_ARM, |arm| arm as u32);
        self.map(names::DEFAULTS).update(
            &netns.to_ne_bytes(),
            &arm.to_ne_bytes(),
            MapFlags::ANY,
        )?;
        if netns < NETNS_END {
            self.write_namespace(netns, netns << 8 | u64::from(arm))?;
        }
        Ok(())
    }

    /// Writes the slot of a namespace in the table that programs read first.
    fn write_namespace(&self, netns: u64, entry: u64) -> Result<()> {
        let slot = namespace_slot(netns).to_ne_bytes();
        let map = self.map(names::NAMESPACES);
        Ok(map.update(&slot, &entry.to_ne_bytes(), MapFlags::ANY)?)
    }

    /// The default arm of each network namespace in scope; `None`: the default is not an arm.
    pub fn defaults(&self) -> Result<HashMap<u64, Option<usize>>> {
        let map = self.map(names::DEFAULTS);
        let mut defaults = HashMap::new();
        batch::visit_entries(map, |key, value| -> Result<()> {
            let netns = key.try_into().map(u64::from_ne_bytes);
            let arm = value.try_into().map(u32::from_ne_bytes);
            if let (Ok(netns), Ok(arm)) = (netns, arm) {
                let arm = (arm != raw::THALWEG_NO_ARM).then_some(arm as usize);
                defaults.insert(netns, arm);
            }
            Ok(())
        })?;
        Ok(defaults)
    }

    /// Takes the namespaces outside the scope that had a connection since the last call.
    pub fn take_strangers(&self) -> Result<Vec<u64>> {
        let map = self.map(names::STRANGERS);
        let keys = batch::collect_keys(map)?;
        let mut strangers = Vec::with_capacity(keys.len());
        for key in keys {
            batch::delete_entry(map, &key)?;
            strangers.extend(key.try_into().map(u64::from_ne_bytes));
        }
        Ok(strangers)
    }

    /// Sets the prefixes for which arms that need ECN may be chosen.
    pub(super) fn write_ecn_prefixes(&self, prefixes: &[Prefix]) -> Result<()> {
        let map = self.map(names::ECN_PREFIXES);
        let wanted = trie_entries(prefixes);
        for key in batch::collect_keys(map)? {
            if !wanted.iter().any(|(prefix, _)| bytes_of(prefix) == key) {
                map.delete(&key)?;
            }
        }
        for (prefix, value) in &wanted {
            map.update(bytes_of(prefix), &value.to_ne_bytes(), MapFlags::ANY)?;
        }
        Ok(())
    }

    /// Removes the default of a namespace, whose connections are then left alone.
    pub fn forget_default(&self, netns: u64) -> Result<()> {
        let slot = namespace_slot(netns).to_ne_bytes();
        let entry = self.map(names::NAMESPACES).lookup(&slot, MapFlags::ANY)?;
        let entry = entry.and_then(|entry| entry.try_into().ok());
        if entry
            .map(u64::from_ne_bytes)
            .is_some_and(|entry| entry >> 8 == netns)
        {
            self.write_namespace(netns, 0)?;
        }
        batch::delete_entry(self.map(names::DEFAULTS), &netns.to_ne_bytes())?;
        Ok(())
    }

    /// The event ring, for [`libbpf_rs::RingBufferBuilder`].
    pub(crate) fn ring(&self) -> &MapHandle {
        self.map(names::EVENTS)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn trie_entries_keep_ipv4_out_of_ipv6_prefixes() {
        let entries = |texts: &[&str]| -> Vec<(u32, u32)> {
            let prefixes: Vec<_> = texts.iter().map(|it| Prefix::parse(it).unwrap()).collect();
            let entries = trie_entries(&prefixes);
            entries
                .iter()
                .map(|(key, value)| (key.prefix_len, *value))
                .collect()
        };
        assert_eq!(entries(&["::/0"]), [(96, 0), (0, 1)]);
        assert_eq!(
            entries(&["10.0.0.0/8", "::/0"]),
            [(96, 0), (104, 1), (0, 1)]
        );
        assert_eq!(entries(&["::/0", "0.0.0.0/0"]), [(0, 1), (96, 1)]);
    }

    /// Copies of a record with this number of connections, during the write with this sequence
    /// number.
    fn copy(key: &HostKey, connections: u32, head: u32, tail: u32) -> Vec<u8> {
        let host = Host {
            connections,
            ..Host::default()
        };
        let mut raw = host_to_raw(key, &host);
        (raw.seq_head, raw.seq_tail) = (head, tail);
        bytes_of(&raw).to_vec()
    }

    #[test]
    fn where_reads_are_out_of_order_a_copy_counts_once_the_next_is_the_same() {
        let key = HostKey::new(1, IpAddr::from([10, 0, 0, 1]), 32, 64).unwrap();
        // The tail number of the first copy was read before the write, the rest during it.
        let copies = [
            copy(&key, 8, 1, 1),
            copy(&key, 9, 2, 1),
            copy(&key, 9, 2, 2),
            copy(&key, 9, 2, 2),
        ];
        let read = |in_order| {
            let mut left = copies[1..].iter();
            let host = settled(&key, &copies[0], in_order, || Ok(left.next().cloned()));
            (host.unwrap().unwrap().connections, left.len())
        };
        assert_eq!(read(true), (8, 3));
        assert_eq!(read(false), (9, 0));
    }
}
