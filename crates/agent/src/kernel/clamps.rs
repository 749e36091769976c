//! Learned clamps: the iterator over open connections in their prefixes (`learn_clamp.bpf.c`), and the
//! clamps of hosts.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;
use std::sync::Arc;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags};
use thalweg_bpf_objects::names::learn::maps as names;
use thalweg_bpf_objects::names::learn_clamp::{maps as own_names, programs};
use thalweg_bpf_types::{bytes_of, from_bytes, raw};
use thalweg_control::iterator::Visit;
use thalweg_control::{batch, object, system};
use thalweg_learner::Mode;

use super::open::Iterator;
use super::{Kernel, Setup};

/// Bytes of one report.
const REPORT: usize = size_of::<raw::thalweg_clamp_report>();
/// Reports that one read returns at most.
const AT_ONCE: usize = 512;

/// A remote host, in a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Remote {
    /// Network namespace cookie.
    pub netns: u64,
    /// Its address, IPv4 mapped.
    address: Ipv6Addr,
}

impl Remote {
    /// Its address.
    pub fn address(&self) -> IpAddr {
        IpAddr::V6(self.address).to_canonical()
    }

    fn key(&self) -> raw::thalweg_clamp_key {
        raw::thalweg_clamp_key {
            netns: self.netns,
            addr: self.address.octets(),
        }
    }
}

impl From<&raw::thalweg_clamp_key> for Remote {
    fn from(key: &raw::thalweg_clamp_key) -> Self {
        Self {
            netns: key.netns,
            address: key.addr.into(),
        }
    }
}

impl Setup {
    /// Whether clamps are computed: those of mode `thalweg`.
    pub fn has_clamps(&self) -> bool {
        !self.clamp_prefixes.is_empty() && self.params.mode == Mode::Thalweg
    }

    /// Whether they are set: not in a dry run, nor under advice.
    pub fn sets_clamps(&self) -> bool {
        self.has_clamps() && !self.dry_run && !self.advise.only
    }
}

impl Kernel {
    /// Loads the iterator with the learner's maps; `None` if there are no clamps. In words why there
    /// cannot be any.
    pub(super) fn load_clamps(&self) -> Result<Option<Iterator>, String> {
        if !self.setup.has_clamps() {
            return Ok(None);
        }
        if !self.setup.kernel_btf {
            return Err("the kernel has no types (BTF)".to_owned());
        }
        object::listening(|| {
            let bytes = thalweg_bpf_objects::LEARN_CLAMP;
            let loaded = self.try_iterator("thalweg_clamp", bytes, programs::LEARN_CLAMP);
            let ready = loaded.and_then(|it| self.write_clamp_prefixes(&it).map(|()| it));
            ready.map(Some).map_err(|error| {
                let said = object::last_words(&object::take_said());
                format!("{error:#}: {said}")
            })
        })
    }

    fn write_clamp_prefixes(&self, iterator: &Iterator) -> Result<()> {
        let map = object::map(iterator.object(), own_names::CLAMP_PREFIXES)?;
        for prefix in &self.setup.clamp_prefixes {
            let key = raw::thalweg_policy_key6 {
                prefix_len: prefix.length128().into(),
                addr: prefix.bits().to_be_bytes(),
            };
            map.update(bytes_of(&key), &1u32.to_ne_bytes(), MapFlags::ANY)
                .context("writing the prefixes of [clamp]")?;
        }
        Ok(())
    }

    /// Why there are no clamps although there should be.
    pub fn without_clamps(&self) -> Option<&str> {
        self.clamps.as_ref().err().map(String::as_str)
    }

    /// Whether open connections are looked at for their clamps.
    pub fn has_clamps(&self) -> bool {
        matches!(self.clamps, Ok(Some(_)))
    }

    /// Visits the open connections of these network namespaces, `None`: of all, and gives each the
    /// clamp of its host. Calls `take` with what the program tells of each. `own` is the cookie of the
    /// caller's namespace.
    ///
    /// # Errors
    /// The kernel's, or one of `take`, which ends the visit.
    pub fn visit_clamps(
        &self,
        namespaces: Option<HashSet<u64>>,
        own: u64,
        mut take: impl FnMut(&raw::thalweg_clamp_report) -> Result<()>,
    ) -> Result<()> {
        let Ok(Some(iterator)) = &self.clamps else {
            return Ok(());
        };
        let only_own = |wanted: &HashSet<u64>| wanted.iter().all(|netns| *netns == own);
        let visits = match namespaces {
            // The usual case needs no search for namespaces.
            Some(wanted) if only_own(&wanted) => vec![Visit::begin(iterator.link.as_fd())?],
            wanted => {
                let link = Arc::clone(&iterator.link);
                let begin = move || {
                    let netns = system::netns_cookie().ok()?;
                    let is_wanted = wanted.as_ref().is_none_or(|it| it.contains(&netns));
                    is_wanted.then(|| Visit::begin(link.as_fd()))
                };
                let visits = system::in_namespaces(|_| true, begin);
                visits.into_iter().collect::<Result<_>>()?
            }
        };
        let mut buffer = vec![0; AT_ONCE * REPORT];
        for mut visit in visits {
            let mut kept = 0;
            loop {
                let read = visit.read(&mut buffer[kept..])?;
                if read == 0 {
                    break;
                }
                // A read may end in the middle of a report.
                let (whole, rest) = buffer[..kept + read].as_chunks::<REPORT>();
                for report in whole {
                    let report = from_bytes(report).context("a report has an unexpected size")?;
                    take(&report)?;
                }
                kept = rest.len();
                let end = whole.len() * REPORT;
                buffer.copy_within(end..end + kept, 0);
            }
        }
        Ok(())
    }

    /// Sets the clamp of a host, segments; `None`: it has none. Its connections get it at the next
    /// visit, new ones at once.
    ///
    /// # Errors
    /// The kernel's: there are too many hosts.
    pub fn set_clamp(&self, host: &Remote, segments: Option<u32>) -> Result<()> {
        let (map, key) = (self.map(names::CLAMPS), host.key());
        match segments {
            Some(segments) => {
                map.update(bytes_of(&key), &segments.to_ne_bytes(), MapFlags::ANY)?;
            }
            None => match map.delete(bytes_of(&key)) {
                Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                    return Err(error.into());
                }
                _ => {}
            },
        }
        Ok(())
    }

    /// Takes the clamps of all hosts, so that no new connection gets one.
    ///
    /// # Errors
    /// The kernel's.
    pub fn clear_clamps(&self) -> Result<()> {
        let map = self.map(names::CLAMPS);
        for key in batch::keys(map)? {
            map.delete(&key)?;
        }
        Ok(())
    }
}
