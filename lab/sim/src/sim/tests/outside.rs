//! One flow that the caller decides for, among flows with controllers.

use super::*;
use crate::cc::{Command, Spec, TIMERS};

#[test]
fn one_flow_is_decided_outside_among_others() {
    let mut decided = 0;
    let controllers = ["swift", "timely", "dcqcn", "hpcc"];
    for (scenario, cc) in scenarios().into_iter().zip(controllers.into_iter().cycle()) {
        let own: Spec = "proportional:initial_fraction=0.05".parse().unwrap();
        let others: Spec = cc.parse().unwrap();
        let (first, rest) = (own.clone(), others.clone());
        let controller = move |flow, _: &Setup| if flow == 0 { &first } else { &rest }.build();
        let inside = Simulation::new(&scenario, controller, 9).run();

        let mut policy = own.build();
        let mut command = Command {
            rate_bps: 0.0,
            window_bytes: f64::INFINITY,
        };
        let mut timers = [Time::MAX; TIMERS];
        let mut context = Context {
            now: Time::ZERO,
            command: &mut command,
            timers: &mut timers,
        };
        let begin = |setup: &Setup| {
            policy.start_flow(setup, &mut context);
            context.command.rate_bps
        };
        let mut simulation = Simulation::with_one_outside_flow(&scenario, begin, &others, 9);
        let mut pending = Vec::new();
        while simulation.advance(&mut pending) {
            let [decision] = pending[..] else {
                panic!("{} decisions for one flow", pending.len());
            };
            assert_eq!(decision.flow, 0);
            decided += 1;
            let response = Response {
                rtt: decision.rtt,
                sent_at: decision.sent_at,
                acked_bytes: decision.acked_bytes,
                marked_bytes: decision.marked_bytes,
                lost_bytes: decision.lost_bytes,
                hops: &[],
            };
            let mut context = Context {
                now: decision.at,
                command: &mut command,
                timers: &mut timers,
            };
            match decision.probe_lost {
                true => policy.on_probe_lost(&response, &mut context),
                false => policy.on_response(&response, &mut context),
            }
            simulation.decide(0, Decision::Rate(command.rate_bps));
        }
        assert_eq!(
            inside,
            simulation.outcome_so_far(),
            "{} {cc}",
            scenario.name
        );
    }
    assert!(decided > 1_000, "{decided}");
}
