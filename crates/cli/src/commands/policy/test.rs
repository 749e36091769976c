//! `thalweg policy test`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;
use thalweg_policy::catalogue::stages_in_mask;
use thalweg_policy::{Condition, Flow, FlowKind, Namespace, Policy, Rule, Selector, Stage};
use thalweg_terminal::{Failure, output, whole_number};
use thalweg_units::grammar::share_text;

use crate::options::{Global, parse_address};

/// Number of rejected rules in the table.
const ROWS: usize = 20;

/// Options of `policy test`.
#[derive(Debug, Args)]
pub struct Options {
    /// Policy file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Address of the peer; for all but listeners.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    remote: Option<IpAddr>,
    /// Address of this machine, of the same family.
    ///
    /// Needed where the policy has conditions on it.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    local: Option<IpAddr>,
    /// Port of the peer. Default: not known.
    #[arg(long, value_name = "PORT", value_parser = whole_number(1..=u16::MAX))]
    remote_port: Option<u16>,
    /// Port of this machine. Default: not known.
    #[arg(long, value_name = "PORT", value_parser = whole_number(1..=u16::MAX))]
    local_port: Option<u16>,
    /// Port of the service.
    #[arg(long, value_name = "PORT", value_parser = whole_number(1..=u16::MAX))]
    port: Option<u16>,
    /// Who opens the flow.
    #[arg(long, value_enum, default_value_t = Direction::Active)]
    direction: Direction,
    /// cgroup of the socket: /system.slice/nginx.service, or its directory.
    #[arg(long, value_name = "PATH", value_parser = cgroup)]
    cgroup: Option<String>,
    /// Name or label of the container, as the policy names it: web, app=web; repeatable.
    #[arg(long, value_name = "CONTAINER", value_parser = container)]
    container: Vec<Selector>,
    /// Network namespace, as the policy names it: name, path or cookie.
    #[arg(long, value_name = "NAMESPACE")]
    netns: Option<String>,
    /// List all rules that were not chosen.
    #[arg(long)]
    all: bool,
}

/// A cgroup in the form of policies.
fn cgroup(text: &str) -> Result<String, String> {
    thalweg_policy::parse_cgroup(text).ok_or_else(|| {
        "expected the path of a cgroup, such as /system.slice or /sys/fs/cgroup/system.slice"
            .to_owned()
    })
}

fn container(text: &str) -> Result<Selector, String> {
    Selector::parse(text)
        .ok_or_else(|| "expected the name or id of a container, or LABEL=VALUE".to_owned())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Direction {
    /// This machine.
    Active,
    /// The peer.
    Passive,
    /// Nobody yet: a listening socket.
    Listener,
}

#[derive(Serialize)]
struct Answer {
    policy: String,
    outcomes: Vec<Outcome>,
    others: Vec<Other>,
}

/// Outcome for a share of the flows.
#[derive(Serialize)]
struct Outcome {
    share: f64,
    #[serde(skip)]
    share_text: String,
    rule: Option<Chosen>,
}

#[derive(Serialize)]
struct Chosen {
    name: String,
    description: String,
    line: usize,
    never: bool,
    settings: Vec<Setting>,
}

#[derive(Serialize)]
struct Setting {
    key: &'static str,
    value: String,
    stages: Vec<&'static str>,
    option: &'static str,
    since: String,
}

/// A rule that was not chosen.
#[derive(Serialize)]
struct Other {
    name: String,
    line: usize,
    /// Whether all its conditions hold.
    holds: bool,
    why: String,
}

/// Evaluates the policy for the flow.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let flow = flow(options)?;
    let policy = super::load_policy(&options.file)?;
    let looks_at_local = policy
        .rules
        .iter()
        .any(|rule| !rule.conditions.local.is_empty() || rule.conditions.same_prefix.is_some());
    if options.local.is_none() && options.direction != Direction::Listener && looks_at_local {
        return Err(usage("--local is missing: rules of this policy look at it"));
    }
    let answer = answer(&policy, &flow, options);
    output::show_value(&global.format, &answer, || text(&answer, options.all))
}

fn usage(message: &str) -> anyhow::Error {
    Failure::Usage(message.to_owned()).into()
}

fn flow(options: &Options) -> Result<Flow> {
    let listener = options.direction == Direction::Listener;
    let (remote, local) = match (options.remote, options.local) {
        (Some(_), _) if listener => return Err(usage("a listener has no --remote")),
        (None, _) if !listener => return Err(usage("--remote is missing")),
        (remote, local) => {
            // At least one address is given.
            let known = remote
                .or(local)
                .unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
            let unspecified = if known.to_canonical().is_ipv4() {
                IpAddr::V4(Ipv4Addr::UNSPECIFIED)
            } else {
                IpAddr::V6(Ipv6Addr::UNSPECIFIED)
            };
            (remote.unwrap_or(unspecified), local.unwrap_or(unspecified))
        }
    };
    if remote.to_canonical().is_ipv4() != local.to_canonical().is_ipv4() {
        let family = if remote.to_canonical().is_ipv4() {
            4
        } else {
            6
        };
        return Err(usage(&format!(
            "--local: found {local}, expected an address of IPv{family}, as --remote is"
        )));
    }
    let (mut remote_port, mut local_port) = (options.remote_port, options.local_port);
    if let Some(port) = options.port {
        let own = match options.direction {
            Direction::Active => &mut remote_port,
            Direction::Passive | Direction::Listener => &mut local_port,
        };
        if own.replace(port).is_some_and(|other| other != port) {
            return Err(usage("--port contradicts --remote-port or --local-port"));
        }
    }
    let netns = match options.netns.as_deref() {
        None => None,
        Some(text) => Some(match text.parse() {
            Ok(cookie) => Namespace::Cookie(cookie),
            Err(_) => Namespace::parse(text)
                .ok_or_else(|| usage("--netns must be a name, an absolute path or a cookie"))?,
        }),
    };
    Ok(Flow {
        remote,
        local,
        // No condition holds for port 0.
        remote_port: remote_port.unwrap_or(0),
        local_port: local_port.unwrap_or(0),
        kind: match options.direction {
            Direction::Active => FlowKind::Active,
            Direction::Passive => FlowKind::Passive,
            Direction::Listener => FlowKind::Listener,
        },
        cgroup: options.cgroup.clone(),
        container: options.container.clone(),
        netns,
        draw: 0,
    })
}

fn answer(policy: &Policy, flow: &Flow, options: &Options) -> Answer {
    let outcomes = policy.outcome_shares(flow);
    let chosen: Vec<&str> = outcomes
        .iter()
        .filter_map(|(_, rule)| rule.map(|rule| rule.name.as_str()))
        .collect();
    let winner = outcomes.first().and_then(|(_, rule)| *rule);
    let rest = policy.rules.iter().enumerate();
    let others = rest
        .filter(|(_, rule)| !chosen.contains(&rule.name.as_str()))
        .map(|(place, rule)| other(policy, flow, (place, rule), winner, options));
    Answer {
        policy: policy.name.clone(),
        others: others.collect(),
        outcomes: outcomes
            .iter()
            .map(|(share, rule)| Outcome {
                share: *share as f64 / 2_f64.powi(32),
                share_text: share_text(*share),
                rule: rule.map(self::chosen),
            })
            .collect(),
    }
}

fn chosen(rule: &Rule) -> Chosen {
    let settings = rule.actions.iter().map(|action| Setting {
        key: action.key.name,
        value: action.value_text(),
        stages: stages_in_mask(action.stages).map(Stage::name).collect(),
        option: action.key.option,
        since: action.key.first_kernel_at(action.stages).to_string(),
    });
    Chosen {
        name: rule.name.clone(),
        description: rule.description.clone(),
        line: rule.at.line,
        never: rule.never,
        settings: settings.collect(),
    }
}

/// Why a rule was not chosen.
fn other(
    policy: &Policy,
    flow: &Flow,
    (place, rule): (usize, &Rule),
    winner: Option<&Rule>,
    options: &Options,
) -> Other {
    let failing = rule.conditions.failing_conditions(flow);
    let why = if failing.is_empty() {
        winner.map_or_else(String::new, |winner| {
            later(policy, flow, (place, rule), winner)
        })
    } else {
        let texts = rule.conditions.condition_texts();
        let unknown = |condition: Condition| match condition {
            Condition::LocalPort => flow.local_port == 0,
            Condition::RemotePort => flow.remote_port == 0 && flow.kind != FlowKind::Listener,
            Condition::Cgroup => options.cgroup.is_none(),
            Condition::Container => options.container.is_empty(),
            Condition::Netns => options.netns.is_none(),
            _ => false,
        };
        let parts: Vec<String> = failing
            .iter()
            .map(|&condition| {
                let text = texts.iter().find(|(own, _)| *own == condition);
                let text = text.map_or("", |(_, text)| text.as_str());
                let known = if unknown(condition) {
                    " (not given)"
                } else {
                    ""
                };
                format!("{} = {text}{known}", condition.name())
            })
            .collect();
        format!("does not hold: {}", parts.join("; "))
    };
    Other {
        name: rule.name.clone(),
        line: rule.at.line,
        holds: failing.is_empty(),
        why,
    }
}

/// The step of the order that put a rule behind the winner.
fn later(policy: &Policy, flow: &Flow, (place, rule): (usize, &Rule), winner: &Rule) -> String {
    let Some((first, _)) = policy.find_rule(&winner.name) else {
        return String::new();
    };
    let (won, own) = (
        winner.precedence_for(flow, first),
        rule.precedence_for(flow, place),
    );
    let name = &winner.name;
    if won.never != own.never {
        format!("holds, but {name} protects the flow")
    } else if won.remote != own.remote {
        format!(
            "holds, but {name} has the longer remote prefix: {} bits, not {}",
            won.remote, own.remote
        )
    } else if won.local != own.local {
        format!(
            "holds, but {name} has the longer local prefix: {} bits, not {}",
            won.local, own.local
        )
    } else {
        format!("holds, but {name} comes first in the file")
    }
}

fn text(answer: &Answer, all: bool) -> String {
    let mut text = String::new();
    let whole = answer.outcomes.len() == 1;
    for outcome in &answer.outcomes {
        let who = if whole {
            String::new()
        } else {
            format!("{} of such flows: ", outcome.share_text)
        };
        match &outcome.rule {
            None => text.push_str(&format!("{who}no rule\n")),
            Some(rule) => text.push_str(&format!("{who}{}", self::rule(rule))),
        }
        text.push('\n');
    }
    // Rules that match, and rules that nearly match, come first.
    let mut others: Vec<&Other> = answer.others.iter().collect();
    others.sort_by_key(|other| (!other.holds, other.why.matches(';').count()));
    let shown = if all { others.len() } else { ROWS };
    if !others.is_empty() {
        let rows = others.iter().take(shown).map(|other| {
            vec![
                other.name.clone(),
                other.line.to_string(),
                other.why.clone(),
            ]
        });
        text.push_str(&output::table(
            &["Not chosen", "Line", "Why"],
            &[1],
            rows.collect(),
        ));
    }
    if others.len() > shown {
        text.push_str(&format!("and {} more: --all\n", others.len() - shown));
    }
    text
}

fn rule(rule: &Chosen) -> String {
    let mut text = format!("rule {}, line {}", rule.name, rule.line);
    if !rule.description.is_empty() {
        text.push_str(&format!(": {}", rule.description));
    }
    if rule.never {
        return text + "\nThe flow is protected: nothing is set, and the learner keeps off.\n";
    }
    let rows = rule.settings.iter().map(|setting| {
        vec![
            setting.key.to_owned(),
            setting.value.clone(),
            setting.stages.join(", "),
            setting.option.to_owned(),
            setting.since.clone(),
        ]
    });
    let header = ["Sets", "To", "At", "Kernel option", "Since"];
    text + "\n" + &output::table(&header, &[], rows.collect())
}
