//! Exported memory amid what comes and goes.

use cudarc::driver::CudaStream;
use larder_core::Block;
use larder_cuda::driver::StandIn;
use larder_cuda::{Context, ExportedBlock, ImportedBlock};

use super::{import, setup, shareable};
use crate::common::{MIB, alone, assert_clean, fill, read};

/// Seeds of deferred schedules.
const SEEDS: u64 = 20;

/// Numbers by chance, from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A block that is exported and imported, and perhaps freed.
struct Shared {
    block: Option<Block>,
    exported: ExportedBlock,
    imported: ImportedBlock,
}

impl Shared {
    /// That both places are the same memory: what is written here is read there.
    fn assert_one(&self, stream: &CudaStream, what: &str) {
        let (ours, theirs) = (self.exported.range(), self.imported.range());
        let [here, there] = [ours, theirs].map(|range| {
            let (at, bytes) = (range.start().get(), range.bytes());
            [read(stream, at, 64), read(stream, at + bytes - 64, 64)]
        });
        assert_eq!(here, there, "{what}: {ours:?}");
    }
}

/// Bytes of a block by chance: of less and more than a page.
fn some_bytes(draw: &mut Draw) -> u64 {
    [100 << 10, MIB, 3 * MIB, 5 * MIB][draw.below(4) as usize] + 512 * draw.below(8)
}

/// Blocks of all kinds come and go around exported ones, idle memory goes back, limits move: exported memory is
/// the memory that was exported, until the export is dropped, whether the block was freed or not.
fn churn(control: &StandIn, context: &Context, seed: u64) {
    let (memory, stream) = setup(context, shareable());
    let draw = &mut Draw(seed + 0x9e37_79b9);
    if seed > 0 {
        control.schedule_deferred(seed);
    }
    let (mut blocks, mut shared) = (Vec::<Block>::new(), Vec::<Shared>::new());
    for round in 0..150_u64 {
        match draw.below(8) {
            0..3 if blocks.len() < 8 => {
                let block = memory.alloc(&stream, some_bytes(draw)).unwrap();
                fill(&stream, block.addr().get(), block.bytes(), round as u8);
                blocks.push(block);
            }
            3 if shared.len() < 4 => {
                let block = memory.alloc(&stream, some_bytes(draw)).unwrap();
                fill(&stream, block.addr().get(), block.bytes(), round as u8);
                let exported = memory.export(&block).unwrap();
                let imported = import(context, &exported);
                shared.push(Shared {
                    block: Some(block),
                    exported,
                    imported,
                });
            }
            4 if !shared.is_empty() => {
                let index = draw.below(shared.len() as u64) as usize;
                if let Some(block) = shared[index].block.take() {
                    memory.free(&stream, block).unwrap();
                } else {
                    let gone = shared.swap_remove(index);
                    gone.imported.free().unwrap();
                }
            }
            5 => {
                memory.release(u64::MAX);
                memory.end_step();
            }
            6 => {
                let _ = memory.set_limit([16 * MIB, u64::MAX][draw.below(2) as usize]);
                let _ = memory.set_limit(u64::MAX);
            }
            _ if !blocks.is_empty() => {
                let index = draw.below(blocks.len() as u64) as usize;
                memory.free(&stream, blocks.swap_remove(index)).unwrap();
            }
            _ => {}
        }
        if round % 5 == 0 {
            stream.synchronize().unwrap();
            let what = format!("seed {seed}, round {round}");
            shared.iter().for_each(|one| one.assert_one(&stream, &what));
        }
    }
    for block in blocks {
        memory.free(&stream, block).unwrap();
    }
    for one in shared {
        if let Some(block) = one.block {
            memory.free(&stream, block).unwrap();
        }
        drop((one.imported, one.exported));
    }
    // Nothing is pinned any more.
    stream.synchronize().unwrap();
    memory.release(u64::MAX);
    memory.end_step();
    assert_eq!(memory.stats().reserved_bytes, 0, "seed {seed}");
    assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
    control.schedule_eagerly();
}

#[test]
fn exported_memory_is_neither_moved_nor_released() {
    let Some((control, _turn)) = alone("exported_memory_is_neither_moved_nor_released") else {
        return;
    };
    for seed in 0..=SEEDS {
        let context = Context::new(0).unwrap();
        churn(control, &context, seed);
        drop(context);
        assert_clean(control);
    }
}
