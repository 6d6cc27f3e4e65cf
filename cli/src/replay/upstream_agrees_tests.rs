//! The model package's TensorFlow BFC and the independently written ordered-set BFC: both must have
//! the same addresses and device calls for every allocation.

use std::cell::Cell;
use std::path::Path;

use crate::peers;
use crate::replay::{Contender, ContenderBlock};
use larder_core::{Addr, AddrRange, GrowRequest, SubAllocError, SubAllocator};
use larder_model::Random;
use larder_model::tensorflow::Bfc;
use larder_trace::{Event, Trace};

/// First address of the device. The peers' devices begin at 0.
const BASE: u64 = 1 << 32;

/// Size of XLA's first region in bytes.
const FIRST_REGION_BYTES: u64 = 2 << 20;

/// A device with ascending addresses that counts calls.
struct Device {
    next: Cell<u64>,
    grown: Cell<u64>,
    released: Cell<u64>,
}

impl SubAllocator for Device {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let start = self.next.get();
        self.next.set(start + request.bytes);
        self.grown.set(self.grown.get() + 1);
        AddrRange::new(Addr::new(start), request.bytes).ok_or(SubAllocError)
    }

    fn release(&self, _: AddrRange) -> Result<(), SubAllocError> {
        self.released.set(self.released.get() + 1);
        Ok(())
    }
}

/// Both allocators, which receive the same calls.
struct Pair {
    upstream: Bfc,
    device: Device,
    peer: Box<dyn Contender>,
}

/// A block in both allocators.
#[derive(Clone, Copy, Default)]
struct Block {
    start: u64,
    slot: ContenderBlock,
}

impl Pair {
    fn new(limit_bytes: Option<u64>) -> Self {
        let upstream = Bfc::new(limit_bytes.unwrap_or(u64::MAX));
        Self {
            upstream: upstream.with_first_region(FIRST_REGION_BYTES).collecting(),
            device: Device {
                next: Cell::new(BASE),
                grown: Cell::new(0),
                released: Cell::new(0),
            },
            peer: peers::xla(limit_bytes),
        }
    }

    #[track_caller]
    fn alloc(&mut self, bytes: u64) -> Option<Block> {
        let ours = self.upstream.alloc(&self.device, bytes);
        let slot = self.peer.alloc(bytes);
        let start = ours.map(|range| range.start().get());
        assert_eq!(start, slot.map(|slot| slot.address + BASE));
        let (start, slot) = (start?, slot?);
        Some(Block { start, slot })
    }

    fn free(&mut self, block: Block) {
        self.upstream.free(Addr::new(block.start));
        self.peer.free(block.slot);
    }

    #[track_caller]
    fn compare_calls(&self) {
        let stats = self.upstream.stats();
        assert_eq!(stats.reserved_bytes, self.peer.reserved_bytes());
        assert_eq!(self.device.grown.get(), self.peer.driver_allocations());
        assert_eq!(self.device.released.get(), self.peer.driver_frees());
    }
}

#[test]
fn s8_recorded_traces_get_the_addresses_of_the_ordered_set_bfc() {
    for name in ["bert_infer", "gpt2s_train", "resnet50_train"] {
        let file = format!(
            "{}/../benches/traces/{name}.trace.zst",
            env!("CARGO_MANIFEST_DIR")
        );
        let trace = Trace::load(Path::new(&file)).expect("a carried trace");
        let mut pair = Pair::new(None);
        let mut blocks = vec![Block::default(); trace.allocations() as usize];
        for event in trace.events() {
            match *event {
                Event::Alloc { id, bytes } => {
                    blocks[id as usize] = pair.alloc(bytes).expect("no limit");
                }
                Event::Free { id } => pair.free(blocks[id as usize]),
                Event::Step { .. } => {}
            }
        }
        pair.compare_calls();
    }
}

#[test]
fn s8_random_sequences_give_the_answers_and_calls_of_the_ordered_set_bfc() {
    for seed in 0..200 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut pair = Pair::new(Some((4 << 20) + 256 * random.below(1 << 18)));
        let mut live: Vec<Block> = Vec::new();
        for _ in 0..400 {
            if random.below(5) < 3 {
                let log2 = 1 + random.below(24);
                live.extend(pair.alloc(1 + random.below(1 << log2)));
            } else if !live.is_empty() {
                let which = random.index(live.len());
                pair.free(live.swap_remove(which));
            }
            // Occasionally frees all blocks, so that whole regions become free.
            if random.below(100) == 0 {
                live.drain(..).for_each(|block| pair.free(block));
            }
            pair.compare_calls();
        }
    }
}
