//! What each view shows.

use super::choice::View;
use super::scene::{Body, Scene};

mod arms;
mod decisions;
mod health;
mod hosts;
mod rules;

/// The chosen view.
pub fn body(scene: &Scene) -> Body {
    match scene.choice.view {
        View::Hosts => hosts::body(scene),
        View::Arms => arms::body(scene),
        View::Decisions => decisions::body(scene),
        View::Rules => rules::body(scene),
        View::Health => health::body(scene),
    }
}

/// Help text of a view.
pub fn help(view: View) -> &'static [&'static str] {
    match view {
        View::Hosts => &hosts::HELP,
        View::Arms => &arms::HELP,
        View::Decisions => &decisions::HELP,
        View::Rules => &rules::HELP,
        View::Health => &health::HELP,
    }
}
