//! The kernel's rules of addresses and those of Rust are the same.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::process::{Command, Stdio};

use thalweg_units::address::{Nat64, is_link_local, is_loopback};
use thalweg_units::prefix::{Prefix, address_bits, is_ipv4};
use thalweg_units::random::Random;

/// Compiles `address.c` into a directory; the program.
fn compiled(directory: &Path) -> std::path::PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = directory.join("address");
    let made = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"])
        .arg("-D__always_inline=inline __attribute__((always_inline))")
        .arg(format!("-I{}", here.join("../../bpf/include").display()))
        .arg(here.join("tests/address.c"))
        .arg("-o")
        .arg(&program)
        .status()
        .unwrap();
    assert!(made.success());
    program
}

/// Addresses of every kind, many under one of the prefixes.
fn addresses(prefixes: &[Prefix]) -> Vec<Ipv6Addr> {
    let mut random = Random::new(64);
    let mut word = || u128::from(random.u64()) << 64 | u128::from(random.u64());
    let mut found: Vec<Ipv6Addr> = ["::1", "::", "fe80::1", "febf::", "fec0::", "::ffff:0:0"]
        .iter()
        .chain(&["::ffff:127.0.0.1", "::ffff:169.254.1.1", "::fffe:10.0.0.1"])
        .map(|text| text.parse().unwrap())
        .collect();
    for number in 0..4000 {
        let any = word();
        let below = match number % 3 {
            // Bits 64 to 71 are 0.
            0 => any & !(0xff << 56),
            _ => any,
        };
        let prefix = prefixes[number % prefixes.len()];
        let length = u32::from(prefix.length128());
        found.push(Ipv6Addr::from_bits(
            prefix.bits() | below & u128::MAX.checked_shr(length).unwrap_or(0),
        ));
        found.push(Ipv6Addr::from_bits(any));
        found.push(Ipv6Addr::from_bits(0xffff << 32 | any >> 96));
    }
    found
}

#[test]
fn addresses_of_the_kernel_and_of_rust_have_one_form() {
    let further = [
        "64:ff9b:1::/48",
        "2001:db8::/32",
        "2001:db9:100::/40",
        "2001:dba:122:300::/56",
        "2001:dbb:122:344::/64",
        "2001:dbc:122:344::/96",
    ];
    let further = further.map(|text| Prefix::parse(text).unwrap());
    let nat64 = Nat64::new(&further);
    let table = nat64.prefixes().iter();
    let table: String = table
        .map(|prefix| format!(" {} {}", prefix.length(), prefix.address()))
        .collect();
    let addresses = addresses(nat64.prefixes());
    let mut input = String::new();
    for address in &addresses {
        writeln!(input, "{address}{table}").unwrap();
    }

    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new(compiled(directory.path()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());

    let answers = String::from_utf8(output.stdout).unwrap();
    assert_eq!(answers.lines().count(), addresses.len());
    let mut unwrapped = 0;
    for (address, answer) in addresses.iter().zip(answers.lines()) {
        let form = nat64.unwrap_address(IpAddr::V6(*address));
        unwrapped += usize::from(form.is_ipv4() && address.to_ipv4_mapped().is_none());
        let expected = format!(
            "{:032x} {} {} {}",
            address_bits(form),
            u8::from(is_ipv4(form)),
            u8::from(is_loopback(form)),
            u8::from(is_link_local(form))
        );
        assert_eq!(answer, expected, "{address}");
    }
    assert!(unwrapped > 1000, "{unwrapped}");
}
