//! What the user has chosen, by keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// Longest filter.
const FILTER_MAX: usize = 64;

/// A view of the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    #[default]
    Hosts,
    Arms,
    Decisions,
    Rules,
    Health,
}

/// The views, in the order of their keys.
pub const VIEWS: [(View, &str); 5] = [
    (View::Hosts, "Hosts"),
    (View::Arms, "Arms"),
    (View::Decisions, "Decisions"),
    (View::Rules, "Rules"),
    (View::Health, "Health"),
];

/// Order of the hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    #[default]
    Traffic,
    Recent,
    Cost,
}

impl Sort {
    /// Name of the order in requests and on the screen.
    pub fn name(self) -> &'static str {
        match self {
            Self::Traffic => "traffic",
            Self::Recent => "recent",
            Self::Cost => "cost",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Traffic => Self::Recent,
            Self::Recent => Self::Cost,
            Self::Cost => Self::Traffic,
        }
    }
}

/// Choices of the user.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    pub view: View,
    pub sort: Sort,
    /// Only rows with this text; empty: all.
    pub filter: String,
    /// The filter is being written.
    pub writing: bool,
    pub frozen: bool,
    pub help: bool,
    /// Lines that are scrolled away.
    pub scroll: usize,
    /// Lines that one page has: set where it is drawn.
    pub page: usize,
}

/// Action that a key asks for, other than another screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAction {
    Stay,
    Quit,
    /// Ctrl-Z.
    Suspend,
}

impl Choice {
    /// Does what a key says.
    pub fn handle_key(&mut self, key: KeyEvent) -> KeyAction {
        if key.kind == KeyEventKind::Release {
            return KeyAction::Stay;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return KeyAction::Quit,
            KeyCode::Char('z') if control => return KeyAction::Suspend,
            _ if self.writing => self.edit_filter(key.code, control),
            KeyCode::Char(_) if control => {}
            KeyCode::Char('q') | KeyCode::Esc if self.help => self.turn_help(),
            KeyCode::Char('q') | KeyCode::Esc => return KeyAction::Quit,
            code => self.handle_view_key(code),
        }
        KeyAction::Stay
    }

    fn handle_view_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down => self.scroll = self.scroll.saturating_add(1),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(self.page),
            KeyCode::PageDown => self.scroll = self.scroll.saturating_add(self.page),
            KeyCode::Home => self.scroll = 0,
            KeyCode::End => self.scroll = usize::MAX,
            KeyCode::Char('?' | 'h') => self.turn_help(),
            KeyCode::Enter if self.help => self.turn_help(),
            _ if self.help => {}
            KeyCode::Tab => self.turn_views(1),
            KeyCode::BackTab => self.turn_views(VIEWS.len() - 1),
            KeyCode::Char(digit @ '1'..='5') => self.show_view(digit as usize - '1' as usize),
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.scroll = 0;
            }
            KeyCode::Char('/') => self.writing = true,
            KeyCode::Char(' ' | 'p') => self.frozen = !self.frozen,
            _ => {}
        }
    }

    /// Keys of the filter.
    fn edit_filter(&mut self, code: KeyCode, control: bool) {
        self.scroll = 0;
        match code {
            KeyCode::Enter => self.writing = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.writing = false;
            }
            KeyCode::Char('u') if control => self.filter.clear(),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) if !control && self.filter.chars().count() < FILTER_MAX => {
                self.filter.push(letter);
            }
            _ => {}
        }
    }

    fn turn_help(&mut self) {
        self.help = !self.help;
        self.scroll = 0;
    }

    fn turn_views(&mut self, by: usize) {
        let now = VIEWS.iter().position(|(view, _)| *view == self.view);
        self.show_view((now.unwrap_or(0) + by) % VIEWS.len());
    }

    fn show_view(&mut self, index: usize) {
        self.view = VIEWS[index].0;
        self.scroll = 0;
    }

    /// Whether a row with these texts passes the filter.
    pub fn passes_filter(&self, texts: &[&str]) -> bool {
        let wanted = self.filter.to_lowercase();
        texts
            .iter()
            .any(|text| text.to_lowercase().contains(&wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(choice: &mut Choice, text: &str) -> KeyAction {
        let key = |letter| match letter {
            '\t' => KeyCode::Tab,
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            letter => KeyCode::Char(letter),
        };
        let act = |letter| choice.handle_key(KeyEvent::new(key(letter), KeyModifiers::NONE));
        text.chars().map(act).last().unwrap()
    }

    #[test]
    fn keys_choose_view_sort_and_freeze() {
        let mut choice = Choice::default();
        typed(&mut choice, "\t\ts p3");
        assert_eq!((choice.view, choice.sort), (View::Decisions, Sort::Recent));
        assert!(!choice.frozen);
        typed(&mut choice, "5\t");
        assert_eq!(choice.view, View::Hosts);
        assert_eq!(typed(&mut choice, "q"), KeyAction::Quit);
        assert_eq!(typed(&mut choice, "\x1b"), KeyAction::Quit);
    }

    #[test]
    fn letters_of_a_filter_are_no_keys() {
        let mut choice = Choice::default();
        assert_eq!(typed(&mut choice, "/qs 2x\x08\n"), KeyAction::Stay);
        assert_eq!((choice.filter.as_str(), choice.view), ("qs 2", View::Hosts));
        assert!(choice.passes_filter(&["a", "aQS 2b"]) && !choice.passes_filter(&["qs2"]));
        assert_eq!(typed(&mut choice, "/\x1b"), KeyAction::Stay);
        assert!(choice.filter.is_empty() && choice.passes_filter(&[""]));
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        typed(&mut choice, "/");
        assert_eq!(choice.handle_key(control), KeyAction::Quit);
    }

    #[test]
    fn leaving_the_help_is_not_the_end() {
        let mut choice = Choice::default();
        for end in ["q", "\x1b", "?", "\n"] {
            typed(&mut choice, "?2");
            assert!(choice.help && choice.view == View::Hosts);
            assert_eq!(typed(&mut choice, end), KeyAction::Stay);
            assert!(!choice.help);
        }
    }
}
