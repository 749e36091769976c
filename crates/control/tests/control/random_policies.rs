//! Policies of random rules, the same for a seed everywhere.

use std::collections::BTreeMap;
use std::fmt::Write;

use thalweg_lab::host::Side;

use thalweg_testbed::Bed;

/// splitmix64: the same policies and flows for a seed, everywhere.
pub struct Random(pub u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % bound as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// The ends of connections that have a setting, and its family.
#[derive(Clone, Copy, PartialEq)]
pub enum Ends {
    All,
    Active,
    Ipv4,
    Ipv6,
}

/// A setting whose effect can be read from the socket.
pub struct Setting {
    pub key: &'static str,
    pub level: i32,
    pub name: i32,
    pub ends: Ends,
    /// Whether `[rule.on.listen]` may set it, and accepted connections inherit it.
    listen: bool,
    /// Values as in the file, and as the socket returns them.
    pub values: &'static [(&'static str, &'static str)],
}

const fn setting(
    key: &'static str,
    (level, name): (i32, i32),
    ends: Ends,
    listen: bool,
    values: &'static [(&'static str, &'static str)],
) -> Setting {
    Setting {
        key,
        level,
        name,
        ends,
        listen,
        values,
    }
}

pub const SETTINGS: &[Setting] = &[
    setting(
        "mark",
        (1, 36),
        Ends::All,
        true,
        &[("1", "1"), ("77", "77")],
    ),
    setting(
        "priority",
        (1, 12),
        Ends::All,
        false,
        &[("3", "3"), ("5", "5")],
    ),
    setting(
        "user_timeout",
        (6, 18),
        Ends::All,
        true,
        &[("\"7s\"", "7000"), ("\"9s\"", "9000")],
    ),
    setting(
        "notsent_lowat",
        (6, 25),
        Ends::All,
        true,
        &[("\"16kB\"", "16000"), ("\"32kB\"", "32000")],
    ),
    setting(
        "max_pacing_rate",
        (1, 47),
        Ends::All,
        true,
        &[("\"800mbit\"", "100000000")],
    ),
    setting(
        "sndbuf",
        (1, 7),
        Ends::All,
        true,
        &[("\"100kB\"", "200000"), ("\"80kB\"", "160000")],
    ),
    setting(
        "rcvbuf",
        (1, 8),
        Ends::All,
        true,
        &[("\"100kB\"", "200000")],
    ),
    setting(
        "nodelay",
        (6, 1),
        Ends::All,
        true,
        &[("true", "1"), ("false", "0")],
    ),
    setting("keepalive", (1, 9), Ends::All, true, &[("true", "1")]),
    setting(
        "keepalive_idle",
        (6, 4),
        Ends::All,
        true,
        &[("\"30s\"", "30"), ("\"40s\"", "40")],
    ),
    setting("keepalive_count", (6, 6), Ends::All, true, &[("4", "4")]),
    setting(
        "rcvlowat",
        (1, 18),
        Ends::All,
        true,
        &[("\"1B\"", "1"), ("\"2B\"", "2")],
    ),
    setting(
        "thin_linear_timeouts",
        (6, 16),
        Ends::All,
        true,
        &[("true", "1")],
    ),
    setting(
        "congestion",
        (6, 13),
        Ends::All,
        true,
        &[("\"reno\"", "reno"), ("\"bbr\"", "bbr")],
    ),
    setting(
        "syn_count",
        (6, 7),
        Ends::Active,
        false,
        &[("3", "3"), ("4", "4")],
    ),
    setting(
        "tos",
        (0, 1),
        Ends::Ipv4,
        true,
        &[("72", "72"), ("40", "40")],
    ),
    setting(
        "tclass",
        (41, 67),
        Ends::Ipv6,
        true,
        &[("72", "72"), ("40", "40")],
    ),
];

/// A generated rule: its settings, apart from those of listeners.
pub struct Made {
    pub name: String,
    pub never: bool,
    /// Indices into [`SETTINGS`], and into the values there.
    pub set: Vec<(usize, usize)>,
    pub listen: Vec<(usize, usize)>,
}

const PREFIXES: &[&str] = &[
    "10.71.0.0/16",
    "10.71.1.0/24",
    "10.71.2.0/24",
    "10.71.1.1",
    "10.71.1.2",
    "0.0.0.0/0",
    "::ffff:10.71.2.0/120",
    "::/0",
    "fd71:1::/32",
    "fd71:1::/48",
    "fd71:2::1",
    "fd71:2::2",
    "fd00::/8",
];

fn list(random: &mut Random, words: &[&str]) -> String {
    let items: Vec<String> = (0..1 + random.below(2))
        .map(|_| format!("{:?}", random.of(words)))
        .collect();
    format!("[{}]", items.join(", "))
}

fn settings(random: &mut Random, listen: bool) -> Vec<(usize, usize)> {
    let mut chosen = BTreeMap::new();
    for _ in 0..1 + random.below(5) {
        let place = random.below(SETTINGS.len());
        if !listen || SETTINGS[place].listen {
            chosen.insert(place, random.below(SETTINGS[place].values.len()));
        }
    }
    chosen.into_iter().collect()
}

/// A policy of random rules, as text and as generated.
pub fn policy(random: &mut Random, bed: &Bed) -> (String, Vec<Made>) {
    let cgroup = bed.pair.cgroup_path().display().to_string();
    let below = cgroup
        .strip_prefix("/sys/fs/cgroup")
        .unwrap_or(&cgroup)
        .to_owned();
    let cgroups = [cgroup, below, "/no/such/cgroup".to_owned()];
    let netns = [Side::Client, Side::Server].map(|side| bed.pair.namespace_name(side).to_owned());
    let mut text = "name = \"random\"\n".to_owned();
    let mut made = Vec::new();
    for number in 0..3 + random.below(12) {
        let rule = Made {
            name: format!("r{number}"),
            never: random.chance(8),
            set: settings(random, false),
            listen: if random.chance(25) {
                settings(random, true)
            } else {
                Vec::new()
            },
        };
        writeln!(text, "[[rule]]\nname = {:?}", rule.name).unwrap();
        let mut when = Vec::new();
        if random.chance(50) {
            when.push(format!("remote = {}", list(random, PREFIXES)));
        }
        if random.chance(30) {
            when.push(format!("local = {}", list(random, PREFIXES)));
        }
        if random.chance(10) {
            when.push(format!(
                "same_prefix = {{ ipv4 = {}, ipv6 = {} }}",
                random.of(&[16, 24]),
                random.of(&[16, 32, 48])
            ));
        }
        if random.chance(25) {
            when.push(format!(
                "remote_port = {}",
                random.of(&["5001", "\"5002-5003\"", "\"1024-65535\"", "[5001, 5004]"])
            ));
        }
        if random.chance(25) {
            when.push(format!(
                "local_port = {}",
                random.of(&["5002", "\"5003-5004\"", "\"32768-65535\""])
            ));
        }
        if random.chance(40) {
            when.push(format!(
                "direction = {:?}",
                random.of(&["active", "passive"])
            ));
        }
        if random.chance(15) {
            when.push(format!("cgroup = {:?}", random.of(&cgroups)));
        }
        if random.chance(15) {
            when.push(format!("netns = {:?}", random.of(&netns)));
        }
        writeln!(text, "match = {{ {} }}", when.join(", ")).unwrap();
        if rule.never {
            writeln!(text, "never = true").unwrap();
        } else {
            let values = |chosen: &[(usize, usize)]| {
                let all = chosen.iter().map(|(place, value)| {
                    let setting = &SETTINGS[*place];
                    format!("{} = {}", setting.key, setting.values[*value].0)
                });
                all.collect::<Vec<_>>().join(", ")
            };
            let mut set = values(&rule.set);
            // Queries: the policy then remembers flows in their handshake.
            if random.chance(20) {
                set.push_str(", timeout_init = \"900ms\"");
            }
            if random.chance(20) {
                set.push_str(", rwnd_init = 40");
            }
            writeln!(text, "set = {{ {set} }}").unwrap();
            if !rule.listen.is_empty() {
                writeln!(text, "on.listen = {{ {} }}", values(&rule.listen)).unwrap();
            }
        }
        made.push(rule);
    }
    (text, made)
}
