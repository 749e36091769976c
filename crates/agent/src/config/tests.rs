//! Accepted values, refused ones with their places, and agreement with the documentation.

use std::path::{Path, PathBuf};
use std::time::Duration;

use thalweg_learner::{Mode, Params};
use thalweg_policy::Prefix;

use thalweg_units::{Fault, Faults, random};

use super::agent::EventLog;
use super::{Config, ConfigError, KeyDescription};

mod files;
mod generate;

use generate::{FULL, Random, malformed, valid};

/// Number of malformed and of valid configurations.
const GENERATED: usize = 1000;

/// All sections, as an error lists them.
fn sections() -> String {
    let mut names: Vec<String> = Vec::new();
    for key in Config::keys() {
        if let Some((section, _)) = key.key.split_once('.') {
            names.push(format!("[{section}]"));
        }
    }
    names.dedup();
    names.join(", ")
}

/// Whether a key is one of those of [`FULL`]: sections of features are tested with them.
fn is_own(key: &KeyDescription) -> bool {
    let section = key.key.split_once('.').map_or("", |(section, _)| section);
    section.is_empty() || FULL.contains(&format!("[{section}]\n"))
}

fn parse(text: &str) -> Result<Config, Faults> {
    Config::parse(text, Path::new("t.toml"))
}

/// The first fault.
fn fault(text: &[u8]) -> Fault {
    match Config::parse_bytes(text, Path::new("t.toml")) {
        Err(ConfigError::Invalid(Faults(mut faults))) => faults.remove(0),
        other => panic!("{other:?} from\n{}", String::from_utf8_lossy(text)),
    }
}

#[test]
fn defaults_are_the_learners_own() {
    let config = parse("").unwrap();
    assert_eq!(config.params(), Params::default());
    assert_eq!(config, Config::default());
    assert_eq!(config.hosts.max, 65_536);
    assert_eq!(config.events.ring_bytes, 1 << 20);
    assert!(config.arms.permits("anything"));
}

#[test]
fn every_key_takes_effect() {
    let config = parse(FULL).unwrap();
    assert_eq!(config.mode, Mode::Classic);
    assert!(config.dry_run);
    assert_eq!(config.cgroup, Some(PathBuf::from("/sys/fs/cgroup/a.slice")));
    assert_eq!(config.paths.pin, Path::new("/sys/fs/bpf/t"));
    assert_eq!(config.paths.state, Path::new("/srv/t"));
    assert_eq!(config.paths.socket, Path::new("/run/t.sock"));
    assert_eq!(config.paths.socket_group.as_deref(), Some("adm"));
    assert_eq!(
        config.arms.allow.as_deref().unwrap(),
        ["cubic", "bbr", "reno"]
    );
    assert_eq!(config.arms.deny, ["reno"]);
    assert_eq!(config.arms.load, ["bbr"]);
    assert_eq!(config.arms.needs_ecn, ["dctcp", "prague"]);
    let prefixes: Vec<String> = config
        .arms
        .ecn_prefixes
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(prefixes, ["10.0.0.0/8", "fd00::/8"]);
    assert!(config.hosts.user_namespaces);
    let nat64 = config.hosts.nat64.as_deref().unwrap_or_default();
    assert_eq!(nat64, [Prefix::parse("2001:db8:64::/96").unwrap()]);
    assert!(config.arms.permits("bbr"));
    assert!(!config.arms.permits("reno") && !config.arms.permits("htcp"));
    assert_eq!(config.hosts.max, 1024);
    assert_eq!(
        (config.hosts.ipv4_prefix, config.hosts.ipv6_prefix),
        (24, 48)
    );
    let params = config.params();
    assert_eq!(params.mode, Mode::Classic);
    assert_eq!(params.warm_up, 3);
    assert_eq!(params.gap_scale, 32);
    assert_eq!(params.weight_max_q16, 786_432); // 12
    assert_eq!(params.idle_shift, 5);
    assert_eq!(params.half_life_ns, 5_400_000_000_000);
    assert_eq!(params.latency_weight_q16, 32_768); // 0.5
    assert_eq!(params.latency_guard_us, 5_000);
    assert_eq!(params.score_min_bytes, 65_536);
    assert_eq!(params.score_full_bytes, 2_000_000);
    assert_eq!(params.loss_shift, 7);
    assert_eq!(params.loss_min_segs, 256);
    assert_eq!(config.learning.rescue, None);
    assert_eq!(params.stretch_ns, 60_000_000_000);
    assert_eq!((config.advise.only, config.advise.trials), (false, 0.25));
    assert_eq!(config.events.ring_bytes, 4 << 20);
    assert_eq!(config.events.retention, Duration::from_secs(86_400));
    assert_eq!(config.events.retention_max, 5000);
    assert_eq!(config.events.share, Some(0.25));
    assert_eq!(config.events.log, EventLog::All);
    assert_eq!(config.events.log_rate, 100);
    assert_eq!(config.snapshot.interval, Duration::from_secs(60));
    assert_eq!(config.http.listen, "[::1]:9471".parse().ok());
    assert_eq!(config.http.token_file, Some(PathBuf::from("/etc/t")));
}

#[test]
fn faults_say_where_and_what() {
    for (text, message) in [
        (
            "[hosts]\n  max = 12\n",
            "t.toml:2:9: hosts.max: found the number 12, \
             expected a whole number from 64 to 16777216",
        ),
        (
            "mode = \"fast\"",
            "t.toml:1:8: mode: found the string \"fast\", expected \"thalweg\" or \"classic\"",
        ),
        (
            "dry_run = \"yes\"",
            "t.toml:1:11: dry_run: found the string \"yes\", expected true or false",
        ),
        (
            "[hosts]\nmaximum = 9",
            "t.toml:2:1: hosts: found the unknown key \"maximum\", \
             expected one of max, ipv4_prefix, ipv6_prefix, nat64, user_namespaces; perhaps `max`",
        ),
        (
            "[hosts]\nnat64 = [\"64:ff9b:1::/48\", \"2001:db8::/33\"]",
            "t.toml:2:28: hosts.nat64: found the string \"2001:db8::/33\", expected an IPv6 prefix of 32, \
             40, 48, 56, 64 or 96 bits, such as \"2001:db8:64::/96\", whose bits 64 to 71 are 0",
        ),
        (
            "\n[learn]\n",
            "t.toml:2:2: found the unknown key \"learn\", expected one of mode, dry_run, cgroup, \
             SECTIONS; perhaps `learning`",
        ),
        (
            "[learning]\nhalf_life = \"30 minutes\"",
            "t.toml:2:13: learning.half_life: found the string \"30 minutes\", \
             expected a duration from \"1s\" to \"365d\", or \"0\": never \
             (units ns, us, ms, s, m, h, d)",
        ),
        (
            "[events]\nring = \"3MiB\"",
            "t.toml:2:8: events.ring: found the string \"3MiB\", \
             expected a power of two from \"64KiB\" to \"1GiB\" \
             (units B, kB, MB, GB, KiB, MiB, GiB)",
        ),
        (
            "[arms]\nallow = [\"bbr\", \"Cubic\"]",
            "t.toml:2:17: arms.allow: found the string \"Cubic\", expected the name of a \
             congestion control (1 to 15 of a-z, 0-9, _ and -)",
        ),
        (
            "[arms]\nallow = [\"bbr\"]\ndeny = [\"bbr\"]",
            "t.toml:3:8: arms.deny: found every name of arms.allow, \
             expected at least one of them left",
        ),
        (
            "[learning]\nscore_min = \"2MiB\"",
            "t.toml:2:13: learning.score_min: found \"2MiB\", \
             expected at most score_full, \"1MiB\"",
        ),
        (
            "[learning]\nscore_min = \"2MiB\"\nscore_full = \"4KiB\"",
            "t.toml:3:14: learning.score_full: found \"4KiB\", \
             expected at least score_min, \"2MiB\"",
        ),
        (
            "hosts = 3",
            "t.toml:1:9: hosts: found the number 3, expected a table, [hosts]",
        ),
        (
            "[arms]\necn_prefixes = [\"10.0.0.0/8\", \"10.1.0.1/16\"]",
            "t.toml:2:31: arms.ecn_prefixes: found the string \"10.1.0.1/16\", \
             expected no bits beyond the length, \"10.1.0.0/16\"",
        ),
        (
            "[arms]\necn_prefixes = [\"10.0.0.0/8\", \"10.0.0.0/8\"]",
            "t.toml:2:31: arms.ecn_prefixes: found the string \"10.0.0.0/8\", expected each prefix once",
        ),
        (
            "[http]\nlisten = \"0.0.0.0:9471\"",
            "t.toml:2:10: http.listen: found the string \"0.0.0.0:9471\", expected a loopback address \
             and a port, such as \"127.0.0.1:9471\", or \"\" for none; nothing is encrypted: for others \
             put a reverse proxy with TLS before it",
        ),
        (
            "[http]\nlisten = \"localhost\"",
            "t.toml:2:10: http.listen: found the string \"localhost\", expected a loopback address and \
             a port, such as \"127.0.0.1:9471\", or \"\" for none",
        ),
        (
            "[arms]\necn_prefixes = [\"datacenter\"]",
            "t.toml:2:17: arms.ecn_prefixes: found the string \"datacenter\", \
             expected a prefix such as \"10.0.0.0/8\" or \"2001:db8::/32\"",
        ),
    ] {
        assert_eq!(
            fault(text.as_bytes()).to_string(),
            message.replace("SECTIONS", &sections())
        );
    }
}

#[test]
fn all_faults_are_told_at_once() {
    let text = "mode = \"clasic\"\n\
                moed = 1\n\
                [hosts]\n\
                max = 12\n\
                [arms]\n\
                allow = [\"bbr\", \"Cubic\", 3, \"bbr\"]\n\
                deny = [\"bbr\"]\n\
                [learning]\n\
                half_live = \"1h\"\n\
                score_min = \"2GiB\"\n\
                score_full = \"1kib\"\n\
                [learn]\n\
                [event]\n\
                ring = 3\n";
    let name = "the name of a congestion control (1 to 15 of a-z, 0-9, _ and -)";
    let expected = format!(
        "t.toml:1:8: mode: found the string \"clasic\", expected \"thalweg\" or \"classic\"; perhaps \"classic\"\n\
         t.toml:2:1: found the unknown key \"moed\", expected one of mode, dry_run, cgroup, SECTIONS; perhaps `mode`\n\
         t.toml:4:7: hosts.max: found the number 12, expected a whole number from 64 to 16777216\n\
         t.toml:6:17: arms.allow: found the string \"Cubic\", expected {name}\n\
         t.toml:6:26: arms.allow: found the number 3, expected {name}\n\
         t.toml:6:29: arms.allow: found the string \"bbr\", expected each name once\n\
         t.toml:9:1: learning: found the unknown key \"half_live\", expected one of warm_up, gap_scale, memory, \
         staleness_shift, half_life, latency_weight, latency_guard, score_min, score_full, loss_shift, \
         loss_min_segments, rescue, stretch; perhaps `half_life`\n\
         t.toml:11:14: learning.score_full: found \"1KiB\", expected at least score_min, \"2GiB\"\n\
         t.toml:12:2: found the unknown key \"learn\", expected one of mode, dry_run, cgroup, SECTIONS; perhaps `learning`\n\
         t.toml:13:2: found the unknown key \"event\", expected one of mode, dry_run, cgroup, SECTIONS; perhaps `events`"
    );
    let faults = parse(text).unwrap_err();
    assert_eq!(
        faults.to_string(),
        expected.replace("SECTIONS", &sections())
    );
    let first = "t.toml:1:8: mode: found the string \"clasic\", expected \"thalweg\" or \"classic\"; perhaps \"classic\" \
                 (9 more: `thalweg config check t.toml`)";
    assert_eq!(ConfigError::from(faults).to_string(), first);
}

#[test]
fn advice_has_nothing_to_contradict_it() {
    let advice = "[advise]\nonly = true\n";
    let config = parse(&format!("{advice}trials = 0.125")).unwrap();
    let control = config.control.group(config.mode, &config.advise, 1);
    // What has no trial is the control group.
    assert_eq!((control.share_q16, control.permanent_q16), (57_344, 655));
    let idle = parse("[advise]\ntrials = 0.125").unwrap();
    let control = idle.control.group(idle.mode, &idle.advise, 1);
    assert_eq!(control.share_q16, 3277);
    assert!(parse(&format!("dry_run = true\n{advice}")).is_ok());
    for (text, message) in [
        (
            format!("mode = \"classic\"\n{advice}"),
            "t.toml:3:8: advise.only: found advice in mode \"classic\", expected mode \"thalweg\": \
             the published tuner measures nothing but its own choices",
        ),
        (
            format!("dry_run = true\n{advice}trials = 0.1"),
            "t.toml:3:8: advise.only: found trials in a dry run, expected dry_run = false, or \
             trials = 0.0: a dry run sets nothing",
        ),
        (
            format!("{advice}trials = 1.5"),
            "t.toml:3:10: advise.trials: found the number 1.5, expected a number from 0.0 to 1.0",
        ),
    ] {
        assert_eq!(fault(text.as_bytes()).to_string(), message);
    }
}

#[test]
fn sample_means_the_defaults() {
    let sample = include_str!("../../../../packaging/thalweg.toml");
    assert_eq!(parse(sample).unwrap(), Config::default());
    // Without the comment marks it sets every key to its default.
    let is_words = |line: &str| line.starts_with("# ") || line.starts_with("#:schema");
    let is_key = |line: &&str| line.starts_with('#') && !is_words(line);
    let set: String = sample
        .lines()
        .map(|line| format!("{}\n", if is_key(&line) { &line[1..] } else { line }))
        .collect();
    let (config, keys) = Config::describe(&set, Path::new("t.toml")).unwrap();
    assert_eq!(config, Config::default());
    for key in keys {
        assert!(key.line.is_some(), "{} is not in the sample", key.key);
        assert_eq!(key.value, key.default, "{}", key.key);
    }
}

#[test]
fn every_value_is_described_with_its_line() {
    let (config, keys) = Config::describe(FULL, Path::new("t.toml")).unwrap();
    let mut again = String::new();
    let mut table = String::new();
    for key in keys.iter().filter(|key| is_own(key)) {
        let (section, name) = key.key.rsplit_once('.').unwrap_or(("", &key.key));
        if section != table {
            again += &format!("[{section}]\n");
            table = section.to_owned();
        }
        again += &format!("{name} = {}\n", key.value);
        let line = FULL.lines().nth(key.line.unwrap() - 1).unwrap();
        assert!(line.starts_with(&format!("{name} = ")), "{key:?}: {line}");
    }
    assert_eq!(parse(&again).unwrap(), config);
    for key in Config::keys() {
        assert_eq!((key.line, &key.value), (None, &key.default));
    }
    let odd = "cgroup = '/a\"b\\c'";
    let (_, keys) = Config::describe(odd, Path::new("t.toml")).unwrap();
    assert_eq!(keys[2].value, "\"/a\\\"b\\\\c\"");
}

#[test]
fn columns_count_characters() {
    let text = "[paths]\nstate = \"/ü\"\n\"ß\" = 1\n";
    let fault = fault(text.as_bytes());
    assert_eq!((fault.at.line, fault.at.column), (3, 1));
    let after = self::fault("cgroup = \"/üüü\" x".as_bytes());
    assert_eq!((after.at.line, after.at.column), (1, 17));
}

#[test]
fn bytes_that_are_not_text_have_a_place() {
    let fault = fault(b"mode = \"classic\"\ncgroup = \"/\xff\"\n");
    assert_eq!(
        fault.to_string(),
        "t.toml:2:12: found the byte 0xff, expected UTF-8 text"
    );
}

#[test]
fn a_named_file_must_exist() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("none.toml");
    let error = Config::load_or_default(Some(&missing))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("cannot read ") && error.contains("none.toml: No such file"),
        "{error}"
    );

    let present = directory.path().join("some.toml");
    std::fs::write(&present, "dry_run = true\n").unwrap();
    assert!(Config::load_or_default(Some(&present)).unwrap().dry_run);
}

#[test]
fn malformed_configurations_are_refused_at_the_right_line() {
    let mut random = Random(random::Random::new(1));
    let mut seen = std::collections::BTreeSet::new();
    let mut kinds = std::collections::BTreeMap::<&str, usize>::new();
    while seen.len() < GENERATED {
        let case = malformed(&mut random);
        if !seen.insert(case.text.clone()) {
            continue;
        }
        *kinds.entry(case.kind).or_default() += 1;
        let fault = fault(&case.text);
        let shown = String::from_utf8_lossy(&case.text);
        assert_eq!(fault.at.line, case.line, "{}: {fault}\n{shown}", case.kind);
        let line = shown.lines().nth(fault.at.line - 1).unwrap_or_default();
        let width = line.chars().count() + 1;
        assert!(
            (1..=width).contains(&fault.at.column),
            "{}: {fault}\n{shown}",
            case.kind
        );
        let place = format!("t.toml:{}:{}: ", fault.at.line, fault.at.column);
        let message = fault.to_string();
        assert!(message.starts_with(&place), "{message}");
        assert!(
            !fault.found.is_empty() && !fault.expected.is_empty(),
            "{message}"
        );
    }
    // Every kind of malformed file occurred.
    assert_eq!(kinds.len(), generate::KINDS, "{kinds:?}");
    assert!(kinds.values().all(|&count| count >= 6), "{kinds:?}");
}

#[test]
fn valid_configurations_are_accepted() {
    let mut random = Random(random::Random::new(2));
    for _ in 0..GENERATED {
        let text = valid(&mut random);
        if let Err(error) = parse(&text) {
            panic!("{error}\n{text}");
        }
    }
}
