//! Kinds of files: valid examples, and their readers.

use std::fs;
use std::path::{Path, PathBuf};

use thalweg_agent::config::Config;
use thalweg_agent::store::check_document;
use thalweg_control::cc::Program;
use thalweg_lab::compare;
use thalweg_link::trace::Trace;
use thalweg_policy::Policy;
use thalweg_rate::models::ModelFile;
use thalweg_units::file;

use super::mutate::{self, Random};

/// A kind of files.
pub struct Kind {
    pub name: &'static str,
    /// Number of inputs of this kind per million.
    pub share: u64,
    pub form: Form,
    /// Valid files.
    seeds: fn() -> Vec<Vec<u8>>,
    /// Reads one: returns the faults, a line each; none if it is valid.
    pub read: fn(&[u8]) -> Result<(), Vec<String>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Toml,
    Json,
    Lines,
    Model,
    Object,
}

#[rustfmt::skip]
pub const KINDS: [Kind; 9] = [
    Kind { name: "configuration", share: 150_000, form: Form::Toml, seeds: configurations, read: configuration },
    Kind { name: "policy", share: 150_000, form: Form::Toml, seeds: || in_folders(&["policies"], "toml"), read: policy },
    Kind { name: "lab", share: 150_000, form: Form::Toml, seeds: || in_folders(&["scenarios/lab", "scenarios/demo", "scenarios/rate"], "toml"), read: lab },
    Kind { name: "sim", share: 150_000, form: Form::Toml, seeds: || in_folders(&["scenarios/sim", "scenarios/train"], "toml"), read: sim },
    Kind { name: "model", share: 100_000, form: Form::Model, seeds: || in_folders(&["models", "crates/rate/tests/data"], "safetensors"), read: model },
    Kind { name: "trace", share: 100_000, form: Form::Lines, seeds: traces, read: trace },
    Kind { name: "export", share: 120_000, form: Form::Json, seeds: exports, read: export },
    Kind { name: "results", share: 40_000, form: Form::Json, seeds: results, read: comparison },
    Kind { name: "object", share: 40_000, form: Form::Object, seeds: objects, read: object },
];

/// All inputs of a kind, by number: first the special ones, then the requested number of mutated
/// ones.
pub struct Inputs {
    kind: &'static Kind,
    seeds: Vec<Vec<u8>>,
    special: Vec<Special>,
}

/// Made on demand: some are long.
type Special = Box<dyn Fn() -> Vec<u8>>;

impl Inputs {
    /// `longest` is the size limit of special inputs, in bytes.
    pub fn new(kind: &'static Kind, longest: usize) -> Self {
        let seeds = (kind.seeds)();
        assert!(seeds.len() > 1, "{}", kind.name);
        let special = special(kind, &seeds, longest);
        Self {
            kind,
            seeds,
            special,
        }
    }

    pub fn special(&self) -> u64 {
        self.special.len() as u64
    }

    /// Valid files.
    pub fn seeds(&self) -> &[Vec<u8>] {
        &self.seeds
    }

    pub fn get(&self, number: u64) -> Vec<u8> {
        if let Some(special) = self.special.get(number as usize) {
            return special();
        }
        let mut random = Random::new(self.kind.share + self.kind.name.len() as u64, number);
        let seed = self.seeds[random.below(self.seeds.len())].clone();
        match self.kind.form {
            Form::Model => mutate::model(&mut random, seed, &self.seeds),
            Form::Object => mutate::binary(&mut random, seed),
            _ => mutate::text(&mut random, seed, &self.seeds),
        }
    }
}

/// Inputs that mutations cannot reach: other encodings, deep nesting, long lines, repetitions.
fn special(kind: &'static Kind, seeds: &[Vec<u8>], longest: usize) -> Vec<Special> {
    let mut all: Vec<Special> = Vec::new();
    let mut add = |bytes: Vec<u8>| all.push(Box::new(move || bytes.clone()));
    // Inputs that once failed.
    let corpus = root()
        .join("crates/cli/tests/cli/inputs/corpus")
        .join(kind.name);
    let mut found: Vec<PathBuf> = fs::read_dir(corpus)
        .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
        .unwrap_or_default();
    found.sort();
    found.iter().for_each(|file| add(fs::read(file).unwrap()));
    for seed in seeds {
        add(seed.clone());
    }
    let seed = &seeds[0];
    add(Vec::new());
    add(b"\0".to_vec());
    add(vec![0; 4096]);
    add([b"\xef\xbb\xbf", &seed[..]].concat());
    let wide: Vec<u16> = String::from_utf8_lossy(seed).encode_utf16().collect();
    let wide =
        |bytes: fn(u16) -> [u8; 2]| wide.iter().copied().flat_map(bytes).collect::<Vec<u8>>();
    add([&b"\xff\xfe"[..], &wide(u16::to_le_bytes)].concat());
    add([&b"\xfe\xff"[..], &wide(u16::to_be_bytes)].concat());
    let lines = String::from_utf8_lossy(seed).into_owned();
    add(lines.replace('\n', "\r\n").into_bytes());
    add(lines.replace('\n', "\r").into_bytes());
    add(lines.replace(' ', "\0").into_bytes());
    add([&seed[..], &seed[..]].concat());
    for bytes in [
        &b"\x1b]0;title\x07"[..],
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"\xf8\x88\x80\x80\x80",
    ] {
        add([bytes, &seed[..]].concat());
        add([&seed[..], bytes].concat());
    }
    if matches!(kind.form, Form::Model | Form::Object) {
        return all;
    }
    let mut long = |start: &'static str, piece: &'static str, end: &'static str| {
        let times = (longest - start.len() - end.len()) / piece.len();
        all.push(Box::new(move || {
            (start.to_owned() + &piece.repeat(times) + end).into_bytes()
        }));
    };
    for piece in [
        "a",
        " ",
        "\n",
        "\r\n",
        "\0",
        "0",
        "[",
        "{",
        "\"",
        "1\n",
        "\u{1f980}",
        "\u{202e}",
        "\\",
    ] {
        long("", piece, "");
    }
    match kind.form {
        Form::Toml => {
            for (start, piece, end) in [
                ("# ", "a", ""),
                ("", "#\n", ""),
                ("", "# comment\n", ""),
                ("a = \"", "a", "\""),
                ("a = \"", "\\u0041", "\""),
                ("a = ", "1", ""),
                ("a = 0.", "1", ""),
                ("", "a", " = 1"),
                ("a = ", "[", ""),
                ("a = ", "{a=", ""),
                ("a = [", "1,", "]"),
                ("a = [", "{},", "]"),
                ("a = [", "[],", "]"),
                ("a", ".a", " = 1"),
                ("[a", ".a", "]"),
                ("[[a", ".a", "]]"),
                ("", "a = 1\n", ""),
                ("", "[a]\n", ""),
                ("", "[[a]]\n", ""),
                ("", "[[a]]\nb=1\n", ""),
                ("", "[[rule]]\n", ""),
                ("name = \"a\"\n", "[[rule]]\nname = \"a\"\n", ""),
                ("", "a.b.c.d.e.f=1\n", ""),
                ("", "[[rule.a]]\n", ""),
                ("", "[[flow]]\n", ""),
                ("", "[[expect]]\n", ""),
                ("", "[[host]]\n", ""),
                ("", "= 1\n", ""),
                ("", "\u{fc} = 1\n", ""),
                ("a = '''", "\n", "'''"),
            ] {
                long(start, piece, end);
            }
            // Different keys, tables in tables.
            for (start, end) in [
                ("k", " = 1\n"),
                ("[t", "]\n"),
                ("[t", ".a.b.c]\n"),
                ("t", ".a.b.c.d = 1\n"),
            ] {
                all.push(Box::new(move || numbered(longest, start, end)));
            }
        }
        Form::Json => {
            for (start, piece, end) in [
                ("", "[", ""),
                ("", "{\"a\":", ""),
                ("[", "{},", "{}]"),
                ("[", "[],", "[]]"),
                ("[", "0,", "0]"),
                ("{\"format\":1,\"environment\":", "[{\"a\":0},", ""),
                (
                    "{\"format\":1,\"scenarios\":[",
                    "{\"scenario\":{},\"modes\":[]},",
                    "",
                ),
                ("{", "\"a\":0,", "\"a\":0}"),
                ("\"", "a", "\""),
                ("\"", "\\u0041", "\""),
                ("", "1", ""),
                ("0.", "1", ""),
                ("1e", "9", ""),
                (
                    "{\"format\":\"thalweg-hosts\",\"version\":2,\"hosts\":[",
                    "{},",
                    "{}]}",
                ),
                ("{\"format\":1,\"x\":[", "{},", "{}]}"),
            ] {
                long(start, piece, end);
            }
        }
        _ => {
            for piece in ["0\n", "1\r\n", "999999999\n", "\n\n", "1 1\n"] {
                long("", piece, "");
            }
        }
    }
    all
}

fn numbered(longest: usize, start: &str, end: &str) -> Vec<u8> {
    let mut text = String::new();
    for number in 0.. {
        if text.len() + 64 > longest {
            break;
        }
        text += &format!("{start}{number}{end}");
    }
    text.into_bytes()
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn in_folders(folders: &[&str], extension: &str) -> Vec<Vec<u8>> {
    let mut found: Vec<PathBuf> = Vec::new();
    for folder in folders {
        let entries = fs::read_dir(root().join(folder)).unwrap();
        found.extend(entries.map(|entry| entry.unwrap().path()));
    }
    found.retain(|file| {
        // `thalweg.results` reads those.
        let name = file.file_name().unwrap().to_string_lossy();
        file.extension().is_some_and(|has| has == extension) && !name.starts_with("tables")
    });
    found.sort();
    found.iter().map(|file| fs::read(file).unwrap()).collect()
}

fn configurations() -> Vec<Vec<u8>> {
    let mut whole = String::new();
    let mut section = String::new();
    for key in Config::keys() {
        let (table, name) = key.key.rsplit_once('.').unwrap_or(("", &key.key));
        if table != section {
            whole += &format!("\n[{table}]\n");
            section = table.to_owned();
        }
        // A key without a default stays a comment.
        let is_value = toml::from_str::<toml::Table>(&format!("a = {}", key.default)).is_ok();
        whole += &format!(
            "{}{name} = {} # {}\n",
            if is_value { "" } else { "# " },
            key.default,
            key.expected
        );
    }
    let small =
        "mode = \"classic\"\ndry_run = true\n[hosts]\nmax = 1000\n[events]\nretention = \"1d\"\n";
    vec![whole.into_bytes(), small.into()]
}

fn traces() -> Vec<Vec<u8>> {
    let even: String = (0..500).map(|moment| format!("{moment}\n")).collect();
    vec![
        even.into_bytes(),
        b"0\n0\n0\n5\n5\n7\n1000\n".to_vec(),
        b"1\r\n2\r\n".to_vec(),
    ]
}

fn exports() -> Vec<Vec<u8>> {
    let arm = serde_json::json!({
        "value": 1_000_000, "max_rate": 12_500_000, "weight_q16": 65_536, "deviation_q16": 100,
        "log_rate_q16": 1_000_000, "srtt_us": 20_000, "min_rtt_us": 15_000, "chosen": 5, "greedy": 4,
        "scored": 3, "segs": 1000, "retrans": 3
    });
    let host = |number: u32, arms: serde_json::Value| {
        serde_json::json!({
            "netns": 1, "address": format!("192.0.2.{number}"), "prefix": 32, "connections": 7,
            "scored": 5, "switched": 1, "min_rtt_us": 15_000, "max_rate": 12_500_000,
            "queue_q16": 0, "base_rtt_us": 15_000, "seen_age_ms": 1000, "forgot_age_ms": null,
            "arms": arms
        })
    };
    let document = |hosts: Vec<serde_json::Value>| {
        let document = serde_json::json!({
            "format": "thalweg-hosts", "version": 2, "mode": "thalweg",
            "boot_id": "0c9a4b9e-6e1b-4a66-8f0b-0f2f3ad2b0d4", "own_netns": 1,
            "saved_at_ms": 1_700_000_000_000_u64, "hosts": hosts
        });
        format!("{document:#}").into_bytes()
    };
    let arms = serde_json::json!({ "cubic": arm, "bbr": arm });
    vec![
        document(vec![]),
        document((0..4).map(|number| host(number, arms.clone())).collect()),
    ]
}

fn results() -> Vec<Vec<u8>> {
    let connection = |round: u32| {
        serde_json::json!({
            "round": round, "goodput_bps": 9.1e7, "part_bps": 9e7, "class": "", "retransmits": 2,
            "sent_segments": 100, "arm": "bbr", "mean_rtt_us": 120.5, "srtt_us": [100, 120],
            "rtt_us": [[100, 3], [120, 2]], "min_rtt_us": 90.0, "flow_bytes": 100_000, "fct_us": 1e4,
            "wall_s": 1.0, "error": null
        })
    };
    let document = |modes: &[&str]| {
        let modes: Vec<serde_json::Value> = (modes.iter())
            .map(|mode| {
                let connections: Vec<_> = (0..3).map(connection).collect();
                serde_json::json!({ "mode": mode, "connections": connections, "least_rtt_us": 90.0 })
            })
            .collect();
        let document = serde_json::json!({
            "format": 1,
            "environment": { "version": "0", "kernel": "Linux 6", "cpus": 2, "iperf3": "iperf 3" },
            "scenarios": [{
                "scenario": { "name": "x", "path": { "mtu": 1500 }, "traffic": { "connections": 3 } },
                "modes": modes
            }]
        });
        format!("{document:#}").into_bytes()
    };
    vec![document(&["baseline", "thalweg"]), document(&["thalweg"])]
}

fn objects() -> Vec<Vec<u8>> {
    [
        thalweg_bpf_objects::DCTCP,
        thalweg_bpf_objects::HTCP,
        thalweg_bpf_objects::POLICY_MARK,
    ]
    .map(thalweg_bpf_objects::Packed::unpack)
    .to_vec()
}

const FILE: &str = "some.toml";

fn one(error: impl ToString) -> Vec<String> {
    vec![error.to_string()]
}

fn lines(faults: thalweg_policy::Faults) -> Vec<String> {
    faults.0.iter().map(ToString::to_string).collect()
}

fn text(bytes: &[u8], file: &Path) -> Result<String, Vec<String>> {
    file::decode_text(bytes.to_vec(), file).map_err(one)
}

fn configuration(bytes: &[u8]) -> Result<(), Vec<String>> {
    let config = Config::parse_bytes(bytes, Path::new(FILE)).map_err(one)?;
    config.params();
    Ok(())
}

fn policy(bytes: &[u8]) -> Result<(), Vec<String>> {
    let policy = Policy::parse(bytes, Path::new(FILE)).map_err(lines)?;
    let warnings: Vec<String> = policy.warnings().into_iter().map(|it| it.message).collect();
    warnings.iter().for_each(|warning| check(warning));
    policy.compile().map(drop).map_err(lines)
}

fn lab(bytes: &[u8]) -> Result<(), Vec<String>> {
    // Beside the policies that it may name.
    let file = root().join("scenarios/lab").join(FILE);
    let text = text(bytes, &file)?;
    thalweg_lab::scenario::Scenario::parse(&text, &file)
        .map(drop)
        .map_err(lines)
}

fn sim(bytes: &[u8]) -> Result<(), Vec<String>> {
    let file = Path::new(FILE);
    thalweg_sim::Scenario::parse(&text(bytes, file)?, file)
        .map(drop)
        .map_err(lines)
}

fn model(bytes: &[u8]) -> Result<(), Vec<String>> {
    ModelFile::parse(bytes, Path::new(FILE))
        .map(drop)
        .map_err(one)
}

fn trace(bytes: &[u8]) -> Result<(), Vec<String>> {
    let trace = Trace::parse(bytes, Path::new(FILE)).map_err(one)?;
    assert!(trace.period_ns() > 0);
    trace.mean_bps();
    Ok(())
}

fn export(bytes: &[u8]) -> Result<(), Vec<String>> {
    check_document(|| Ok(bytes)).map(drop).map_err(one)
}

fn comparison(bytes: &[u8]) -> Result<(), Vec<String>> {
    let directory = tempfile::tempdir().unwrap();
    let (a, b) = (
        directory.path().join("a.json"),
        directory.path().join("b.json"),
    );
    fs::write(&a, &results()[0]).unwrap();
    fs::write(&b, bytes).unwrap();
    let options = compare::Options {
        resamples: 100,
        ..compare::Options::default()
    };
    let comparison = compare::compare_runs(&a, &b, &options).map_err(one)?;
    compare::comparison_tables(&comparison);
    compare::comparison_remarks(&comparison);
    Ok(())
}

fn object(bytes: &[u8]) -> Result<(), Vec<String>> {
    let name = Program::built_in(FILE, bytes.to_vec()).own_name();
    name.map(drop).map_err(|error| vec![format!("{error:#}")])
}

/// Checks that a message is one short line that a terminal can show.
pub fn check(line: &str) {
    assert!(!line.is_empty());
    assert!(!line.chars().any(char::is_control), "{line:?}");
    assert!(
        line.len() < 4000,
        "{} bytes: {}",
        line.len(),
        line.chars().take(500).collect::<String>()
    );
}
