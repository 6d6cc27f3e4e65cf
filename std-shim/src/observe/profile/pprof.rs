//! Profiles in pprof's format: the messages of its [profile.proto], gzipped.
//!
//! A location is a function and its line, not an address. So an inlined function has a location of
//! its own, and profiles of two processes have the same locations. Only a function without a name
//! has an address. It is one of the file that contains it, for which the mapping stands: pprof
//! takes a mapping of all addresses as one whose addresses need no adjustment.
//!
//! [profile.proto]: https://github.com/google/pprof/blob/main/proto/profile.proto

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::SampleTotals;
use super::symbols::{NamedCall, Symbol};
use crate::os::stack::place_of;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Profile {
    #[prost(message, repeated, tag = "1")]
    pub(super) sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(super) sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    pub(super) mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    pub(super) location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub(super) function: Vec<Function>,
    /// The strings that the other messages have as an index; the first is empty.
    #[prost(string, repeated, tag = "6")]
    pub(super) string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    pub(super) time_nanos: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueType {
    #[prost(int64, tag = "1")]
    pub(super) kind: i64,
    #[prost(int64, tag = "2")]
    pub(super) unit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Sample {
    /// The stack, innermost first.
    #[prost(uint64, repeated, tag = "1")]
    pub(super) location_id: Vec<u64>,
    /// A value of each sample type.
    #[prost(int64, repeated, tag = "2")]
    pub(super) value: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Mapping {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(uint64, tag = "3")]
    pub(super) memory_limit: u64,
    #[prost(int64, tag = "5")]
    pub(super) filename: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Location {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(uint64, tag = "2")]
    pub(super) mapping_id: u64,
    #[prost(uint64, tag = "3")]
    pub(super) address: u64,
    #[prost(message, repeated, tag = "4")]
    pub(super) line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Line {
    #[prost(uint64, tag = "1")]
    pub(super) function_id: u64,
    #[prost(int64, tag = "2")]
    pub(super) line: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Function {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(int64, tag = "2")]
    pub(super) name: i64,
    #[prost(int64, tag = "4")]
    pub(super) filename: i64,
}

/// Writes stacks, innermost first, and what they stand for.
pub(super) fn write<'a>(
    stacks: impl Iterator<Item = (Vec<&'a Symbol>, SampleTotals)>,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut out = GzEncoder::new(out, Compression::default());
    out.write_all(&profile(stacks).encode_to_vec())?;
    out.finish()?;
    Ok(())
}

#[expect(clippy::cast_possible_truncation, reason = "saturates as meant")]
pub(super) fn profile<'a>(
    stacks: impl Iterator<Item = (Vec<&'a Symbol>, SampleTotals)>,
) -> Profile {
    let mut builder = Builder::default();
    builder.string("");
    for (kind, unit) in [("inuse_objects", "count"), ("inuse_space", "bytes")] {
        let (kind, unit) = (builder.string(kind), builder.string(unit));
        builder.profile.sample_type.push(ValueType { kind, unit });
    }
    for (stack, totals) in stacks {
        let location_id = stack.iter().map(|symbol| builder.location(symbol));
        let sample = Sample {
            location_id: location_id.collect(),
            value: vec![totals.blocks.round() as i64, totals.bytes.round() as i64],
        };
        builder.profile.sample.push(sample);
    }
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    builder.profile.time_nanos = now.as_nanos() as i64;
    builder.profile
}

/// A profile, and the ids of what it contains.
#[derive(Default)]
struct Builder<'a> {
    profile: Profile,
    strings: BTreeMap<String, i64>,
    locations: BTreeMap<&'a Symbol, u64>,
    functions: BTreeMap<(i64, i64), u64>,
    mappings: BTreeMap<i64, u64>,
}

impl<'a> Builder<'a> {
    fn string(&mut self, text: &str) -> i64 {
        if let Some(&index) = self.strings.get(text) {
            return index;
        }
        let index = self.strings.len() as i64;
        self.strings.insert(text.to_owned(), index);
        self.profile.string_table.push(text.to_owned());
        index
    }

    fn location(&mut self, symbol: &'a Symbol) -> u64 {
        if let Some(&id) = self.locations.get(symbol) {
            return id;
        }
        let id = self.locations.len() as u64 + 1;
        self.locations.insert(symbol, id);
        let mut location = Location {
            id,
            ..Location::default()
        };
        match symbol {
            Symbol::Call(NamedCall { name, file, line }) => {
                let file = file.as_deref().map(Path::to_string_lossy);
                location.line.push(Line {
                    function_id: self.function(name, &file.unwrap_or_default()),
                    line: line.map_or(0, i64::from),
                });
            }
            Symbol::Address(frame) => {
                // Inside the call.
                let address = frame.wrapping_sub(1);
                location.address = address as u64;
                if let Some(place) = place_of(address) {
                    location.address = place.offset as u64;
                    location.mapping_id = self.mapping(&place.file.to_string_lossy());
                }
            }
        }
        self.profile.location.push(location);
        id
    }

    fn function(&mut self, name: &str, file: &str) -> u64 {
        let (name, filename) = (self.string(name), self.string(file));
        let next = self.functions.len() as u64 + 1;
        let id = *self.functions.entry((name, filename)).or_insert(next);
        if id == next {
            self.profile.function.push(Function { id, name, filename });
        }
        id
    }

    fn mapping(&mut self, file: &str) -> u64 {
        let filename = self.string(file);
        let next = self.mappings.len() as u64 + 1;
        let id = *self.mappings.entry(filename).or_insert(next);
        if id == next {
            self.profile.mapping.push(Mapping {
                id,
                memory_limit: u64::MAX,
                filename,
            });
        }
        id
    }
}
