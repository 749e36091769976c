//! A command behind an emulated path, without root.
//!
//! Two fresh network namespaces, *near* and *far*, have a TUN device each. This process carries
//! every packet between them as the [`Settings`] say. Near runs the command, far may run its peer.
//!
//! [`engine`] decides each packet's fate and knows neither clock nor I/O;
//! [`forward`] gives it both, one thread a direction. Nothing here knows BPF, the laboratory or a
//! congestion control.

mod accuracy;
mod ack_delay;
pub mod aqm;
mod child;
pub mod engine;
mod error;
pub mod forward;
mod log;
pub mod namespace;
pub mod outside;
mod packet;
pub mod quantity;
mod random;
mod ready;
mod report;
mod resolv;
pub mod run;
mod settings;
pub mod trace;
pub mod tun;

pub use accuracy::Percentiles;
pub use error::Error;
pub use report::{Direction, ERROR_TARGET_US, FORMAT, Report};
pub use run::{Finished, Task, run_task};
pub use settings::Settings;
