// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Printing: JSON, tables, lines. What is printed is decided by the subcommands.
//!
//! Everything goes through `write`, so that a reader that has gone is an error and no panic.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::Result;
use comfy_table::{presets, CellAlignment, Table};
use serde::Serialize;

use crate::context::Context;

/// Print a value as JSON on one line, or indented with `--pretty`.
pub fn json(context: &Context, value: &impl Serialize) -> Result<()> {
    let text = match context.pretty {
        true => serde_json::to_string_pretty(value)?,
        false => serde_json::to_string(value)?,
    };
    line(text)
}

/// Print a line.
pub fn line(text: impl Display) -> Result<()> {
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}

/// Print lines.
pub fn lines<T: Display>(texts: impl IntoIterator<Item = T>) -> Result<()> {
    texts.into_iter().try_for_each(line)
}

/// Print a note for a person, where it does not disturb the output.
pub fn note(text: impl Display) {
    // Nobody is left to be told when this fails.
    let _ = writeln!(io::stderr().lock(), "kbp: {text}");
}

/// Print rows under a header, columns apart by two spaces. Columns from `numbers_from` on are
/// aligned to the right.
pub fn table(header: &[&str], rows: Vec<Vec<String>>, numbers_from: usize) -> Result<()> {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(header.to_vec())
        .add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index >= numbers_from {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    lines(table.lines().map(|text| text.trim_end().to_owned()))
}

/// A value that may be missing.
pub fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}
