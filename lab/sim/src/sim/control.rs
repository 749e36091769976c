//! Calls of the controllers.
//!
//! Where the scenario has a reaction time, each call of a controller is delayed by it. The
//! controller sees the time of the event, and its command takes effect at once. This equals a
//! command that takes effect later, and needs no list of commands.

use crate::Time;
use crate::cc::{Ack, Context, Controller, Loss, Response, Setup, TIMERS};
use crate::engine::EventQueue;
use crate::rng::random_stream;
use crate::topology::{Wiring, transmission_time};

use super::fabric::Fabric;
use super::outside::Pending;
use super::state::{Flow, Probe, put_in_slot};
use super::{EventKind, Settings, Simulation};

const NO_TIMERS: [Time; TIMERS] = [Time::MAX; TIMERS];

/// The flows' controllers.
pub(super) struct Control<C> {
    pub controllers: Vec<C>,
    pub setups: Vec<Setup>,
    pub timers: Vec<[Time; TIMERS]>,
    /// When each timer's event is due; other events are stale.
    pub timer_events: Vec<[Time; TIMERS]>,
    /// Whether any controller has ever set a timer.
    timed: bool,
    /// Pending decisions, if they are made outside.
    pub pending: Option<Vec<Pending>>,
    /// Whether controllers decide for some of the flows nevertheless.
    pub mixed: bool,
}

impl<C> Control<C> {
    pub fn new(setups: Vec<Setup>, factory: &mut dyn FnMut(u32, &Setup) -> C) -> Self {
        let mut control = Self {
            controllers: Vec::new(),
            setups: Vec::new(),
            timers: Vec::new(),
            timer_events: Vec::new(),
            timed: false,
            pending: None,
            mixed: false,
        };
        for (flow, setup) in setups.into_iter().enumerate() {
            control.admit_flow(flow, factory(flow as u32, &setup), setup);
        }
        control
    }

    /// Gives the flow in this slot a controller.
    pub fn admit_flow(&mut self, place: usize, controller: C, setup: Setup) {
        put_in_slot(&mut self.controllers, place, controller);
        put_in_slot(&mut self.setups, place, setup);
        put_in_slot(&mut self.timers, place, NO_TIMERS);
        put_in_slot(&mut self.timer_events, place, NO_TIMERS);
    }
}

/// The setup of each flow's controller.
pub(super) fn controller_setups(
    set: &Settings,
    wiring: &Wiring,
    flows: &[Flow],
    fabric: &Fabric,
    seed: u64,
) -> Vec<Setup> {
    let mut sharing = vec![0u32; wiring.ports.len()];
    let mut sending = vec![0u32; wiring.hosts as usize];
    for flow in flows {
        sending[flow.host as usize] += 1;
        for port in fabric.flow_path(flow) {
            sharing[*port as usize] += 1;
        }
    }
    (0u64..)
        .zip(flows)
        .map(|(number, flow)| {
            let path = fabric.flow_path(flow);
            let links = wiring.links_of(flow.host, path);
            let ports = path.iter().map(|port| sharing[*port as usize]);
            let flows = std::iter::once(sending[flow.host as usize]).chain(ports);
            // The narrowest link is the one with the lowest rate per flow.
            let expected = (links.iter().zip(flows))
                .min_by_key(|(link, flows)| link.rate_bps / u64::from((*flows).max(1)))
                .map_or(1, |(_, flows)| flows);
            set.flow_setup(
                &links,
                flow.back,
                expected,
                random_stream(seed, number).u64(),
            )
        })
        .collect()
}

impl<C: Controller, Q: EventQueue> Simulation<C, Q> {
    /// Calls a flow's controller and applies its command.
    #[inline]
    pub(super) fn call_controller(
        &mut self,
        index: usize,
        now: Time,
        call: impl FnOnce(&mut C, &mut Context<'_>),
    ) {
        let mut timers = if self.control.timed {
            self.control.timers[index]
        } else {
            NO_TIMERS
        };
        let flow = &mut self.transport.flows[index];
        let before = flow.command.rate_bps;
        call(
            &mut self.control.controllers[index],
            &mut Context {
                now,
                command: &mut flow.command,
                timers: &mut timers,
            },
        );
        if flow.command.rate_bps != before {
            let line = self.transport.hosts[flow.host as usize].rate_bps;
            // NaN becomes the lowest rate.
            flow.command.rate_bps = flow.command.rate_bps.max(self.set.min_rate_bps).min(line);
            let bits = f64::from(self.set.packet_bytes) * 8.0;
            flow.gap = Time::from_ps((bits * 1e12 / flow.command.rate_bps + 0.5) as u64);
        }
        if self.control.timed || timers != NO_TIMERS {
            self.control.timed = true;
            self.control.timers[index] = timers;
            for (number, timer) in timers.into_iter().enumerate() {
                if timer != Time::MAX {
                    let due = (timer + self.set.reaction).max(self.now);
                    if due < self.control.timer_events[index][number] {
                        self.control.timer_events[index][number] = due;
                        self.schedule_event(due, EventKind::Timer, index as u32, number as u32);
                    }
                }
            }
        }
        self.reschedule_turn(index);
    }

    /// Time of the event that the controller hears of now.
    fn event_time(&self) -> Time {
        self.now.saturating_sub(self.set.reaction)
    }

    pub(super) fn start_controller(&mut self, index: usize) {
        if self.linux.is_some() {
            self.tcp_begin(index);
        }
        let setup = self.control.setups[index].clone();
        let line = setup.line_rate_bps;
        let flow = &mut self.transport.flows[index];
        flow.gap = transmission_time(self.set.packet_bytes, line as u64);
        self.call_controller(index, self.now, |controller, context| {
            controller.start_flow(&setup, context);
        });
    }

    pub(super) fn deliver_response(&mut self, index: usize) {
        let bytes = u64::from(self.set.packet_bytes);
        let now = self.event_time();
        let flow = &mut self.transport.flows[index];
        let probe_lost = flow.probe == Probe::Lost;
        let [acked, marked, lost] = flow.reported_counts();
        flow.probe = Probe::Idle;
        self.meter.decisions += 1;
        let hops = if self.set.needs.telemetry && !probe_lost {
            self.transport.answer_telemetry[index]
        } else {
            Default::default()
        };
        let response = Response {
            rtt: now - flow.probe_sent,
            sent_at: flow.probe_sent,
            acked_bytes: u64::from(acked) * bytes,
            marked_bytes: u64::from(marked) * bytes,
            lost_bytes: u64::from(lost) * bytes,
            hops: if self.set.needs.telemetry && !probe_lost {
                &hops[..=usize::from(flow.hops)]
            } else {
                &[]
            },
        };
        self.call_controller(index, now, |controller, context| {
            if probe_lost {
                controller.on_probe_lost(&response, context);
            } else {
                controller.on_response(&response, context);
            }
        });
    }

    pub(super) fn deliver_ack(&mut self, index: usize, place: u32) {
        let packet = self.fabric.packets.remove(place);
        let bytes = u64::from(self.set.packet_bytes);
        let hops = if self.set.needs.telemetry {
            self.fabric.telemetry[place as usize]
        } else {
            Default::default()
        };
        let ack = Ack {
            rtt: packet.sent,
            acked_bytes: u64::from(packet.acked) * bytes,
            marked: packet.marked,
            ack_bytes: (u64::from(packet.number) + 1) * bytes,
            sent_bytes: u64::from(self.transport.flows[index].number) * bytes,
            hops: if self.set.needs.telemetry {
                &hops[..=usize::from(self.transport.flows[index].hops)]
            } else {
                &[]
            },
        };
        let now = self.event_time();
        self.call_controller(index, now, |controller, context| {
            controller.on_ack(&ack, context);
        });
    }

    pub(super) fn tell_loss(&mut self, index: usize, loss: Loss) {
        if !self.set.needs.losses {
            return;
        }
        let argument = u32::from(loss == Loss::Timeout);
        if self.set.reaction == Time::ZERO {
            self.deliver_loss(index, argument);
        } else {
            self.schedule_event(
                self.now + self.set.reaction,
                EventKind::Lost,
                index as u32,
                argument,
            );
        }
    }

    pub(super) fn deliver_loss(&mut self, index: usize, argument: u32) {
        let loss = if argument == 0 {
            Loss::Gap
        } else {
            Loss::Timeout
        };
        let now = self.event_time();
        self.call_controller(index, now, |controller, context| {
            controller.on_loss(loss, context);
        });
    }

    pub(super) fn deliver_notification(&mut self, index: usize) {
        let now = self.event_time();
        self.call_controller(index, now, |controller, context| {
            controller.on_notification(context);
        });
    }

    pub(super) fn report_sent(&mut self, index: usize) {
        let now = self.event_time();
        let bytes = self.set.packet_bytes;
        self.call_controller(index, now, |controller, context| {
            controller.on_sent(bytes, context);
        });
    }

    pub(super) fn expire_timer(&mut self, index: usize, number: usize) {
        if self.control.timer_events[index][number] != self.now {
            return;
        }
        self.control.timer_events[index][number] = Time::MAX;
        let timer = self.control.timers[index][number];
        if timer == Time::MAX {
            return;
        }
        let due = timer + self.set.reaction;
        if due > self.now {
            // The timer was postponed.
            self.control.timer_events[index][number] = due;
            self.schedule_event(due, EventKind::Timer, index as u32, number as u32);
            return;
        }
        self.control.timers[index][number] = Time::MAX;
        let now = self.event_time();
        self.call_controller(index, now, |controller, context| {
            controller.on_timer(number, context);
        });
    }
}
