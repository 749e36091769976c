//! What views are made from, and what they make.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use thalweg_terminal::output::wrap_text;
use thalweg_units::printable;

use super::choice::Choice;
use super::seen::AgentView;
use super::table::Table;

/// Data from which a view is made.
pub struct Scene<'a> {
    pub known: &'a AgentView,
    pub choice: &'a Choice,
    pub paint: Paint,
    /// Columns of the screen.
    pub width: usize,
}

/// Styles, with colours or without.
#[derive(Clone, Copy, Debug)]
pub struct Paint {
    pub colours: bool,
}

/// A style where it applies.
pub fn style_if(applies: bool, style: Style) -> Style {
    if applies { style } else { Style::default() }
}

impl Paint {
    /// For what is wrong.
    pub fn error_style(self) -> Style {
        self.in_colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// For what deserves a look.
    pub fn warning_style(self) -> Style {
        self.in_colour(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    fn in_colour(self, colour: Color) -> Style {
        match self.colours {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }
}

/// Lines of a view: the first stay where they are.
#[derive(Default)]
pub struct Body {
    pub fixed: Vec<Line<'static>>,
    pub lines: Vec<Line<'static>>,
}

impl Body {
    /// A text in place of figures.
    pub fn text_only(text: &str, width: usize) -> Self {
        let mut body = Self::default();
        body.add_text(text, Style::default(), width);
        body.fixed = std::mem::take(&mut body.lines);
        body
    }

    /// Adds a text.
    pub fn add_text(&mut self, text: &str, style: Style, width: usize) {
        let lines = wrap_text(&printable(text), width);
        self.lines
            .extend(lines.into_iter().map(|line| Line::styled(line, style)));
    }

    /// Adds an empty line.
    pub fn add_gap(&mut self) {
        self.lines.push(Line::default());
    }

    /// Adds a table that moves with the rest.
    pub fn add_table(&mut self, table: &Table, width: usize) {
        let (header, rows) = table.header_and_rows(width);
        self.lines.push(header);
        self.lines.extend(rows);
    }
}

impl Scene<'_> {
    /// In place of what has not been answered yet.
    pub fn waiting_body(&self) -> Body {
        let text = match (&self.known.trouble, self.choice.frozen) {
            (Some(_), _) => "",
            (None, true) => "Frozen before this was asked for. Space goes on.",
            (None, false) => "Asking the agent.",
        };
        Body::text_only(text, self.width)
    }

    /// Where a filter has left nothing.
    pub fn nothing_passes(&self, what: &str) -> Body {
        let text = format!(
            "No {what} matches \"{}\". / and Esc show all.",
            self.choice.filter
        );
        Body::text_only(&text, self.width)
    }
}
