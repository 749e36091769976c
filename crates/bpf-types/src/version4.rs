//! Host records of kernel interface version 4, the version before the present one. An agent newer
//! than the programs in the kernel finds them there.

use thalweg_learner::{ArmState, Host, MAX_ARMS};

/// The version.
pub const VERSION: u32 = 4;
/// Bytes of a record: 56, 16 arms of 48, 8.
pub const HOST_BYTES: usize = 56 + 48 * MAX_ARMS + 8;

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

    fn arm(&mut self) -> Option<ArmState> {
        Some(ArmState {
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
        })
    }
}

/// A record; fields that version 4 lacks are 0, "nothing yet". `None`: it has another size, or was
/// being written.
pub fn host(bytes: &[u8]) -> Option<Host> {
    if bytes.len() != HOST_BYTES {
        return None;
    }
    let mut reader = Reader(bytes);
    let seq_head = reader.u32()?;
    let mut host = Host {
        connections: reader.u32()?,
        ..Host::default()
    };
    let _tag = reader.u64()?;
    host.seen_ns = reader.u64()?;
    host.forgot_ns = reader.u64()?;
    host.max_rate = reader.u64()?;
    host.min_rtt_us = reader.u32()?;
    host.scored = reader.u32()?;
    host.switched = reader.u32()?;
    let _reserved = reader.u32()?;
    for arm in &mut host.arms {
        *arm = reader.arm()?;
    }
    let _reserved = reader.u32()?;
    (reader.u32()? == seq_head).then_some(host)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_whole_and_a_torn_one_not_at_all() {
        // Each number is its own index, in units of four bytes.
        let mut bytes: Vec<u8> = (0..HOST_BYTES as u32 / 4)
            .flat_map(u32::to_ne_bytes)
            .collect();
        assert!(host(&bytes).is_none(), "head and tail differ");
        bytes[HOST_BYTES - 4..].fill(0);
        let host = super::host(&bytes).unwrap();
        let double = |low: u64| {
            if cfg!(target_endian = "little") {
                low | (low + 1) << 32
            } else {
                low << 32 | (low + 1)
            }
        };
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
        assert!(super::host(&bytes[1..]).is_none());
    }
}
