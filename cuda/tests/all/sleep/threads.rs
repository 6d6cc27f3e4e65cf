//! Threads allocate and free while another thread makes the allocator sleep and wake.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use larder_cuda::DeviceAllocError;

use crate::common::MIB;
use crate::sleep::{Rig, arenas, under_all_schedules};

/// Set on drop, even if the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const SLEEPS: usize = 5;

#[test]
fn threads_are_given_memory_awake_and_refused_asleep() {
    under_all_schedules(|control| {
        let mut rig = Rig::new(control, arenas());
        rig.fill();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for thread in 0..3_usize {
                let (memory, over) = (rig.memory.clone(), &over);
                let stream = rig.context.cudarc().new_stream().unwrap();
                scope.spawn(move || {
                    let mut held = Vec::new();
                    let mut round = thread;
                    while !over.load(Ordering::Relaxed) {
                        round += 1;
                        let bytes = [200, 70 << 10, MIB, 3 * MIB, 9 * MIB][round % 5];
                        let _step = (round % 7 == 0).then(|| memory.step(&stream).unwrap());
                        match memory.alloc(&stream, bytes) {
                            Ok(block) => held.push(block),
                            // A thread that looked before the sleep may be refused its pages.
                            Err(DeviceAllocError::Asleep | DeviceAllocError::Memory { .. }) => {
                                thread::yield_now();
                            }
                            Err(error) => panic!("{error}"),
                        }
                        if held.len() > 4 || round % 3 == 0 {
                            held.drain(..)
                                .for_each(|block| memory.free(&stream, block).unwrap());
                        }
                    }
                    for block in held {
                        memory.free(&stream, block).unwrap();
                    }
                });
            }
            let ends = Ends(&over);
            for _ in 0..SLEEPS {
                rig.memory.sleep().unwrap();
                assert_eq!(control.used(0), 0);
                rig.memory.wake().unwrap();
                rig.check();
                thread::yield_now();
            }
            drop(ends);
        });
        rig.check();
        rig.free_all();
        rig.memory.release(u64::MAX);
    });
}
