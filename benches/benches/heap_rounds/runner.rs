//! Runs a script on one contender.

use std::alloc::{GlobalAlloc, Layout};
use std::ops::Range;
use std::time::{Duration, Instant};

use larder_cli::random::Random;

use super::fault::Fault;
use super::mix::Mix;
use super::region::TouchedRegion;
use super::script::{HeapOp, HeapScript};

/// Alignment of all blocks.
const ALIGN: usize = 8;

/// A contender over its region, whatever its type.
pub(crate) trait Runner {
    /// Runs a script. Returns its time.
    fn run(&mut self, script: &HeapScript) -> Result<Duration, Fault>;

    /// Runs a script and checks every byte of every block.
    fn check(&mut self, script: &HeapScript) -> Result<(), Fault>;

    /// Allocates two blocks for each block that it frees at random, until a request is refused. Then frees everything.
    /// Returns the bytes that were live at the refusal.
    fn fill_up(&mut self, mix: Mix, seed: u64) -> u64;

    /// Returns the bytes of the largest block that can be allocated now, found by bisection.
    fn largest_block(&mut self) -> usize;
}

/// A heap and the region it manages.
pub(crate) struct Subject<A> {
    // Fields are dropped in this order.
    heap: A,
    region: TouchedRegion,
}

/// A block in its slot.
#[derive(Clone, Copy)]
struct ScriptBlock {
    block: *mut u8,
    bytes: u32,
}

impl ScriptBlock {
    const NONE: Self = Self {
        block: std::ptr::null_mut(),
        bytes: 0,
    };

    const fn layout(self) -> Layout {
        layout(self.bytes)
    }
}

#[inline]
const fn layout(bytes: u32) -> Layout {
    // SAFETY: the alignment is a power of two, and no `u32` comes near `isize::MAX`.
    unsafe { Layout::from_size_align_unchecked(bytes as usize, ALIGN) }
}

/// Examines blocks when they are allocated and freed.
trait Witness {
    /// Called when the slot gets a block.
    fn born(&mut self, held: ScriptBlock, slot: u32) -> Result<(), Fault>;

    /// Checks the first `bytes` bytes of the slot's block.
    fn lives(&mut self, held: ScriptBlock, slot: u32, bytes: u32) -> Result<(), Fault>;
}

/// Writes the first byte, as every program writes to the blocks that it allocates.
struct Touch;

impl Witness for Touch {
    #[inline]
    fn born(&mut self, held: ScriptBlock, slot: u32) -> Result<(), Fault> {
        // SAFETY: a block has at least one byte.
        unsafe { held.block.write_volatile(slot as u8) };
        Ok(())
    }

    #[inline]
    fn lives(&mut self, _held: ScriptBlock, _slot: u32, _bytes: u32) -> Result<(), Fault> {
        Ok(())
    }
}

/// Fills each block with a byte of its slot, and checks later that the bytes are unchanged.
struct FillCheck {
    region: Range<usize>,
}

impl FillCheck {
    const fn fill(slot: u32) -> u8 {
        (slot % 251) as u8
    }
}

impl Witness for FillCheck {
    fn born(&mut self, held: ScriptBlock, slot: u32) -> Result<(), Fault> {
        let (address, bytes) = (held.block.addr(), held.bytes);
        let inside = self.region.start <= address && address + bytes as usize <= self.region.end;
        if !inside || !address.is_multiple_of(ALIGN) {
            return Err(Fault::Misplaced { address, bytes });
        }
        // SAFETY: the block is ours and has this length.
        unsafe { held.block.write_bytes(Self::fill(slot), bytes as usize) };
        Ok(())
    }

    fn lives(&mut self, held: ScriptBlock, slot: u32, bytes: u32) -> Result<(), Fault> {
        // SAFETY: the block is ours, is at least this long, and was filled.
        let contents = unsafe { std::slice::from_raw_parts(held.block, bytes as usize) };
        if contents.iter().all(|&byte| byte == Self::fill(slot)) {
            return Ok(());
        }
        Err(Fault::Overwritten { bytes: held.bytes })
    }
}

impl<A: GlobalAlloc + 'static> Subject<A> {
    /// Creates a boxed runner, so that heaps of all types have one type.
    pub(crate) fn boxed(heap: A, region: TouchedRegion) -> Box<dyn Runner> {
        Box::new(Self { heap, region })
    }

    #[inline]
    fn alloc(&self, bytes: u32) -> Result<ScriptBlock, Fault> {
        // SAFETY: no script requests an empty block.
        let block = unsafe { self.heap.alloc(layout(bytes)) };
        if block.is_null() {
            return Err(Fault::OutOfMemory { bytes });
        }
        Ok(ScriptBlock { block, bytes })
    }

    #[inline]
    fn free(&self, held: ScriptBlock) {
        // SAFETY: the block belongs to this heap, has this layout, and is freed once.
        unsafe { self.heap.dealloc(held.block, held.layout()) };
    }

    #[inline]
    fn resize(&self, held: ScriptBlock, bytes: u32) -> Result<ScriptBlock, Fault> {
        // SAFETY: the block belongs to this heap and has this layout. A `u32` is a valid size.
        let block = unsafe { self.heap.realloc(held.block, held.layout(), bytes as usize) };
        if block.is_null() {
            return Err(Fault::OutOfMemory { bytes });
        }
        Ok(ScriptBlock { block, bytes })
    }

    #[inline]
    fn step(
        &self,
        slots: &mut [ScriptBlock],
        op: HeapOp,
        witness: &mut impl Witness,
    ) -> Result<(), Fault> {
        match op {
            HeapOp::Alloc { slot, bytes } => {
                let held = self.alloc(bytes)?;
                witness.born(held, slot)?;
                slots[slot as usize] = held;
            }
            HeapOp::Free { slot } => {
                let held = slots[slot as usize];
                witness.lives(held, slot, held.bytes)?;
                self.free(held);
            }
            HeapOp::Resize { slot, bytes } => {
                let old = slots[slot as usize];
                let held = self.resize(old, bytes)?;
                slots[slot as usize] = held;
                witness.lives(held, slot, old.bytes.min(bytes))?;
                witness.born(held, slot)?;
            }
        }
        Ok(())
    }

    #[inline(never)]
    fn steps(
        &self,
        script: &HeapScript,
        slots: &mut [ScriptBlock],
        mut witness: impl Witness,
    ) -> Result<(), Fault> {
        for &op in &script.ops {
            self.step(slots, op, &mut witness)?;
        }
        Ok(())
    }
}

impl<A: GlobalAlloc + 'static> Runner for Subject<A> {
    fn run(&mut self, script: &HeapScript) -> Result<Duration, Fault> {
        let mut slots = vec![ScriptBlock::NONE; script.slots];
        let start = Instant::now();
        self.steps(script, &mut slots, Touch)?;
        Ok(start.elapsed())
    }

    fn check(&mut self, script: &HeapScript) -> Result<(), Fault> {
        let mut slots = vec![ScriptBlock::NONE; script.slots];
        let region = self.region.addresses();
        self.steps(script, &mut slots, FillCheck { region })
    }

    fn fill_up(&mut self, mix: Mix, seed: u64) -> u64 {
        let mut random = Random::new(seed);
        let mut held: Vec<ScriptBlock> = Vec::new();
        let mut live_bytes = 0;
        let mut turn = 0_u32;
        loop {
            turn += 1;
            if turn.is_multiple_of(3) {
                let victim = held.swap_remove(random.index(held.len()));
                live_bytes -= u64::from(victim.bytes);
                self.free(victim);
                continue;
            }
            match self.alloc(mix.draw(&mut random)) {
                Ok(one) => {
                    live_bytes += u64::from(one.bytes);
                    held.push(one);
                }
                Err(_) => break,
            }
        }
        for one in held {
            self.free(one);
        }
        live_bytes
    }

    fn largest_block(&mut self) -> usize {
        let (mut max, mut refused) = (0, self.region.bytes() as u32 + 1);
        while refused - max > 1 {
            let bytes = max.midpoint(refused);
            match self.alloc(bytes) {
                Ok(held) => {
                    self.free(held);
                    max = bytes;
                }
                Err(_) => refused = bytes,
            }
        }
        max as usize
    }
}
