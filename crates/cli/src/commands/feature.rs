//! Lists of the agent's features, such as `thalweg clamps`: a sub-command each, from the feature's
//! name, sentence and table.

use anyhow::Result;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, Subcommand, value_parser};
use serde_json::Value;
use thalweg_agent::features;
use thalweg_terminal::output;

use crate::options::Global;

/// Name of a list's filter among the arguments.
const FILTER: &str = "filter";

/// The list of a feature.
#[derive(Clone, Debug)]
pub struct List {
    feature: String,
    limit: usize,
    is_filtered: bool,
}

impl Subcommand for List {
    fn augment_subcommands(command: Command) -> Command {
        let features = features::all();
        let lists = features
            .iter()
            .filter_map(|it| Some((it.name(), it.list()?)));
        lists.fold(command, |command, (name, list)| {
            let rows = list.rows;
            let limit = Arg::new("limit")
                .long("limit")
                .value_name("N")
                .value_parser(value_parser!(usize))
                .help(format!("Show at most this many {rows}. Default: all"));
            let filter = list.filter.map(|(name, help)| {
                let filter = Arg::new(FILTER).long(name).help(help);
                filter.action(ArgAction::SetTrue)
            });
            let options = filter.into_iter().chain([limit]);
            command.subcommand(Command::new(name).about(list.about).args(options))
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
            limit: options.get_one("limit").copied().unwrap_or(usize::MAX),
            is_filtered: matches!(options.try_get_one(FILTER), Ok(Some(true))),
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
    let shown = shown.map(|it| (it.show)(&mut answer, list.limit, list.is_filtered));
    let text = shown.transpose()?.unwrap_or_default();
    output::show_value(&global.format, &answer, || text)
}
