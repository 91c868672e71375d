//! Rows of text under each other.

use std::io::{self, Write};

/// Prints rows with their columns aligned; the first row is the head.
pub(super) fn print<const N: usize>(out: &mut impl Write, rows: &[[String; N]]) -> io::Result<()> {
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for row in rows {
        // By hand: a width of the formatting traits ends at 65,535.
        let pad = |cell: &String, width: usize| " ".repeat(width - cell.chars().count());
        let cells =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell}{}", pad(cell, width)));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// A text that a producer wrote, safe to show on a terminal and cut to a column's width.
pub(super) fn cell(text: &str) -> String {
    const CELL_CHARS_MAX: usize = 60;
    let mut shown: String = text.escape_debug().take(CELL_CHARS_MAX).collect();
    if text.escape_debug().count() > CELL_CHARS_MAX {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_may_be_of_any_length() {
        let long = "x".repeat(100_000);
        let mut out = Vec::new();
        let rows = [[long.clone(), "a".to_owned()], ["y".to_owned(), "b".to_owned()]];
        print(&mut out, &rows).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], format!("{long}  a"));
        assert_eq!(lines[1].len(), lines[0].len());
    }
}
