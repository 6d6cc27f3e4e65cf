//! Problems in CSV: a header line `id,lower,upper,size`, and then one line for each lifetime.
//!
//! The columns may be in any order. `alignment` (a power of two; 0 or an empty field means none)
//! and `offset` (a fixed offset) are optional; `hint` is ignored. Ticks and sizes are plain
//! numbers; `upper` is the first tick after the lifetime.

use std::io::Read;

use csv::{ReaderBuilder, StringRecord};
use larder_core::Align;
use larder_core::pack::Lifetime;

/// A defect of a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CsvDefect {
    /// The file cannot be read, is not CSV, or has lines of different lengths.
    #[error("cannot read: {0}")]
    Unreadable(#[from] csv::Error),
    #[error("no column `{0}`; the first line must name id, lower, upper and size")]
    ColumnMissing(&'static str),
    #[error("column `{0}` is named twice; name it once")]
    ColumnTwice(&'static str),
    #[error(
        "column `{0}` is not known; the known columns are id, lower, upper, size, alignment, offset and hint"
    )]
    ColumnUnknown(String),
    #[error("{column} is `{text}`; it must be a whole number from 0 to {max}")]
    NotANumber {
        column: &'static str,
        text: String,
        max: u64,
    },
    #[error("alignment is {0}; it must be a power of two")]
    Alignment(u64),
    #[error("upper is {upper}, before lower at {lower}; it is the first tick after the lifetime")]
    Backwards { lower: u32, upper: u32 },
}

/// Ids of buffers, and their lifetimes.
pub(crate) type Buffers = (Vec<String>, Vec<Lifetime>);

/// Reads the ids and lifetimes of all buffers from a source. An error has the line, if it is known.
pub(crate) fn read(source: impl Read) -> Result<Buffers, (Option<u64>, CsvDefect)> {
    let mut reader = ReaderBuilder::new()
        .trim(csv::Trim::All)
        .from_reader(source);
    let unreadable = |error: csv::Error| {
        let line = error.position().map(csv::Position::line);
        (line, CsvDefect::Unreadable(error))
    };
    let header = reader.headers().map_err(unreadable)?;
    let columns = Columns::of(header).map_err(|defect| (Some(1), defect))?;
    let (mut ids, mut lifetimes) = (Vec::new(), Vec::new());
    for record in reader.records() {
        let record = record.map_err(unreadable)?;
        let line = record.position().map(csv::Position::line);
        let lifetime = columns.lifetime(&record).map_err(|defect| (line, defect))?;
        ids.push(record.get(columns.id).unwrap_or_default().to_owned());
        lifetimes.push(lifetime);
    }
    Ok((ids, lifetimes))
}

/// The index of each column.
struct Columns {
    id: usize,
    lower: usize,
    upper: usize,
    size: usize,
    alignment: Option<usize>,
    offset: Option<usize>,
}

/// The known columns. `Columns::of` uses their indices here.
const NAMES: [&str; 7] = [
    "id",
    "lower",
    "upper",
    "size",
    "alignment",
    "offset",
    "hint",
];

impl Columns {
    fn of(header: &StringRecord) -> Result<Self, CsvDefect> {
        let mut found = [None; NAMES.len()];
        for (at, text) in header.iter().enumerate() {
            let known = NAMES
                .iter()
                .position(|name| text.eq_ignore_ascii_case(name));
            let Some(index) = known else {
                return Err(CsvDefect::ColumnUnknown(text.to_owned()));
            };
            if found[index].replace(at).is_some() {
                return Err(CsvDefect::ColumnTwice(NAMES[index]));
            }
        }
        let needed = |index: usize| found[index].ok_or(CsvDefect::ColumnMissing(NAMES[index]));
        Ok(Self {
            id: needed(0)?,
            lower: needed(1)?,
            upper: needed(2)?,
            size: needed(3)?,
            alignment: found[4],
            offset: found[5],
        })
    }

    fn lifetime(&self, record: &StringRecord) -> Result<Lifetime, CsvDefect> {
        let lower = tick(record, self.lower, "lower")?;
        let upper = tick(record, self.upper, "upper")?;
        if upper < lower {
            return Err(CsvDefect::Backwards { lower, upper });
        }
        let bytes = number(record, self.size, "size", u64::MAX)?;
        let mut lifetime = Lifetime::new(lower, upper, bytes);
        if let Some(at) = self.filled(record, self.alignment) {
            let align = number(record, at, "alignment", u64::MAX)?;
            lifetime.align = Align::new(align.max(1)).ok_or(CsvDefect::Alignment(align))?;
        }
        if let Some(at) = self.filled(record, self.offset) {
            lifetime.pinned = Some(number(record, at, "offset", u64::MAX)?);
        }
        Ok(lifetime)
    }

    /// Returns the column if the file has it and its field in this record is not empty.
    fn filled(&self, record: &StringRecord, column: Option<usize>) -> Option<usize> {
        column.filter(|&at| record.get(at).is_some_and(|text| !text.is_empty()))
    }
}

fn tick(record: &StringRecord, at: usize, column: &'static str) -> Result<u32, CsvDefect> {
    let tick = number(record, at, column, u64::from(u32::MAX))?;
    Ok(u32::try_from(tick).unwrap_or(u32::MAX))
}

fn number(
    record: &StringRecord,
    at: usize,
    column: &'static str,
    max: u64,
) -> Result<u64, CsvDefect> {
    let text = record.get(at).unwrap_or_default();
    let number = text.parse().ok().filter(|&number| number <= max);
    number.ok_or_else(|| CsvDefect::NotANumber {
        column,
        text: text.to_owned(),
        max,
    })
}
