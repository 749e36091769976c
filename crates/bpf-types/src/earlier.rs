//! Host records, measured connections and arm tables of the two kernel interface versions before the
//! present one. An agent newer than the programs in the kernel finds them there.

use std::mem::offset_of;

use thalweg_learner::{HOUR_NS, Host, MAX_ARMS, note_cautions};

use crate::convert::host_from_raw;
use crate::pod::from_bytes;
use crate::raw;

/// The versions.
pub const VERSIONS: [u32; 2] = [6, 7];

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

    fn u16(&mut self) -> Option<u16> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_ne_bytes(*first))
    }

    /// What follows the tag in version 6.
    fn host6(&mut self, host: &mut Host) -> Option<()> {
        host.seen_ns = self.u64()?;
        host.forgot_ns = self.u64()?;
        host.scored = self.u32()?;
        host.harmful = self.u16()?;
        host.trials = self.u16()?.into();
        let _used = self.u32()?;
        host.credit_q16 = self.u32()?;
        for arm in &mut host.arms {
            arm.value = self.u32()?.into();
            arm.weight_q16 = self.u32()?;
            arm.chosen = self.u32()?;
            self.u32()?;
        }
        host.trial_ns = self.u64()?;
        host.max_rate = self.u64()?;
        host.min_rtt_us = self.u32()?;
        host.switched = self.u32()?;
        host.queue_q16 = self.u32()?;
        host.base_rtt_us = self.u32()?;
        host.last_base_rtt_us = self.u32()?;
        for _reserved in 0..5 {
            self.u32()?;
        }
        for arm in &mut host.arms {
            arm.max_rate = self.u64()?;
            arm.value |= u64::from(self.u32()?) << 32;
            arm.deviation_q16 = self.u32()?;
            arm.log_rate_q16 = self.u32()?;
            arm.srtt_us = self.u32()?;
            arm.min_rtt_us = self.u32()?;
            arm.greedy = arm.chosen.saturating_sub(self.u32()?);
            arm.scored = self.u32()?;
            arm.segs = self.u32()?;
            arm.retrans = self.u32()?;
            self.u32()?;
        }
        Some(())
    }
}

/// Bytes of a record of version 6: head, 16 arms, 8. Version 7 has the present size.
const HOST_BYTES: usize = 104 + (16 + 48) * MAX_ARMS + 8;

/// A record of one of [`VERSIONS`]; fields that it lacks are 0, "nothing yet". `None`: it has
/// another size, was being written, or belongs to another host than its table says (`tag`).
pub fn host(version: u32, tag: u64, bytes: &[u8]) -> Option<Host> {
    match version {
        6 => host6(tag, bytes),
        7 => host7(tag, bytes),
        _ => None,
    }
}

fn host6(tag: u64, bytes: &[u8]) -> Option<Host> {
    if bytes.len() != HOST_BYTES {
        return None;
    }
    let mut reader = Reader(bytes);
    let seq_head = reader.u32()?;
    let mut host = Host {
        connections: reader.u32()?,
        ..Host::default()
    };
    if reader.u64()? != tag {
        return None;
    }
    reader.host6(&mut host)?;
    if reader.u32()? != tag as u32 {
        return None;
    }
    // The version has no handicaps.
    note_cautions(&mut host, None);
    (reader.u32()? == seq_head).then_some(host)
}

/// The fields are the present ones. Those that are new were 0: records of hosts.
fn host7(tag: u64, bytes: &[u8]) -> Option<Host> {
    let host: raw::thalweg_host = from_bytes(bytes)?;
    let whole = host.tag == tag && host.tag_tail == tag as u32 && host.seq_head == host.seq_tail;
    whole.then(|| host_from_raw(&host))
}

/// A measured connection. That of version 7 is as the present one; the present one begins like that
/// of version 6. `None`: it has another size or version.
pub fn conn(version: u32, bytes: &[u8]) -> Option<raw::thalweg_conn> {
    const BYTES: usize = 104;
    if version == 7 {
        return from_bytes(bytes);
    }
    if version != 6 || bytes.len() != BYTES {
        return None;
    }
    let mut whole = [0; size_of::<raw::thalweg_conn>()];
    whole[..BYTES].copy_from_slice(bytes);
    let mut conn: raw::thalweg_conn = from_bytes(&whole)?;
    // The flags had 32 bits. The hour was not noted: a stretch began with the connection, mostly.
    const FLAGS: usize = offset_of!(raw::thalweg_conn, origin);
    let flags = bytes.get(FLAGS..)?.first_chunk()?;
    conn.origin.flags = u32::from_ne_bytes(*flags) as u16;
    conn.origin.hour = (conn.start_ns / HOUR_NS) as u16;
    Some(conn)
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
    use thalweg_learner::Level;

    use super::*;
    use crate::pod::bytes_of;

    /// Each number is its own index, in units of four bytes.
    fn numbered() -> Vec<u8> {
        (0..HOST_BYTES as u32 / 4)
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
    fn a_record_of_version_6_is_read_whole_unless_torn_or_recycled() {
        let mut bytes = numbered();
        assert_eq!(bytes.len(), 1136);
        let tag = double(2);
        let end = bytes.len() - 4;
        bytes[end..].fill(0);
        bytes[end - 4..end].copy_from_slice(&(tag as u32).to_ne_bytes());
        assert!(host(6, tag + 1, &bytes).is_none(), "another host's");
        let host = super::host(6, tag, &bytes).unwrap();
        assert_eq!((host.connections, host.seen_ns), (1, double(4)));
        assert_eq!((host.forgot_ns, host.scored), (double(6), 8));
        if cfg!(target_endian = "little") {
            assert_eq!((host.harmful, host.trials), (9, 0));
        }
        assert_eq!(host.credit_q16, 11);
        assert_eq!((host.arms[0].weight_q16, host.arms[15].chosen), (13, 74));
        assert_eq!((host.trial_ns, host.max_rate), (double(76), double(78)));
        assert_eq!((host.min_rtt_us, host.switched), (80, 81));
        assert_eq!((host.queue_q16, host.base_rtt_us), (82, 83));
        assert_eq!(host.last_base_rtt_us, 84);
        // Ten numbers and a wide one for each arm, from the 90th on.
        assert_eq!(host.arms[0].max_rate, double(90));
        assert_eq!(host.arms[0].value, 12 | 92 << 32);
        let last = &host.arms[15];
        let first = 90 + 15 * 12;
        assert_eq!(last.value, u64::from(72u32) | u64::from(first + 2) << 32);
        assert_eq!(
            (last.deviation_q16, last.log_rate_q16),
            (first + 3, first + 4)
        );
        assert_eq!((last.srtt_us, last.min_rtt_us), (first + 5, first + 6));
        assert_eq!(
            (last.scored, last.segs, last.retrans),
            (first + 8, first + 9, first + 10)
        );
        bytes[0] = 1;
        assert!(super::host(6, tag, &bytes).is_none(), "being written");
        assert!(super::host(5, tag, &bytes).is_none());
    }

    #[test]
    fn a_record_of_version_7_is_as_the_present_one() {
        let mut record = raw::thalweg_host {
            tag: 9 | 8 << 32,
            tag_tail: 9,
            scored: 7,
            ..Default::default()
        };
        record.statistics[2].min_rtt_us = 5;
        let read = |record: &raw::thalweg_host| super::host(7, 9 | 8 << 32, bytes_of(record));
        let host = read(&record).unwrap();
        assert_eq!((host.scored, host.level), (7, Level::Host));
        assert_eq!(host.arms[2].min_rtt_us, 5);
        assert!(
            super::host(7, 9, bytes_of(&record)).is_none(),
            "another host's"
        );
        record.seq_head = 1;
        assert!(read(&record).is_none(), "being written");
        assert!(super::host(7, 9, &bytes_of(&record)[1..]).is_none());
    }

    #[test]
    fn a_connection_of_version_6_goes_on_and_had_no_stretches() {
        let mut bytes: Vec<u8> = (0..26u32).flat_map(u32::to_ne_bytes).collect();
        let found = conn(6, &bytes).unwrap();
        assert_eq!((found.cookie, found.start_ns), (double(0), double(2)));
        assert_eq!((found.origin.flags, found.origin.propensity_q16), (13, 14));
        // Its events are those of the hour in which it began.
        bytes[8..16].copy_from_slice(&(5 * HOUR_NS + 1).to_ne_bytes());
        assert_eq!(conn(6, &bytes).unwrap().origin.hour, 5);
        assert_eq!((found.start_retrans, found.loss_srtt_us), (12, 24));
        assert_eq!((found.decided_ns, found.count), (0, 0));
        assert!(conn(5, &bytes).is_none() && conn(6, &bytes[4..]).is_none());
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
