//! Lists of the agent's features, such as `thalweg clamps`: a sub-command each, from the feature's
//! name, sentence and table.

use anyhow::Result;
use clap::{ArgMatches, Command, FromArgMatches, Subcommand};
use serde_json::Value;
use thalweg_agent::features;
use thalweg_terminal::output;

use crate::options::Global;

/// The list of a feature.
#[derive(Clone, Debug)]
pub struct List {
    feature: String,
    options: ArgMatches,
}

impl Subcommand for List {
    fn augment_subcommands(command: Command) -> Command {
        let features = features::all();
        let lists = features
            .iter()
            .filter_map(|it| Some((it.name(), it.list()?)));
        lists.fold(command, |command, (name, list)| {
            let list_command = (list.add_options)(Command::new(name));
            command.subcommand(list_command.about(list.about))
        })
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        features::names_of_lists().any(|it| it == name)
    }
}

impl FromArgMatches for List {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let (feature, options) = matches
            .subcommand()
            .ok_or_else(|| clap::Error::new(clap::error::ErrorKind::MissingSubcommand))?;
        Ok(Self {
            feature: feature.to_owned(),
            options: options.clone(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Asks the agent, and shows its answer.
pub fn run(global: &Global, list: &List) -> Result<()> {
    let mut answer: Value = global
        .agent_client()?
        .get(&format!("/v1/{}", list.feature))?;
    let features = features::all();
    let feature = features.iter().find(|it| it.name() == list.feature);
    let shown = feature.and_then(|it| it.list());
    let shown = shown.map(|it| (it.show)(&mut answer, &list.options));
    let text = shown.transpose()?.unwrap_or_default();
    output::show_value(&global.format, &answer, || text)
}
