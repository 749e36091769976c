//! Large segments, handed to the limit's program as the stack does.

use crate::support::privileged;
use libbpf_rs::{MapCore, MapFlags, ObjectBuilder, ProgramInput};
use thalweg_bpf_types::{bytes_of, from_bytes, raw};

/// A TCP segment with data behind IP, as the stack passes it to the limit: two packets in one.
fn handed_over(ip: &[u8]) -> Vec<u8> {
    let kind: [u8; 2] = if ip[0] >> 4 == 4 {
        [8, 0]
    } else {
        [0x86, 0xdd]
    };
    // Twelve bytes of timestamps.
    let mut tcp = [0; 32];
    tcp[12] = 8 << 4;
    [&[0; 12][..], &kind, ip, &tcp, &[0; 2000]].concat()
}

/// Over IPv6 loopback TCP hands over more than 64 KiB at once, behind an IPv6 option for it (RFC
/// 2675).
#[test]
fn large_segments_of_both_families_are_tcp_and_counted_whole() {
    if !privileged() {
        return;
    }
    let mut ipv4 = [0; 20];
    (ipv4[0], ipv4[9]) = (0x45, 6);
    let mut ipv6 = [0; 40];
    (ipv6[0], ipv6[6]) = (0x60, 6);
    let mut jumbo = [0; 48];
    (jumbo[0], jumbo[40]) = (0x60, 6);
    (jumbo[42], jumbo[43]) = (0xc2, 4);
    for (name, ip) in [("IPv4", &ipv4[..]), ("IPv6", &ipv6), ("jumbo", &jumbo)] {
        let mut object = ObjectBuilder::default()
            .open_memory(thalweg_bpf_objects::LIMIT)
            .unwrap();
        for mut program in object.progs_mut() {
            let wanted = program.name() == "limit_egress";
            program.set_autoload(wanted);
        }
        let object = object.load().unwrap();
        let map = |name: &str| object.maps().find(|map| map.name() == name).unwrap();
        let second = 1_000_000_000;
        let settings = raw::thalweg_limit_settings {
            flags: raw::THALWEG_LIMIT_LOOPBACK,
            rate_bps: 1000,
            drop_ns: 1000 * second,
            interval_ns: 1000 * second,
            ..Default::default()
        };
        let key = 0u32.to_ne_bytes();
        let put = |to: &str, bytes: &[u8]| map(to).update(&key, bytes, MapFlags::ANY).unwrap();
        let get = |from: &str| map(from).lookup(&key, MapFlags::ANY).unwrap().unwrap();
        put("settings", bytes_of(&settings));
        let mut state = get("state");
        let rate_at = std::mem::offset_of!(raw::thalweg_limit_state, rate_bps);
        state[rate_at..rate_at + 8].copy_from_slice(&settings.rate_bps.to_ne_bytes());
        put("state", &state);
        // Only the number of packets of the kernel's context (struct __sk_buff) is set.
        let mut context = [0; 192];
        context[164] = 2;
        let packet = handed_over(ip);
        let mut send = || {
            let input = ProgramInput {
                context_in: Some(&mut context),
                data_in: Some(&packet),
                ..Default::default()
            };
            let mut programs = object.progs_mut();
            let mut program = programs.find(|program| program.name() == "limit_egress");
            program
                .as_mut()
                .unwrap()
                .test_run(input)
                .unwrap()
                .return_value
        };
        // First without a queue, then with one: TCP is notified.
        assert_eq!((send(), send()), (1, 3), "{name}");
        let size = size_of::<raw::thalweg_limit_state>();
        let state: raw::thalweg_limit_state = from_bytes(&get("state")[..size]).unwrap();
        let headers = ip.len() as u64 + 32;
        assert_eq!(
            (state.packets, state.bytes, state.notified),
            (4, 2 * (2 * headers + 2000), 2),
            "{name}"
        );
    }
}
