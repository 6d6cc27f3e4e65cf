//! All rules together, with random requests.

use larder_model::Random;

use super::chunks::BlockState;
use super::{Pytorch, PytorchConfig};
use crate::replay::{Contender, ContenderBlock};

const MIB: u64 = 1 << 20;

fn with(settings: &str, device_bytes: Option<u64>) -> Pytorch {
    Pytorch::new(PytorchConfig::parse(settings).unwrap(), device_bytes)
}

#[test]
fn nothing_overlaps_and_all_that_is_live_is_held() {
    let settings = [
        "",
        "expandable_segments:True",
        "max_split_size_mb:24,garbage_collection_threshold:0.3",
        "roundup_power2_divisions:4,garbage_collection_threshold:0.6",
        "expandable_segments:True,max_split_size_mb:24,roundup_power2_divisions:8",
    ];
    for seed in 0..100 {
        for settings in settings {
            println!("seed {seed}, {settings:?}");
            random_run(seed, settings);
        }
    }
}

/// Runs requests of all sizes on three streams of a device that is sometimes full.
fn random_run(seed: u64, settings: &str) {
    let mut random = Random::new(seed);
    let device_bytes = MIB * (40 + random.below(400));
    let mut allocator = with(settings, Some(device_bytes));
    let mut live: Vec<(ContenderBlock, u64)> = Vec::new();
    for _ in 0..400 {
        if random.below(9) < 5 {
            let log2 = 1 + random.below(27);
            let bytes = 1 + random.below(1 << log2);
            let stream = random.below(3) as u32;
            let slot = allocator.alloc_on(stream as u8, bytes);
            live.extend(slot.map(|slot| (slot, bytes)));
        } else if !live.is_empty() {
            let which = random.index(live.len());
            allocator.free(live.swap_remove(which).0);
        }
        if random.below(100) == 0 {
            live.drain(..).for_each(|(slot, _)| allocator.free(slot));
        }
        judge(&allocator, &live, device_bytes);
    }
    live.drain(..).for_each(|(slot, _)| allocator.free(slot));
    allocator.release_cached();
    assert_eq!(
        allocator.reserved_bytes(),
        0,
        "all that is free can go back"
    );
}

fn judge(allocator: &Pytorch, live: &[(ContenderBlock, u64)], device_bytes: u64) {
    allocator.chunks.check_invariants();
    let mut places: Vec<(u64, u64)> = live
        .iter()
        .map(|(slot, bytes)| (slot.address, slot.address + bytes))
        .collect();
    places.sort_unstable();
    let overlap = places.windows(2).find(|pair| pair[0].1 > pair[1].0);
    assert_eq!(overlap, None);
    let held = allocator.held().unwrap();
    let bytes: u64 = held.iter().map(|span| span.end - span.start).sum();
    assert_eq!(bytes, allocator.reserved_bytes());
    assert!(bytes <= device_bytes);
    for &(slot, bytes) in live {
        let chunk = allocator.chunks.get(slot.handle);
        assert_eq!(
            (chunk.state, chunk.address),
            (BlockState::Used, slot.address)
        );
        assert!(chunk.bytes >= bytes);
    }
}
