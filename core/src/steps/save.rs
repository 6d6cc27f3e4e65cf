//! Plans as bytes: saved by the process that learned them, and loaded by the next one.
//!
//! ```text
//! "larderpl" | version granule shapes entries u32 | program u64 | shapes | entries | sum u64
//! shape: len inherited from height peak u32, 4 x (next + 1) u32, key fingerprint u64
//! entry: granules end offset align u32
//! ```
//! All numbers are little-endian. The shapes are in the order in which they were seen last, except that the shape of
//! the first step is first. The sum covers everything before it. A plan is only advice: a plan that does not fit the
//! allocations is not followed, and a place in use is not allocated. So a damaged file that passes the check can cost
//! memory and time, but never correctness.

use core::fmt;

use super::Steps;
use super::shape::{Entry, LAYOUTS, Layout, SUCCESSORS, Shape, ShapeId};

const MAGIC: [u8; 8] = *b"larderpl";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 8 + 4 * 4 + 8;
const SHAPE_BYTES: usize = (5 + SUCCESSORS) * 4 + 2 * 8;
const ENTRY_BYTES: usize = 4 * 4;
const SUM_BYTES: usize = 8;

/// Why saved plans were not loaded. Nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SavedPlansError {
    /// The bytes are not saved plans.
    Foreign,
    /// The plans were saved by another version.
    Version {
        /// The version in the file.
        found: u32,
    },
    /// The plans were saved for another program, or another model or batch of it.
    Program,
    /// The plans were saved by an allocator with another granule.
    Granule {
        /// The granule in the file, in bytes.
        found_bytes: u32,
        /// The granule of the allocator.
        wanted_bytes: u64,
    },
    /// The bytes were cut off or changed since they were saved.
    Damaged,
    /// The plans have more shapes or allocations than the tables hold.
    TooLarge {
        /// Shapes in the file.
        shapes: u32,
        /// Allocations of all shapes.
        entries: u32,
    },
    /// A step is under way, or steps have already been learned.
    InUse,
}

impl fmt::Display for SavedPlansError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Foreign => f.write_str("these are no saved plans: give a file that was saved"),
            Self::Version { found } => write!(
                f,
                "the plans were saved in version {found}, this is version {VERSION}: save them anew"
            ),
            Self::Program => f.write_str(
                "the plans are of another program: save them with this one, or give its own file",
            ),
            Self::Granule {
                found_bytes,
                wanted_bytes,
            } => write!(
                f,
                "the plans count in granules of {found_bytes} bytes, the allocator in {wanted_bytes}: save them with the same granule"
            ),
            Self::Damaged => f.write_str("the saved plans were cut off or changed: save them anew"),
            Self::TooLarge { shapes, entries } => write!(
                f,
                "the plans have {shapes} shapes of {entries} allocations: lend larger tables"
            ),
            Self::InUse => f.write_str("steps were learned already: load plans before the first"),
        }
    }
}

impl core::error::Error for SavedPlansError {}

/// FNV-1a over the bytes so far.
struct Sum(u64);

impl Sum {
    const fn new() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
}

/// Bytes still to be read.
struct ByteReader<'b>(&'b [u8]);

impl ByteReader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], SavedPlansError> {
        let (first, rest) = self.0.split_first_chunk().ok_or(SavedPlansError::Damaged)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u32(&mut self) -> Result<u32, SavedPlansError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64, SavedPlansError> {
        Ok(u64::from_le_bytes(self.take()?))
    }
}

impl Steps<'_> {
    /// Passes the learned plans to `sink`, piece by piece. They can be loaded with the same granule and the same
    /// `program`, a number for the program or for one of its models. The step under way is not saved.
    pub fn save(&self, granule_bytes: u64, program: u64, mut sink: impl FnMut(&[u8])) {
        let mut sum = Sum::new();
        let mut put = |bytes: &[u8]| {
            sum.add(bytes);
            sink(bytes);
        };
        let shapes = self.shapes();
        let count = shapes.in_order(self.first()).count() as u32;
        put(&MAGIC);
        // A granule is less than 2^32 bytes.
        for number in [VERSION, granule_bytes as u32, count, shapes.used()] {
            put(&number.to_le_bytes());
        }
        put(&program.to_le_bytes());
        for id in shapes.in_order(self.first()) {
            let shape = shapes.get(id);
            for number in [
                shape.len,
                shape.inherited,
                shape.layout().from,
                shape.layout().height,
                shape.peak,
            ] {
                put(&number.to_le_bytes());
            }
            for next in shape.next {
                let mut order = shapes.in_order(self.first());
                let index = next.and_then(|next| order.position(|other| other == next));
                let number = index.map_or(0, |index| index as u32 + 1);
                put(&number.to_le_bytes());
            }
            put(&shape.key.to_le_bytes());
            put(&shape.layout().fingerprint.to_le_bytes());
        }
        for id in shapes.in_order(self.first()) {
            let recent = shapes.get(id).recent();
            for entry in shapes.entries(id).iter().chain(shapes.inherited(id)) {
                let align = u32::from(entry.align_log2);
                for number in [entry.granules, entry.end, entry.offsets[recent], align] {
                    put(&number.to_le_bytes());
                }
            }
        }
        let sum = sum.0;
        sink(&sum.to_le_bytes());
    }

    /// Loads the plans that another process saved. All bytes are checked first. O(bytes).
    ///
    /// # Errors
    /// [`SavedPlansError`]; nothing has changed then.
    pub fn load(
        &mut self,
        granule_bytes: u64,
        program: u64,
        bytes: &[u8],
    ) -> Result<(), SavedPlansError> {
        let Some((body, sum)) = bytes.split_last_chunk::<SUM_BYTES>() else {
            return Err(SavedPlansError::Foreign);
        };
        let mut reader = ByteReader(body);
        if reader.take().ok() != Some(MAGIC) {
            return Err(SavedPlansError::Foreign);
        }
        let version = reader.u32()?;
        if version != VERSION {
            return Err(SavedPlansError::Version { found: version });
        }
        let found_bytes = reader.u32()?;
        let (shapes, entries) = (reader.u32()?, reader.u32()?);
        let found_program = reader.u64()?;
        let mut counted = Sum::new();
        counted.add(body);
        let wanted = (shapes as usize)
            .checked_mul(SHAPE_BYTES)
            .zip((entries as usize).checked_mul(ENTRY_BYTES))
            .and_then(|(shapes, entries)| shapes.checked_add(entries)?.checked_add(HEADER_BYTES));
        if counted.0.to_le_bytes() != *sum || wanted != Some(body.len()) {
            return Err(SavedPlansError::Damaged);
        }
        if found_program != program {
            return Err(SavedPlansError::Program);
        }
        if u64::from(found_bytes) != granule_bytes {
            return Err(SavedPlansError::Granule {
                found_bytes,
                wanted_bytes: granule_bytes,
            });
        }
        if !self.is_new() {
            return Err(SavedPlansError::InUse);
        }
        if !self.shapes().hold(shapes, entries) {
            return Err(SavedPlansError::TooLarge { shapes, entries });
        }
        let (shapes_bytes, entries_bytes) = reader.0.split_at(shapes as usize * SHAPE_BYTES);
        check(shapes_bytes, shapes, entries)?;
        let (mut shapes_left, mut entries_left) =
            (ByteReader(shapes_bytes), ByteReader(entries_bytes));
        for number in 0..shapes {
            let shape = read_shape(&mut shapes_left)?;
            for slot in self.shapes_mut().append(number, shape) {
                *slot = read_entry(&mut entries_left)?;
            }
        }
        self.loaded(shapes);
        Ok(())
    }
}

/// Checks that the shapes have `entries` entries in total, and name only existing shapes.
fn check(bytes: &[u8], shapes: u32, entries: u32) -> Result<(), SavedPlansError> {
    let mut reader = ByteReader(bytes);
    let mut left = u64::from(entries);
    for _ in 0..shapes {
        let shape = read_shape(&mut reader)?;
        let count = u64::from(shape.len) + u64::from(shape.inherited);
        left = left.checked_sub(count).ok_or(SavedPlansError::Damaged)?;
        let mut next = shape.next.into_iter().flatten();
        let named = next.all(|next| next.slot() < shapes as usize);
        if shape.len == 0 || !named || shape.layout().from > shape.len {
            return Err(SavedPlansError::Damaged);
        }
    }
    if left == 0 {
        Ok(())
    } else {
        Err(SavedPlansError::Damaged)
    }
}

fn read_shape(reader: &mut ByteReader<'_>) -> Result<Shape, SavedPlansError> {
    let (len, inherited) = (reader.u32()?, reader.u32()?);
    let (from, height, peak) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let mut layouts = [Layout::NONE; LAYOUTS];
    let mut next = [None; SUCCESSORS];
    for next in &mut next {
        let number = u16::try_from(reader.u32()?).map_err(|_| SavedPlansError::Damaged)?;
        *next = number.checked_sub(1).map(ShapeId::at);
    }
    let key = reader.u64()?;
    layouts[0] = Layout {
        fingerprint: reader.u64()?,
        from,
        height,
    };
    Ok(Shape {
        len,
        inherited,
        next,
        layouts,
        peak,
        key,
        ..Shape::EMPTY
    })
}

fn read_entry(reader: &mut ByteReader<'_>) -> Result<Entry, SavedPlansError> {
    Ok(Entry {
        granules: reader.u32()?,
        end: reader.u32()?,
        offsets: [reader.u32()?; LAYOUTS],
        align_log2: reader.u32()?.min(63) as u8,
        ..Entry::EMPTY
    })
}
