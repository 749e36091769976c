//! List of the agent's features, in the order of their sections, lists and links. A feature is a
//! folder here and a word in this list: without both the agent is built without the feature, and all
//! others work.

use crate::config::reader::Section;
use crate::feature::{self, Feature, Place, Sections};

macro_rules! features {
    ($($name:ident),* $(,)?) => {
        $(pub mod $name;)*

        /// New objects of all features, for an agent or to list the features.
        pub fn all() -> Vec<Box<dyn Feature>> {
            vec![$(Box::<$name::State>::default()),*]
        }
    };
}

features! {
    hosts,
    networks,
    windows,
    clamps,
    timers,
    idle,
    buffers,
    fleet,
    gain,
    limits,
    policy,
}

/// Reads the sections that stand in a place of the configuration.
pub fn read_sections(root: &mut Section<'_>, place: Place) -> Sections {
    let features = all().into_iter().filter(|it| it.place() == place);
    let sections = features.map(|it| (it.name(), it.read_settings(root)));
    Sections(sections.collect())
}

/// Names of the features' files in the state directory.
pub fn state_files() -> Vec<&'static str> {
    all()
        .iter()
        .flat_map(|it| it.state_files())
        .copied()
        .collect()
}

/// Names of the features with a list.
pub fn names_of_lists() -> impl Iterator<Item = &'static str> {
    let features = all().into_iter();
    features.filter_map(|it| it.list().map(|_| it.name()))
}

/// Hints of all features, by kind of problem.
pub fn hints() -> impl Iterator<Item = feature::Hint> {
    all()
        .into_iter()
        .flat_map(|feature| feature.hints())
        .copied()
}
