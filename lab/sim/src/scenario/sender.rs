//! The keys of `[hosts]` that say which sender hosts have.

use serde::Deserialize;
use thalweg_units::reader::Table;
use thalweg_units::{Rate, Size};

use super::Linux;
use super::file::to_time;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Sender {
    Nic,
    Linux,
}

/// Keys of `[hosts]` that are a network card's.
const OF_NICS: [&str; 3] = ["burst", "reaction", "recovery"];

impl Linux {
    /// Takes `sender` and `linux` from `[hosts]`; none for network cards.
    pub(super) fn take_sender(hosts: &mut Table<'_>) -> Option<Self> {
        let sender: Option<Sender> = hosts.value("sender");
        let is_linux = sender == Some(Sender::Linux);
        let options = hosts.take_table("linux").map(|mut table| {
            let options = Self::from_table(&mut table);
            table.refuse_unknown_keys();
            if !is_linux {
                table.fault_here("a table", "none without `sender = \"linux\"`");
            }
            options
        });
        if is_linux {
            for key in OF_NICS.into_iter().filter(|key| hosts.has(key)) {
                let expected = "nothing: it is of the sender \"nic\" only";
                hosts.wrong(key, "a value beside `sender = \"linux\"`", expected);
            }
        }
        is_linux.then(|| options.unwrap_or_default())
    }

    fn from_table(table: &mut Table<'_>) -> Self {
        let default = Self::default();
        let headers = table.value("headers").map(|size: Size| {
            let bytes = u32::try_from(size.bytes()).unwrap_or(u32::MAX);
            if !(40..=200).contains(&bytes) {
                table.wrong("headers", size.to_string(), "40 to 200 bytes");
            }
            bytes
        });
        Self {
            header_bytes: headers.unwrap_or(default.header_bytes),
            offload: table.value("offload").unwrap_or(default.offload),
            gro: table.value("gro").map_or(default.gro, to_time),
            delayed_ack: table
                .value("delayed_ack")
                .map_or(default.delayed_ack, to_time),
            flag_delayed: table.value("flag_delayed").unwrap_or(default.flag_delayed),
            rtt: table.value("rtt").unwrap_or(default.rtt),
            rounds: table.value("rounds").unwrap_or(default.rounds),
            window: table.value("window").unwrap_or(default.window),
            pacing: table.value("pacing").unwrap_or(default.pacing),
            timer_slack: table
                .value("timer_slack")
                .map_or(default.timer_slack, to_time),
            nic_bps: table.value("nic").map(Rate::bps),
        }
    }
}
