//! `thalweg fleet policy`: signed policies for agents, and how far these are.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use thalweg_fleet::keys::{PublicKey, SigningKey};
use thalweg_fleet::wire::policy::{ALL_PPM, Signed, canary_turn};
use thalweg_fleet::wire::{Progress, Status};
use thalweg_fleet::{Member, Name};
use thalweg_terminal::output::{self, count_text};
use thalweg_units::printable;
use thalweg_units::{Probability, file};

use super::access::{self, ServerAccess};
use crate::commands::policy::load_with_text;
use crate::options::Global;

/// Sub-commands of `fleet policy`.
#[derive(Debug, Subcommand)]
pub enum FleetPolicyCommand {
    /// Sign a policy and publish it; agents with the label put it in force.
    ///
    /// Each checks it before, and takes it back if its settings fail, or if flows of a rule with a share
    /// do worse than those left alone.
    Apply(Apply),
    /// Take back what agents with the label have.
    Remove(Label),
    /// Show the last policies, and how far each agent is.
    Show(Show),
}

/// The fleet, and whose label.
#[derive(Debug, Args)]
pub struct Label {
    /// Agents with this label (`[fleet] labels`); each has `all`.
    #[arg(long, value_name = "LABEL", default_value = "all", value_parser = Name::new)]
    to: Name,
    #[command(flatten)]
    place: FleetDirectory,
    /// The key that signs. Default: policy.nk of the fleet's directory.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

/// The fleet.
#[derive(Debug, Args)]
pub struct FleetDirectory {
    /// The directory of `thalweg fleet init`. Default: `fleet`.
    #[arg(long = "fleet", id = "directory", value_name = "DIR")]
    directory: Option<PathBuf>,
    #[command(flatten)]
    access: ServerAccess,
}

impl FleetDirectory {
    fn directory_path(&self) -> &Path {
        self.directory.as_deref().unwrap_or(Path::new("fleet"))
    }
}

/// Options of `fleet policy apply`.
#[derive(Debug, Args)]
pub struct Apply {
    /// The policy: a TOML file of at most 128 KiB.
    file: PathBuf,
    #[command(flatten)]
    label: Label,
    /// Share of the agents that take it first, such as 5%. They are the same for every policy of the
    /// label. Without it all agents do.
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    canary: Option<u32>,
}

/// Options of `fleet policy show`.
#[derive(Debug, Args)]
pub struct Show {
    /// Only the policy of this label.
    #[arg(long, value_name = "LABEL", value_parser = Name::new)]
    to: Option<Name>,
    #[command(flatten)]
    place: FleetDirectory,
}

/// A share in parts per million.
fn parse_share(text: &str) -> Result<u32, String> {
    let expected = || "expected a percentage above 0% and below 100%, such as 5%".to_owned();
    let share: Probability = text.parse().map_err(|_| expected())?;
    let ppm = (share.fraction() * f64::from(ALL_PPM)).round() as u32;
    match (1..ALL_PPM).contains(&ppm) {
        true => Ok(ppm),
        false => Err(expected()),
    }
}

/// Runs the sub-command.
pub fn run(global: &Global, what: &FleetPolicyCommand) -> Result<()> {
    match what {
        FleetPolicyCommand::Apply(options) => {
            let (bytes, policy) = load_with_text(&options.file)?;
            let compiled = policy.compile().ok();
            if let Some(why) = compiled.and_then(|it| it.machine_bound()) {
                bail!("{}: {why}", options.file.display());
            }
            let text = file::decode_text(bytes, &options.file)?;
            let ppm = options.canary.unwrap_or(ALL_PPM);
            publish_policy(global, &options.label, &text, ppm)
        }
        FleetPolicyCommand::Remove(label) => publish_policy(global, label, "", ALL_PPM),
        FleetPolicyCommand::Show(options) => show_policies(global, options),
    }
}

fn publish_policy(global: &Global, label: &Label, text: &str, ppm: u32) -> Result<()> {
    let directory = label.place.directory_path();
    // The clearer fault comes first.
    access::server_hosts(directory)?;
    let usual = directory.join("policy.nk");
    let key = SigningKey::read_file(label.key.as_ref().unwrap_or(&usual))?;
    let mut operator = label.place.access.connect_operator(directory)?;
    let members = match operator.statuses() {
        Ok(members) => members,
        Err(error) if ppm == ALL_PPM => {
            // An operator must be able to take a policy back at any time.
            output::print_warning(&format!("statuses of agents cannot be read: {error}"));
            Vec::new()
        }
        Err(error) => return Err(error).context("statuses of agents, for --canary"),
    };
    let agents = agents_with_label(&members, &label.to);
    for name in shared_names(&members, &agents) {
        output::print_warning(&format!(
            "several agents have the name {name} and its key; they count as one here"
        ));
    }
    let first = canary_agents(&agents, &label.to, ppm)?;
    let number = operator.publish_policy(&label.to, text, ppm, &key, &members)?;
    let names: Vec<&str> = first.iter().map(|it| it.as_str()).collect();
    if global.format.json {
        return output::print_json(&json!({
            "label": label.to,
            "number": number,
            "canary_ppm": ppm,
            "agents": agents.len(),
            "first": names,
        }));
    }
    let who = match ppm {
        ALL_PPM => format!("for {}", count_text(agents.len(), "agent")),
        _ => format!(
            "first for {} of {}: {}",
            first.len(),
            count_text(agents.len(), "agent"),
            printable(&names.join(" "))
        ),
    };
    let what = if text.is_empty() { "removal" } else { "policy" };
    output::print(&format!(
        "{what} {number} of label {} is published, {who}\n\
         How far they are: thalweg fleet policy show --fleet {}\n",
        label.to,
        directory.display()
    ))
}

/// Names of the agents with a label, in order.
fn agents_with_label(members: &[Member], label: &Name) -> Vec<Name> {
    let has = |status: &Status| *label == Name::all() || status.labels.contains(label);
    members
        .iter()
        .filter(|member| member.status.as_ref().is_ok_and(has))
        .map(|member| member.agent.clone())
        .collect()
}

/// Names out of `agents` that several machines have, with the same key.
fn shared_names<'a>(members: &'a [Member], agents: &[Name]) -> impl Iterator<Item = &'a Name> {
    members
        .iter()
        .filter(|member| member.status.as_ref().is_ok_and(|status| status.is_shared))
        .map(|member| &member.agent)
        .filter(|name| agents.contains(name))
}

/// Agents out of `agents` that take a policy first. A share of nobody is an error.
fn canary_agents(agents: &[Name], label: &Name, ppm: u32) -> Result<Vec<Name>> {
    let turns = agents
        .iter()
        .map(|agent| (canary_turn(agent, label), agent));
    let mut turns: Vec<(u32, &Name)> = turns.collect();
    turns.sort();
    let first = turns.iter().filter(|(turn, _)| *turn < ppm);
    let first: Vec<Name> = first.map(|(_, agent)| (*agent).clone()).collect();
    if !first.is_empty() || ppm == ALL_PPM {
        return Ok(first);
    }
    let given = f64::from(ppm) / f64::from(ALL_PPM / 100);
    let Some((least, agent)) = turns.first() else {
        bail!(
            "--canary: found no agent with label {label}, expected at least one that has connected"
        );
    };
    let least = f64::from(least / 1000 + 1) / 10.0;
    bail!(
        "--canary: {given}% of {} is nobody, expected at least {least}%, which is {agent}",
        count_text(agents.len(), "agent")
    )
}

fn show_policies(global: &Global, options: &Show) -> Result<()> {
    let mut operator = options
        .place
        .access
        .connect_operator(options.place.directory_path())?;
    let members = operator.statuses()?;
    let mut policies = Vec::new();
    for (label, signed) in operator.last_policies()? {
        if options.to.as_ref().is_some_and(|to| *to != label) {
            continue;
        }
        let progress = |status: &Status| -> Option<Option<Progress>> {
            let has = label == Name::all() || status.labels.contains(&label);
            let of = status.policies.iter().find(|it| it.label == label);
            has.then(|| of.cloned())
        };
        let agents: Vec<(Name, Option<Progress>)> = members
            .iter()
            .filter_map(|it| Some((it.agent.clone(), progress(it.status.as_ref().ok()?)?)))
            .collect();
        policies.push((label, signed, agents));
    }
    if global.format.json {
        let agent = |(agent, progress): &(Name, Option<Progress>)| json!({ "agent": agent, "progress": progress });
        let policies: Vec<Value> = policies
            .iter()
            .map(|(label, signed, agents)| {
                let policy = signed.unverified();
                json!({
                    "label": label,
                    "number": policy.number,
                    "time_s": policy.time_s,
                    "canary_ppm": policy.canary_ppm,
                    "key": signed.signer_key(),
                    "is_signed": is_signed(label, signed),
                    "text": policy.text,
                    "agents": agents.iter().map(agent).collect::<Vec<_>>(),
                })
            })
            .collect();
        return output::print_json(&policies);
    }
    if policies.is_empty() {
        return output::print("no policy was published\n");
    }
    for (label, signed, agents) in &policies {
        let policy = signed.unverified();
        let who = match policy.canary_ppm {
            ALL_PPM => "all".to_owned(),
            ppm => format!("{} %", f64::from(ppm) / f64::from(ALL_PPM / 100)),
        };
        let what = if policy.text.is_empty() {
            "removed"
        } else {
            "policy"
        };
        let signer = match is_signed(label, signed) {
            true => "by",
            false => "not by",
        };
        output::print(&format!(
            "{label}: {what} {}, for {who}, signed {} {signer} {}\n",
            policy.number,
            output::time_text(
                i64::try_from(policy.time_s)
                    .unwrap_or(i64::MAX)
                    .saturating_mul(1000)
            ),
            signed.signer_key(),
        ))?;
        let row = |(agent, progress): &(Name, Option<Progress>)| match progress {
            Some(it) => vec![
                agent.to_string(),
                it.number.to_string(),
                it.stage.name().to_owned(),
                printable(&it.reason),
            ],
            None => vec![
                agent.to_string(),
                "–".to_owned(),
                "none".to_owned(),
                String::new(),
            ],
        };
        let rows = agents.iter().map(row).collect();
        output::print(&output::table(
            &["agent", "number", "stage", "why"],
            &[1],
            rows,
        ))?;
    }
    Ok(())
}

/// Whether the key that a policy names signed it, for this label.
fn is_signed(label: &Name, signed: &Signed) -> bool {
    let key = PublicKey::parse(signed.signer_key());
    key.is_ok_and(|key| signed.verify_for(label, &[key], None).is_ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
    use super::*;

    #[test]
    fn a_share_of_nobody_says_how_much_somebody_is() {
        assert_eq!(parse_share("5%"), Ok(50_000));
        for wrong in ["0%", "100%", "5", "-1%", ""] {
            assert!(parse_share(wrong).is_err(), "{wrong}");
        }
        let agents: Vec<Name> = (0..20)
            .map(|it| Name::new(&format!("web{it}")).unwrap())
            .collect();
        let label = Name::all();
        let said = canary_agents(&agents, &label, 1).unwrap_err().to_string();
        let (_, least) = said.split_once("at least ").unwrap();
        let (least, agent) = least.split_once(", which is ").unwrap();
        let found = canary_agents(&agents, &label, parse_share(least).unwrap()).unwrap();
        assert_eq!(found, [Name::new(agent).unwrap()]);
        // Whoever is among the first 5 % is among the first half.
        let (some, half) = (200_000, 500_000);
        let (some, half) = (
            canary_agents(&agents, &label, some).unwrap(),
            canary_agents(&agents, &label, half).unwrap(),
        );
        assert!(some.len() < half.len() && some.iter().all(|it| half.contains(it)));
        assert_eq!(canary_agents(&agents, &label, ALL_PPM).unwrap().len(), 20);
    }
}
