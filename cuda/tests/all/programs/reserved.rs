//! Reserved buffers: bytes at fixed addresses, with memory behind some units.

use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use larder_cuda::ReservedBuffer;

use crate::common;
use crate::common::MIB;
use crate::programs::player::Player;
use crate::programs::things::Thing;
use crate::programs::words::{Missing, Outcome, Words};

/// Units of a buffer; a unit of so short a buffer is a page.
pub(crate) const UNITS: usize = 12;

const UNIT: usize = 2 * MIB as usize;

/// Number of bytes that are written and read at each end of a unit.
const WRITTEN: usize = 64;

/// A buffer, and what it should hold.
pub(crate) struct Reserved {
    buffer: ReservedBuffer<u8>,
    /// For each unit, the number of its commits, and the value of its bytes.
    units: [(u32, u8); UNITS],
}

/// Returns the two ends of a unit.
fn ends(unit: usize) -> [core::ops::Range<usize>; 2] {
    let (start, end) = (unit * UNIT, (unit + 1) * UNIT);
    [start..start + WRITTEN, end - WRITTEN..end]
}

impl Reserved {
    fn write(&mut self, queue: &CudaStream, unit: usize, value: u8) -> Outcome {
        for range in ends(unit) {
            let view = self.buffer.get_mut(range);
            let mut view = view.ok_or("a committed unit is not")?;
            let (address, _used) = view.device_ptr_mut(queue);
            common::fill(queue, address, WRITTEN as u64, value);
        }
        self.units[unit].1 = value;
        Ok(())
    }

    /// Counts a commit of units, and fills those that are new.
    fn has_committed(
        &mut self,
        queue: &CudaStream,
        units: core::ops::Range<usize>,
        value: u8,
    ) -> Outcome {
        for unit in units {
            self.units[unit].0 += 1;
            if self.units[unit].0 == 1 {
                self.write(queue, unit, value)?;
            }
        }
        Ok(())
    }

    /// Checks that what is lent is what is committed beyond the guarantee, and that no more than that is recalled.
    fn check_loan(&self) -> Outcome {
        let (buffer, loan) = (&self.buffer, self.buffer.loan());
        let beyond = buffer
            .committed_bytes()
            .saturating_sub(loan.guaranteed_bytes());
        match (loan.lent_bytes(), loan.recalled_bytes()) {
            (lent, recalled) if lent == beyond && recalled <= lent => Ok(()),
            wrong => {
                Err(format!("{wrong:?} lent and recalled, {beyond} beyond the guarantee").into())
            }
        }
    }

    /// Checks every unit, in the order of a stream.
    pub(crate) fn check(&self, queue: &CudaStream) -> Outcome {
        self.check_loan()?;
        for (unit, (commits, value)) in self.units.into_iter().enumerate() {
            for range in ends(unit) {
                let view = self.buffer.get(range);
                if view.is_some() != (commits > 0) {
                    return Err(format!("unit {unit} has {commits} commits").into());
                }
                let Some(view) = view else { continue };
                let (address, _used) = view.device_ptr(queue);
                let bytes = common::read(queue, address, WRITTEN as u64);
                if bytes.iter().any(|byte| *byte != value) {
                    return Err(format!("unit {unit} holds {bytes:?}, not {value}").into());
                }
            }
        }
        Ok(())
    }

    /// Writes every unit on a stream, so that later uses wait for it and for no stream before it.
    pub(crate) fn leave(&mut self, queue: &Arc<CudaStream>) -> Outcome {
        self.buffer.allocator().add_stream(queue)?;
        // SAFETY: nothing is accessed.
        let mut whole = unsafe { self.buffer.whole_mut() };
        drop(whole.device_ptr_mut(queue));
        for unit in 0..UNITS {
            if self.units[unit].0 > 0 {
                self.write(queue, unit, 0)?;
            }
        }
        Ok(())
    }
}

impl Player {
    /// `reserve NAME STREAM`: a reserved buffer without memory.
    pub(crate) fn reserve(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        let queue = self.buffers_stream(words)?;
        let device = self.device()?;
        let buffer = self.short(|_| device.reserve(&queue, UNITS * UNIT))?;
        let units = [(0, 0); UNITS];
        self.put(name, Thing::Reserved(Reserved { buffer, units }))
    }

    /// `commit NAME STREAM FIRST COUNT VALUE`: commits units, and fills those that are new.
    pub(crate) fn commit(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        let queue = self.buffers_stream(words)?;
        let (first, count) = (words.number()? as usize, words.number()? as usize);
        let value = words.number()? as u8;
        let Some(Thing::Reserved(mut reserved)) = self.things.remove(name) else {
            return Err(Missing("the reserved buffer").into());
        };
        let before = reserved.buffer.committed_bytes();
        let range = first * UNIT..(first + count) * UNIT;
        // SAFETY: bytes of any value.
        let committed = self.short(|_| unsafe { reserved.buffer.commit(&queue, range) });
        let outcome = match committed {
            Ok(()) => reserved.has_committed(&queue, first..first + count, value),
            Err(_) if reserved.buffer.committed_bytes() != before => {
                Err("a refused commit has changed something".into())
            }
            Err(error) => Err(error),
        };
        self.things
            .insert(name.to_owned(), Thing::Reserved(reserved));
        outcome
    }

    /// `lend NAME UNITS`: guarantees so many units, and lends the others.
    pub(crate) fn lend(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        let guaranteed = words.number()? * UNIT as u64;
        let Some(Thing::Reserved(reserved)) = self.things.get(name) else {
            return Err(Missing("the reserved buffer").into());
        };
        reserved.buffer.loan().set_guaranteed_bytes(guaranteed);
        reserved.check_loan()
    }

    /// `decommit NAME STREAM FIRST COUNT`: undoes a commit of units.
    pub(crate) fn decommit(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        let queue = self.buffers_stream(words)?;
        let (first, count) = (words.number()? as usize, words.number()? as usize);
        let Some(Thing::Reserved(reserved)) = self.things.get_mut(name) else {
            return Err(Missing("the reserved buffer").into());
        };
        let units = &mut reserved.units[first..first + count];
        if units.iter().any(|(commits, _)| *commits == 0) {
            return Err(Missing("committed units").into());
        }
        match reserved
            .buffer
            .decommit(&queue, first * UNIT..(first + count) * UNIT)
        {
            Ok(()) => units.iter_mut().for_each(|(commits, _)| *commits -= 1),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
