//! Tables, as text for a terminal.

use comfy_table::{CellAlignment, ContentArrangement, presets};

/// Longest line of a table, in characters.
const WIDTH: usize = 100;
/// Width of a column beside its text: two spaces and a line.
const FRAME: usize = 3;
/// Tables with this many columns or fewer are never split.
const WORDY: usize = 4;

/// A table before it is drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Title of the table.
    pub title: String,
    /// The columns' headings. The first column is text, the others are figures.
    pub header: Vec<String>,
    /// The rows, each as long as the header.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Draws it for a terminal, title first. A table that is too wide is split into parts, each
    /// with the first column.
    pub fn to_text(&self) -> String {
        let parts = self
            .split_columns()
            .into_iter()
            .map(|columns| self.draw_part(&columns));
        format!("{}\n{}\n", self.title, parts.collect::<Vec<_>>().join("\n"))
    }

    /// Columns of each part.
    fn split_columns(&self) -> Vec<Vec<usize>> {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let cells = cells.chain(self.header.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0) + FRAME
        };
        // Tables with few columns are wide because of their text, which can be wrapped.
        if self.header.len() <= WORDY {
            return vec![(0..self.header.len()).collect()];
        }
        let first = width(0) + 1;
        let mut parts = vec![vec![0]];
        let mut taken = first;
        for column in 1..self.header.len() {
            let own = width(column);
            let is_empty = taken == first;
            if taken + own > WIDTH && !is_empty {
                parts.push(vec![0]);
                taken = first;
            }
            taken += own;
            parts
                .last_mut()
                .expect("there is a first part")
                .push(column);
        }
        parts
    }

    fn draw_part(&self, columns: &[usize]) -> String {
        let cells = |row: &[String]| -> Vec<String> {
            let cells = columns.iter().filter_map(|&column| row.get(column));
            cells.cloned().collect()
        };
        let mut table = comfy_table::Table::new();
        table
            .load_preset(presets::UTF8_FULL_CONDENSED)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(WIDTH as u16)
            .set_header(cells(&self.header));
        for row in &self.rows {
            table.add_row(cells(row));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(columns: usize, cell: &str) -> Table {
        let header = (0..columns).map(|column| format!("column {column}"));
        Table {
            title: "A table".into(),
            header: header.collect(),
            rows: vec![vec![cell.to_owned(); columns]; 2],
        }
    }

    #[test]
    fn a_table_that_is_too_wide_comes_in_parts() {
        for columns in 1..30 {
            for cell in ["1.23 Gbit/s", "x", &"word ".repeat(30)] {
                let table = table(columns, cell);
                let text = table.to_text();
                let widest = text.lines().map(|line| line.chars().count()).max();
                assert!(widest <= Some(100), "{text}");
                if cell.len() < 20 {
                    for heading in &table.header {
                        assert!(text.contains(heading), "{heading}: {text}");
                    }
                    // No cell is broken; the first column is repeated in each part.
                    let parts = table.split_columns().len();
                    assert_eq!(
                        text.matches(cell).count(),
                        2 * (columns + parts - 1),
                        "{text}"
                    );
                }
            }
        }
        assert_eq!(table(6, "1.23 Gbit/s").split_columns().len(), 1);
    }
}
