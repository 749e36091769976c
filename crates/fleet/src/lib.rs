//! What agents tell each other through a NATS server with JetStream: formats, signatures, the
//! client, and a server's set-up.
//!
//! - [`wire`] has the three kinds of messages. Whatever comes from a server is hostile until one of
//!   its parsers took it.
//! - [`keys`] signs policies, and verifies them.
//! - [`Fleet`] is the client: a thread of its own, which the agent never waits for.
//! - [`Operator`] makes buckets and publishes policies.
//! - [`setup`] writes a server's configuration, certificates and keys.
//! - [`traffic`] is the formula of bytes and messages.
#![forbid(unsafe_code)]

mod bucket;
mod client;
mod fault;
mod filter;
pub mod keys;
mod link;
mod names;
mod operator;
mod policies;
mod pull;
mod relay;
mod session;
mod settings;
pub mod setup;
mod shared;
mod text;
pub mod traffic;
pub mod wire;

pub use bucket::{BUCKETS, Bucket, Limits, WantedLimits};
pub use client::{Fleet, Member, StartError};
pub use fault::{Fault, Kind};
pub use names::{Name, NameError};
pub use operator::{BucketChange, Operator, OperatorError};
pub use settings::{Identity, Settings, SettingsError, Timing, check_server};
pub use shared::{Connection, Incoming, Outgoing, ReportedFault, State, Traffic};
