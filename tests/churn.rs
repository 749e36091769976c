//! Host records while several CPUs create, change and evict them in a map that is too small.

mod privileged;

use std::sync::Barrier;

use libbpf_rs::{MapCore, MapFlags, MapHandle, ObjectBuilder};
use thalweg_bpf_types::{CopyState, bytes_of, check_copy, from_bytes, key_from_raw, raw};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/churn.bpf.o"));

/// Connections that each thread makes in one go.
const CONNECTIONS: u32 = 20_000;

/// As in `churn.bpf.c`: a record's content follows from its key.
fn check(key: &raw::thalweg_host_key, host: &raw::thalweg_host) -> Result<(), String> {
    let id = u32::from_be_bytes([0, key.addr[13], key.addr[14], key.addr[15]]);
    let (rtt_us, arm) = (id + 1, id as usize % host.arms.len());
    // Created, and not yet written.
    let new = host.seq_tail == 0;
    let both = host.arms.iter().zip(&host.statistics);
    let others = both.enumerate().filter(|(i, _)| *i != arm);
    let strangers: u32 = others
        .map(|(_, (state, more))| state.chosen + more.scored)
        .sum();
    let said = [
        ("least RTT", new || host.min_rtt_us == rtt_us),
        (
            "least RTT of its arm",
            new || host.statistics[arm].min_rtt_us == rtt_us,
        ),
        // Counts are not atomic. If two CPUs score one host at once, either count may lose one. A
        // copy may also fall between the two.
        (
            "measurements",
            host.scored.abs_diff(host.statistics[arm].scored) <= 1,
        ),
        ("other arms", strangers == 0),
    ];
    match said.iter().find(|(_, good)| !good) {
        None => Ok(()),
        Some((what, _)) => Err(format!("host {id}: {what}: {host:?}")),
    }
}

/// Reads every record, as the agent does.
fn look(hosts: &MapHandle) -> (u32, Vec<String>) {
    let (mut read, mut faults) = (0, Vec::new());
    for key in hosts.keys() {
        let Ok(Some(value)) = hosts.lookup(&key, MapFlags::ANY) else {
            continue;
        };
        let host: raw::thalweg_host = from_bytes(&value).expect("a record");
        let key: raw::thalweg_host_key = from_bytes(&key).expect("a key");
        if check_copy(&key_from_raw(&key), &host) != CopyState::Whole {
            continue;
        }
        read += 1;
        faults.extend(check(&key, &host).err());
    }
    (read, faults)
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn records_are_not_mixed_however_fast_they_are_recycled() {
    churn(128, 15);
}

#[test]
#[ignore = "slow: sixteen million connections, a minute"]
fn records_are_not_mixed_in_a_map_of_a_few() {
    churn(16, 400);
}

/// Makes connections for thousands of hosts in a map with this number of records.
fn churn(records: u32, rounds: u32) {
    let mut open = ObjectBuilder::default()
        .open_memory(OBJECT)
        .expect("an object");
    let params = raw::thalweg_params {
        mode: raw::THALWEG_MODE_THALWEG,
        weight_max_q16: 8 << 16,
        idle_shift: 6,
        score_full_bytes: 1 << 20,
        loss_shift: 6,
        rescue_arm: raw::THALWEG_NO_ARM,
        ..Default::default()
    };
    for mut map in open.maps_mut() {
        match map.name().to_str() {
            Some("hosts") => map.set_max_entries(records).expect("a size"),
            Some(".rodata.params") => map.set_initial_value(bytes_of(&params)).expect("a value"),
            _ => {}
        }
    }
    let object = match open.load() {
        Ok(object) => object,
        Err(error) => {
            let why = format!("cannot load churn.bpf.c: {error:#}");
            assert!(why.contains("(os error 1)"), "{why}");
            privileged::skip(&why);
            return;
        }
    };
    let hosts = object.maps().find(|map| map.name() == "hosts");
    let hosts = MapHandle::try_from(&hosts.expect("the records")).expect("a handle");
    let program = object.progs().find(|program| program.name() == "churn");
    let program = program.expect("the program");
    let fd = std::os::fd::AsFd::as_fd(&program)
        .try_clone_to_owned()
        .expect("a descriptor");
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
    let start = Barrier::new(threads + 1);
    let (read, faults) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..rounds {
                        run(&fd);
                    }
                })
            })
            .collect();
        start.wait();
        let (mut read_so_far, mut faults) = (0, Vec::new());
        while workers.iter().any(|worker| !worker.is_finished()) {
            let (read, found) = look(&hosts);
            read_so_far += read;
            faults.extend(found);
        }
        (read_so_far, faults)
    });
    let (left, at_the_end) = look(&hosts);
    assert!(
        faults.is_empty() && at_the_end.is_empty(),
        "{} of {read} records read meanwhile, {} of {left} at the end: {:?}",
        faults.len(),
        at_the_end.len(),
        at_the_end.first().or(faults.first())
    );
    assert!(left > 0 && read > 1000, "{read} read, {left} left");
}

/// Makes [`CONNECTIONS`] connections.
fn run(program: &std::os::fd::OwnedFd) {
    use std::os::fd::AsRawFd;
    let packet = [0u8; 64];
    let mut options = libbpf_rs::libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_test_run_opts>() as _,
        data_in: packet.as_ptr().cast(),
        data_size_in: packet.len() as u32,
        repeat: CONNECTIONS as i32,
        ..Default::default()
    };
    // SAFETY: the descriptor and the packet outlive the call; sizes match the objects.
    let failed =
        unsafe { libbpf_rs::libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    assert_eq!(failed, 0, "running the program");
    assert_eq!(options.retval, 0);
}
