//! Invariants of every controller, for any sequence of events.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use thalweg_rate::models::{
    Document, FeatureEntry, FloatLayer, ModelFile, Network, Policy, Training,
};
use thalweg_sim::Time;
use thalweg_sim::cc::learned::{Model, Options};
use thalweg_sim::cc::{
    Ack, AnyController, Command, Context, Controller, Hop, Kind, Loss, Response, Setup, Spec,
    TIMERS,
};

/// An event of a flow.
#[derive(Debug, Clone)]
enum Event {
    /// Time passes, nanoseconds; timers expire.
    Wait(u64),
    Response {
        probe_lost: bool,
        rtt_ns: u64,
        acked_bytes: u64,
        marked_bytes: u64,
        lost_bytes: u64,
    },
    Ack {
        rtt_ns: u64,
        acked_bytes: u64,
        marked: bool,
        ack_bytes: u64,
        flight_bytes: u64,
        hops: Vec<Hop>,
    },
    Notification,
    Loss(Loss),
    Sent(u32),
}

fn hop() -> impl Strategy<Value = Hop> {
    (
        0..100_000_000_u64,
        0..1_000_000_000_000_u64,
        0..1_000_000_u64,
        rate_bps(),
    )
        .prop_map(|(queue_bytes, sent_bytes, at_ns, rate_bps)| Hop {
            queue_bytes,
            sent_bytes,
            at: Time::from_ns(at_ns),
            rate_bps,
        })
}

/// 1 Mbit/s to 400 Gbit/s, each magnitude equally likely.
fn rate_bps() -> impl Strategy<Value = f64> {
    (6.0..11.6_f64).prop_map(|exponent| 10_f64.powf(exponent))
}

/// 1 ns to 10 s.
fn rtt_ns() -> impl Strategy<Value = u64> {
    (0.0..10.0_f64).prop_map(|exponent| 10_f64.powf(exponent) as u64)
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0..400_000_u64).prop_map(Event::Wait),
        3 => (
            prop::bool::weighted(0.2),
            rtt_ns(),
            0..1_000_000_u64,
            0..1_000_000_u64,
            0..1_000_000_u64,
        )
            .prop_map(|(probe_lost, rtt_ns, acked_bytes, marked_bytes, lost_bytes)| Event::Response {
                probe_lost,
                rtt_ns,
                acked_bytes,
                marked_bytes: marked_bytes.min(acked_bytes),
                lost_bytes,
            }),
        4 => (
            rtt_ns(),
            0..1_000_000_u64,
            any::<bool>(),
            0..1_000_000_000_u64,
            0..1_000_000_000_u64,
            prop_oneof![
                4 => proptest::collection::vec(hop(), 3),
                1 => proptest::collection::vec(hop(), 0..4),
            ],
        )
            .prop_map(|(rtt_ns, acked_bytes, marked, ack_bytes, flight_bytes, hops)| Event::Ack {
                rtt_ns,
                acked_bytes,
                marked,
                ack_bytes,
                flight_bytes,
                hops,
            }),
        2 => Just(Event::Notification),
        1 => Just(Event::Loss(Loss::Gap)),
        1 => Just(Event::Loss(Loss::Timeout)),
        1 => (0..20_000_000_u32).prop_map(Event::Sent),
    ]
}

fn setup() -> impl Strategy<Value = Setup> {
    (
        rate_bps(),
        0.0..6.0_f64,
        64..10_000_u32,
        1..1_000_000_u64,
        0..8_u8,
        0..10_000_u32,
        any::<u64>(),
    )
        .prop_map(
            |(line_rate_bps, magnitudes, packet_bytes, base_rtt_ns, hops, expected_flows, seed)| {
                Setup {
                    line_rate_bps,
                    min_rate_bps: line_rate_bps / 10_f64.powf(magnitudes),
                    packet_bytes,
                    base_rtt: Time::from_ns(base_rtt_ns),
                    hops,
                    expected_flows,
                    seed,
                }
            },
        )
}

/// Any controller: as published, with one parameter anywhere in its range, or a network with random
/// weights.
fn spec() -> impl Strategy<Value = Spec> {
    let named = (
        0..Kind::ALL.len(),
        any::<prop::sample::Index>(),
        -7.0..7.0_f64,
    )
        .prop_map(|(kind, field, exponent)| {
            let kind = Kind::ALL[kind];
            let parameters = kind.spec().parameters();
            let (field, default) = parameters
                .iter()
                .nth(field.index(parameters.len()))
                .expect("an index below the length");
            let value = 10_f64.powf(exponent);
            let value = match default {
                toml::Value::Integer(_) => toml::Value::Integer(value as i64),
                toml::Value::Boolean(switch) => toml::Value::Boolean(!switch),
                _ => toml::Value::Float(value),
            };
            let changed = toml::Table::from_iter([(field.clone(), value)]);
            kind.with_parameters(changed)
                .unwrap_or_else(|_| kind.spec())
        });
    let weights = prop_oneof![9 => -1.0..1.0_f32, 1 => -1e6..1e6_f32];
    let weights = proptest::collection::vec(weights, 4 * 12 + 12 * 12 + 12);
    let network = weights.prop_map(|weights| Spec::Learned(Arc::new(network(&weights))));
    prop_oneof![6 => named, 1 => network]
}

/// The published network, 4-12-12-1, without biases.
fn network(weights: &[f32]) -> Model {
    let (first, weights) = weights.split_at(4 * 12);
    let (second, last) = weights.split_at(12 * 12);
    let layer = |columns, weights: &[f32]| {
        let bias = vec![0.0; weights.len() / columns];
        FloatLayer::new("layer", columns, weights, &bias).expect("weights in range")
    };
    let layers = vec![layer(4, first), layer(12, second), layer(12, last)];
    let feature = |name: &str| FeatureEntry {
        name: name.into(),
        scale: 1.0,
    };
    let document = Document {
        name: "random".into(),
        kind: thalweg_rate::models::Kind::Mlp,
        features: vec![feature("action"), feature("error")],
        history: 2,
        target: 0.05,
        offset: 1.0,
        hidden: vec![12, 12],
        activation_amax: None,
        training: Training {
            scenarios: vec![],
            seed: 0,
            commit: String::new(),
            base_rtt_ns: 12_000,
            line_rate_bps: 100_000_000_000,
        },
        evaluation: serde_json::Map::new(),
    };
    let content = ModelFile {
        features: document.integer_features().expect("two features"),
        document,
        policy: Policy::Mlp {
            float: Network::new(layers).expect("layers fit"),
            integer: None,
        },
    };
    Model::new(content, Path::new("random"), Options::default()).expect("a network")
}

/// A flow that checks its controller after each call.
struct Flow {
    controller: AnyController,
    command: Command,
    timers: [Time; TIMERS],
    now: Time,
    setup: Setup,
}

impl Flow {
    fn call(
        &mut self,
        event: impl FnOnce(&mut AnyController, &mut Context<'_>),
    ) -> Result<(), TestCaseError> {
        event(
            &mut self.controller,
            &mut Context {
                now: self.now,
                command: &mut self.command,
                timers: &mut self.timers,
            },
        );
        let Command {
            rate_bps,
            window_bytes,
        } = self.command;
        prop_assert!(rate_bps >= self.setup.min_rate_bps, "{rate_bps}");
        prop_assert!(rate_bps <= self.setup.line_rate_bps, "{rate_bps}");
        // Infinite where there is no window.
        prop_assert!(window_bytes > 0.0, "{window_bytes}");
        for timer in self.timers {
            prop_assert!(timer > self.now, "{timer} is not after {}", self.now);
        }
        Ok(())
    }

    fn happen(&mut self, event: &Event) -> Result<(), TestCaseError> {
        match event {
            Event::Wait(ns) => {
                let until = self.now + Time::from_ns(*ns);
                while let Some((timer, at)) = (self.timers.iter().copied().enumerate())
                    .filter(|(_, at)| *at <= until)
                    .min_by_key(|(_, at)| *at)
                {
                    self.now = at;
                    self.timers[timer] = Time::MAX;
                    self.call(|controller, context| controller.on_timer(timer, context))?;
                }
                self.now = until;
                Ok(())
            }
            Event::Response {
                probe_lost,
                rtt_ns,
                acked_bytes,
                marked_bytes,
                lost_bytes,
            } => {
                let rtt = Time::from_ns(*rtt_ns);
                let response = Response {
                    rtt,
                    sent_at: self.now.saturating_sub(rtt),
                    acked_bytes: *acked_bytes,
                    marked_bytes: *marked_bytes,
                    lost_bytes: *lost_bytes,
                    hops: &[],
                };
                self.call(|controller, context| match probe_lost {
                    true => controller.on_probe_lost(&response, context),
                    false => controller.on_response(&response, context),
                })
            }
            Event::Ack {
                rtt_ns,
                acked_bytes,
                marked,
                ack_bytes,
                flight_bytes,
                hops,
            } => {
                let ack = Ack {
                    rtt: Time::from_ns(*rtt_ns),
                    acked_bytes: *acked_bytes,
                    marked: *marked,
                    ack_bytes: *ack_bytes,
                    sent_bytes: ack_bytes + flight_bytes,
                    hops,
                };
                self.call(|controller, context| controller.on_ack(&ack, context))
            }
            Event::Notification => {
                self.call(|controller, context| controller.on_notification(context))
            }
            Event::Loss(loss) => {
                self.call(|controller, context| controller.on_loss(*loss, context))
            }
            Event::Sent(bytes) => {
                // Only controllers that asked for it hear of it.
                if self.controller.required_signals().sent {
                    self.call(|controller, context| controller.on_sent(*bytes, context))?;
                }
                Ok(())
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn rates_stay_within_their_limits_and_windows_above_zero(
        spec in spec(),
        setup in setup(),
        events in proptest::collection::vec(event(), 1..100),
    ) {
        let mut flow = Flow {
            controller: spec.build(),
            command: Command { rate_bps: f64::NAN, window_bytes: f64::NAN },
            timers: [Time::MAX; TIMERS],
            now: Time::from_us(3),
            setup: setup.clone(),
        };
        flow.call(|controller, context| controller.start_flow(&setup, context))?;
        for event in &events {
            flow.happen(event)?;
        }
    }
}
