//! Exported memory among blocks that are allocated and freed.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::Block;
use larder_cuda::{Context, DeviceAllocator, ExportedBlock, ImportedBlock};
use larder_model::Random;

use super::{import, setup, shareable};
use crate::common::{MIB, alone, assert_clean, fill, ran_in_child, read};

/// Seeds of deferred schedules.
const SEEDS: u64 = 20;

/// A block, and the byte that it is filled with.
struct Filled {
    block: Block,
    value: u8,
}

impl Filled {
    fn new(memory: &DeviceAllocator, stream: &Arc<CudaStream>, bytes: u64, value: u8) -> Self {
        let block = memory.alloc(stream, bytes).unwrap();
        fill(stream, block.addr().get(), block.bytes(), value);
        Self { block, value }
    }

    /// That it has its bytes still, as far as a few of each page tell.
    fn assert_whole(&self, stream: &CudaStream, what: &str) {
        let (at, bytes) = (self.block.addr().get(), self.block.bytes());
        for offset in (0..bytes).step_by(1 << 19).chain([bytes - 64]) {
            let seen = read(stream, at + offset, 64);
            assert_eq!(seen, [self.value; 64], "{what}: {:?}", self.block);
        }
    }
}

/// An export, its import, and its block until that is freed.
struct Shared {
    block: Option<Filled>,
    exported: ExportedBlock,
    imported: ImportedBlock,
}

/// An allocator, its blocks, and some of them exported.
struct Scene {
    memory: DeviceAllocator,
    stream: Arc<CudaStream>,
    blocks: Vec<Filled>,
    shared: Vec<Shared>,
}

impl Scene {
    fn live(&self) -> impl Iterator<Item = &Filled> {
        let shared = self.shared.iter().filter_map(|one| one.block.as_ref());
        self.blocks.iter().chain(shared)
    }

    /// Writes to all exported memory at whose addresses no block is, as another process may; then no block has
    /// changed, and both sides of what is exported are one memory.
    fn check(&self, what: &str) {
        let stream = &*self.stream;
        stream.synchronize().unwrap();
        for one in &self.shared {
            let (ours, theirs) = (one.exported.range(), one.imported.range());
            let is_there = |live: &Filled| live.block.range().overlaps(ours);
            if !self.live().any(is_there) {
                fill(stream, theirs.start().get(), theirs.bytes(), 0xee);
            }
            let [here, there] = [ours, theirs].map(|range| {
                let (at, bytes) = (range.start().get(), range.bytes());
                [read(stream, at, 64), read(stream, at + bytes - 64, 64)]
            });
            assert_eq!(here, there, "{what}: {ours:?}");
        }
        self.live().for_each(|live| live.assert_whole(stream, what));
    }

    fn turn(&mut self, context: &Context, draw: &mut Random, round: u64) {
        let (memory, stream) = (&self.memory, &self.stream);
        let bytes = [100 << 10, MIB, 3 * MIB, 5 * MIB][draw.below(4) as usize];
        let bytes = bytes + 512 * draw.below(8);
        let new = || Filled::new(memory, stream, bytes, round as u8);
        match draw.below(8) {
            0..3 if self.blocks.len() < 8 => self.blocks.push(new()),
            3 if self.shared.len() < 4 => {
                let block = new();
                let exported = memory.export(&block.block).unwrap();
                let imported = import(context, &exported);
                self.shared.push(Shared {
                    block: Some(block),
                    exported,
                    imported,
                });
            }
            4 if !self.shared.is_empty() => {
                let index = draw.index(self.shared.len());
                if let Some(filled) = self.shared[index].block.take() {
                    memory.free(stream, filled.block).unwrap();
                } else {
                    let gone = self.shared.swap_remove(index);
                    gone.imported.free().unwrap();
                }
            }
            5 => {
                memory.release(u64::MAX);
                memory.end_step();
            }
            6 => {
                let _ = memory.set_limit(16 * MIB);
                let _ = memory.set_limit(u64::MAX);
            }
            _ if !self.blocks.is_empty() => {
                let index = draw.index(self.blocks.len());
                let filled = self.blocks.swap_remove(index);
                memory.free(stream, filled.block).unwrap();
            }
            _ => {}
        }
    }

    fn end(self) {
        let shared = self.shared.into_iter().filter_map(|one| one.block);
        for filled in self.blocks.into_iter().chain(shared) {
            self.memory.free(&self.stream, filled.block).unwrap();
        }
        // Nothing is pinned any more.
        self.stream.synchronize().unwrap();
        self.memory.release(u64::MAX);
        self.memory.end_step();
        assert_eq!(self.memory.stats().reserved_bytes, 0);
    }
}

/// Blocks come and go around exported ones, idle memory goes back, limits move: exported memory is what was
/// exported, and serves no block elsewhere, until the export is dropped, whether its block was freed or not.
#[test]
fn exported_memory_is_neither_moved_nor_released() {
    if ran_in_child() {
        return;
    }
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..=SEEDS {
        let context = Context::new(0).unwrap();
        {
            let (memory, stream) = setup(&context, shareable());
            let mut scene = Scene {
                memory,
                stream,
                blocks: Vec::new(),
                shared: Vec::new(),
            };
            if seed > 0 {
                control.schedule_deferred(seed);
            }
            let draw = &mut Random::new(seed);
            for round in 0..150 {
                scene.turn(&context, draw, round);
                if round % 8 == 0 {
                    scene.check(&format!("seed {seed}, round {round}"));
                }
            }
            scene.end();
            assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
            control.schedule_eagerly();
        }
        drop(context);
        assert_clean(control);
    }
}
