//! The requests to every contender, drawn once from a seed.
//!
//! A script begins and ends with nothing allocated, so that it can be repeated.

use larder_cli::random::Random;

use super::mix::Mix;

/// One request. A slot holds one block of the program.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HeapOp {
    /// Allocates a block into an empty slot.
    Alloc { slot: u32, bytes: u32 },
    /// Frees the slot's block.
    Free { slot: u32 },
    /// Resizes the slot's block.
    Resize { slot: u32, bytes: u32 },
}

/// A sequence of requests.
#[derive(Debug)]
pub(crate) struct HeapScript {
    /// The name in tables.
    pub(crate) name: &'static str,
    pub(crate) ops: Vec<HeapOp>,
    /// The number of slots.
    pub(crate) slots: usize,
}

/// The seed of all scripts. Any number will do.
const SEED: u64 = 7;

/// Maximum live bytes of a churn or a tree: three eighths of the region, which leaves room for heaps that round sizes
/// up to powers of two.
const fn live_bytes(region_bytes: usize) -> u64 {
    (region_bytes as u64) * 3 / 8
}

impl HeapScript {
    /// Returns all scripts for a region, of about `length` requests each.
    pub(crate) fn all(region_bytes: usize, length: usize) -> Vec<Self> {
        vec![
            Self::pairs("pairs of 64 B", 64, length),
            Self::pairs("pairs of 3000 B", 3000, length),
            Self::batches("8..1024, batches of 1", 1, length),
            Self::batches("8..1024, batches of 64", 64, length),
            Self::batches("8..1024, batches of 1000", 1000, length),
            Self::churn("log-normal churn", region_bytes, length),
            Self::vectors("growing vectors", region_bytes, length),
            Self::tree("tree filled and dropped", region_bytes, length),
        ]
    }

    /// One block at a time, always of the same size.
    fn pairs(name: &'static str, bytes: u32, length: usize) -> Self {
        let mut writer = ScriptWriter::new();
        for _ in 0..length / 2 {
            let slot = writer.alloc(bytes);
            writer.free(slot);
        }
        writer.end(name)
    }

    /// A batch of blocks of 8 to 1024 bytes, then all of them freed in random order.
    fn batches(name: &'static str, blocks: usize, length: usize) -> Self {
        let mut writer = ScriptWriter::new();
        for _ in 0..length.div_ceil(2 * blocks) {
            for _ in 0..blocks {
                let bytes = Mix::Medium.draw(&mut writer.random);
                writer.alloc(bytes);
            }
            while writer.free_any() {}
        }
        writer.end(name)
    }

    /// A fill with mixed sizes, then a steady churn in which each block lives for a random time.
    fn churn(name: &'static str, region_bytes: usize, length: usize) -> Self {
        let mut writer = ScriptWriter::new();
        let max = live_bytes(region_bytes);
        while writer.live_bytes < max {
            writer.alloc_from(Mix::LogNormal);
        }
        // The fill and the final frees should not be most of the script.
        let length = length.max(8 * writer.ops.len());
        while writer.ops.len() < length {
            writer.free_any();
            while writer.live_bytes < max {
                writer.alloc_from(Mix::LogNormal);
            }
        }
        writer.end(name)
    }

    /// Eight vectors that grow by doubling, in random turns.
    fn vectors(name: &'static str, region_bytes: usize, length: usize) -> Self {
        const VECTORS: usize = 8;
        let max = (region_bytes / 64).min(1 << 20) as u32;
        let mut writer = ScriptWriter::new();
        let mut vectors = Vec::new();
        while writer.ops.len() < length {
            if vectors.len() < VECTORS {
                let bytes = writer.random.within(4, 64);
                vectors.push((writer.alloc(bytes), bytes));
            }
            let place = writer.random.index(vectors.len());
            let (slot, bytes) = &mut vectors[place];
            *bytes *= 2;
            if *bytes > max {
                writer.free(*slot);
                vectors.swap_remove(place);
            } else {
                writer.resize(*slot, *bytes);
            }
        }
        writer.end(name)
    }

    /// A map filled entry by entry and dropped in the order of its keys, then another of the same kind.
    fn tree(name: &'static str, region_bytes: usize, length: usize) -> Self {
        let max = live_bytes(region_bytes);
        let mut writer = ScriptWriter::new();
        loop {
            while writer.live_bytes < max && writer.ops.len() < length {
                writer.alloc_from(Mix::Tree);
            }
            // Keys come in random order, so neighbours in the map are not neighbours in memory.
            let mut live = std::mem::take(&mut writer.live);
            for last in (1..live.len()).rev() {
                live.swap(last, writer.random.index(last + 1));
            }
            for (slot, bytes) in live {
                writer.note_free(slot, bytes);
            }
            if writer.ops.len() >= length {
                return writer.end(name);
            }
        }
    }
}

/// Records requests, and the blocks that are live after them.
struct ScriptWriter {
    random: Random,
    ops: Vec<HeapOp>,
    /// Live blocks: slot and bytes.
    live: Vec<(u32, u32)>,
    live_bytes: u64,
    /// Slots whose blocks were freed.
    empty: Vec<u32>,
    slots: u32,
}

impl ScriptWriter {
    const fn new() -> Self {
        Self {
            random: Random::new(SEED),
            ops: Vec::new(),
            live: Vec::new(),
            live_bytes: 0,
            empty: Vec::new(),
            slots: 0,
        }
    }

    fn alloc(&mut self, bytes: u32) -> u32 {
        let slot = self.empty.pop().unwrap_or(self.slots);
        self.slots = self.slots.max(slot + 1);
        self.ops.push(HeapOp::Alloc { slot, bytes });
        self.live.push((slot, bytes));
        self.live_bytes += u64::from(bytes);
        slot
    }

    fn alloc_from(&mut self, mix: Mix) {
        let bytes = mix.draw(&mut self.random);
        self.alloc(bytes);
    }

    fn note_free(&mut self, slot: u32, bytes: u32) {
        self.ops.push(HeapOp::Free { slot });
        self.live_bytes -= u64::from(bytes);
        self.empty.push(slot);
    }

    /// Frees a random block. Returns `false` if there is none.
    fn free_any(&mut self) -> bool {
        if self.live.is_empty() {
            return false;
        }
        let place = self.random.index(self.live.len());
        let (slot, bytes) = self.live.swap_remove(place);
        self.note_free(slot, bytes);
        true
    }

    /// Frees a live slot; O(live).
    fn free(&mut self, slot: u32) {
        if let Some(place) = self.live.iter().position(|&(other, _)| other == slot) {
            let (_, bytes) = self.live.swap_remove(place);
            self.note_free(slot, bytes);
        }
    }

    /// Resizes a live slot; O(live).
    fn resize(&mut self, slot: u32, bytes: u32) {
        if let Some((_, old)) = self.live.iter_mut().find(|(other, _)| *other == slot) {
            self.live_bytes = self.live_bytes - u64::from(*old) + u64::from(bytes);
            *old = bytes;
            self.ops.push(HeapOp::Resize { slot, bytes });
        }
    }

    /// Frees the remaining blocks and returns the script.
    fn end(mut self, name: &'static str) -> HeapScript {
        while self.free_any() {}
        HeapScript {
            name,
            ops: self.ops,
            slots: self.slots as usize,
        }
    }
}
