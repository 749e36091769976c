//! The round-trip time programs (`bpf/rtt.bpf.c`): loading, attaching, reading.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, ProgramInput, TC_EGRESS, TC_INGRESS, TcHookBuilder};
use thalweg_bpf_objects::rtt::{OpenRttSkel, RttSkelBuilder, types};

use super::netns::Namespace;
use crate::error::Error;

/// The unit of the histogram, µs (`UNIT_SHIFT`).
const UNIT_US: f64 = 0.064;
/// Buckets per doubling (`PARTS`).
const PARTS: usize = 16;

/// After the loss program, whose priority is 1.
const PRIORITY: u32 = 2;

/// Round-trip times of a connection: the middle of a bucket, µs, and the number of samples in it. A
/// bucket is at most a sixteenth of its value wide.
pub(crate) type Histogram = Vec<(f64, u64)>;

/// The programs on one interface. They are removed with it.
#[derive(Debug)]
pub(crate) struct Rtt {
    flows: MapHandle,
}

/// Round-trip times by connection.
#[derive(Debug, Default)]
pub(crate) struct RoundTrips {
    by_connection: BTreeMap<(IpAddr, u16), Histogram>,
}

impl RoundTrips {
    /// Removes and returns those of the connection from a local port to a remote host; empty if
    /// there are none.
    pub(crate) fn take_connection(&mut self, remote: IpAddr, local_port: u16) -> Histogram {
        self.by_connection
            .remove(&(remote, local_port))
            .unwrap_or_default()
    }
}

impl Rtt {
    /// Loads the programs and attaches them to an interface that already has the loss program.
    pub(crate) fn attach(namespace: &Namespace, interface: &str) -> Result<Self, Error> {
        let mut storage = MaybeUninit::uninit();
        let mut open = open_object(&mut storage)?;
        open.progs.find_bucket.set_autoload(false);
        let skeleton = open.load().map_err(rtt_error("loaded"))?;
        let programs = [
            (skeleton.progs.note_sent.as_fd(), TC_EGRESS),
            (skeleton.progs.match_echo.as_fd(), TC_INGRESS),
        ];
        namespace.run_within(|| {
            let index = nix::net::if_::if_nametoindex(interface).map_err(|errno| {
                Error::system(format!("no interface {interface}"))(errno.into())
            })?;
            for (program, direction) in programs {
                TcHookBuilder::new(program)
                    .ifindex(index as i32)
                    .handle(1)
                    .priority(PRIORITY)
                    .hook(direction)
                    .attach()
                    .map_err(rtt_error("attached"))?;
            }
            Ok(())
        })?;
        let flows = MapHandle::try_from(&skeleton.maps.flows).map_err(rtt_error("kept"))?;
        Ok(Self { flows })
    }

    /// The measurements since the last call.
    pub(crate) fn take_measurements(&self) -> Result<RoundTrips, Error> {
        let mut taken = RoundTrips::default();
        // Keys are collected first: deleting one restarts the iteration.
        for key in self.flows.keys().collect::<Vec<_>>() {
            let value = self
                .flows
                .lookup(&key, MapFlags::ANY)
                .map_err(rtt_error("read"))?;
            let Some(value) = value else { continue };
            self.flows.delete(&key).map_err(rtt_error("cleared"))?;
            let (Some(endpoints), Some(flow)) = (
                from_bytes::<types::endpoints>(&key),
                from_bytes::<types::flow>(&value),
            ) else {
                continue;
            };
            let mut address = [0; 16];
            for (bytes, word) in address.chunks_mut(4).zip(endpoints.remote) {
                bytes.copy_from_slice(&word.to_ne_bytes());
            }
            let remote = Ipv6Addr::from(address).to_canonical();
            let port = u16::from_be(endpoints.local_port);
            // A local port may have met several ports of the remote host.
            let histogram = taken.by_connection.entry((remote, port)).or_default();
            histogram.extend(histogram_of(&flow.buckets));
        }
        Ok(taken)
    }
}

/// The buckets with samples.
fn histogram_of(buckets: &[u32]) -> Histogram {
    buckets
        .iter()
        .enumerate()
        .filter(|(_, count)| **count > 0)
        .map(|(place, count)| (middle_us(place), u64::from(*count)))
        .collect()
}

/// The middle of a bucket, µs, to the nanosecond.
fn middle_us(place: usize) -> f64 {
    let (first, width) = bucket_bounds(place);
    ((first as f64 + width as f64 / 2.0) * UNIT_US * 1e3).round() / 1e3
}

/// Start and width of a bucket, in units: the inverse of `bucket()`.
fn bucket_bounds(place: usize) -> (u64, u64) {
    match place / PARTS {
        0 => (place as u64, 1),
        range => {
            let width = 1 << (range - 1);
            ((PARTS + place % PARTS) as u64 * width, width)
        }
    }
}

fn open_object(storage: &mut MaybeUninit<libbpf_rs::OpenObject>) -> Result<OpenRttSkel<'_>, Error> {
    RttSkelBuilder::default()
        .open(storage)
        .map_err(rtt_error("opened"))
}

fn rtt_error(what: &'static str) -> impl Fn(libbpf_rs::Error) -> Error {
    move |why| Error::Rtt { what, why }
}

/// A struct of integers from its bytes.
fn from_bytes<T: Copy>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: there are at least as many bytes as the type has. It is only used for structs of
    // integers, for which any bytes are valid. The read may be unaligned.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// The bucket in which the programs count a time, and the middle of that bucket, µs, from a run in
/// the kernel. For tests of the arithmetic.
///
/// # Errors
/// [`Error::Rtt`] if the program cannot be loaded or run.
pub fn rehearse_buckets(times_ns: &[u64]) -> Result<Vec<(u32, f64)>, Error> {
    let mut storage = MaybeUninit::uninit();
    let mut open = open_object(&mut storage)?;
    open.progs.note_sent.set_autoload(false);
    open.progs.match_echo.set_autoload(false);
    let skeleton = open.load().map_err(rtt_error("loaded"))?;
    times_ns
        .iter()
        .map(|ns| {
            let mut frame = [0u8; 64];
            frame[14..22].copy_from_slice(&ns.to_ne_bytes());
            let input = ProgramInput {
                data_in: Some(&frame),
                ..Default::default()
            };
            let output = skeleton
                .progs
                .find_bucket
                .test_run(input)
                .map_err(rtt_error("rehearsed"))?;
            Ok((output.return_value, middle_us(output.return_value as usize)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_no_gaps_and_keep_to_a_sixteenth() {
        let mut end = 0;
        for place in 0..27 * PARTS {
            let (first, width) = bucket_bounds(place);
            assert_eq!(first, end, "{place}");
            assert!(width == 1 || width * 16 <= first, "{place}");
            end = first + width;
        }
        // 2^30 units of 64 ns: 68.7 s.
        assert_eq!(end, 1 << 30);
    }

    #[test]
    fn middles_have_known_values() {
        // 0 to 64 ns; 1024 to 1088 ns; 2048 to 2176 ns.
        for (place, us) in [(0, 0.032), (16, 1.056), (32, 2.112)] {
            assert_eq!(middle_us(place), us, "{place}");
        }
        let mut buckets = [0; 27 * PARTS];
        (buckets[16], buckets[32]) = (3, 1);
        assert_eq!(histogram_of(&buckets), [(1.056, 3), (2.112, 1)]);
    }
}
