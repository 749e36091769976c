//! What each view shows.

use super::choice::View;
use super::scene::{Body, Scene};

mod arms;
mod decisions;
mod health;
mod hosts;
mod rules;

/// The chosen view.
pub fn view_body(scene: &Scene) -> Body {
    match scene.choice.view {
        View::Hosts => hosts::hosts_body(scene),
        View::Arms => arms::arms_body(scene),
        View::Decisions => decisions::decisions_body(scene),
        View::Rules => rules::rules_body(scene),
        View::Health => health::health_body(scene),
    }
}

/// Help text of a view.
pub fn help_lines(view: View) -> &'static [&'static str] {
    match view {
        View::Hosts => &hosts::HELP,
        View::Arms => &arms::HELP,
        View::Decisions => &decisions::HELP,
        View::Rules => &rules::HELP,
        View::Health => &health::HELP,
    }
}
