//! List of the agent's features. A feature is a folder here and a word in this list: without both
//! the agent is built without the feature, and all others work.

use crate::config::reader::Section;
use crate::feature::{Feature, Sections};

macro_rules! features {
    ($($name:ident),* $(,)?) => {
        $(mod $name;)*

        /// New objects of all features, for an agent or to list the features.
        pub fn all() -> Vec<Box<dyn Feature>> {
            vec![$(Box::<$name::State>::default()),*]
        }
    };
}

features! {
    clamps,
}

/// Reads the sections of all features.
pub fn read_sections(root: &mut Section<'_>) -> Sections {
    Sections(all().iter().map(|it| it.read_settings(root)).collect())
}

/// Hint for a problem of this kind; `None`: the kind belongs to no feature.
pub fn hint(kind: &str) -> Option<&'static str> {
    let of_kind = all().into_iter().find(|feature| feature.name() == kind)?;
    Some(of_kind.hint())
}
