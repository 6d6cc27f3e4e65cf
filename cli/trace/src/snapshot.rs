//! PyTorch's memory snapshots, as `torch.cuda.memory._dump_snapshot` pickles them. Each device has
//! a trace.
//!
//! A snapshot has the *history* of each device (`device_traces`), as far back as PyTorch kept it,
//! and the final segments with their blocks. The trace is made from the history. A block that is in
//! the segments but not in the history was live before the history began.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::byte_count::ByteCount;
use super::pickle::{Pickle, Value};
use super::recording::{OpenRecording, counted};
use super::{Defect, Event, Trace};

/// Bytes to a multiple of which PyTorch rounds sizes up.
const ROUNDING_BYTES: u64 = 512;

/// The keys of the settings in a snapshot, which are PyTorch's two variables: that of CUDA's
/// snapshots, and that of other devices' snapshots.
const SETTINGS: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

/// Maximum number of devices. PyTorch numbers them in a signed byte.
const MAX_DEVICES: u64 = 128;

/// Maximum bytes of the settings, which each device's notes repeat.
const MAX_SETTINGS_BYTES: usize = 4096;

/// Minimum bytes of a pickle for each entry, segment and block. PyTorch writes more.
const BYTES_PER_ENTRY: usize = 16;

/// The number of entries, segments and blocks that may still follow. A list that is used in several
/// places is read in each of them, so a short pickle could have any number without this limit.
struct EntriesLeft(usize);

impl EntriesLeft {
    fn take_one(&mut self) -> Result<(), Defect> {
        self.0 = self.0.checked_sub(1).ok_or(Defect::NoSnapshot {
            what: "has more entries and blocks than PyTorch writes in its bytes",
        })?;
        Ok(())
    }
}

/// Returns an error if a snapshot cannot have a device with this number.
fn check_device(number: u64) -> Result<(), Defect> {
    if number < MAX_DEVICES {
        return Ok(());
    }
    Err(Defect::NoSnapshot {
        what: "has more than 128 devices",
    })
}

/// The state of one device.
#[derive(Default)]
struct DeviceRecord {
    recording: OpenRecording,
    entries: u64,
    streams: HashSet<u64>,
    /// Numbers of the entries that requested frees which are not yet complete, by the block's
    /// address.
    held_back: HashMap<u64, u64>,
    /// Number of blocks whose free did not complete immediately, since other streams used them.
    waited: usize,
    /// For each refused request, the bytes that the device had free, and the number of `changes`
    /// before.
    device_free: Vec<(Option<u64>, usize)>,
    /// Bytes of all segments at the end, and the changes of that sum from the first entry to the
    /// last.
    segment_bytes: u64,
    changes: Vec<i128>,
    /// Private pools of captured graphs, which share no memory with other pools.
    private_pools: HashSet<(u64, u64)>,
    /// Number of live blocks in the segments.
    listed: usize,
}

/// Reads the traces of a pickled snapshot, one for each device that has any block. If there are
/// several, their names contain the number of the device. Passes each event to `take`, with the
/// number of its trace.
pub(super) fn read(
    bytes: &[u8],
    name: &str,
    take: &mut dyn FnMut(usize, Event),
) -> Result<Vec<Trace>, Defect> {
    let pickle = Pickle::read(bytes)?;
    // A snapshot of an older form is only the list of segments.
    let (segments, histories) = match pickle.root {
        Value::List(_) => (Some(pickle.root), None),
        root => (
            pickle.get(root, "segments"),
            pickle.get(root, "device_traces"),
        ),
    };
    let segments = segments.and_then(|value| pickle.list(value));
    let segments = segments.ok_or(Defect::NoSnapshot {
        what: "has no list `segments`",
    })?;
    let mut devices: BTreeMap<u64, DeviceRecord> = BTreeMap::new();
    let histories = histories.and_then(|value| pickle.list(value));
    let mut left = EntriesLeft(bytes.len().div_ceil(BYTES_PER_ENTRY));
    for (number, history) in (0..).zip(histories.into_iter().flatten()) {
        check_device(number)?;
        let entries = pickle.list(history).ok_or(Defect::NoSnapshot {
            what: "has a history that is no list",
        })?;
        for entry in entries {
            left.take_one()?;
            let device = devices.entry(number).or_default();
            let outcome = device.entry(&pickle, entry);
            outcome.map_err(|fault| fault.at(number, device.entries))?;
            device.entries += 1;
        }
    }
    for segment in segments {
        left.take_one()?;
        let number = pickle.number(segment, "device").unwrap_or(0);
        check_device(number)?;
        let device = devices.entry(number).or_default();
        device.segment(&pickle, segment, &mut left)?;
    }
    devices.retain(|_, device| !device.recording.is_empty());
    if devices.is_empty() {
        return Err(Defect::NothingAllocated {
            advice: "call torch.cuda.memory._record_memory_history() before the program allocates",
        });
    }
    let settings = settings(&pickle);
    let beside = notes_on_the_rest(&pickle, settings.as_deref());
    let several = devices.len() > 1;
    let traces = devices
        .into_iter()
        .enumerate()
        .map(|(trace, (number, device))| {
            let name = if several {
                format!("{name}.dev{number}")
            } else {
                name.to_owned()
            };
            device.finish(name, &beside, settings.clone(), &mut |event| {
                take(trace, event);
            })
        });
    traces.collect()
}

/// Returns notes, one sentence for each, on the parts of a snapshot that do not belong to a device
/// and are not replayed.
fn notes_on_the_rest(pickle: &Pickle<'_>, settings: Option<&str>) -> Vec<String> {
    let empty = |value| {
        pickle
            .list(value)
            .is_some_and(|mut list| list.next().is_none())
    };
    let holds = |key| {
        let list = pickle.get(pickle.root, key);
        let list = list.and_then(|value| pickle.list(value));
        list.is_some_and(|mut list| !list.all(empty))
    };
    let mut notes = Vec::new();
    if holds("host_traces") || holds("host_segments") {
        notes.push("pinned memory of the host is in the file and left out".to_owned());
    }
    if let Some(settings) = settings {
        notes.push(format!(
            "the snapshot was made with {settings}; give --pytorch {settings} to compare with that"
        ));
    }
    if holds("external_annotations") {
        notes.push(
            "a profiler's annotations are in the file and left out, steps among them".to_owned(),
        );
    }
    notes
}

/// Returns the settings with which PyTorch ran, in the syntax of its variable; `None` for its
/// defaults.
fn settings(pickle: &Pickle<'_>) -> Option<String> {
    let settings = pickle.get(pickle.root, "allocator_settings")?;
    let mut texts = SETTINGS
        .iter()
        .filter_map(|name| pickle.text(pickle.get(settings, name)?));
    // The text becomes an argument of a command, so only plain characters are allowed.
    let plain = |text: &&[u8]| {
        (1..=MAX_SETTINGS_BYTES).contains(&text.len()) && text.iter().all(u8::is_ascii_graphic)
    };
    if let Some(text) = texts.find(plain) {
        return Some(String::from_utf8_lossy(text).into_owned());
    }
    let expandable = pickle.get(settings, "expandable_segments");
    let expandable = matches!(expandable, Some(Value::True));
    expandable.then(|| "expandable_segments:True".to_owned())
}

/// The reason for which an entry was refused.
enum EntryFault {
    Lacks(&'static str),
    Other(Defect),
}

impl From<Defect> for EntryFault {
    fn from(defect: Defect) -> Self {
        Self::Other(defect)
    }
}

impl EntryFault {
    fn at(self, device: u64, entry: u64) -> Defect {
        match self {
            Self::Lacks(field) => Defect::EntryLacks {
                device,
                entry,
                field,
            },
            Self::Other(defect) => defect,
        }
    }
}

impl DeviceRecord {
    /// Records one entry of the history.
    fn entry(&mut self, pickle: &Pickle<'_>, entry: Value) -> Result<(), EntryFault> {
        let number = |field| pickle.number(entry, field).ok_or(EntryFault::Lacks(field));
        let action = pickle
            .get(entry, "action")
            .and_then(|value| pickle.text(value));
        let action = action.ok_or(EntryFault::Lacks("action"))?;
        match action {
            b"alloc" => {
                let stream = pickle.number(entry, "stream");
                let (address, bytes) = (number("addr")?, number("size")?);
                self.recording.alloc(address, bytes, stream)?;
                self.streams.extend(stream);
            }
            b"free_requested" => {
                self.held_back.insert(number("addr")?, self.entries);
            }
            b"free_completed" => {
                let address = number("addr")?;
                self.recording.free(address, number("size")?)?;
                let asked = self.held_back.remove(&address);
                let waited = asked.is_some_and(|asked| asked + 1 < self.entries);
                self.waited += usize::from(waited);
            }
            b"oom" => {
                let bytes = number("size")?;
                if bytes > 0 {
                    self.recording.refuse(bytes);
                    let free = pickle.number(entry, "device_free");
                    self.device_free.push((free, self.changes.len()));
                }
            }
            b"segment_alloc" | b"segment_map" => self.changes.push(i128::from(number("size")?)),
            b"segment_free" | b"segment_unmap" => self.changes.push(-i128::from(number("size")?)),
            // Marks that the program set, and actions that later versions add.
            _ => {}
        }
        Ok(())
    }

    /// Records a segment and its blocks in their final state.
    fn segment(
        &mut self,
        pickle: &Pickle<'_>,
        segment: Value,
        left: &mut EntriesLeft,
    ) -> Result<(), Defect> {
        let lacks = |what| Defect::NoSnapshot { what };
        let address = pickle.number(segment, "address");
        let mut address = address.ok_or(lacks("has a segment without `address`"))?;
        let total = pickle.number(segment, "total_size");
        let total = total.ok_or(lacks("has a segment without `total_size`"))?;
        self.segment_bytes = self.segment_bytes.saturating_add(total);
        self.note_pool(pickle, segment);
        let blocks = pickle
            .get(segment, "blocks")
            .and_then(|value| pickle.list(value));
        for block in blocks.ok_or(lacks("has a segment without a list `blocks`"))? {
            left.take_one()?;
            let bytes = pickle.number(block, "size");
            let bytes = bytes.ok_or(lacks("has a block without `size`"))?;
            let state = pickle
                .get(block, "state")
                .and_then(|value| pickle.text(value));
            if state.is_some_and(|state| state.starts_with(b"active")) {
                let requested = pickle.number(block, "requested_size");
                self.listed += 1;
                self.recording
                    .live_at_end(address, requested.unwrap_or(bytes))?;
            }
            address = address.saturating_add(bytes);
        }
        Ok(())
    }

    fn note_pool(&mut self, pickle: &Pickle<'_>, segment: Value) {
        let id = pickle.get(segment, "segment_pool_id");
        let mut id = id
            .and_then(|value| pickle.list(value))
            .into_iter()
            .flatten();
        if let (Some(Value::Number(first)), Some(Value::Number(second))) = (id.next(), id.next())
            && (first, second) != (0, 0)
        {
            self.private_pools.insert((first, second));
        }
    }

    fn finish(
        mut self,
        name: String,
        beside: &[String],
        settings: Option<String>,
        take: &mut dyn FnMut(Event),
    ) -> Result<Trace, Defect> {
        self.set_devices();
        let mut notes = self.notes();
        notes.extend_from_slice(beside);
        let held_bytes = self.max_held_bytes();
        let trace = self.recording.finish(name, notes, settings, take)?;
        Ok(Trace {
            held_bytes,
            ..trace
        })
    }

    /// Returns notes for readers of the replay, one sentence for each.
    fn notes(&self) -> Vec<String> {
        let mut notes = self.notes_on_history();
        let counts = &self.recording.counts;
        let mut note = |count: usize, what: &str, text: &str| {
            if count > 0 {
                notes.push(format!("{} {text}", counted(count as u64, what)));
            }
        };
        note(
            self.waited,
            "block",
            "freed while other streams used it: ended where the free was complete",
        );
        note(
            self.held_back.len(),
            "block",
            "freed and held back for other streams at the end: kept live",
        );
        note(
            self.recording.live().saturating_sub(self.listed),
            "block",
            "never freed in the history and missing from the snapshot's segments: kept live",
        );
        note(
            self.private_pools.len(),
            "private pool",
            "that shared no memory with the rest: the blocks there are played like all others",
        );
        counts.notes(&mut notes);
        notes.extend(self.recording.refusals_note());
        if self.recording.all_multiples_of(ROUNDING_BYTES) {
            notes.push(format!(
                "all sizes are multiples of {ROUNDING_BYTES}: they may be rounded, and not what was asked for"
            ));
        }
        if let Some(held) = self.max_held_bytes() {
            notes.push(format!(
                "PyTorch held {} at most, as far back as the history goes",
                ByteCount(held)
            ));
        }
        notes
    }

    fn notes_on_history(&self) -> Vec<String> {
        let counts = &self.recording.counts;
        if self.entries == 0 {
            return vec![format!(
                "there is no history: {} live at that moment, allocated by address, and nothing freed",
                counted(counts.before, "block")
            )];
        }
        let mut notes = vec![
            "a snapshot marks no steps, and does not say which thread allocated, or which streams used a block besides its own".to_owned(),
        ];
        if counts.before > 0 {
            notes.push(format!(
                "{} of {} older than the history, which began late or lost its oldest entries (max_entries): first, by address",
                counted(counts.before, "block"),
                ByteCount(counts.before_bytes)
            ));
        }
        if self.streams.len() > 1 {
            notes.push(format!("{} streams are played as one", self.streams.len()));
        }
        notes
    }

    /// Returns the bytes of all segments before the first of the changes and after each of them,
    /// computed backwards from the end; `None` if segments are missing from the list.
    fn held_bytes(&self) -> Option<Vec<u64>> {
        let mut held = i128::from(self.segment_bytes);
        let mut all = vec![held];
        for change in self.changes.iter().rev() {
            held -= change;
            all.push(held);
        }
        let all = all.iter().rev().map(|held| u64::try_from(*held));
        let all: Vec<u64> = all.collect::<Result<_, _>>().ok()?;
        let most = all.iter().max().copied();
        let known = self.segment_bytes > 0 && most >= Some(self.recording.most_live_bytes());
        known.then_some(all)
    }

    /// Returns the maximum of [`held_bytes`](Self::held_bytes).
    fn max_held_bytes(&self) -> Option<u64> {
        self.held_bytes()?.into_iter().max()
    }

    /// Adds to each refused request the bytes that PyTorch could use at that time.
    fn set_devices(&mut self) {
        let Some(held) = self.held_bytes() else {
            return;
        };
        let refusals = self.recording.refusals().iter_mut();
        for (refusal, (free, changes)) in refusals.zip(&self.device_free) {
            refusal.device_bytes = free.and_then(|free| free.checked_add(held[*changes]));
        }
    }
}
