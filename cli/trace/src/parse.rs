//! Turns the lines of a v1 trace into events and checks every rule. Passes other formats to their
//! parsers.

use std::fs::File;
use std::io::{self, Read};
use std::num::NonZeroU64;
use std::path::Path;

use super::ids::IdMap;
use super::lines::Lines;
use super::source::{Format, Source};
use super::{Defect, Event, Trace, TraceError, pickle, rmm, snapshot};
use crate::MAX_BYTES;

const ALLOC_FORM: &str = "a <id> <bytes>";
const FREE_FORM: &str = "f <id>";
const STEP_FORM: &str = "s <number>";

/// Maximum number of header lines, since each of them is kept.
const MAX_HEADER_LINES: usize = 1000;

/// The remark which says that the line before it does not start a step.
const BETWEEN: &str = "between steps";

pub(super) fn load_all(path: &Path) -> Result<Vec<Trace>, TraceError> {
    let file = File::open(path).map_err(|error| {
        let defect = match error.kind() {
            io::ErrorKind::NotFound => Defect::NoSuchFile,
            _ => Defect::Unreadable(error),
        };
        TraceError::of_file(path, defect)
    })?;
    read_all(path, file)
}

/// Reads a trace from `source`. `path` gives the trace its name, and is named in errors.
///
/// # Errors
/// Returns the first defect found, with its line; or an error if the file is a snapshot of several
/// devices. Never panics.
pub fn read(path: &Path, source: impl Read) -> Result<Trace, TraceError> {
    only(path, read_all(path, source)?)
}

/// Returns the only trace of a file.
pub(super) fn only(path: &Path, mut traces: Vec<Trace>) -> Result<Trace, TraceError> {
    match (traces.pop(), traces.len()) {
        (Some(trace), 0) => Ok(trace),
        (_, others) => {
            let count = others + 1;
            Err(TraceError::of_file(path, Defect::SeveralTraces { count }))
        }
    }
}

pub(super) fn read_all(path: &Path, source: impl Read) -> Result<Vec<Trace>, TraceError> {
    match read_to_last_line(path, source)? {
        (traces, None) => Ok(traces),
        (_, Some(cut)) => Err(cut),
    }
}

/// Reads all traces from `source`, at least one. `path` gives the traces their name, and is named
/// in errors. If a trace is cut short, returns the defect and the part up to the last complete
/// line; this part is closed with a step mark if it has steps.
///
/// # Errors
/// Returns the first defect found, with its line, unless only the end is missing. Never panics.
pub fn read_to_last_line(
    path: &Path,
    source: impl Read,
) -> Result<(Vec<Trace>, Option<TraceError>), TraceError> {
    let mut events: Vec<Vec<Event>> = Vec::new();
    let (mut traces, cut) = for_each_event(path, source, &mut |trace, event| {
        if events.len() <= trace {
            events.resize_with(trace + 1, Vec::new);
        }
        events[trace].push(event);
    })?;
    for (trace, events) in traces.iter_mut().zip(events) {
        trace.events = events;
    }
    Ok((traces, cut))
}

/// Reads like [`read_to_last_line`], and passes each event, with the number of its trace, to
/// `take`, in order. The traces returned have no events. For format v1, memory grows with the live
/// blocks and with the parts between steps, not with the file. Recordings in other formats are kept
/// in memory, since the allocations of blocks that were live before the recording have to be passed
/// first. If there is an error, the events already passed must be discarded.
///
/// # Errors
/// Returns the errors of [`read_to_last_line`].
pub fn for_each_event(
    path: &Path,
    source: impl Read,
    take: &mut dyn FnMut(usize, Event),
) -> Result<(Vec<Trace>, Option<TraceError>), TraceError> {
    let of_file = |defect| TraceError::of_file(path, defect);
    let (source, format) = Source::open(source).map_err(|defect| match defect {
        Defect::Unreadable(_) | Defect::OtherKind { .. } => of_file(defect),
        _ => TraceError::at_line(path, 1, defect),
    })?;
    let name = name_of(path);
    if format == Format::Snapshot {
        let bytes = source.read_all(pickle::MAX_BYTES + 1);
        let traces = bytes.and_then(|bytes| snapshot::read(&bytes, &name, take));
        return Ok((traces.map_err(of_file)?, None));
    }
    let mut lines = Lines::new(source);
    let mut take = |event| take(0, event);
    let read = match format {
        Format::RmmLog => rmm::read(&mut lines, name, &mut take).map(|trace| (trace, None)),
        _ => read_v1(&mut lines, name, &mut take),
    };
    let at_line = |defect| TraceError::at_line(path, lines.number(), defect);
    let (mut trace, cut) = read.map_err(at_line)?;
    let cut = cut.map(at_line);
    if cut.is_some() {
        let number = lines.number();
        trace.notes.push(format!(
            "the file is cut short at line {number}: the part before is played"
        ));
    }
    Ok((vec![trace], cut))
}

/// Reads a v1 trace. Returns the trace, and the defect of its end if the end is missing.
fn read_v1(
    lines: &mut Lines<'_>,
    name: String,
    take: &mut dyn FnMut(Event),
) -> Result<(Trace, Option<Defect>), Defect> {
    let mut parser = Parser::default();
    loop {
        match lines.next() {
            Ok(Some(line)) => {
                if let Some(event) = parser.line(line)? {
                    take(event);
                }
            }
            Ok(None) => return parser.finish(name, None, take),
            Err(defect) if defect.is_cut() => return parser.finish(name, Some(defect), take),
            Err(defect) => return Err(defect),
        }
    }
}

/// The state of the parser.
#[derive(Default)]
struct Parser {
    any_line: bool,
    header: Vec<(String, String)>,
    last: Option<Event>,
    /// The next id, which equals the number of blocks so far. It is at most `u32::MAX`, since
    /// [`id_field`] refuses larger ids.
    allocations: u32,
    /// Size of each live block, by id.
    live: IdMap<NonZeroU64>,
    live_bytes: u64,
    frees: u64,
    steps: u32,
    /// Numbers of the step marks that start parts between steps, in order.
    between: Vec<u32>,
    /// Whether the recorder's last line has been read.
    ended: bool,
}

impl Parser {
    /// Parses a line. Returns its event, if it has one.
    fn line(&mut self, line: &str) -> Result<Option<Event>, Defect> {
        self.any_line = true;
        if let Some(comment) = line.strip_prefix('#') {
            return self.comment(comment).map(|()| None);
        }
        if line.bytes().all(|byte| byte == b' ') {
            return Ok(None);
        }
        let mut fields = line.split(' ');
        let event = match fields.next() {
            Some("a") => self.alloc(&mut fields)?,
            Some("f") => self.free(&mut fields)?,
            Some("s") => self.step(&mut fields)?,
            Some("") | None => {
                return Err(Defect::StrayBlank {
                    place: "begins with a blank",
                });
            }
            Some(other) => {
                return Err(Defect::UnknownEvent {
                    found: shown(other),
                });
            }
        };
        self.last = Some(event);
        Ok(self.last)
    }

    /// Parses a `#` line. Before the first event it is a header line. After that it is a remark
    /// without effect, except `# between steps` after a step's line, and the recorder's last line.
    fn comment(&mut self, comment: &str) -> Result<(), Defect> {
        if let Some(last) = self.last {
            if let (Event::Step { number }, BETWEEN) = (last, comment.trim()) {
                self.note_between(number);
            }
            self.ended |= comment.trim_start().starts_with("recording ended:");
            return Ok(());
        }
        let (key, value) = comment.split_once(':').unwrap_or((comment, ""));
        let (key, value) = (key.trim(), value.trim());
        if key
            .strip_prefix("alloc-trace")
            .is_some_and(|version| version.trim() != "v1")
        {
            return Err(Defect::UnknownVersion { found: shown(key) });
        }
        if self.header.len() == MAX_HEADER_LINES {
            return Err(Defect::LongHeader {
                limit: MAX_HEADER_LINES,
            });
        }
        self.header.push((key.to_owned(), value.to_owned()));
        Ok(())
    }

    fn note_between(&mut self, number: u32) {
        if self.between.last() != Some(&number) {
            self.between.push(number);
        }
    }

    fn alloc<'line>(
        &mut self,
        fields: &mut impl Iterator<Item = &'line str>,
    ) -> Result<Event, Defect> {
        let id = id_field(fields, ALLOC_FORM)?;
        let bytes = number(fields, "number of bytes", ALLOC_FORM, MAX_BYTES)?;
        no_more(fields, ALLOC_FORM)?;
        if id != self.allocations {
            return Err(Defect::IdOutOfOrder {
                found: id,
                expected: self.allocations,
            });
        }
        let size = NonZeroU64::new(bytes).ok_or(Defect::ZeroBytes { id })?;
        // Both are at most 2^60, so the sum cannot overflow.
        self.live_bytes += bytes;
        if self.live_bytes > MAX_BYTES {
            return Err(Defect::TooMuchLive);
        }
        self.live.insert(id, size);
        self.allocations += 1;
        Ok(Event::Alloc { id, bytes })
    }

    fn free<'line>(
        &mut self,
        fields: &mut impl Iterator<Item = &'line str>,
    ) -> Result<Event, Defect> {
        let id = id_field(fields, FREE_FORM)?;
        no_more(fields, FREE_FORM)?;
        let allocated = self.allocations;
        let Some(size) = self.live.remove(&id) else {
            return Err(match id < allocated {
                true => Defect::DoubleFree { id },
                false => Defect::UnknownId { id, allocated },
            });
        };
        self.live_bytes -= size.get();
        self.frees += 1;
        Ok(Event::Free { id })
    }

    fn step<'line>(
        &mut self,
        fields: &mut impl Iterator<Item = &'line str>,
    ) -> Result<Event, Defect> {
        let found = number32(fields, "step number", STEP_FORM)?;
        no_more(fields, STEP_FORM)?;
        if found != self.steps {
            return Err(Defect::StepOutOfOrder {
                found,
                expected: self.steps,
            });
        }
        self.steps += 1;
        Ok(Event::Step { number: found })
    }

    /// Checks the file as a whole; its end may be missing. Closes a step that is cut.
    fn finish(
        self,
        name: String,
        cut: Option<Defect>,
        take: &mut dyn FnMut(Event),
    ) -> Result<(Trace, Option<Defect>), Defect> {
        let Some(last) = self.last else {
            return Err(match cut {
                Some(cut) => cut,
                None if self.any_line => Defect::NoEvents,
                None => Defect::EmptyFile,
            });
        };
        let open = self.steps > 0 && !matches!(last, Event::Step { .. });
        let mut cut = cut.or_else(|| open.then_some(Defect::NoClosingStep));
        for (what, found) in [
            ("allocs", u64::from(self.allocations)),
            ("frees", self.frees),
        ] {
            match self.check_promise(what, found) {
                Err(defect) if defect.is_cut() => cut = cut.or(Some(defect)),
                checked => checked?,
            }
        }
        if open {
            let number = self.steps;
            take(Event::Step { number });
        }
        let mut header = self.header.iter();
        let by_recorder = header.any(|(key, by)| key == "recorded" && by.starts_with("larder "));
        let mut notes = Vec::new();
        if by_recorder && !self.ended {
            notes.push(
                "the recording has no last line: the program was killed or is still running, and its newest events are missing"
                    .to_owned(),
            );
        }
        let trace = Trace {
            name,
            header: self.header,
            events: Vec::new(),
            allocations: self.allocations,
            between: self.between,
            streams: Vec::new(),
            notes,
            refusals: Vec::new(),
            settings: None,
            held_bytes: None,
        };
        Ok((trace, cut))
    }

    /// Compares a count with the header. The recorder writes `# allocs: 12  frees: 7 ...`. With
    /// this line, even a file that is cut right after an `s` line is detected.
    fn check_promise(&self, what: &'static str, found: u64) -> Result<(), Defect> {
        let line = self.header.iter().find(|(key, _)| key == "allocs");
        let promised =
            line.and_then(|(key, value)| promised_count(&format!("{key}: {value}"), what));
        match promised {
            Some(promised) if promised != found => Err(Defect::HeaderMismatch {
                what,
                promised,
                found,
            }),
            _ => Ok(()),
        }
    }
}

/// Maximum id. It is one below `u32::MAX`, so that the number of blocks also fits `u32`.
pub(super) const MAX_ID: u64 = u32::MAX as u64 - 1;

fn id_field<'line>(
    fields: &mut impl Iterator<Item = &'line str>,
    form: &'static str,
) -> Result<u32, Defect> {
    number32(fields, "id", form)
}

fn number32<'line>(
    fields: &mut impl Iterator<Item = &'line str>,
    field: &'static str,
    form: &'static str,
) -> Result<u32, Defect> {
    let value = number(fields, field, form, MAX_ID)?;
    u32::try_from(value).map_err(|_| Defect::NumberTooBig {
        field,
        found: value.to_string(),
        max: MAX_ID,
    })
}

fn number<'line>(
    fields: &mut impl Iterator<Item = &'line str>,
    field: &'static str,
    form: &'static str,
    max: u64,
) -> Result<u64, Defect> {
    let text = fields.next().ok_or(Defect::MissingField { field, form })?;
    if text.is_empty() {
        return Err(stray_blank(fields));
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Defect::NotANumber {
            field,
            found: shown(text),
        });
    }
    match text.parse::<u64>() {
        Ok(value) if value <= max => Ok(value),
        _ => Err(Defect::NumberTooBig {
            field,
            found: shown(text),
            max,
        }),
    }
}

fn no_more<'line>(
    fields: &mut impl Iterator<Item = &'line str>,
    form: &'static str,
) -> Result<(), Defect> {
    match fields.next() {
        None => Ok(()),
        Some("") => Err(stray_blank(fields)),
        Some(found) => Err(Defect::ExtraField {
            found: shown(found),
            form,
        }),
    }
}

/// Returns the defect of a line with an empty field; `rest` has the fields after it.
fn stray_blank<'line>(rest: &mut impl Iterator<Item = &'line str>) -> Defect {
    let place = match rest.next() {
        Some(_) => "has two blanks in a row",
        None => "ends with a blank",
    };
    Defect::StrayBlank { place }
}

/// Returns the number after `what:` in a header line, if there is one.
fn promised_count(line: &str, what: &str) -> Option<u64> {
    let mut words = line.split_whitespace();
    words.find(|word| word.strip_suffix(':') == Some(what))?;
    words.next()?.parse().ok()
}

/// Returns a part of the file in printable form: short and without control characters.
pub(super) fn shown(text: &str) -> String {
    const MAX_CHARACTERS: usize = 40;
    let mut shown: String = text
        .chars()
        .take(MAX_CHARACTERS)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(MAX_CHARACTERS).is_some() {
        shown.push('…');
    }
    shown
}

/// Returns the name of a trace: `runs/bert.trace.zst` is called `bert`.
pub(super) fn name_of(path: &Path) -> String {
    let name = path
        .file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy();
    let packed = [".zst", ".gz", ".xz"];
    let stem = packed.iter().find_map(|ending| name.strip_suffix(ending));
    let stem = stem.unwrap_or(&name);
    let endings = [".trace", ".txt", ".pickle", ".pkl", ".csv"];
    let stem = endings
        .iter()
        .find_map(|ending| stem.strip_suffix(ending))
        .unwrap_or(stem);
    let stem = if stem.is_empty() { name.as_ref() } else { stem };
    stem.chars()
        .map(|letter| {
            if letter.is_control() {
                '\u{fffd}'
            } else {
                letter
            }
        })
        .collect()
}
