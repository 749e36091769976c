//! ACKs that a peer delays.

use super::*;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const SYN_ACK: u8 = SYN | ACK;

/// The timestamps of Linux, 12 bytes.
const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0];
/// An MSS of 1460 bytes.
const MSS: [u8; 4] = [2, 4, 0x05, 0xb4];
/// One block.
const SACK: [u8; 12] = [1, 1, 5, 10, 0, 0, 0, 0, 0, 0, 0, 0];
/// Payload of a full segment with timestamps.
const FULL: u32 = 1460 - 12;
/// Acknowledgement number of the SYN. It wraps soon.
const FIRST: u32 = u32::MAX - 4000;

/// A TCP segment of a connection over IPv4 or IPv6.
fn segment(version: u8, port: u16, flags: u8, number: u32, options: &[u8], data: usize) -> Vec<u8> {
    let mut packet = vec![0; if version == 4 { 20 } else { 40 }];
    packet[0] = if version == 4 { 0x45 } else { 0x60 };
    packet[if version == 4 { 9 } else { 6 }] = 6;
    packet.extend(port.to_be_bytes());
    packet.extend([0; 6]);
    packet.extend(number.to_be_bytes());
    packet.extend([((20 + options.len()) as u8 / 4) << 4, flags]);
    packet.extend([0; 6]);
    packet.extend(options);
    packet.resize(packet.len() + data, 0);
    packet
}

/// When a peer that delays ACKs by 100 ms sends what, if these segments of one connection are ready,
/// at so many milliseconds, after its SYN: the same, and the bytes that they acknowledge.
fn delayed(version: u8, segments: &[(u64, u8, u32, &[u8], usize)]) -> Vec<(u64, u32)> {
    let syn = [&MSS[..], &TIMESTAMPS].concat();
    let mut arrivals = vec![(0, segment(version, 1, SYN_ACK, FIRST, &syn, 0))];
    arrivals.extend(segments.iter().map(|&(ms, flags, bytes, options, data)| {
        let number = FIRST.wrapping_add(bytes);
        let options = [&TIMESTAMPS, options].concat();
        (ms * MS, segment(version, 1, flags, number, &options, data))
    }));
    let direction = Direction {
        ack_delay: Delay::from_us(100_000),
        delay: Delay::from_us(20_000),
        ..clean()
    };
    let (left, counters) = passed(direction, &arrivals);
    assert_eq!(counters.received, counters.delivered);
    let header = if version == 4 { 20 } else { 40 };
    let told = left.iter().map(|(ns, packet)| {
        let number = u32::from_be_bytes(packet[header + 8..header + 12].try_into().unwrap());
        ((ns - 20 * MS) / MS, number.wrapping_sub(FIRST))
    });
    let mut told: Vec<(u64, u32)> = told.collect();
    assert_eq!(told.remove(0), (0, 0), "the SYN");
    told
}

#[test]
fn ack_of_less_than_two_full_segments_waits_for_more_or_for_its_time() {
    for version in [4, 6] {
        let ack = |ms, bytes| (ms, ACK, bytes, &[][..], 0);
        for (segments, expected) in [
            (&[ack(1, FULL)][..], &[(101, FULL)][..]),
            (&[ack(1, 2 * FULL - 1)], &[(101, 2 * FULL - 1)]),
            (&[ack(1, 2 * FULL)], &[(1, 2 * FULL)]),
            // The second one acknowledges what the first one does.
            (&[ack(1, FULL), ack(30, 2 * FULL)], &[(30, 2 * FULL)]),
            // Both wait, and the first one's time counts.
            (&[ack(1, 100), ack(60, 200)], &[(101, 200)]),
            // From the last ACK that passed, 4 full segments on: beyond the wrap.
            (
                &[
                    ack(1, 2 * FULL),
                    ack(2, 3 * FULL),
                    ack(90, 4 * FULL),
                    ack(91, 5 * FULL),
                ],
                &[(1, 2 * FULL), (90, 4 * FULL), (191, 5 * FULL)],
            ),
            (
                &[ack(1, FULL), ack(200, 2 * FULL), ack(210, 3 * FULL)],
                &[(101, FULL), (210, 3 * FULL)],
            ),
        ] {
            assert_eq!(delayed(version, segments), expected, "{segments:?}");
        }
    }
}

#[test]
fn only_plain_acks_of_new_data_wait() {
    let ack = |ms, bytes| (ms, ACK, bytes, &[][..], 0);
    for other in [
        (50, ACK, 150, &[][..], 1),
        (50, ACK, 150, &SACK[..], 0),
        (50, ACK | FIN, 150, &[], 0),
        (50, ACK | RST, 150, &[], 0),
        // A duplicate, or an update of the window.
        ack(50, 100),
    ] {
        let told = delayed(4, &[ack(1, 100), other]);
        assert_eq!(told, [(50, other.2)], "{other:?}");
    }
    // A connection that ended has none that wait.
    let told = delayed(4, &[(1, ACK | FIN, 50, &[], 0), ack(2, 100)]);
    assert_eq!(told, [(1, 50), (2, 100)]);
}

#[test]
fn acks_of_each_connection_wait_for_themselves() {
    let mut arrivals = Vec::new();
    for port in 1..=3 {
        arrivals.push((0, segment(4, port, SYN_ACK, FIRST, &MSS, 0)));
    }
    // Without options a full segment has 1460 bytes.
    for (ms, port, bytes) in [(1, 1, 1460), (2, 2, 1460), (3, 1, 2920), (4, 3, 1460)] {
        let number = FIRST.wrapping_add(bytes);
        arrivals.push((ms * MS, segment(4, port, ACK, number, &[], 0)));
    }
    // Neither TCP nor of a connection whose SYN was seen.
    arrivals.push((5 * MS, vec![0x45; 20]));
    arrivals.push((6 * MS, segment(4, 9, ACK, 1, &[], 0)));
    let direction = Direction {
        ack_delay: Delay::from_us(100_000),
        ..clean()
    };
    let (left, _) = passed(direction, &arrivals);
    let told: Vec<(u64, u8)> = left
        .iter()
        .map(|(ns, packet)| (ns / MS, packet.get(21).copied().unwrap_or_default()))
        .collect();
    let expected = [
        (0, 1),
        (0, 2),
        (0, 3),
        (3, 1),
        (5, 0),
        (6, 9),
        (102, 2),
        (104, 3),
    ];
    assert_eq!(told, expected);
}

#[test]
fn dropped_ack_leaves_no_time_to_a_later_one() {
    let mut arrivals = Vec::new();
    for port in 1..=2 {
        arrivals.push((0, segment(4, port, SYN_ACK, FIRST, &MSS, 0)));
    }
    for (ms, port, bytes) in [(1, 1, 100), (2, 2, 100), (3, 2, 2920), (50, 2, 3000)] {
        let number = FIRST.wrapping_add(bytes);
        arrivals.push((ms * MS, segment(4, port, ACK, number, &[], 0)));
    }
    let direction = Direction {
        ack_delay: Delay::from_us(100_000),
        ..clean()
    };
    let (left, _) = passed(direction, &arrivals);
    let told: Vec<(u64, u8)> = left.iter().map(|(ns, it)| (ns / MS, it[21])).collect();
    assert_eq!(told, [(0, 1), (0, 2), (3, 2), (101, 1), (150, 2)]);
}
