//! The learned rate controller as Linux runs it: a model, and the rules around it.
//!
//! The rules are [`thalweg_rate::kernel`], the reference of `bpf/rate.bpf.c`. This file only hands
//! on TCP's state. `docs/reference/cc.md` explains the rules. It needs hosts with Linux's TCP.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_rate::Model;
use thalweg_rate::kernel::{
    self, CwndEvent, Decide, Rate, RateSample, Settings, THALWEG_RATE_DEFAULT_REFERENCE,
    THALWEG_RATE_DEFAULT_REFERENCE_RTT_US, TcpSock,
};
use thalweg_rate::models::ModelFile;

use super::parameter::check_within;
use super::tcp::{CaState, Event, Sample, Socket};
use super::{Command, Context, Controller, Needs, ParameterError, Setup};

/// Options beside the model's file.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The rate that counts as 1, bits per second (`thalweg cc load --reference-rate`).
    pub reference_rate_bps: f64,
    /// Shorter round trips count as this, µs (`--reference-rtt`).
    pub reference_rtt_us: f64,
    /// Whether ECN is negotiated.
    pub ecn: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            reference_rate_bps: THALWEG_RATE_DEFAULT_REFERENCE as f64 * 8.0,
            reference_rtt_us: THALWEG_RATE_DEFAULT_REFERENCE_RTT_US.into(),
            ecn: false,
        }
    }
}

impl Options {
    fn program_settings<'a>(&self, model: &'a dyn Decide) -> Settings<'a> {
        Settings {
            reference_rate: (self.reference_rate_bps / 8.0) as u64,
            reference_rtt_us: self.reference_rtt_us as u32,
            model,
        }
    }

    fn tcp_sock(&self, socket: &Socket) -> TcpSock {
        TcpSock {
            tcp_mstamp: socket.tcp_mstamp,
            delivered: socket.delivered,
            delivered_ce: if self.ecn { socket.delivered_ce } else { 0 },
            lost: socket.lost,
            mss_cache: socket.mss_cache,
            srtt_us: socket.srtt_us,
            snd_cwnd: socket.snd_cwnd,
            snd_cwnd_clamp: u32::MAX,
            snd_ssthresh: socket.snd_ssthresh,
            sk_pacing_rate: socket.sk_pacing_rate,
            sk_max_pacing_rate: u64::MAX,
            sk_pacing_needed: socket.sk_pacing_needed,
            is_in_loss: socket.ca_state == CaState::Loss,
            path: socket.path,
        }
    }

    /// Hands an event of TCP on to the rules, and what they change to the socket.
    pub(crate) fn on_tcp(
        &self,
        ca: &mut Rate,
        model: &dyn Decide,
        event: &Event,
        socket: &mut Socket,
    ) {
        let set = self.program_settings(model);
        let mut tp = self.tcp_sock(socket);
        match event {
            Event::Init => *ca = kernel::rate_init(&mut tp, &set, socket.tai_ns),
            Event::Ack(sample) => {
                kernel::rate_control(ca, &mut tp, &set, &rate_sample(sample), socket.tai_ns);
            }
            Event::Loss => kernel::rate_cwnd_event(ca, &mut tp, &set, CwndEvent::Loss),
            Event::TxStart { .. } => {
                kernel::rate_cwnd_event(ca, &mut tp, &set, CwndEvent::TxStart);
            }
            // Losses never cut the window.
            Event::Recovery | Event::Open => {}
        }
        socket.snd_cwnd = tp.snd_cwnd;
        socket.snd_ssthresh = tp.snd_ssthresh;
        socket.sk_pacing_rate = tp.sk_pacing_rate;
        socket.sk_pacing_needed = tp.sk_pacing_needed;
        socket.path = tp.path;
    }
}

/// Why a model cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// The file is not a model, or cannot be read.
    #[error("{0}")]
    File(String),
    /// The file has floating-point weights only.
    #[error("{file}: `model` has no integers; a quantised network or trees are expected")]
    Float {
        /// The file.
        file: String,
    },
    /// An option is out of range.
    #[error(transparent)]
    Option(#[from] ParameterError),
}

/// A model and the settings of the program. Flows share them.
#[derive(Debug)]
pub struct Program {
    file: PathBuf,
    options: Options,
    model: Model,
}

impl Program {
    /// Reads a model file.
    ///
    /// # Errors
    /// The file cannot be read or has no model in integers, or an option is out of range.
    pub fn read(file: &Path, options: Options) -> Result<Self, ModelError> {
        check_within("reference_rate", options.reference_rate_bps, 1e6..=8e12)?;
        check_within("reference_rtt", options.reference_rtt_us, 1.0..=1e6)?;
        let read = ModelFile::read(file).map_err(|error| ModelError::File(error.to_string()))?;
        let model = read
            .policy
            .integer_model()
            .ok_or_else(|| ModelError::Float {
                file: file.display().to_string(),
            })?;
        Ok(Self {
            file: file.to_owned(),
            options,
            model: model.clone(),
        })
    }
}

/// The form of `--cc` and scenario files: the file, and the options that are not the default.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (options, default) = (&self.options, Options::default());
        write!(f, "model={}", self.file.display())?;
        if options.reference_rate_bps != default.reference_rate_bps {
            write!(f, ",reference_rate={}", options.reference_rate_bps)?;
        }
        if options.reference_rtt_us != default.reference_rtt_us {
            write!(f, ",reference_rtt={}", options.reference_rtt_us)?;
        }
        if options.ecn {
            write!(f, ",ecn=true")?;
        }
        Ok(())
    }
}

/// A flow under the program.
#[derive(Debug, Clone)]
pub struct ThalwegRl {
    program: Arc<Program>,
    ca: Rate,
}

impl ThalwegRl {
    /// A controller for one flow.
    pub fn new(program: Arc<Program>) -> Self {
        Self {
            program,
            ca: Rate::default(),
        }
    }

    /// The flow's state in the program.
    pub fn state(&self) -> &Rate {
        &self.ca
    }
}

fn rate_sample(sample: &Sample) -> RateSample {
    RateSample {
        prior_delivered: Some(sample.prior_delivered),
        rtt_us: sample.rtt_us,
        is_ack_delayed: sample.is_ack_delayed,
        is_app_limited: sample.is_app_limited,
        acked_sacked: sample.acked_sacked,
    }
}

impl Controller for ThalwegRl {
    fn required_signals(&self) -> Needs {
        Needs::TCP
    }

    fn start_flow(&mut self, setup: &Setup, context: &mut Context<'_>) {
        *context.command = Command::of_line(setup);
    }

    fn on_tcp(&mut self, event: &Event, socket: &mut Socket) {
        let program = Arc::clone(&self.program);
        (program.options).on_tcp(&mut self.ca, &program.model, event, socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::Spec;

    fn model() -> String {
        format!(
            "{}/../../models/adpg-plus.safetensors",
            env!("CARGO_MANIFEST_DIR")
        )
    }

    fn error(text: &str) -> String {
        text.parse::<Spec>().unwrap_err().to_string()
    }

    #[test]
    fn options_and_their_faults() {
        let file = model();
        let text = format!("thalweg-rl:model={file},reference_rate=1e9,reference_rtt=500,ecn=true");
        let spec: Spec = text.parse().unwrap();
        assert_eq!(
            spec.to_string(),
            format!("thalweg-rl:model={file},reference_rate=1000000000,reference_rtt=500,ecn=true")
        );
        let spec: Spec = format!("thalweg-rl:model={file}").parse().unwrap();
        let Spec::ThalwegRl(program) = &spec else {
            panic!("{spec}");
        };
        let set = program.options.program_settings(&program.model);
        assert_eq!(set.reference_rate, 1_250_000_000);
        assert_eq!(set.reference_rtt_us, 2_000);
        for (text, words) in [
            ("thalweg-rl".to_owned(), "`model` is missing"),
            (
                format!("thalweg-rl:model={file},reference_rate=1"),
                "`reference_rate` is 1; a number from 1000000 to",
            ),
            (
                format!("thalweg-rl:model={file},reference_rtt=fast"),
                "`reference_rtt` is \"fast\"; a number is expected",
            ),
            (
                format!("thalweg-rl:model={file},ecn=2"),
                "`ecn` is 2; true or false is expected",
            ),
            (
                format!("thalweg-rl:model={file},inference=int8"),
                "no parameter `inference`; there are ecn, model, reference_rate, reference_rtt",
            ),
            ("thalweg-rl:model=none".to_owned(), "none"),
        ] {
            let found = error(&text);
            assert!(found.contains(words), "{text}: {found}");
        }
    }

    /// TCP's state goes in and out; marks only where ECN is negotiated.
    #[test]
    fn the_socket_is_handed_on() {
        let spec: Spec = format!("thalweg-rl:model={}", model()).parse().unwrap();
        let Spec::ThalwegRl(program) = spec else {
            panic!("{spec}");
        };
        let mut flow = ThalwegRl::new(program);
        let mut socket = Socket {
            tcp_mstamp: 1_000_000,
            mss_cache: 1448,
            srtt_us: 2_000 << 3,
            delivered: 1,
            delivered_ce: 7,
            snd_cwnd: 10,
            ..Socket::default()
        };
        assert_eq!(Options::default().tcp_sock(&socket).delivered_ce, 0);
        flow.on_tcp(&Event::Init, &mut socket);
        assert_eq!(socket.sk_pacing_rate, 7_240_000);
        assert!(socket.sk_pacing_needed);
        let sample = Sample {
            prior_delivered: 1,
            rtt_us: Some(2_000),
            is_ack_delayed: false,
            is_app_limited: false,
            acked_sacked: 10,
            losses: 0,
            is_una_advanced: true,
        };
        socket.tcp_mstamp += 2_000;
        socket.delivered += 10;
        flow.on_tcp(&Event::Ack(sample), &mut socket);
        assert_eq!((socket.sk_pacing_rate, socket.snd_cwnd), (14_480_000, 42));
        flow.on_tcp(&Event::Loss, &mut socket);
        assert_eq!(socket.sk_pacing_rate, 7_240_000);
    }
}
