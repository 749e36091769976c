//! What a link sees of a packet: its flow and its TCP segment; and the one thing that it changes: the
//! ECN field.

/// Explicit Congestion Notification, RFC 3168 section 5: the two low bits of the
/// IPv4 type of service and of the IPv6 traffic class.
const CONGESTION_EXPERIENCED: u8 = 0b11;

/// Sets *congestion experienced* in a packet whose sender can use it. Returns
/// whether the packet now says so because of this call.
pub(crate) fn mark_ce(packet: &mut [u8]) -> bool {
    match packet.first().map(|byte| byte >> 4) {
        Some(4) if packet.len() >= 20 => mark_v4(packet),
        Some(6) if packet.len() >= 40 => mark_v6(packet),
        _ => false,
    }
}

/// Neither *not capable* (0) nor marked already.
fn can_be_marked(ecn: u8) -> bool {
    ecn != 0 && ecn != CONGESTION_EXPERIENCED
}

fn mark_v4(packet: &mut [u8]) -> bool {
    let ecn = packet[1] & CONGESTION_EXPERIENCED;
    if !can_be_marked(ecn) {
        return false;
    }
    let before = u16::from_be_bytes([packet[0], packet[1]]);
    packet[1] |= CONGESTION_EXPERIENCED;
    let after = u16::from_be_bytes([packet[0], packet[1]]);
    // RFC 1624, equation 3: HC' = ~(~HC + ~m + m').
    let checksum = u16::from_be_bytes([packet[10], packet[11]]);
    let mut sum = u32::from(!checksum) + u32::from(!before) + u32::from(after);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    packet[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    true
}

fn mark_v6(packet: &mut [u8]) -> bool {
    // Version (4 bits), traffic class (8), flow label (20): the ECN field is in
    // bits 5 and 4 of the second byte.
    let ecn = (packet[1] >> 4) & CONGESTION_EXPERIENCED;
    if !can_be_marked(ecn) {
        return false;
    }
    packet[1] |= CONGESTION_EXPERIENCED << 4;
    true
}

/// Gives the words that tell a packet's flow from others: addresses, protocol, and ports where they
/// are in this packet.
pub(crate) fn hash_flow(packet: &[u8], mut word: impl FnMut(u64)) {
    let Some(Parts {
        addresses,
        protocol,
        payload,
    }) = Parts::of_packet(packet)
    else {
        return;
    };
    for chunk in addresses.chunks(8) {
        word(
            chunk
                .iter()
                .fold(0, |all, &byte| all << 8 | u64::from(byte)),
        );
    }
    // TCP, UDP, SCTP, UDP-Lite: two ports come first.
    let has_ports = [6, 17, 132, 136].contains(&protocol);
    let ports = payload.filter(|_| has_ports).and_then(|it| it.get(..4));
    let ports = ports.map_or(0, |it| u32::from_be_bytes([it[0], it[1], it[2], it[3]]));
    word(u64::from(protocol) << 32 | u64::from(ports));
}

/// The parts of an IP packet.
struct Parts<'a> {
    addresses: &'a [u8],
    protocol: u8,
    /// Bytes after the IP header; none of a fragment.
    payload: Option<&'a [u8]>,
}

impl<'a> Parts<'a> {
    fn of_packet(packet: &'a [u8]) -> Option<Self> {
        match packet.first().map(|byte| byte >> 4) {
            Some(4) if packet.len() >= 20 => {
                let is_fragment = packet[6] & 0x3f != 0 || packet[7] != 0;
                let length = usize::from(packet[0] & 0x0f) * 4;
                Some(Self {
                    addresses: &packet[12..20],
                    protocol: packet[9],
                    payload: packet.get(length..).filter(|_| !is_fragment),
                })
            }
            Some(6) if packet.len() >= 40 => Some(Self {
                addresses: &packet[8..40],
                protocol: packet[6],
                payload: packet.get(40..),
            }),
            _ => None,
        }
    }
}

/// A TCP segment (RFC 9293, section 3.1).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment<'a> {
    header: &'a [u8],
    /// Options, padding included.
    pub(crate) options: &'a [u8],
    /// Bytes of data.
    pub(crate) payload_bytes: usize,
}

impl<'a> Segment<'a> {
    pub(crate) const FIN: u8 = 0x01;
    pub(crate) const SYN: u8 = 0x02;
    pub(crate) const RST: u8 = 0x04;
    const ACK: u8 = 0x10;
    /// Bytes of a header without options.
    const HEADER: usize = 20;
    /// Kind of the option that names the maximum segment size.
    const MSS: u8 = 2;
    /// Kind of the option with SACK blocks (RFC 2018).
    const SACK: u8 = 5;

    /// The segment in a packet; none in one of another protocol, or in a part of one.
    pub(crate) fn from_packet(packet: &'a [u8]) -> Option<Self> {
        let parts = Parts::of_packet(packet)?;
        let is_tcp = parts.protocol == 6;
        let segment = (parts.payload).filter(|it| is_tcp && it.len() >= Self::HEADER)?;
        let length = usize::from(segment[12] >> 4) * 4;
        Some(Self {
            header: &segment[..Self::HEADER],
            options: segment.get(Self::HEADER..length)?,
            payload_bytes: segment.len() - length,
        })
    }

    pub(crate) fn has_flag(&self, flag: u8) -> bool {
        self.header[13] & flag != 0
    }

    /// The acknowledgement number, if the segment acknowledges.
    pub(crate) fn ack_number(&self) -> Option<u32> {
        let bytes = [8, 9, 10, 11].map(|place| self.header[place]);
        self.has_flag(Self::ACK).then(|| u32::from_be_bytes(bytes))
    }

    /// The maximum segment size that it names.
    pub(crate) fn mss(&self) -> Option<u32> {
        match self.option(Self::MSS)? {
            [high, low] => Some(u16::from_be_bytes([*high, *low]).into()),
            _ => None,
        }
    }

    pub(crate) fn has_sack_blocks(&self) -> bool {
        self.option(Self::SACK).is_some()
    }

    /// The value of the first option of a kind.
    fn option(&self, wanted: u8) -> Option<&'a [u8]> {
        let mut rest = self.options;
        loop {
            match *rest {
                // The end of the options.
                [] | [0, ..] => return None,
                // One byte of padding.
                [1, ..] => rest = &rest[1..],
                [kind, length, ..] => {
                    let value = rest.get(2..length.into())?;
                    if kind == wanted {
                        return Some(value);
                    }
                    rest = &rest[length.into()..];
                }
                [_] => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The Internet checksum (RFC 1071) over a whole header: 0xffff if it holds.
    fn sum(header: &[u8]) -> u16 {
        let total: u32 = header
            .chunks(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        let folded = (total & 0xffff) + (total >> 16);
        ((folded & 0xffff) + (folded >> 16)) as u16
    }

    fn v4(tos: u8, identification: u16) -> Vec<u8> {
        let mut header = vec![0x45, tos, 0, 20, 0, 0, 0x40, 0, 64, 17, 0, 0];
        header.extend([100, 64, 0, 2, 100, 64, 0, 1]);
        header[4..6].copy_from_slice(&identification.to_be_bytes());
        let checksum = !sum(&header);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(sum(&header), 0xffff);
        header
    }

    #[test]
    fn only_capable_ipv4_packets_are_marked_and_the_checksum_holds() {
        for identification in 0..=u16::MAX {
            let mut header = v4(0b10, identification);
            assert!(mark_ce(&mut header));
            assert_eq!(header[1], 0b11);
            assert_eq!(sum(&header), 0xffff, "{identification}");
        }
        let mut header = v4(0b1010_0001, 7);
        assert!(mark_ce(&mut header));
        assert_eq!((header[1], sum(&header)), (0b1010_0011, 0xffff));
        for tos in [0b00, 0b11] {
            let before = v4(tos, 7);
            let mut header = before.clone();
            assert!(!mark_ce(&mut header));
            assert_eq!(header, before);
        }
    }

    #[test]
    fn only_capable_ipv6_packets_are_marked() {
        for (second, after) in [
            (0x00, None),
            (0x1f, Some(0x3f)),
            (0x2f, Some(0x3f)),
            (0x30, None),
        ] {
            let mut packet = vec![0; 40];
            packet[0] = 0x6a;
            packet[1] = second;
            assert_eq!(mark_ce(&mut packet), after.is_some());
            assert_eq!(packet[1], after.unwrap_or(second));
            assert_eq!(packet[0], 0x6a);
        }
    }

    #[test]
    fn flows_differ_by_addresses_protocol_and_ports() {
        let words = |packet: &[u8]| {
            let mut all = Vec::new();
            hash_flow(packet, |word| all.push(word));
            all
        };
        for size in [20, 40] {
            let mut packet = vec![0; size + 8];
            packet[0] = if size == 20 { 0x45 } else { 0x60 };
            packet[if size == 20 { 9 } else { 6 }] = 6;
            let base = words(&packet);
            let addresses = if size == 20 { 12..20 } else { 8..40 };
            for at in addresses.chain(size..size + 4) {
                let mut other = packet.clone();
                other[at] = 1;
                assert_ne!(words(&other), base, "byte {at}");
            }
            // What belongs to the one packet alone: its length, and what is after the ports.
            for at in [5, size + 4] {
                let mut other = packet.clone();
                other[at] = 1;
                assert_eq!(words(&other), base, "byte {at}");
            }
        }
        // Later fragments have no ports, so the first has none either.
        let mut fragments = [vec![0; 28], vec![0; 28]];
        for (packet, offset) in fragments.iter_mut().zip([0x2000u16, 0x00b9]) {
            packet[0] = 0x45;
            packet[9] = 17;
            packet[6..8].copy_from_slice(&offset.to_be_bytes());
            packet[20] = offset as u8;
        }
        assert_eq!(words(&fragments[0]), words(&fragments[1]));
        assert_eq!(words(&[0x45; 3]), [0; 0]);
    }

    #[test]
    fn what_is_no_ip_packet_is_left_alone() {
        for packet in [vec![], vec![0x45, 2], vec![0x60; 39], vec![0x12; 60]] {
            let mut copy = packet.clone();
            assert!(!mark_ce(&mut copy));
            assert_eq!(copy, packet);
        }
    }
}
