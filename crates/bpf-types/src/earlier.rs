//! Host records and arm tables of kernel interface versions before the present one. An agent newer
//! than the programs in the kernel finds them there.

use thalweg_learner::{ArmState, Host, MAX_ARMS, note_cautions};

use crate::convert::host_from_raw;
use crate::pod::from_bytes;
use crate::raw;

/// The versions.
pub const VERSIONS: [u32; 3] = [4, 5, 6];

/// Reads numbers in sequence.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*first))
    }

    fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*first))
    }

    /// Version 4 had no counts of segments.
    fn arm(&mut self, version: u32) -> Option<ArmState> {
        let mut arm = ArmState {
            value: self.u64()?,
            max_rate: self.u64()?,
            weight_q16: self.u32()?,
            deviation_q16: self.u32()?,
            log_rate_q16: self.u32()?,
            srtt_us: self.u32()?,
            min_rtt_us: self.u32()?,
            chosen: self.u32()?,
            greedy: self.u32()?,
            scored: self.u32()?,
            ..ArmState::default()
        };
        if version > 4 {
            (arm.segs, arm.retrans) = (self.u32()?, self.u32()?);
        }
        Some(arm)
    }

    /// The fields before the arms, after the number of connections.
    fn head(&mut self, version: u32, host: &mut Host) -> Option<()> {
        let _tag = self.u64()?;
        host.seen_ns = self.u64()?;
        host.forgot_ns = self.u64()?;
        host.max_rate = self.u64()?;
        if version > 4 {
            host.trial_ns = self.u64()?;
        }
        host.min_rtt_us = self.u32()?;
        host.scored = self.u32()?;
        host.switched = self.u32()?;
        let harmful = self.u32()?;
        if version > 4 {
            host.harmful = (harmful & 0xffff) as u16;
            host.queue_q16 = self.u32()?;
            host.base_rtt_us = self.u32()?;
            host.last_base_rtt_us = self.u32()?;
            host.trials = self.u32()?;
        }
        Some(())
    }
}

/// Bytes of a record: head, 16 arms, 8.
const fn host_bytes(version: u32) -> usize {
    match version {
        4 => 56 + 48 * MAX_ARMS + 8,
        _ => 80 + 56 * MAX_ARMS + 8,
    }
}

/// A record of one of [`VERSIONS`]; fields that it lacks are 0, "nothing yet". `None`: it has
/// another size, was being written, or belongs to another host than its table says (`tag`).
pub fn host(version: u32, tag: u64, bytes: &[u8]) -> Option<Host> {
    let mut host = match version {
        6 => version_6(tag, bytes),
        _ => before_6(version, tag, bytes),
    }?;
    note_cautions(&mut host, None);
    Some(host)
}

/// Version 6 had the present layout, with 0 for what it did not know.
fn version_6(tag: u64, bytes: &[u8]) -> Option<Host> {
    let host: raw::thalweg_host = from_bytes(bytes)?;
    let whole = host.tag == tag && host.tag_tail == tag as u32 && host.seq_head == host.seq_tail;
    whole.then(|| host_from_raw(&host))
}

fn before_6(version: u32, tag: u64, bytes: &[u8]) -> Option<Host> {
    if !VERSIONS.contains(&version) || bytes.len() != host_bytes(version) {
        return None;
    }
    let mut reader = Reader(bytes);
    let seq_head = reader.u32()?;
    let mut host = Host {
        connections: reader.u32()?,
        ..Host::default()
    };
    // The next field; version 4 had no tag at the end, and some of its agents left it 0.
    if version > 4 && Reader(reader.0).u64()? != tag {
        return None;
    }
    reader.head(version, &mut host)?;
    for arm in &mut host.arms {
        *arm = reader.arm(version)?;
    }
    let tag_tail = reader.u32()?;
    if version > 4 && tag_tail != tag as u32 {
        return None;
    }
    (reader.u32()? == seq_head).then_some(host)
}

/// The arm table of one of [`VERSIONS`], or the present one; they begin alike. `None`: it is
/// shorter.
pub fn arms(bytes: &[u8]) -> Option<raw::thalweg_arms> {
    const BYTES: usize = size_of::<raw::thalweg_arms>();
    let mut whole = [0; BYTES];
    if bytes.len() != BYTES && bytes.len() != BYTES - 16 {
        return None;
    }
    whole[..bytes.len()].copy_from_slice(bytes);
    from_bytes(&whole)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
mod tests {
    use super::*;

    /// Each number is its own index, in units of four bytes.
    fn numbered(version: u32) -> Vec<u8> {
        (0..host_bytes(version) as u32 / 4)
            .flat_map(u32::to_ne_bytes)
            .collect()
    }

    fn double(low: u64) -> u64 {
        if cfg!(target_endian = "little") {
            low | (low + 1) << 32
        } else {
            low << 32 | (low + 1)
        }
    }

    #[test]
    fn a_record_of_version_4_is_read_whole_and_a_torn_one_not_at_all() {
        let mut bytes = numbered(4);
        let tag = double(2);
        assert!(host(4, tag, &bytes).is_none(), "head and tail differ");
        let end = bytes.len() - 4;
        bytes[end..].fill(0);
        let host = super::host(4, tag, &bytes).unwrap();
        assert_eq!(host.connections, 1);
        assert_eq!(
            (host.seen_ns, host.forgot_ns, host.max_rate),
            (double(4), double(6), double(8))
        );
        assert_eq!((host.min_rtt_us, host.scored, host.switched), (10, 11, 12));
        assert_eq!((host.arms[0].value, host.arms[0].scored), (double(14), 25));
        assert_eq!(
            (host.arms[15].value, host.arms[15].scored),
            (double(14 + 15 * 12), 25 + 15 * 12)
        );
        assert_eq!((host.harmful, host.trials, host.arms[3].segs), (0, 0, 0));
        assert!(super::host(4, tag, &bytes[1..]).is_none());
        assert!(super::host(5, tag, &bytes).is_none());
        assert!(super::host(3, tag, &bytes).is_none());
    }

    #[test]
    fn a_record_of_version_5_is_read_whole_unless_torn_or_recycled() {
        let mut bytes = numbered(5);
        let tag = double(2);
        let end = bytes.len() - 4;
        bytes[end..].fill(0);
        assert!(host(5, tag, &bytes).is_none(), "the tags differ");
        bytes[end - 4..end].copy_from_slice(&(tag as u32).to_ne_bytes());
        assert!(host(5, tag + 1, &bytes).is_none(), "another host's");
        let host = super::host(5, tag, &bytes).unwrap();
        assert_eq!((host.connections, host.trial_ns), (1, double(10)));
        assert_eq!((host.min_rtt_us, host.scored, host.switched), (12, 13, 14));
        assert_eq!(
            (host.harmful, host.queue_q16, host.base_rtt_us),
            (15, 16, 17)
        );
        assert_eq!((host.last_base_rtt_us, host.trials), (18, 19));
        assert_eq!((host.arms[0].value, host.arms[0].retrans), (double(20), 33));
        let last = &host.arms[15];
        assert_eq!(
            (last.value, last.segs),
            (double(20 + 15 * 14), 32 + 15 * 14)
        );
        bytes[0] = 1;
        assert!(super::host(5, tag, &bytes).is_none(), "being written");
    }

    #[test]
    fn the_arm_tables_of_all_versions_begin_alike() {
        let size = size_of::<raw::thalweg_arms>();
        let mut bytes = vec![0; size];
        bytes[8] = b'c';
        for length in [size, size - 16] {
            assert_eq!(
                arms(&bytes[..length]).unwrap().arms[0].name[0],
                b'c' as std::ffi::c_char
            );
        }
        assert!(arms(&bytes[..size - 1]).is_none());
    }
}
