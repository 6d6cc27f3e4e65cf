//! Logs of RMM's `logging_resource_adaptor`: CSV files with one row for each allocation, free and
//! refusal.
//!
//! Logs pass through many programs, so lines may end as on Windows, fields may be quoted, and empty
//! lines are skipped. If a program ends without a flush, the last row of its log is cut; only that
//! row may be incomplete.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;

use super::lines::Lines;
use super::parse::shown;
use super::recording::{OpenRecording, counted};
use super::{Defect, Event, Trace};

/// The first line of a log of RMM's logging adaptor, by which it is recognized.
pub const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream";

/// A log being read.
#[derive(Default)]
struct Log {
    recording: OpenRecording,
    /// The hashes of all names of threads, which are only counted, and of streams.
    threads: HashSet<u64>,
    streams: HashSet<u64>,
    /// The hash of the stream on which each live block was allocated, by address.
    origins: HashMap<u64, u64>,
    hashes: RandomState,
    /// Number of blocks freed on another stream than that of their allocation.
    moved: u64,
    cut: bool,
}

/// Reads the rows after the header, and passes events to `take`.
pub(super) fn read(
    lines: &mut Lines<'_>,
    name: String,
    take: &mut dyn FnMut(Event),
) -> Result<Trace, Defect> {
    let mut log = Log::default();
    let mut header = true;
    loop {
        let line = match lines.next_lenient() {
            Ok(Some(line)) => line,
            Ok(None) => break,
            Err(defect) if defect.is_cut() => {
                log.cut = true;
                break;
            }
            Err(defect) => return Err(defect),
        };
        let row = line.trim_ascii_end();
        if std::mem::take(&mut header) {
            if !row.split(',').map(unquoted).eq(HEADER.split(',')) {
                return Err(Defect::UnknownColumns { found: shown(row) });
            }
            continue;
        }
        if row.is_empty() {
            continue;
        }
        match log.row(row) {
            Err(_) if !line.ends_with('\n') => log.cut = true,
            outcome => outcome?,
        }
    }
    log.finish(name, take)
}

impl Log {
    fn row(&mut self, row: &str) -> Result<(), Defect> {
        let fields: Vec<&str> = row.split(',').map(unquoted).collect();
        let &[thread, _, action, pointer, size, stream] = fields.as_slice() else {
            return Err(Defect::RowFields {
                found: fields.len(),
            });
        };
        let bytes = number("size", size, 10)?;
        let thread = self.hashes.hash_one(thread);
        let on = self.hashes.hash_one(stream);
        match action {
            "allocate" => {
                let address = pointer_of(pointer)?;
                let known = pointer_of(stream).ok();
                self.recording.alloc(address, bytes, known)?;
                self.origins.insert(address, on);
            }
            "free" | "deallocate" => {
                let address = pointer_of(pointer)?;
                self.recording.free(address, bytes)?;
                let origin = self.origins.remove(&address);
                if origin.is_some_and(|origin| origin != on) {
                    self.moved += 1;
                }
            }
            "allocate failure" => {
                self.recording.refuse(bytes);
            }
            _ => {
                return Err(Defect::UnknownAction {
                    found: shown(action),
                });
            }
        }
        self.threads.insert(thread);
        self.streams.insert(on);
        Ok(())
    }

    fn finish(self, name: String, take: &mut dyn FnMut(Event)) -> Result<Trace, Defect> {
        if self.recording.is_empty() {
            return Err(Defect::NothingAllocated {
                advice: "let the program run longer, and flush the adaptor before it ends",
            });
        }
        let counts = &self.recording.counts;
        let mut notes = vec![
            "an RMM log has no steps, and does not say which streams used a block between its two rows".to_owned(),
        ];
        if counts.before > 0 {
            notes.push(format!(
                "{} of {} bytes allocated before the log begins: first, by address",
                counted(counts.before, "block"),
                counts.before_bytes
            ));
        }
        if self.threads.len() > 1 {
            notes.push(format!(
                "{} threads are played as one, in the order of the rows",
                self.threads.len()
            ));
        }
        if self.streams.len() > 1 {
            notes.push(format!(
                "{} streams are played as one; {} freed on another stream than that of the allocation",
                self.streams.len(),
                counted(self.moved, "block")
            ));
        }
        notes.extend(self.recording.refusals_note());
        counts.notes(&mut notes);
        if self.cut {
            notes.push(
                "the last row is cut and left out: the program ended without a flush, and rows before it may be missing too"
                    .to_owned(),
            );
        }
        self.recording.finish(name, notes, None, take)
    }
}

/// Returns a field without the quotes that spreadsheets put around it.
fn unquoted(field: &str) -> &str {
    let inner = field.strip_prefix('"');
    let inner = inner.and_then(|field| field.strip_suffix('"'));
    inner.unwrap_or(field)
}

/// Parses an address as C prints it.
fn pointer_of(text: &str) -> Result<u64, Defect> {
    match text.strip_prefix("0x") {
        Some(digits) => number("pointer", digits, 16),
        None if text == "(nil)" => Ok(0),
        None => number("pointer", text, 16),
    }
}

fn number(field: &'static str, text: &str, radix: u32) -> Result<u64, Defect> {
    let found = || shown(text);
    if text.is_empty() || !text.chars().all(|digit| digit.is_digit(radix)) {
        return Err(Defect::NotANumber {
            field,
            found: found(),
        });
    }
    u64::from_str_radix(text, radix).map_err(|_| Defect::NumberTooBig {
        field,
        found: found(),
        max: u64::MAX,
    })
}
