//! Host records, measured connections and arm tables of the kernel interface versions before the
//! present one. An agent newer than the programs in the kernel finds them there.

use std::ops::Range;

use thalweg_learner::Host;

use crate::convert::host_from_raw;
use crate::pod::from_bytes;
use crate::raw;

/// The versions. Where the layout of records or connections changes, the conversions below know both.
pub const VERSIONS: Range<u32> = 7..raw::THALWEG_ABI_VERSION;

/// A record of one of [`VERSIONS`], whose fields are the present ones; those that are new were 0,
/// "nothing yet". `None`: it has another size, was being written, or belongs to another host than its
/// table says (`tag`).
pub fn convert_host(version: u32, tag: u64, bytes: &[u8]) -> Option<Host> {
    if !VERSIONS.contains(&version) {
        return None;
    }
    let host: raw::thalweg_host = from_bytes(bytes)?;
    let whole = host.tag == tag && host.tag_tail == tag as u32 && host.seq_head == host.seq_tail;
    whole.then(|| host_from_raw(&host))
}

/// A measured connection, as the present one: its initial window was not chosen. `None`: it has another
/// size or version.
pub fn convert_conn(version: u32, bytes: &[u8]) -> Option<raw::thalweg_conn> {
    VERSIONS.contains(&version).then(|| from_bytes(bytes))?
}

/// The arm table of one of [`VERSIONS`], or the present one; they begin alike. `None`: it is
/// shorter.
pub fn convert_arms(bytes: &[u8]) -> Option<raw::thalweg_arms> {
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

    #[test]
    fn records_are_as_the_present_ones() {
        let mut record = raw::thalweg_host {
            tag: 9 | 8 << 32,
            tag_tail: 9,
            scored: 7,
            ..Default::default()
        };
        record.statistics[2].min_rtt_us = 5;
        let read =
            |record: &raw::thalweg_host| super::convert_host(8, 9 | 8 << 32, bytes_of(record));
        let host = read(&record).unwrap();
        assert_eq!((host.scored, host.level), (7, Level::Host));
        assert_eq!(host.arms[2].min_rtt_us, 5);
        assert!(super::convert_host(9, 9 | 8 << 32, bytes_of(&record)).is_some());
        assert!(super::convert_host(6, 9 | 8 << 32, bytes_of(&record)).is_none());
        assert!(
            super::convert_host(8, 9, bytes_of(&record)).is_none(),
            "another host's"
        );
        record.seq_head = 1;
        assert!(read(&record).is_none(), "being written");
        assert!(super::convert_host(8, 9, &bytes_of(&record)[1..]).is_none());
    }

    #[test]
    fn a_connection_goes_on_and_its_window_was_not_chosen() {
        let conn = raw::thalweg_conn {
            cookie: 7,
            count: 3,
            ..Default::default()
        };
        for version in VERSIONS {
            let found = super::convert_conn(version, bytes_of(&conn)).unwrap();
            assert_eq!((found.cookie, found.count), (7, 3));
            assert_eq!(found.window.segments, 0);
        }
        assert!(super::convert_conn(6, bytes_of(&conn)).is_none());
        assert!(super::convert_conn(8, &bytes_of(&conn)[8..]).is_none());
    }

    #[test]
    fn the_arm_tables_of_all_versions_begin_alike() {
        let size = size_of::<raw::thalweg_arms>();
        let mut bytes = vec![0; size];
        bytes[8] = b'c';
        for length in [size, size - 16] {
            assert_eq!(
                convert_arms(&bytes[..length]).unwrap().arms[0].name[0],
                b'c' as std::ffi::c_char
            );
        }
        assert!(convert_arms(&bytes[..size - 1]).is_none());
    }
}
