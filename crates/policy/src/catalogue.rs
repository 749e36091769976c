//! The table of everything that a rule can set. Parsing, checks, warnings, the compiled form and
//! the table in `docs/reference/policy.md` come from it.
//!
//! Levels and names are those of the UAPI (`asm-generic/socket.h`, `linux/tcp.h`, `linux/in.h`,
//! `linux/in6.h`, `linux/bpf.h`). Ranges are those of `net/core/filter.c`, `net/core/sock.c` and
//! `net/ipv4/tcp.c`.

mod keys;

pub use keys::KEYS;

use crate::Version;
use std::time::Duration;
use strum::{IntoStaticStr, VariantArray};
use thalweg_units::grammar::{self, duration_text, rate_text, size_text};
use thalweg_units::schema;

/// When an operation is carried out. The numbers are those of `enum thalweg_stage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
#[repr(u8)]
pub enum Stage {
    /// Before the SYN leaves.
    Connect = 0,
    /// A socket starts to listen.
    Listen = 1,
    /// The kernel asks for a value.
    Asked = 2,
    /// The handshake is complete, on either side.
    Established = 3,
    /// A segment is retransmitted.
    Retransmission = 4,
    /// The retransmission timer expires.
    Rto = 5,
    /// The round-trip time was measured.
    Rtt = 6,
    /// The connection ends.
    Close = 7,
}

impl Stage {
    /// All stages, in order.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Name of the stage in `[rule.on.NAME]`.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Bit of the stage in a mask of stages.
    pub const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The stages of a mask, in order.
pub fn stages_in_mask(mask: u8) -> impl Iterator<Item = Stage> {
    let all = Stage::ALL.iter().copied();
    all.filter(move |stage| mask & stage.bit() != 0)
}

/// How the kernel program applies a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelOperation {
    /// `bpf_setsockopt` with a number.
    SetNumber {
        /// `SOL_*`.
        level: u16,
        /// Number of the option.
        name: u16,
    },
    /// `bpf_setsockopt` with a text.
    SetText {
        /// `SOL_*`.
        level: u16,
        /// Number of the option.
        name: u16,
    },
    /// Answers `BPF_SOCK_OPS_TIMEOUT_INIT`.
    TimeoutInit,
    /// Answers `BPF_SOCK_OPS_RWND_INIT`.
    RwndInit,
    /// Answers `BPF_SOCK_OPS_NEEDS_ECN`.
    NeedsEcn,
    /// Answers `BPF_SOCK_OPS_BASE_RTT`.
    BaseRtt,
    /// Type of service of the peer's SYN.
    ReflectTos,
    /// Events with the flow's statistics.
    Statistics,
    /// The experimental header option.
    SendOption,
    /// Reads the header option of the peer.
    ReadOption,
    /// Limits the learner.
    LearnFrom,
}

/// The form of a value, and the kernel's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// `true` or `false`.
    Flag,
    /// `true`; it cannot be switched off.
    Only,
    /// A whole number.
    Number,
    /// A size in bytes.
    Bytes,
    /// A duration in multiples of this many microseconds.
    Time(u32),
    /// A rate in bits per second; the kernel counts bytes.
    Rate,
    /// Name of a congestion control.
    Congestion,
    /// Name of a network device.
    Device,
    /// 32 bits, or "congestion".
    Option,
    /// Names of congestion controls.
    Arms,
}

/// One key of `[rule.set]` and `[rule.on.STAGE]`.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    /// Name in a policy file.
    pub name: &'static str,
    /// The kernel's name of the option or hook.
    pub option: &'static str,
    /// How the program applies it.
    pub does: KernelOperation,
    /// How its value is written.
    pub unit: Unit,
    /// Minimum and maximum, in the kernel's unit.
    pub range: (u32, u32),
    /// Stages at which `[rule.set]` sets it.
    pub set: u8,
    /// Stages at which `[rule.on.STAGE]` may set it.
    pub on: u8,
    /// First kernel that has it.
    pub since: Version,
    /// Effect of the key, for users.
    pub effect: &'static str,
    /// The trap that `check` warns of.
    pub trap: Option<&'static str>,
    /// For a key whose lower value is the stricter one, the value of a socket without any (the
    /// kernel's default, where a sysctl sets it): a lower one of the application stays.
    pub cap: Option<u16>,
}

/// The key with that name.
pub fn find_key(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

impl Key {
    /// First kernel that has this key at a stage.
    pub fn first_kernel_at(&self, mask: u8) -> Version {
        let hook = stages_in_mask(mask).map(|stage| match stage {
            Stage::Listen => Version(4, 19),
            Stage::Retransmission | Stage::Rto | Stage::Close => Version(4, 16),
            Stage::Rtt => Version(5, 3),
            Stage::Connect | Stage::Asked | Stage::Established => Version(4, 13),
        });
        let own = match self.does {
            // Only the hook counts.
            KernelOperation::Statistics => Version(4, 13),
            _ => self.since,
        };
        hook.fold(own, Version::max)
    }

    /// Whether the key is for IPv4 (`Some(true)`) or IPv6 (`Some(false)`) sockets only.
    pub fn ipv4_only(&self) -> Option<bool> {
        match self.does {
            KernelOperation::SetNumber {
                level: keys::SOL_IP,
                ..
            } => Some(true),
            KernelOperation::SetNumber {
                level: keys::SOL_IPV6,
                ..
            } => Some(false),
            _ => None,
        }
    }

    /// The form of its values, as JSON Schema.
    pub(crate) fn json_schema(&self) -> schema::Form {
        let (least, most) = self.range;
        let form = match self.unit {
            Unit::Flag => schema::boolean(),
            Unit::Only => schema::only(true),
            Unit::Number => schema::whole(least..=most),
            Unit::Bytes => schema::size(),
            Unit::Time(_) => schema::time(),
            Unit::Rate => schema::rate(),
            Unit::Congestion => schema::congestion_control(),
            Unit::Device => schema::pattern("^[!-~]{1,15}$"),
            Unit::Option => {
                schema::any_of([schema::whole(least..=most), schema::only("congestion")])
            }
            Unit::Arms => {
                let count = least as usize..=most as usize;
                schema::list(schema::congestion_control(), count, true)
            }
        };
        let trap = self.trap.map(|trap| format!(" {trap}")).unwrap_or_default();
        let text = format!(
            "{}{trap} Accepts {}. Since Linux {}.",
            self.effect,
            self.accepted_values(),
            self.since
        );
        schema::with_description(form, &text)
    }

    /// Accepted values with their units, for an error message.
    pub(crate) fn accepted_values_with_units(&self) -> String {
        let units = match self.unit {
            Unit::Bytes => grammar::SIZES,
            Unit::Time(_) => grammar::TIMES,
            Unit::Rate => grammar::RATES,
            _ => return self.accepted_values(),
        };
        format!("{} (units {units})", self.accepted_values())
    }

    /// Accepted values, in the words of an error message.
    pub fn accepted_values(&self) -> String {
        let (least, most) = self.range;
        match self.unit {
            Unit::Flag => "true or false".to_owned(),
            Unit::Only => "true".to_owned(),
            Unit::Number => format!("a whole number from {least} to {most}"),
            Unit::Bytes => format!(
                "a size from \"{}\" to \"{}\"",
                size_text(least.into()),
                size_text(most.into())
            ),
            Unit::Time(us) => {
                let text = |value: u32| {
                    duration_text(Duration::from_micros(u64::from(value) * u64::from(us)))
                };
                let whole = match us {
                    1 => "",
                    1_000 => " in whole milliseconds",
                    _ => " in whole seconds",
                };
                format!(
                    "a duration{whole} from \"{}\" to \"{}\"",
                    text(least),
                    text(most)
                )
            }
            Unit::Rate => format!(
                "a rate from \"{}\" to \"{}\"",
                rate_text(u64::from(least) * 8),
                rate_text(u64::from(most) * 8)
            ),
            Unit::Congestion => grammar::CONGESTION_CONTROL.to_owned(),
            Unit::Device => {
                "the name of a network device (1 to 15 characters, no spaces or /)".to_owned()
            }
            Unit::Option => format!("a whole number from {least} to {most}, or \"congestion\""),
            Unit::Arms => {
                format!("a list of {least} to {most} names of congestion controls, each once")
            }
        }
    }
}
