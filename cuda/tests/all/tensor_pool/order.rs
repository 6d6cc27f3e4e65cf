//! The order of the stream. In any order that the device chooses, every block keeps its bytes and no two uses of the
//! same memory conflict: when blocks of the plan are reused at once, when slabs are allocated and released, and when
//! others use the memory later.

use larder_cuda::{Event, EventConfig};
use larder_model::Random;

use crate::common::{alone_and_clean, fill, read};
use crate::tensor_pool::rig::{AnyPool, Device, InUse, MIB, STEP, Tested, soon, until_planned};

/// Returns a step of 12 blocks of random sizes and alignments, freed in a random order.
fn random_step(random: &mut Random) -> String {
    let mut ops = String::new();
    let mut in_use = Vec::new();
    let blocks = 12;
    let mut next = 0;
    while next < blocks || !in_use.is_empty() {
        if next < blocks && (in_use.is_empty() || random.below(2) == 0) {
            let scale = [1000, 60_000, 500_000][random.below(3) as usize];
            let to = [64, 256, 4096][random.below(3) as usize];
            ops += &format!("{next}={}@{to} ", 64 + random.below(scale));
            in_use.push(next);
            next += 1;
        } else {
            let which = random.index(in_use.len());
            ops += &format!("-{} ", in_use.swap_remove(which));
        }
    }
    ops
}

#[test]
fn blocks_keep_their_bytes_in_whatever_order_the_device_works() {
    alone_and_clean(|control| {
        for seed in 0..24 {
            control.schedule_deferred(seed);
            let device = Device::new();
            let mut random = Random::new(seed);
            let pool = Tested::new(&device, soon());
            let mut in_use = InUse::default();
            let often = random_step(&mut random);
            for turn in 0..12 {
                // Every fifth step was not planned for.
                if turn % 5 == 4 {
                    let odd = random_step(&mut random);
                    in_use.step(&pool, &odd).unwrap();
                } else {
                    in_use.step(&pool, &often).unwrap();
                }
            }
            assert!(pool.is_planned() && pool.counts().hits > 0, "seed {seed}");
            pool.end();
            assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        }
        control.schedule_eagerly();
    });
}

#[test]
fn memory_of_a_dropped_pool_waits_for_its_work() {
    alone_and_clean(|control| {
        let mut waited = false;
        for seed in 0..16 {
            control.schedule_deferred(seed);
            let device = Device::with_limit(16 * MIB);
            let tested = Tested::new(&device, soon());
            until_planned(&tested, "0=8388608@256 -0");
            let pool = tested.into_pool();
            let block = pool.alloc(8 * MIB).unwrap();
            let at = block.addr().get();
            for value in 0..8 {
                fill(&device.stream, at + u64::from(value) * MIB, MIB, value);
            }
            drop(pool);
            waited |= !device.memory.context().is_done(&device.stream).unwrap();
            let other = device.memory.context().cudarc().new_stream().unwrap();
            let whole = device.memory.alloc(&other, 12 * MIB).unwrap();
            fill(&other, whole.addr().get(), 12 * MIB, 2);
            assert!(
                read(&other, whole.addr().get(), 12 * MIB)
                    .iter()
                    .all(|byte| *byte == 2)
            );
            device.memory.free(&other, whole).unwrap();
            assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        }
        assert!(waited, "under some seed the work was still queued");
        control.schedule_eagerly();
    });
}

/// The documentation requires this of the caller.
#[test]
fn a_block_used_on_another_stream_is_ordered_by_the_caller() {
    alone_and_clean(|control| {
        for seed in 0..16 {
            control.schedule_deferred(seed);
            let device = Device::new();
            let context = device.memory.context();
            let other = context.cudarc().new_stream().unwrap();
            let tested = Tested::new(&device, soon());
            until_planned(&tested, STEP);
            let pool = tested.into_pool();
            let event = Event::new(context, EventConfig::default()).unwrap();
            let block = pool.alloc(200_000).unwrap();
            let at = block.addr().get();
            event.record(&device.stream).unwrap();
            event.wait_on(&other).unwrap();
            fill(&other, at, 200_000, 3);
            event.record(&other).unwrap();
            event.wait_on(&device.stream).unwrap();
            pool.free(block).unwrap();
            let block = pool.alloc(200_000).unwrap();
            assert_eq!(block.addr().get(), at, "given again at once");
            fill(&device.stream, at, 200_000, 4);
            assert!(
                read(&device.stream, at, 200_000)
                    .iter()
                    .all(|byte| *byte == 4)
            );
            pool.free(block).unwrap();
            assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        }
        control.schedule_eagerly();
    });
}
