//! Tables that fit the width there is: columns that matter less give way.

use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

use thalweg_units::printable;

/// A column.
pub struct Column {
    title: &'static str,
    right: bool,
    least: usize,
    /// The column with the highest number gives way first; 0 never does.
    gives_way: u8,
}

impl Column {
    /// A column of text.
    pub fn text(title: &'static str, least: usize, gives_way: u8) -> Self {
        Self {
            title,
            right: false,
            least,
            gives_way,
        }
    }

    /// A column of numbers.
    pub fn number(title: &'static str, least: usize, gives_way: u8) -> Self {
        Self {
            right: true,
            ..Self::text(title, least, gives_way)
        }
    }
}

/// A cell: its text has no control characters.
#[derive(Clone)]
pub struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub fn with_style(text: &str, style: Style) -> Self {
        Self {
            text: printable(text),
            style,
        }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::with_style(&text, Style::default())
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::with_style(text, Style::default())
    }
}

/// A table.
pub struct Table {
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Takes a column out.
    pub fn remove_column(&mut self, title: &str) {
        if let Some(index) = self.columns.iter().position(|column| column.title == title) {
            self.columns.remove(index);
            for row in &mut self.rows {
                row.remove(index);
            }
        }
    }

    /// The header and the rows, at most `width` wide. The last column takes what is left.
    pub fn header_and_rows(&self, width: usize) -> (Line<'static>, Vec<Line<'static>>) {
        let fitting = self.fitting_columns(width);
        let header = fitting.iter().map(|(index, width)| {
            let column = &self.columns[*index];
            pad_text(column.title, *width, column.right)
        });
        let header: Vec<String> = header.collect();
        let header = format!("{:width$}", header.join(" "));
        let header = Line::styled(header, Style::new().add_modifier(Modifier::REVERSED));
        let rows = self.rows.iter().map(|row| {
            let mut spans = Vec::new();
            for (place, (index, width)) in fitting.iter().enumerate() {
                if place > 0 {
                    spans.push(Span::raw(" "));
                }
                let cell = &row[*index];
                let text = pad_text(&cell.text, *width, self.columns[*index].right);
                spans.push(Span::styled(text, cell.style));
            }
            Line::from(spans)
        });
        (header, rows.collect())
    }

    /// The columns that fit, with their widths.
    fn fitting_columns(&self, width: usize) -> Vec<(usize, usize)> {
        let last = self.columns.len() - 1;
        let wanted = |index: usize| {
            let column = &self.columns[index];
            let cells = self.rows.iter().map(|row| columns_of(&row[index].text));
            let widest = cells.max().unwrap_or(0);
            let least = if index == last { 0 } else { column.least };
            widest.max(least).max(columns_of(column.title))
        };
        let mut fitting: Vec<(usize, usize)> = (0..=last).map(|i| (i, wanted(i))).collect();
        let needed = |fitting: &[(usize, usize)]| {
            let one = |(index, wide): &(usize, usize)| match *index == last {
                // The column may be cut.
                true => self.columns[*index].least.min(*wide),
                false => *wide,
            };
            fitting.iter().map(|column| one(column) + 1).sum::<usize>() - 1
        };
        while needed(&fitting) > width {
            let gives_way = |(index, _): &(usize, usize)| self.columns[*index].gives_way;
            let place = (0..fitting.len()).max_by_key(|place| gives_way(&fitting[*place]));
            match place {
                Some(place) if gives_way(&fitting[place]) > 0 => fitting.remove(place),
                _ => break,
            };
        }
        let mut left = width;
        for (place, (_, wide)) in fitting.iter_mut().enumerate() {
            left = left.saturating_sub(usize::from(place > 0));
            *wide = left.min(*wide);
            left -= *wide;
        }
        fitting.retain(|(_, wide)| *wide > 0);
        fitting
    }
}

/// Columns that a text takes on the screen.
pub fn columns_of(text: &str) -> usize {
    Span::raw(text).width()
}

/// A text in exactly this many columns; "…" stands for what is cut.
pub fn pad_text(text: &str, width: usize, right: bool) -> String {
    let mut text = text.to_owned();
    if columns_of(&text) > width {
        while columns_of(&text) >= width.max(1) {
            text.pop();
        }
        if width > 0 {
            text.push('…');
        }
    }
    let gap = " ".repeat(width.saturating_sub(columns_of(&text)));
    match right {
        true => gap + &text,
        false => text + &gap,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(width: usize) -> [String; 2] {
        let table = Table {
            columns: vec![
                Column::text("Host", 4, 0),
                Column::number("Rate", 6, 2),
                Column::number("RTT", 5, 1),
                Column::text("Others", 4, 3),
            ],
            rows: vec![vec![
                "192.0.2.7".into(),
                "12.3M".into(),
                "4".into(),
                "a\nb cd ef".into(),
            ]],
        };
        let (header, rows) = table.header_and_rows(width);
        [header, rows[0].clone()].map(|line| line.to_string())
    }

    #[test]
    fn columns_give_way_in_order() {
        for (width, row) in [
            (40, "192.0.2.7  12.3M     4 a\\nb cd ef"),
            (28, "192.0.2.7  12.3M     4 a\\nb…"),
            (26, "192.0.2.7  12.3M     4"),
            (16, "192.0.2.7     4"),
            (9, "192.0.2.7"),
            (6, "192.0…"),
        ] {
            let [header, found] = drawn(width);
            assert_eq!(found.trim_end(), row, "{width}");
            assert_eq!(columns_of(&header), width, "{header:?}");
        }
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(pad_text("漢字漢字", 5, false), "漢字…");
        assert_eq!(pad_text("漢字", 4, false), "漢字");
        assert_eq!(pad_text("漢字", 2, false), "… ");
        assert_eq!(pad_text("x", 0, false), "");
    }
}
