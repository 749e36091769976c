//! Generates configurations: valid ones, and ones malformed by construction.
//!
//! The accepted values of each key are stated here again, independently of the code under test.

use thalweg_units::random;

/// A file that sets every key, but for those of features, to a value other than its default, but for `advise.only`: it would
/// contradict the mode.
pub const FULL: &str = r#"mode = "classic"
dry_run = true
cgroup = "/sys/fs/cgroup/a.slice"
[paths]
pin = "/sys/fs/bpf/t"
state = "/srv/t"
socket = "/run/t.sock"
socket_group = "adm"
[arms]
allow = ["cubic", "bbr", "reno"]
deny = ["reno"]
load = ["bbr"]
needs_ecn = ["dctcp", "prague"]
ecn_prefixes = ["10.0.0.0/8", "fd00::/8"]
[timers]
enabled = true
least = "20ms"
existing = true
peers = ["10.0.0.0/8", "2001:db8::/32"]
delayed_ack = "5ms"
[idle]
enabled = true
[hosts]
max = 1024
ipv4_prefix = 24
ipv6_prefix = 48
nat64 = ["2001:db8:64::/96"]
user_namespaces = true
[networks]
enabled = false
ipv4_prefix = 20
ipv6_prefix = 40
table = "/etc/n"
[learning]
warm_up = 3
gap_scale = 32
memory = 12
staleness_shift = 5
half_life = "1h30m"
latency_weight = 0.5
latency_guard = "5ms"
score_min = "64KiB"
score_full = "2MB"
loss_shift = 7
loss_min_segments = 256
rescue = ""
stretch = "1m"
[control]
share = 0.1
permanent = 0
salt = 7
cluster_ipv4 = 24
cluster_ipv6 = 48
revert = false
[advise]
only = false
trials = 0.25
[events]
ring = "4MiB"
retention = "1d"
retention_max = 5000
share = 0.25
log = "all"
log_rate = 100
[snapshot]
interval = "60s"
[http]
listen = "[::1]:9471"
token_file = "/etc/t"
"#;

/// Number of ways to break a file.
pub const KINDS: usize = 12;

/// A malformed file.
pub struct Case {
    pub text: Vec<u8>,
    pub kind: &'static str,
    /// The broken line, from 1.
    pub line: usize,
}

/// Random choices for malformed files.
pub struct Random(pub random::Random);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        (self.0.u64() % limit as u64) as usize
    }

    fn between(&mut self, low: i64, high: i64) -> i64 {
        low + (self.0.u64() % (high - low + 1) as u64) as i64
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    fn letters(&mut self, count: usize) -> String {
        (0..count)
            .map(|_| char::from(b'a' + self.below(26) as u8))
            .collect()
    }
}

/// Accepted values of a key.
#[derive(Clone, Copy)]
enum Accepts {
    Boolean,
    Whole(i64, i64),
    /// "auto", or at least 0.
    WholeOrAuto,
    /// Bounds in tenths.
    Number(i64, i64),
    /// The same, or "auto".
    NumberOrAuto(i64, i64),
    /// Bounds in µs; whether "0" is also accepted.
    Duration(i64, i64, bool),
    /// Bounds in bytes; whether it must be a power of two.
    Size(i64, i64, bool),
    Word(&'static [&'static str]),
    Path(usize),
    PathOrAuto,
    PathOrNone,
    Loopback,
    ArmOrNone,
    GroupOrNone,
    /// Fewest and most names, whether "auto" is accepted.
    Arms(usize, usize, bool),
    /// IPv4 and IPv6 prefixes.
    Prefixes,
    /// Prefixes of NAT64.
    Nat64,
}

use Accepts::*;

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;

/// Every key, by its line in [`FULL`].
const KEYS: &[(&str, Accepts)] = &[
    ("mode", Word(&["thalweg", "classic"])),
    ("dry_run", Boolean),
    ("cgroup", PathOrAuto),
    ("paths.pin", Path(4095)),
    ("paths.state", Path(4095)),
    ("paths.socket", Path(107)),
    ("paths.socket_group", GroupOrNone),
    ("arms.allow", Arms(1, 16, true)),
    ("arms.deny", Arms(0, 64, false)),
    ("arms.load", Arms(0, 64, false)),
    ("arms.needs_ecn", Arms(0, 64, false)),
    ("arms.ecn_prefixes", Prefixes),
    ("hosts.max", Whole(64, 16_777_216)),
    ("hosts.ipv4_prefix", Whole(8, 32)),
    ("hosts.ipv6_prefix", Whole(16, 128)),
    ("hosts.nat64", Nat64),
    ("hosts.user_namespaces", Boolean),
    ("networks.enabled", Boolean),
    ("networks.ipv4_prefix", Whole(1, 32)),
    ("networks.ipv6_prefix", Whole(1, 128)),
    ("networks.table", PathOrNone),
    ("learning.warm_up", Whole(0, 1000)),
    ("learning.gap_scale", Whole(1, 1_048_576)),
    ("learning.memory", Number(10, 640)),
    ("learning.staleness_shift", Whole(1, 31)),
    ("learning.half_life", Duration(SECOND, 365 * DAY, true)),
    ("learning.latency_weight", Number(0, 40)),
    ("learning.latency_guard", Duration(1, 10 * SECOND, true)),
    ("learning.score_min", Size(0, 1 << 40, false)),
    ("learning.score_full", Size(1, 1 << 40, false)),
    ("learning.loss_shift", Whole(1, 16)),
    ("learning.loss_min_segments", Whole(1, 1_000_000)),
    ("learning.rescue", ArmOrNone),
    ("learning.stretch", Duration(SECOND, 3600 * SECOND, true)),
    ("control.share", Number(0, 5)),
    ("control.permanent", Number(0, 5)),
    ("control.salt", WholeOrAuto),
    ("control.cluster_ipv4", Whole(8, 32)),
    ("control.cluster_ipv6", Whole(16, 128)),
    ("control.revert", Boolean),
    ("advise.only", Boolean),
    ("advise.trials", Number(0, 10)),
    ("timers.enabled", Boolean),
    ("timers.least", Duration(2_000, 200_000, false)),
    ("timers.existing", Boolean),
    ("timers.peers", Prefixes),
    ("timers.delayed_ack", Duration(2_000, 200_000, false)),
    ("idle.enabled", Boolean),
    ("events.ring", Size(64 << 10, 1 << 30, true)),
    ("events.retention", Duration(60 * SECOND, 3650 * DAY, false)),
    ("events.retention_max", Whole(1000, 100_000_000)),
    ("events.share", NumberOrAuto(1, 10)),
    ("events.log", Word(&["changes", "all", "none"])),
    ("events.log_rate", Whole(1, 100_000)),
    ("snapshot.interval", Duration(SECOND, DAY, false)),
    ("http.listen", Loopback),
    ("http.token_file", PathOrNone),
];

fn accepts(key: &str) -> Accepts {
    KEYS.iter()
        .find(|(name, _)| *name == key)
        .expect("every key of FULL is listed")
        .1
}

/// A value that the key accepts. `score_min` and `score_full`, the lists of arms, and advice with
/// mode and dry run, are kept consistent.
fn right(key: &str, random: &mut Random) -> String {
    match accepts(key) {
        Boolean if key == "advise.only" => "false".to_owned(),
        Boolean => random.pick(&["true", "false"]).to_string(),
        Whole(low, high) => match random.below(4) {
            0 => low.to_string(),
            1 => high.to_string(),
            2 => format!("0x{:x}", random.between(low, high)),
            _ => random.between(low, high).to_string(),
        },
        NumberOrAuto(..) if random.below(2) == 0 => "\"auto\"".to_owned(),
        NumberOrAuto(low, high) => decimal(random.between(low, high)),
        Number(low, high) => {
            let tenths = random.between(low, high);
            if random.below(2) == 0 {
                (tenths / 10).to_string()
            } else {
                decimal(tenths)
            }
        }
        WholeOrAuto if random.below(2) == 0 => "\"auto\"".to_owned(),
        WholeOrAuto => random.between(0, i64::MAX - 1).to_string(),
        Duration(_, _, true) if random.below(4) == 0 => "\"0\"".to_owned(),
        Duration(low, high, _) => format!("\"{}us\"", random.between(low, high)),
        Size(_, _, true) => format!("\"{}KiB\"", 64 << random.below(15)),
        Size(..) if key == "learning.score_min" => format!("\"{}B\"", random.between(0, 1 << 19)),
        Size(..) => format!("\"{}KiB\"", random.between(1 << 10, 1 << 29)),
        Word(words) => format!("\"{}\"", random.pick(words)),
        Path(longest) => {
            let length = 1 + random.below(longest - 1);
            format!("\"/{}\"", random.letters(length))
        }
        PathOrAuto => random
            .pick(&["\"auto\"", "\"/\"", "'/sys/fs/cgroup/x'"])
            .to_string(),
        PathOrNone => random.pick(&["\"\"", "\"/etc/token\""]).to_string(),
        Loopback => random
            .pick(&[
                "\"\"",
                "\"127.0.0.1:9471\"",
                "\"127.9.9.9:1\"",
                "\"[::1]:65535\"",
            ])
            .to_string(),
        ArmOrNone => random.pick(&["\"\"", "\"bbr\"", "\"a-b_9\""]).to_string(),
        GroupOrNone => random
            .pick(&["\"\"", "\"adm\"", "\"Net.Ops-1\""])
            .to_string(),
        Prefixes => random
            .pick(&[
                "[]",
                "[\"10.0.0.0/8\"]",
                "[\"192.0.2.7\", \"2001:db8::/32\"]",
            ])
            .to_string(),
        Nat64 => random
            .pick(&[
                "\"auto\"",
                "[]",
                "[\"64:ff9b:1::/48\", \"2001:db8:64::/96\"]",
            ])
            .to_string(),
        Arms(_, _, true) if random.below(3) == 0 => "\"auto\"".to_owned(),
        Arms(least, most, _) => {
            // Names of one list never occur in another.
            let count = least + random.below(most - least + 1);
            let name = |n: usize| format!("\"{}{n}\"", &key["arms.".len()..]);
            format!("[{}]", (0..count).map(name).collect::<Vec<_>>().join(", "))
        }
    }
}

fn decimal(tenths: i64) -> String {
    let sign = if tenths < 0 { "-" } else { "" };
    format!("{sign}{}.{}", tenths.abs() / 10, tenths.abs() % 10)
}

/// A value that is valid TOML but that the key must refuse: of another type or outside its range.
fn wrong(key: &str, random: &mut Random) -> String {
    // No key accepts any of these.
    if random.below(4) == 0 {
        let date = format!("19{}-05-27", random.between(10, 99));
        let table = format!("{{ {} = 1 }}", random.letters(3));
        let lists = format!("[[{}], []]", random.below(100));
        let list = format!("[{}]", random.below(1000));
        return random.pick(&[date, table, lists, list]).clone();
    }
    let far = random.between(1, 1 << 40);
    let some = random.below(1000);
    match accepts(key) {
        Boolean => random
            .pick(&["1", "0", "\"true\"", "\"\"", "1.0", "[true]"])
            .to_string(),
        Whole(low, high) => random
            .pick(&[
                (low - far).to_string(),
                (high + far).to_string(),
                (low - 1).to_string(),
                (high + 1).to_string(),
                format!("{high}.0"),
                format!("\"{low}\""),
                format!("{far}00000000000000000000"),
                "true".to_owned(),
            ])
            .clone(),
        Number(low, high) | NumberOrAuto(low, high) => random
            .pick(&[
                decimal(low - far),
                decimal(high + far),
                "nan".to_owned(),
                "-inf".to_owned(),
                "1e400".to_owned(),
                format!("\"{}\"", decimal(low)),
                "false".to_owned(),
            ])
            .clone(),
        WholeOrAuto => random
            .pick(&[
                "-1",
                "\"\"",
                "\"1\"",
                "\"none\"",
                "1.0",
                "9223372036854775808",
                "true",
            ])
            .to_string(),
        Duration(low, high, zero) => {
            let n = random.between(1, 1000);
            let mut all = vec![
                format!("{n}"),
                format!("\"{n}\""),
                format!("\" {n}s\""),
                format!("\"-{n}s\""),
                format!("\"{n}.5h5m\""),
                format!("\"{n}y\""),
                format!("\"{n}m{n}h\""),
                format!("\"{}us\"", high + far),
                format!("\"{far}000000000000d\""),
                "\"\"".to_owned(),
                "\"s\"".to_owned(),
            ];
            if low > 1 {
                all.push(format!("\"{}us\"", random.between(1, low - 1)));
            }
            if !zero {
                all.extend(["\"0\"".to_owned(), "\"0s\"".to_owned()]);
            }
            random.pick(&all).clone()
        }
        Size(low, high, power) => {
            let n = random.between(1, 1000);
            let mut all = vec![
                format!("{n}"),
                format!("\"{n}\""),
                format!("\"{n}KiB \""),
                format!("\"{n}kbit\""),
                format!("\"-{n}MiB\""),
                format!("\"{n}.MiB\""),
                format!("\"{}B\"", high + far),
                format!("\"{far}000000000GiB\""),
                "\"MiB\"".to_owned(),
                "true".to_owned(),
            ];
            if low > 0 {
                all.extend([format!("\"{}B\"", low - 1), "\"0\"".to_owned()]);
            }
            if power {
                all.push(format!("\"{}KiB\"", 64 * random.between(2, 1000) + 1));
            }
            random.pick(&all).clone()
        }
        Nat64 => random
            .pick(&[
                "\"2001:db8:64::/96\"",
                "[\"10.0.0.0/32\"]",
                "[\"2001:db8::/33\"]",
                "[\"2001:db8:64::1/96\"]",
                "[\"2001:db8:0:0:100::/96\"]",
                "[\"auto\"]",
                "8",
            ])
            .to_string(),
        Prefixes => random
            .pick(&[
                "\"10.0.0.0/8\"",
                "[\"10.0.0.1/8\"]",
                "[\"10.0.0.0/33\"]",
                "[\"10.0.0.0/8\", \"10.0.0.0/8\"]",
                "[\"auto\"]",
                "[8]",
                "true",
            ])
            .to_string(),
        Word(words) => random
            .pick(&[
                format!("\"{}\"", words[0].to_uppercase()),
                format!("\"{} \"", words[0]),
                format!("\"x{some}\""),
                format!("[\"{}\"]", words[0]),
                "\"\"".to_owned(),
                "7".to_owned(),
            ])
            .clone(),
        Path(longest) => random
            .pick(&[
                format!("\"{some}/x\""),
                format!("\"/{}\"", "x".repeat(longest)),
                "\"\"".to_owned(),
                "\"/a\\u0007b\"".to_owned(),
                "\"./here\"".to_owned(),
                format!("{}", far),
            ])
            .clone(),
        PathOrNone => random
            .pick(&["\"token\"", "\"./here\"", "\"/a\\u0007b\"", "7", "[]"])
            .to_string(),
        Loopback => random
            .pick(&[
                "\"127.0.0.1\"",
                "\"127.0.0.1:0\"",
                "\"0.0.0.0:9471\"",
                "\"[::]:9471\"",
                "\"192.0.2.7:9471\"",
                "\"localhost:9471\"",
                "\":9471\"",
                "9471",
            ])
            .to_string(),
        PathOrAuto => random
            .pick(&[
                format!("\"auto{some}\""),
                "\"Auto\"".to_owned(),
                "\"sys/fs/cgroup\"".to_owned(),
                "true".to_owned(),
            ])
            .clone(),
        ArmOrNone => format!("\"{}\"", bad_arm(random)),
        GroupOrNone => random
            .pick(&["\"a b\"", "\"-x\"", "\"ü\"", "\"a:b\"", "7", "[\"adm\"]"])
            .to_string(),
        Arms(least, most, auto) => {
            let many: Vec<String> = (0..=most + random.below(20))
                .map(|n| format!("\"a{n}\""))
                .collect();
            let mut all = vec![
                format!("[\"bbr\", \"{}\"]", bad_arm(random)),
                format!("[\"{}\"]", bad_arm(random)),
                "[\"bbr\", \"cubic\", \"bbr\"]".to_owned(),
                "[\"\"]".to_owned(),
                "[\"bbr\", true]".to_owned(),
                format!("[{}]", many.join(",")),
                "\"bbr\"".to_owned(),
            ];
            if least > 0 {
                all.push("[]".to_owned());
            }
            if !auto {
                all.push("\"auto\"".to_owned());
            }
            random.pick(&all).clone()
        }
    }
}

/// A name that is invalid for congestion controls.
fn bad_arm(random: &mut Random) -> String {
    let name = random.letters(3);
    let long = random.letters(16);
    random
        .pick(&[
            long,
            name.to_uppercase(),
            format!("{name} "),
            format!("{name}.{name}"),
            format!("{name}/"),
            format!("{name}\\n"),
            format!("{name}é"),
        ])
        .clone()
}

/// A valid file: some keys, in any order of sections.
pub fn valid(random: &mut Random) -> String {
    let mut text = String::new();
    let mut section = "";
    for (key, _) in KEYS {
        if random.below(3) == 0 {
            continue;
        }
        let (table, name) = key.split_once('.').unwrap_or(("", key));
        if table != section {
            text.push_str(&format!("\n[{table}] # comment\n"));
            section = table;
        }
        text.push_str(&format!("{name} = {}\n", right(key, random)));
    }
    text
}

/// Breaks [`FULL`] in one place.
pub fn malformed(random: &mut Random) -> Case {
    let mut lines: Vec<Vec<u8>> = FULL.lines().map(|line| line.as_bytes().to_vec()).collect();
    let at = random.below(lines.len());
    let original = FULL.lines().nth(at).unwrap_or_default().to_owned();
    let mut broken = at;
    let kind = match original.split_once(" = ") {
        Some((name, value)) => break_key(random, &mut lines, &mut broken, name, value),
        None => break_header(random, &mut lines, &mut broken, &original),
    };
    let mut text = lines.join(&b'\n');
    text.push(b'\n');
    if kind == "cut off" {
        text = lines[..=broken].join(&b'\n');
    }
    Case {
        text,
        kind,
        line: broken + 1,
    }
}

/// Dotted name of the key on a line of [`FULL`].
fn full_name(at: usize, name: &str) -> String {
    let header = FULL
        .lines()
        .take(at)
        .filter(|line| line.starts_with('['))
        .last();
    match header {
        Some(header) => format!("{}.{name}", header.trim_matches(['[', ']'])),
        None => name.to_owned(),
    }
}

fn break_key(
    random: &mut Random,
    lines: &mut Vec<Vec<u8>>,
    at: &mut usize,
    name: &str,
    value: &str,
) -> &'static str {
    match random.below(16) {
        0 => {
            let unknown = format!("zz{} = {}", random.letters(4), random.below(100));
            lines.insert(*at, unknown.into_bytes());
            "unknown key"
        }
        1 => {
            // No key is another key with an x in it.
            let mut wrong_name = name.to_owned();
            wrong_name.insert(random.below(name.len() + 1), 'x');
            lines[*at] = format!("{wrong_name} = {value}").into_bytes();
            "misspelt key"
        }
        2 => {
            lines.insert(*at, lines[*at].clone());
            *at += 1;
            "key twice"
        }
        3 => {
            // Within the name, or after the equals sign, or within a string.
            let whole = format!("{name} = {value}");
            let quote = whole.find('"').filter(|_| random.below(2) == 0);
            let end = match quote {
                Some(quote) => quote + 1,
                None => 1 + random.below(name.len() + 2),
            };
            lines[*at] = whole.as_bytes()[..end].to_vec();
            "cut off"
        }
        4 => {
            let control = *random.pick(&[0u8, 1, 7, 8, 0x0b, 0x1b, 0x7f]);
            let place = random.below(lines[*at].len() + 1);
            lines[*at].insert(place, control);
            "control character"
        }
        5 => {
            let place = random.below(lines[*at].len() + 1);
            let byte = *random.pick(&[0x80u8, 0xc0, 0xc3, 0xf5, 0xff]);
            lines[*at].insert(place, byte);
            "not UTF-8"
        }
        6 => {
            lines[*at] = match random.below(3) {
                0 => format!("{name} {value}"),
                1 => format!("{name} == {value}"),
                _ => format!("= {value}"),
            }
            .into_bytes();
            "no assignment"
        }
        7 => {
            let more = random.letters(3);
            lines[*at] = format!("{name} = {value} {more}").into_bytes();
            "more after the value"
        }
        _ => {
            let key = full_name(*at, name);
            lines[*at] = format!("{name} = {}", wrong(&key, random)).into_bytes();
            "wrong value"
        }
    }
}

fn break_header(
    random: &mut Random,
    lines: &mut Vec<Vec<u8>>,
    at: &mut usize,
    header: &str,
) -> &'static str {
    match random.below(3) {
        0 => {
            lines[*at].pop();
            "header not closed"
        }
        1 => {
            lines[*at] =
                format!("[{}{}]", &header[1..header.len() - 1], random.letters(2)).into_bytes();
            "unknown table"
        }
        _ => {
            lines.push(lines[*at].clone());
            *at = lines.len() - 1;
            "table twice"
        }
    }
}
