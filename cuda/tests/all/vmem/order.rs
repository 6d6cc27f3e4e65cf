//! The order of streams: in any order that the device chooses, every block keeps its bytes on both sides.

use larder_core::{Block, Placement};
use larder_cuda::{HostSide, StreamAllocator};
use larder_model::Random;

use super::{DEVICE, Setup};
use crate::common::{MIB, alone_and_clean, assert_filled, fill};

const SEEDS: u64 = 32;

/// The bytes of a block that are written and read, at both its ends.
const WRITTEN: u64 = 64;

#[test]
fn host_memory_comes_back_to_its_stream_at_once_and_to_another_after_a_wait_of_the_device() {
    alone_and_clean(|control| {
        for host in [HostSide::Pinned(4 * MIB + 4096), HostSide::Managed] {
            let mut was_busy = false;
            for seed in 0..SEEDS {
                let setup = Setup::new(host, 2);
                let [one, two] = [0, 1].map(|index| &setup.streams[index]);
                let memory = &setup.memory;
                let _device = memory.alloc(one, DEVICE).unwrap();
                // All streams and regions are there.
                let warm = memory.alloc(two, 2 * MIB).unwrap();
                memory.free(two, warm).unwrap();
                setup.context.synchronize().unwrap();
                control.schedule_deferred(seed);
                let block = memory.alloc(one, 2 * MIB).unwrap();
                let at = block.addr();
                fill(one, at.get(), 2 * MIB, 1);
                control.reset_calls();
                memory.free(one, block).unwrap();
                assert_eq!(control.calls(None), 0, "{:?}", control.call_table());
                let block = memory.alloc(one, 2 * MIB).unwrap();
                assert_eq!(block.addr(), at, "on the same stream at once");
                fill(one, at.get(), 2 * MIB, 2);
                memory.free(one, block).unwrap();
                let block = memory.alloc(two, 2 * MIB).unwrap();
                assert_eq!(block.addr(), at, "on the other one before more is pinned");
                was_busy |= !setup.context.is_done(one).unwrap();
                fill(two, at.get(), 2 * MIB, 3);
                assert_eq!(control.calls(Some("cuStreamSynchronize")), 0);
                assert_eq!(control.calls(Some("cuEventSynchronize")), 0);
                assert_filled(two, at.get(), 2 * MIB, 3);
                memory.free(two, block).unwrap();
                control.schedule_eagerly();
                assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
            }
            assert!(was_busy, "under some seed the first stream was behind");
        }
    });
}

#[test]
fn a_full_host_side_waits_for_what_streams_use() {
    alone_and_clean(|control| {
        for seed in 0..SEEDS {
            let setup = Setup::new(HostSide::Pinned(4 * MIB + 4096), 2);
            let [one, two] = [0, 1].map(|index| &setup.streams[index]);
            let memory = &setup.memory;
            let _device = memory.alloc(one, DEVICE).unwrap();
            control.schedule_deferred(seed);
            // Two regions of 2 MiB, used by different streams, become one of 4 MiB.
            for (stream, value) in [(one, 1), (two, 2)] {
                let block = memory.alloc(stream, 2 * MIB).unwrap();
                fill(stream, block.addr().get(), 2 * MIB, value);
                memory.free(stream, block).unwrap();
            }
            let block = memory.alloc(one, 4 * MIB).unwrap();
            fill(one, block.addr().get(), 4 * MIB, 3);
            assert_filled(one, block.addr().get(), 4 * MIB, 3);
            control.schedule_eagerly();
            assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        }
    });
}

struct Live {
    block: Block,
    stream: usize,
    value: u8,
}

impl Live {
    fn ends(&self) -> [u64; 2] {
        let start = self.block.addr().get();
        [start, start + self.block.bytes() - WRITTEN]
    }
}

/// F8 on streams: where each block is, how large it is and what it holds, beside a list of them.
#[test]
fn f8_random_blocks_on_three_streams_keep_their_bytes_sizes_and_places() {
    alone_and_clean(|control| {
        for seed in 0..SEEDS {
            println!("seed {seed}");
            let setup = Setup::new(HostSide::Pinned(24 * MIB), 3);
            control.schedule_deferred(seed);
            let mut random = Random::new(seed);
            let mut live: Vec<Live> = Vec::new();
            let mut on_host = 0;
            for turn in 0..80 {
                let stream = random.below(3) as usize;
                let queue = &setup.streams[stream];
                if random.below(5) < 3 {
                    let bytes = 256 + random.below(3 * MIB);
                    let Ok(block) = setup.memory.alloc(queue, bytes) else {
                        continue;
                    };
                    assert_eq!(setup.memory.info(&block).unwrap().requested_bytes, bytes);
                    let value = turn as u8 + 1;
                    let block = Live {
                        block,
                        stream,
                        value,
                    };
                    for at in block.ends() {
                        fill(queue, at, WRITTEN, value);
                    }
                    on_host += u32::from(setup.memory.placement(&block.block) == Placement::Host);
                    live.push(block);
                } else if !live.is_empty() {
                    let which = random.index(live.len());
                    let gone = live.swap_remove(which);
                    let queue = &setup.streams[gone.stream];
                    if random.below(4) == 0 {
                        for at in gone.ends() {
                            assert_filled(queue, at, WRITTEN, gone.value);
                        }
                    }
                    for at in gone.ends() {
                        fill(queue, at, WRITTEN, 0);
                    }
                    setup.memory.free(queue, gone.block).unwrap();
                }
                let sum = |placement| -> u64 {
                    let of = live
                        .iter()
                        .filter(|live| setup.memory.placement(&live.block) == placement);
                    of.map(|live| live.block.bytes()).sum()
                };
                let stats = setup.memory.vmem_stats();
                assert_eq!(stats.device.live_bytes, sum(Placement::Device));
                assert_eq!(stats.host.live_bytes, sum(Placement::Host));
                assert_eq!(
                    stats.joint_live_bytes,
                    stats.device.live_bytes + stats.host.live_bytes
                );
            }
            for block in &live {
                for at in block.ends() {
                    assert_filled(&setup.streams[block.stream], at, WRITTEN, block.value);
                }
            }
            assert!(on_host > 0, "the device was full at times");
            control.schedule_eagerly();
            assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        }
    });
}

#[test]
fn the_device_is_not_waited_for_by_the_host_while_there_is_other_memory() {
    alone_and_clean(|control| {
        let mut was_busy = false;
        for seed in 0..SEEDS {
            let setup = Setup::new(HostSide::Pinned(16 * MIB), 3);
            let [one, two, three] = [0, 1, 2].map(|index| &setup.streams[index]);
            let memory = &setup.memory;
            // Half of the device is pending on each of two streams: nothing of 8 MiB without a wait of both.
            let halves = [one, two].map(|stream| memory.alloc(stream, DEVICE / 2).unwrap());
            setup.context.synchronize().unwrap();
            control.schedule_deferred(seed);
            for (stream, half) in [one, two].into_iter().zip(halves) {
                for _ in 0..20 {
                    fill(stream, half.addr().get(), DEVICE / 2, 1);
                }
                memory.free(stream, half).unwrap();
            }
            control.reset_calls();
            let block = memory.alloc(three, DEVICE).unwrap();
            let waits = control.calls(Some("cuEventSynchronize"))
                + control.calls(Some("cuStreamSynchronize"));
            assert_eq!(waits, 0, "{:?}", control.call_table());
            was_busy |= memory.placement(&block) == Placement::Host;
            fill(three, block.addr().get(), DEVICE, 2);
            assert_filled(three, block.addr().get(), DEVICE, 2);
            control.schedule_eagerly();
            assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        }
        assert!(was_busy, "under some seed the device had work");
    });
}
