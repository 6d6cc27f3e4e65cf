//! Prepares a packing: lists the lifetimes that take space in order of time, finds the parts, and computes the lower
//! bound.

use crate::pack::Lifetime;
use crate::units::Align;

use super::bucket::aligned;
use super::error::PackError;
use super::tables::{PackSizes, PackTables, Part, UndoRecord};

/// Maximum sum of sizes, far from the end of `u64`.
const MAX_TOTAL_BYTES: u64 = 1 << 62;

/// Common properties of the lifetimes.
#[derive(Clone, Copy, Debug)]
pub(super) struct LifetimeFacts {
    /// Number of lifetimes that take space.
    pub(super) taken: usize,
    /// Number of parts.
    pub(super) parts: usize,
    /// Maximum of live bytes at any tick.
    pub(super) max_live_bytes: u64,
    /// A divisor of all heights of canonical packings.
    pub(super) unit_bytes: u64,
    /// The smallest alignment, which divides all offsets.
    pub(super) align: Align,
    /// Maximum bytes that rounding a size up to `align` adds.
    pub(super) max_pad_bytes: u64,
    /// Whether any lifetime is pinned.
    pub(super) pins: bool,
}

/// Refuses lifetimes that cannot be packed, and fills `order`, `parts` and `live`.
pub(super) fn prepare(
    lifetimes: &[Lifetime],
    tables: &mut PackTables<'_>,
) -> Result<LifetimeFacts, PackError> {
    lengths(lifetimes.len(), tables)?;
    let mut common = scan(lifetimes, tables)?;
    let order = &mut tables.order[..common.taken];
    order.sort_unstable_by_key(|&id| (lifetimes[id as usize].begin, id));
    if common.pins {
        pins(lifetimes, tables, common.taken)?;
    }
    sweep(lifetimes, tables, &mut common);
    Ok(common)
}

fn lengths(count: usize, tables: &PackTables<'_>) -> Result<(), PackError> {
    if count > i32::MAX as usize {
        return Err(PackError::TooMany);
    }
    let sizes = PackSizes::new(count);
    // The table of neighbours may be shorter. The sweep needs an undo record for each lifetime.
    let needs = [
        ("offsets", tables.offsets.len(), sizes.lifetimes),
        ("trial", tables.trial.len(), sizes.lifetimes),
        ("live", tables.live.len(), sizes.lifetimes),
        ("order", tables.order.len(), sizes.lifetimes),
        ("by_key", tables.by_key.len(), sizes.lifetimes),
        ("keys", tables.keys.len(), sizes.lifetimes),
        ("parts", tables.parts.len(), sizes.lifetimes),
        ("buckets", tables.buckets.len(), sizes.buckets),
        ("items", tables.items.len(), sizes.lifetimes),
        ("sections", tables.sections.len(), sizes.lifetimes),
        ("undo_log", tables.undo_log.len(), sizes.lifetimes),
        ("choices", tables.choices.len(), sizes.lifetimes),
        ("unplaced", tables.unplaced.len(), sizes.lifetimes),
    ];
    match needs.iter().find(|(_, len, needed)| len < needed) {
        Some(&(table, _, needed)) => Err(PackError::TableTooShort { table, needed }),
        None => Ok(()),
    }
}

/// Lists the lifetimes that take space, and checks that sums stay in range.
fn scan(lifetimes: &[Lifetime], tables: &mut PackTables<'_>) -> Result<LifetimeFacts, PackError> {
    let mut total = 0u64;
    let mut unit = 0;
    let mut align = None;
    let mut taken = 0;
    let mut pins = false;
    for (index, lifetime) in lifetimes.iter().enumerate() {
        tables.offsets[index] = lifetime.pinned.unwrap_or(0);
        if lifetime.bytes == 0 || lifetime.end <= lifetime.begin {
            continue;
        }
        tables.order[taken] = index as u32;
        taken += 1;
        let mask = lifetime.align.bytes() - 1;
        let pin = lifetime.pinned.unwrap_or(0);
        if pin & mask != 0 {
            return Err(PackError::PinMisaligned { index });
        }
        pins |= lifetime.pinned.is_some();
        // The mask counts twice, because the sections also round sizes up.
        let needs = [lifetime.bytes, mask, mask, pin];
        total = needs
            .iter()
            .try_fold(total, |sum, &more| sum.checked_add(more))
            .filter(|&sum| sum <= MAX_TOTAL_BYTES)
            .ok_or(PackError::TooLarge)?;
        unit = divisor(divisor(unit, lifetime.bytes), pin);
        if mask != 0 {
            unit = divisor(unit, lifetime.align.bytes());
        }
        align = Some(align.map_or(lifetime.align, |least: Align| {
            if lifetime.align.log2() < least.log2() {
                lifetime.align
            } else {
                least
            }
        }));
    }
    Ok(LifetimeFacts {
        taken,
        parts: 0,
        max_live_bytes: 0,
        unit_bytes: unit.max(1),
        align: align.unwrap_or(Align::ONE),
        max_pad_bytes: 0,
        pins,
    })
}

/// Returns the greatest common divisor; that of 0 and x is x.
const fn divisor(mut left: u64, mut right: u64) -> u64 {
    while right != 0 {
        (left, right) = (right, left % right);
    }
    left
}

/// Refuses two pins that exclude each other. Usually O(n log n) for n pins, and at worst O(n^2 / 64).
///
/// This walks through time. As long as the live pins do not overlap, a new pin can overlap only the nearest live pin
/// below or above it. The live pins are a set of bits in the order of their offsets.
fn pins(
    lifetimes: &[Lifetime],
    tables: &mut PackTables<'_>,
    taken: usize,
) -> Result<(), PackError> {
    let pin = |id: u32| lifetimes[id as usize].pinned;
    let mut count = 0;
    for &id in &tables.order[..taken] {
        if pin(id).is_some() {
            // All lists begin in the order of first ticks; two of them are sorted below.
            tables.choices[count] = (id, 0);
            tables.by_key[count] = id;
            tables.unplaced[count] = id;
            count += 1;
        }
    }
    let by_end = &mut tables.by_key[..count];
    by_end.sort_unstable_by_key(|&id| lifetimes[id as usize].end);
    let by_offset = &mut tables.unplaced[..count];
    by_offset.sort_unstable_by_key(|&id| (pin(id), id));
    // Notes each pin's place in that order under its id. `trial` is unused until a packing begins.
    for (place, &id) in by_offset.iter().enumerate() {
        tables.trial[id as usize] = place as u64;
    }
    let live = &mut tables.live[..count.div_ceil(WORD)];
    live.fill(0);
    let mut ended = 0;
    for &(id, _) in &tables.choices[..count] {
        let one = &lifetimes[id as usize];
        while lifetimes[by_end[ended] as usize].end <= one.begin {
            let place = tables.trial[by_end[ended] as usize] as usize;
            live[place / WORD] &= !(1 << (place % WORD));
            ended += 1;
        }
        let place = tables.trial[id as usize] as usize;
        let near = [last_below(live, place), first_above(live, place)];
        for other in near.into_iter().flatten().map(|place| by_offset[place]) {
            let (at, then) = (pin(id).unwrap_or(0), pin(other).unwrap_or(0));
            if at < then + lifetimes[other as usize].bytes && then < at + one.bytes {
                let (first, second) = (id.min(other) as usize, id.max(other) as usize);
                return Err(PackError::PinsOverlap { first, second });
            }
        }
        live[place / WORD] |= 1 << (place % WORD);
    }
    Ok(())
}

/// Number of bits in a word.
const WORD: usize = u64::BITS as usize;

fn last_below(bits: &[u64], place: usize) -> Option<usize> {
    let (word, bit) = (place / WORD, place % WORD);
    let own = bits[word] & ((1 << bit) - 1);
    let (word, bits) = match own {
        0 => {
            let word = bits[..word].iter().rposition(|&word| word != 0)?;
            (word, bits[word])
        }
        own => (word, own),
    };
    Some(word * WORD + bits.ilog2() as usize)
}

fn first_above(bits: &[u64], place: usize) -> Option<usize> {
    let (word, bit) = (place / WORD, place % WORD);
    let own = bits[word] & !(u64::MAX >> (WORD - 1 - bit));
    let (word, bits) = match own {
        0 => {
            let behind = &bits[word + 1..];
            let more = behind.iter().position(|&word| word != 0)?;
            (word + 1 + more, behind[more])
        }
        own => (word, own),
    };
    Some(word * WORD + bits.trailing_zeros() as usize)
}

/// Walks through time to find the parts, their lower bounds, and the maximum of live bytes during each lifetime.
///
/// The records in `undo_log` hold the peaks so far that no later peak reaches, each with its tick. When a lifetime
/// ends, bisection finds the highest peak since its beginning.
fn sweep(lifetimes: &[Lifetime], tables: &mut PackTables<'_>, common: &mut LifetimeFacts) {
    let order = &tables.order[..common.taken];
    let by_end = &mut tables.by_key[..common.taken];
    by_end.copy_from_slice(order);
    by_end.sort_unstable_by_key(|&id| lifetimes[id as usize].end);
    common.max_pad_bytes = order
        .iter()
        .map(|&id| pad(&lifetimes[id as usize], common.align))
        .max()
        .unwrap_or(0);
    let (mut live, mut padded, mut peaks, mut ended) = (0, 0, 0, 0);
    for (begun, &id) in order.iter().enumerate() {
        let lifetime = &lifetimes[id as usize];
        while lifetimes[by_end[ended] as usize].end <= lifetime.begin {
            let id = by_end[ended] as usize;
            live -= lifetimes[id].bytes;
            padded -= lifetimes[id].bytes + pad(&lifetimes[id], common.align);
            tables.live[id] = highest_since(&tables.undo_log[..peaks], lifetimes[id].begin);
            ended += 1;
        }
        if ended == begun {
            tables.parts[common.parts] = Part {
                start: begun as u32,
                ..Part::VACANT
            };
            common.parts += 1;
        }
        live += lifetime.bytes;
        padded += lifetime.bytes + pad(lifetime, common.align);
        while peaks > 0 && tables.undo_log[peaks - 1].lowest <= live {
            peaks -= 1;
        }
        tables.undo_log[peaks] = UndoRecord {
            item: lifetime.begin,
            lowest: live,
            ..UndoRecord::VACANT
        };
        peaks += 1;
        let part = &mut tables.parts[common.parts - 1];
        let pin_top = lifetime.pinned.map_or(0, |pin| pin + lifetime.bytes);
        let bound = live.max(padded - common.max_pad_bytes).max(pin_top);
        part.end = begun as u32 + 1;
        part.height = u64::MAX;
        part.lower = part.lower.max(bound.next_multiple_of(common.unit_bytes));
        common.max_live_bytes = common.max_live_bytes.max(live);
    }
    for &id in &by_end[ended..] {
        let begin = lifetimes[id as usize].begin;
        tables.live[id as usize] = highest_since(&tables.undo_log[..peaks], begin);
    }
}

fn pad(lifetime: &Lifetime, align: Align) -> u64 {
    aligned(lifetime.bytes, align) - lifetime.bytes
}

/// Returns the highest peak since `begin`: the earliest of the peaks that are not before it.
fn highest_since(peaks: &[UndoRecord], begin: u32) -> u64 {
    let at = peaks.partition_point(|peak| peak.item < begin);
    peaks.get(at).map_or(0, |peak| peak.lowest)
}
