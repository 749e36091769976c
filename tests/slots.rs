//! How connections fill the table of measured connections, on a machine with many CPUs.

use thalweg_bpf_types::raw;
use thalweg_tests::{Implementation, Native, Request, raw as vector};

/// Socket cookies that a CPU reserves at a time (Linux, `COOKIE_LOCAL_BATCH`).
const BATCH: u64 = 4096;
const CPUS: usize = 64;
const CONNECTIONS: usize = 100_000;

/// The possible slots of a connection.
trait Place {
    fn slots(&mut self, cookie: u64) -> [usize; raw::THALWEG_PROBES as usize];
}

/// As in the kernel's program.
struct Ours(Native, Request);

impl Place for Ours {
    fn slots(&mut self, cookie: u64) -> [usize; raw::THALWEG_PROBES as usize] {
        std::array::from_fn(|probe| {
            self.1.function = vector::VECTOR_SLOT;
            self.1.inputs = [cookie, probe as u64, 0, 0];
            self.0.answer(&mut self.1).expect("a slot");
            self.1.outputs[0] as usize
        })
    }
}

/// The cookie's remainder, and the following slots.
struct Remainder;

impl Place for Remainder {
    fn slots(&mut self, cookie: u64) -> [usize; raw::THALWEG_PROBES as usize] {
        let slots = raw::THALWEG_CONNECTIONS as usize;
        std::array::from_fn(|probe| (cookie as usize + probe) % slots)
    }
}

/// SplitMix64.
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as usize
}

/// Share of the connections that find all their slots taken. A number of connections is open at any
/// time, opened by any CPU and closed in any order.
fn displaced(place: &mut dyn Place, cpus: usize, open: usize) -> f64 {
    let mut state = 1;
    let mut batches = vec![(0, 0); cpus];
    let mut given_out = 0;
    let mut table = vec![0; raw::THALWEG_CONNECTIONS as usize];
    let mut living: Vec<u64> = Vec::new();
    let mut lost = 0;
    for _ in 0..CONNECTIONS {
        let (next, end) = &mut batches[random(&mut state) % cpus];
        if next == end {
            given_out += BATCH;
            (*next, *end) = (given_out, given_out + BATCH);
        }
        let cookie = *next;
        *next += 1;
        if living.len() == open {
            let ended = living.swap_remove(random(&mut state) % open);
            if let Some(slot) = place
                .slots(ended)
                .iter()
                .find(|&&slot| table[slot] == ended)
            {
                table[*slot] = 0;
            }
        }
        match place.slots(cookie).iter().find(|&&slot| table[slot] == 0) {
            Some(&slot) => table[slot] = cookie,
            None => lost += 1,
        }
        living.push(cookie);
    }
    f64::from(lost) / CONNECTIONS as f64
}

#[test]
fn many_cpus_do_not_take_each_others_slots() {
    // One slot in eight, one in four, one in two is taken.
    for (open, at_most) in [(8_192, 0.001), (16_384, 0.008), (32_768, 0.08)] {
        for cpus in [1, 8, CPUS] {
            let mut ours = Ours(Native, Request::default());
            let share = displaced(&mut ours, cpus, open);
            assert!(share <= at_most, "{open} open, {cpus} CPUs: {share:.4}");
        }
    }
    // The case that the hash is for.
    let share = displaced(&mut Remainder, CPUS, 8_192);
    assert!(share > 0.2, "{share:.4}");
}
