//! The parser of control files, which turns a file's text into values and problems. A file with a syntax
//! error has no values at all. An invalid value becomes a problem with the value's path, and the other, valid
//! values count.

use core::fmt;
use std::collections::btree_map::Entry;

use larder_core::ByteCount;
use serde_json::{Map, Number, Value};

use super::{
    ASLEEP, CONTROL_VERSION, ControlFile, GPUS, GpuControl, LIFE, LIMIT, MAY_HOLD, NAME, PERF,
    VERSION,
};
use crate::{BusId, Life, ParseError};

/// 2^53: above it, a floating-point number does not stand for a single integer.
const EXACT: f64 = 9_007_199_254_740_992.0;
/// Maximum number of characters of a key that are shown in a path.
const KEY_CHARS: usize = 64;

/// The result of reading a control file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parsed {
    /// The valid values.
    pub file: ControlFile,
    /// The invalid values, in the order of the file.
    pub problems: Vec<Problem>,
}

/// A rejected value. The former value stays in force.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Problem {
    /// The path of the value: names joined with dots, as in `gpuConfigInfo.00:1e.0.maxDeviceMem`.
    pub path: String,
    /// The kind of problem.
    pub what: ProblemKind,
}

/// A problem with a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ProblemKind {
    /// The value is not a number.
    NotANumber,
    /// The number is below 0.
    Negative,
    /// The number has a fraction.
    Fraction,
    /// The number has more than 64 bits, or it has a decimal point and is too large to be exact.
    TooLarge,
    /// The number is not between 0 and 100.
    NotAPercentage,
    /// The value is not a string.
    NotText,
    /// The value is neither true nor false.
    NotABool,
    /// The value is not an object.
    NotAnObject,
    /// The name of an entry is not a bus id.
    NotABusId,
    /// An earlier entry names the same GPU in another spelling. The later entry counts.
    SameGpu,
    /// The version is unknown here. The known fields were read.
    NewerVersion,
}

impl ControlFile {
    /// Parses a file's text.
    ///
    /// A limit may also be a string such as `1.5GiB` ([`ByteCount`]). Numbers are exact below 2^64. A whole
    /// number written with a decimal point (`1.0`) counts as an integer up to 2^53. `null` means absent.
    /// Names of GPUs are normalized ([`BusId`]). If two spellings of one GPU occur, the later entry counts,
    /// and there is a problem. If a key occurs twice in the same spelling, the last one counts, as usual in
    /// JSON.
    ///
    /// # Errors
    /// The text is too large, not JSON, incomplete, or not an object; or its [`life`](Self::life) is invalid.
    /// No value is used then.
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Parsed, ParseError> {
        let text = text.as_ref();
        if text.len() > Self::MAX_BYTES {
            return Err(ParseError::TooLarge { bytes: text.len() });
        }
        if text.iter().all(u8::is_ascii_whitespace) {
            return Err(ParseError::Empty);
        }
        let syntax = |error: serde_json::Error| ParseError::Syntax {
            line: error.line(),
            column: error.column(),
        };
        let Value::Object(mut root) = serde_json::from_slice(text).map_err(syntax)? else {
            return Err(ParseError::NotAnObject);
        };
        let mut reader = ControlReader::default();
        let mut file = Self {
            name: reader.name(root.shift_remove(NAME)),
            version: reader.version(root.shift_remove(VERSION)),
            control_version: reader.control_version(root.shift_remove(CONTROL_VERSION)),
            life: life(root.shift_remove(LIFE))?,
            ..Self::default()
        };
        reader.gpus(root.shift_remove(GPUS), &mut file);
        file.perf_control = reader.perf(root.shift_remove(PERF));
        file.asleep = reader.asleep(root.shift_remove(ASLEEP));
        file.other = root;
        Ok(Parsed {
            file,
            problems: reader.problems,
        })
    }
}

#[derive(Default)]
struct ControlReader {
    problems: Vec<Problem>,
}

impl ControlReader {
    fn problem(&mut self, path: impl Into<String>, what: ProblemKind) {
        let path = path.into();
        self.problems.push(Problem { path, what });
    }

    fn name(&mut self, value: Option<Value>) -> Option<String> {
        match value? {
            Value::String(name) => Some(name),
            Value::Null => None,
            _ => {
                self.problem(NAME, ProblemKind::NotText);
                None
            }
        }
    }

    fn asleep(&mut self, value: Option<Value>) -> Option<bool> {
        match value? {
            Value::Bool(asleep) => Some(asleep),
            Value::Null => None,
            _ => {
                self.problem(ASLEEP, ProblemKind::NotABool);
                None
            }
        }
    }

    fn version(&mut self, value: Option<Value>) -> Option<u64> {
        let version = self.number(VERSION, value?)?;
        if version > ControlFile::VERSION {
            self.problem(VERSION, ProblemKind::NewerVersion);
        }
        Some(version)
    }

    fn control_version(&mut self, value: Option<Value>) -> Option<u64> {
        self.number(CONTROL_VERSION, value?)
    }

    fn gpus(&mut self, value: Option<Value>, file: &mut ControlFile) {
        for (key, value) in self.object(GPUS, value).unwrap_or_default() {
            let path = format!("{GPUS}.{}", clip(&key));
            let Ok(id) = key.parse::<BusId>() else {
                self.problem(path, ProblemKind::NotABusId);
                continue;
            };
            let Some(mut entry) = self.object(&path, Some(value)) else {
                continue;
            };
            let mut size = |name: &str| {
                let value = entry.shift_remove(name)?;
                self.size(&format!("{path}.{name}"), value)
            };
            let gpu = GpuControl {
                max_device_mem: size(LIMIT),
                may_hold: size(MAY_HOLD),
                other: entry,
            };
            match file.gpus.entry(id) {
                Entry::Vacant(place) => {
                    place.insert(gpu);
                }
                Entry::Occupied(mut place) => {
                    self.problem(path, ProblemKind::SameGpu);
                    place.insert(gpu);
                }
            }
        }
    }

    /// Returns the object at `path`; `None` if it is absent. A value that is not an object becomes a
    /// problem.
    fn object(&mut self, path: &str, value: Option<Value>) -> Option<Map<String, Value>> {
        match value? {
            Value::Null => None,
            Value::Object(entries) => Some(entries),
            _ => {
                self.problem(path, ProblemKind::NotAnObject);
                None
            }
        }
    }

    fn perf(&mut self, value: Option<Value>) -> Option<i32> {
        let perf = self.number(PERF, value?)?;
        if perf > 100 {
            self.problem(PERF, ProblemKind::NotAPercentage);
            return None;
        }
        i32::try_from(perf).ok()
    }

    /// Reads a number, or a string such as `1.5GiB`, which AntMan does not support.
    fn size(&mut self, path: &str, value: Value) -> Option<u64> {
        match value.as_str().and_then(ByteCount::parse) {
            Some(ByteCount(bytes)) => Some(bytes),
            None => self.number(path, value),
        }
    }

    fn number(&mut self, path: &str, value: Value) -> Option<u64> {
        let number = match value {
            Value::Null => return None,
            Value::Number(number) => whole(&number),
            _ => Err(ProblemKind::NotANumber),
        };
        number.map_err(|what| self.problem(path, what)).ok()
    }
}

/// Reads the `life` field, which names the process that the file is for. If it is invalid, no process obeys
/// the file.
fn life(value: Option<Value>) -> Result<Option<Life>, ParseError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => text.parse().map(Some),
        Some(_) => Err(ParseError::Life),
    }
}

/// Returns the integer that a number stands for.
fn whole(number: &Number) -> Result<u64, ProblemKind> {
    if let Some(number) = number.as_u64() {
        return Ok(number);
    }
    let number = number.as_f64().ok_or(ProblemKind::NotANumber)?;
    if number.is_sign_negative() {
        return Err(ProblemKind::Negative);
    }
    if number > EXACT {
        return Err(ProblemKind::TooLarge);
    }
    if number.fract() != 0.0 {
        return Err(ProblemKind::Fraction);
    }
    Ok(number as u64)
}

/// Returns the beginning of a key, because a key may be as long as the file.
fn clip(key: &str) -> &str {
    match key.char_indices().nth(KEY_CHARS) {
        Some((end, _)) => &key[..end],
        None => key,
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            ProblemKind::NotANumber => "not a number; the old value stays",
            ProblemKind::Negative => "below 0; the old value stays",
            ProblemKind::Fraction => "not a whole number; the old value stays",
            ProblemKind::TooLarge => "too large; the old value stays",
            ProblemKind::NotAPercentage => "not between 0 and 100; the old value stays",
            ProblemKind::NotText => "not a text; ignored",
            ProblemKind::NotABool => "neither true nor false; the old value stays",
            ProblemKind::NotAnObject => "not an object; the old values stay",
            ProblemKind::NotABusId => "not a PCI bus id; write it like 00:1e.0",
            ProblemKind::SameGpu => {
                "an earlier entry names the same GPU; this one counts, remove one"
            }
            ProblemKind::NewerVersion => "newer than this program; the known fields were read",
        };
        // Keys come from outside, and are escaped so that none breaks a line of a log.
        write!(f, "{}: {what}", self.path.escape_debug())
    }
}
