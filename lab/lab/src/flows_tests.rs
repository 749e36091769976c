use super::*;
use crate::scenario::{Against, Flows};
use crate::units::{Seconds, Size};

fn of(kind: TrafficKind) -> Option<Plan> {
    let traffic = Traffic {
        connections: 1,
        duration: Seconds::new(2),
        warmup: Some(Seconds::new(1)).filter(|_| matches!(kind, TrafficKind::Streams { .. })),
        kind,
    };
    plan_round(&traffic, &round(0))
}

const SERVERS: [SocketAddr; 1] = [SocketAddr::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)),
    5201,
)];

fn round(number: u32) -> Round<'static> {
    Round {
        number,
        servers: &SERVERS,
        seed: 1,
        arms: &[],
    }
}

#[test]
fn each_kind_has_its_senders() {
    assert_eq!(of(TrafficKind::Bulk), None);
    let short = of(TrafficKind::Short {
        flows: 7,
        sizes: Sizes::Each(Size::from_bytes(10_000)),
        hosts: 1,
    });
    let load = Load::Flows {
        count: 7,
        bytes: Bytes::Each(10_000),
    };
    assert_eq!(short.unwrap().senders[0].load, load);
    let competing = of(TrafficKind::Competing {
        flows: 1,
        against: Against {
            cc: "cubic".into(),
            flows: 2,
        },
    });
    let senders: Vec<(String, Option<String>)> = competing
        .unwrap()
        .senders
        .into_iter()
        .map(|sender| (sender.class, sender.cc))
        .collect();
    let incumbent = (INCUMBENT.to_owned(), Some("cubic".to_owned()));
    assert_eq!(
        senders,
        [incumbent.clone(), incumbent, (String::new(), None)]
    );
    let classes: Vec<String> = of(TrafficKind::Incast {
        senders: 4,
        rpcs: None,
    })
    .unwrap()
    .senders
    .into_iter()
    .map(|sender| sender.class)
    .collect();
    assert_eq!(classes, ["rpc-1mb", "rpc-10kb", "stream", "rpc-1mb"]);
}

#[test]
fn senders_that_do_all_have_every_sort_over_connections_that_stay() {
    let plan = of(TrafficKind::Incast {
        senders: 3,
        rpcs: Some(4),
    })
    .unwrap();
    let count = |wanted: &str, load: Load| {
        let alike = |one: &&Sender| one.class == wanted && one.load == load;
        plan.senders.iter().filter(alike).count()
    };
    let calls = |bytes| Load::Calls {
        ms: 2000,
        bytes: Bytes::Each(bytes),
        pause: worker::Pause::After(0),
        think_us: 0,
    };
    assert_eq!(count("rpc-1mb", calls(1_000_000)), 12);
    assert_eq!(count("rpc-10kb", calls(10_000)), 6);
    let stream = Load::Stream {
        ms: 2000,
        skip_ms: 0,
    };
    assert_eq!(count("stream", stream), 3);
    // 3 (X + 3) flows, as the slides say.
    assert_eq!(plan.senders.len(), 21);
    assert_eq!(plan.sender_ms(), Some(2000));
    let short = of(TrafficKind::Short {
        flows: 1,
        sizes: Sizes::Each(Size::from_bytes(1)),
        hosts: 1,
    });
    assert_eq!(short.unwrap().sender_ms(), None);
}

#[test]
fn streams_and_bursts_are_of_their_classes() {
    let plan = of(TrafficKind::Streams {
        flows: Flows::same_each_round(3),
    })
    .unwrap();
    let stream = |skip_ms| Load::Stream { ms: 2000, skip_ms };
    assert_eq!(plan.senders.len(), 3);
    assert!(plan.senders.iter().all(|one| one.load == stream(1000)));
    // Only the second second is measured.
    assert_eq!(plan.sender_ms(), Some(1000));
    let plan = of(TrafficKind::LongShort {
        flows: 3,
        burst: Size::from_bytes(5_000),
        idle: "10ms".parse().unwrap(),
    });
    let loads: Vec<(String, Load)> = plan
        .unwrap()
        .senders
        .into_iter()
        .map(|sender| (sender.class, sender.load))
        .collect();
    let bursts = Load::Calls {
        ms: 2000,
        bytes: Bytes::Each(5_000),
        pause: worker::Pause::After(10),
        think_us: 0,
    };
    let short = (SHORT.to_owned(), bursts);
    assert_eq!(loads, [(LONG.to_owned(), stream(0)), short.clone(), short]);
}

#[test]
fn rounds_have_their_own_flows_sizes_and_arms() {
    let traffic = Traffic {
        kind: TrafficKind::Responses {
            flows: Flows::new(vec![1, 3]),
            sizes: Sizes::Lognormal {
                median: Size::from_bytes(17_000),
                mean: Size::from_bytes(340_000),
                tail: None,
            },
            idle: Idle::Every("2s".parse().unwrap()),
            think: "25ms".parse().unwrap(),
        },
        ..Traffic::default()
    };
    let plans: Vec<Plan> = (0..4)
        .map(|number| plan_round(&traffic, &round(number)).unwrap())
        .collect();
    let counts: Vec<usize> = plans.iter().map(|plan| plan.senders.len()).collect();
    assert_eq!(counts, [1, 3, 1, 3]);
    let mut sizes: Vec<u64> = plans
        .iter()
        .flat_map(|plan| &plan.senders)
        .map(|sender| match sender.load {
            Load::Calls {
                bytes,
                pause,
                think_us,
                ..
            } => {
                assert_eq!((pause, think_us), (worker::Pause::Every(2000), 25_000));
                bytes.of_flow(0)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    assert_eq!(sizes.len(), 8, "each sender has its own");
    let arms = ["a", "b"].map(str::to_owned);
    let drawn = |number| {
        Round {
            arms: &arms,
            ..round(number)
        }
        .drawn_arm()
        .unwrap()
            == "a"
    };
    let count = (0..200).filter(|number| drawn(*number)).count();
    // 100 are expected, with a standard deviation of 7.
    assert!((65..135).contains(&count), "{count}");
    assert_eq!(round(0).drawn_arm(), None);
}

#[test]
fn only_what_came_in_time_counts_for_a_round() {
    let flow = Flow {
        received_bytes: 1_000_000,
        in_time_bytes: 500_000,
        ..Flow::default()
    };
    // 4 Mbit in 2 s.
    assert_eq!(part_bps(&flow, 2000), 2e6);
    let error = Some("x".into());
    assert_eq!(part_bps(&Flow { error, ..flow }, 2000), 0.0);
}

#[test]
fn a_failed_flow_has_no_goodput_and_no_completion_time() {
    let flow = Flow {
        flow_bytes: Some(10_000),
        received_bytes: 10_000,
        took_us: 100.0,
        srtt_us: vec![40, 60],
        ..Flow::default()
    };
    let fine = flow_connection(flow.clone(), 3, 1.0);
    assert_eq!((fine.round, fine.goodput_bps), (3, 800e6));
    assert_eq!((fine.fct_us, fine.mean_rtt_us), (Some(100.0), Some(50.0)));
    let failed = Flow {
        error: Some("no progress".into()),
        ..flow
    };
    let failed = flow_connection(failed, 3, 1.0);
    assert_eq!((failed.goodput_bps, failed.fct_us), (0.0, None));
    assert_eq!(failed.flow_bytes, Some(10_000));
}
