//! Kernels that write out of bounds are found in stream order, and queued work on a block precedes the work of the
//! memory's next user.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use larder_core::decorate::{CheckError, Damage, OnDamage, Which};
use larder_core::{BlockAllocator, Pattern};
use larder_cuda::driver::abi::stand_in::KernelCall;
use larder_cuda::driver::{HostLaunch, StandIn};
use larder_cuda::{CheckedConfig, CheckedMemory, Context, DeviceConfig};

use super::{Setup, alloc, read};
use crate::common::{MIB, alone_and_clean, assert_filled, fill};

const SEEDS: u64 = 32;

const PTX: &str = "
.version 7.0
.target sm_52
.address_size 64
.visible .entry decorators_ones(.param .u64 to, .param .u64 bytes) { ret; }
";

/// Executes `to[i] = 1`, byte by byte.
unsafe extern "C" fn ones(call: *const KernelCall) {
    // SAFETY: the stand-in passes a launch with these two parameters.
    let launch = unsafe { HostLaunch::of(call) };
    if let Some(bytes) = launch.write::<u8>(0, launch.parameter::<u64>(1) as usize) {
        bytes.fill(1);
    }
}

fn kernel(control: &StandIn, context: &Context) -> CudaFunction {
    // SAFETY: this is the program's only `decorators_ones`.
    unsafe { control.register_kernel("decorators_ones", ones) }.unwrap();
    let module = context.cudarc().load_module(Ptx::from_src(PTX)).unwrap();
    module.load_function("decorators_ones").unwrap()
}

fn launch(stream: &Arc<CudaStream>, ones: &CudaFunction, to: u64, bytes: u64) {
    let mut launch = stream.launch_builder(ones);
    launch.arg(&to).arg(&bytes);
    // SAFETY: these are the kernel's parameters, and the memory belongs to the allocator.
    unsafe { launch.launch(LaunchConfig::for_num_elems(1)) }.unwrap();
}

fn damage(memory: &CheckedMemory) -> Option<Damage> {
    match memory.take_finding() {
        None => None,
        Some(CheckError::Damaged(damage)) => Some(damage),
        Some(other) => panic!("{other}"),
    }
}

#[test]
fn a_kernel_that_writes_one_past_the_end_is_found_whenever_it_runs() {
    alone_and_clean(|control| {
        let setup = Setup::new();
        let ones = kernel(control, &setup.context);
        for config in [CheckedConfig::new(), CheckedConfig::tensorflow()] {
            let memory = setup.checked(config);
            for seed in 0..SEEDS {
                control.schedule_deferred(seed);
                for bytes in [1, 100, 224, 1000] {
                    // Writing exactly the block's bytes is no damage.
                    let block = alloc(&memory, bytes);
                    launch(&setup.stream, &ones, block.addr().get(), bytes);
                    assert_eq!(memory.check(&block), Ok(()));
                    memory.free(block).unwrap();
                    memory.drain();
                    assert_eq!(damage(&memory), None, "seed {seed}");
                    // One byte past the end. The free reads the guards after the kernel in stream order; the kernel may
                    // not have run yet.
                    let block = alloc(&memory, bytes);
                    launch(&setup.stream, &ones, block.addr().get(), bytes + 1);
                    memory.free(block).unwrap();
                    memory.drain();
                    let found = damage(&memory).expect("one past the end");
                    assert_eq!((found.which, found.offset), (Which::Tail, bytes as i64));
                    assert_eq!((found.bytes, found.found), (bytes, 1));
                    // One byte before the start.
                    let block = alloc(&memory, bytes);
                    launch(&setup.stream, &ones, block.addr().get() - 1, 1);
                    memory.free(block).unwrap();
                    memory.drain();
                    let found = damage(&memory).expect("one in front");
                    assert_eq!((found.which, found.offset), (Which::Front, -1));
                }
                control.schedule_eagerly();
            }
        }
        assert_eq!(setup.memory.stats().live_bytes, 0);
    });
}

#[test]
fn a_kernel_that_writes_to_a_freed_block_that_waits_is_found() {
    alone_and_clean(|control| {
        let setup = Setup::new();
        let ones = kernel(control, &setup.context);
        let memory = setup.checked(CheckedConfig::new());
        for seed in 0..SEEDS {
            control.schedule_deferred(seed);
            let (block, other) = (alloc(&memory, 1000), alloc(&memory, 1000));
            let at = block.addr().get();
            memory.free(block).unwrap();
            assert_eq!(memory.check_all(|find| panic!("{find}")), 0);
            launch(&setup.stream, &ones, at + seed, 1);
            let mut finds = Vec::new();
            assert_eq!(memory.check_all(|find| finds.push(find)), 1);
            let [CheckError::Damaged(found)] = finds[..] else {
                panic!("{finds:?}");
            };
            assert_eq!((found.which, found.offset), (Which::Freed, seed as i64));
            assert_eq!((found.expected, found.found), (0xdd, 1));
            assert_eq!(damage(&memory), Some(found));
            // The damage is not reported again, but a new write is found by the drain.
            launch(&setup.stream, &ones, at + 999, 1);
            memory.free(other).unwrap();
            memory.drain();
            assert_eq!(damage(&memory).map(|found| found.offset), Some(999));
            assert_eq!(damage(&memory), None);
            control.schedule_eagerly();
        }
    });
}

/// The free only queues its fill: the reset of a freed block must not overwrite the values of the memory's next user.
#[test]
fn what_another_stream_gets_comes_after_the_reset_of_the_free() {
    alone_and_clean(|control| {
        let setup = Setup::with_config(DeviceConfig::with_budget(2 * MIB));
        let other = setup.context.cudarc().new_stream().unwrap();
        let ones = kernel(control, &setup.context);
        let memory = setup.checked(CheckedConfig {
            reset: Some(Pattern::F64_NAN),
            ..CheckedConfig::tensorflow()
        });
        for seed in 0..SEEDS {
            control.schedule_deferred(seed);
            let block = alloc(&memory, MIB);
            let at = block.addr().get();
            launch(&setup.stream, &ones, at, MIB);
            memory.free(block).unwrap();
            // The new block takes all memory, so it includes the freed one.
            let whole = setup.memory.alloc(&other, 2 * MIB).unwrap();
            assert!(whole.range().start().get() <= at);
            fill(&other, whole.addr().get(), 2 * MIB, 9);
            assert_filled(&other, whole.addr().get(), 2 * MIB, 9);
            setup.memory.free(&other, whole).unwrap();
            control.schedule_eagerly();
            assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        }
        assert_eq!(memory.take_finding(), None);
    });
}

#[test]
fn a_damaged_block_can_be_kept_for_a_look() {
    alone_and_clean(|control| {
        let setup = Setup::new();
        let ones = kernel(control, &setup.context);
        let mut config = CheckedConfig::tensorflow();
        config.guards.on_damage = OnDamage::Keep;
        config.reset = None;
        let memory = setup.checked(config);
        let (_, access) = setup.on_stream();
        let block = alloc(&memory, 100);
        let at = block.addr().get();
        launch(&setup.stream, &ones, at, 101);
        memory.free(block).unwrap();
        assert_eq!(memory.guard_counts().kept_blocks, 1);
        let next = alloc(&memory, 100);
        assert_ne!(next.addr().get(), at);
        assert_eq!(read(&access, at, 102), [&[1; 101][..], &[0xcd]].concat());
        memory.free(next).unwrap();
        assert_eq!(damage(&memory).map(|found| found.offset), Some(100));
        assert_eq!(setup.memory.stats().live_bytes, 256, "what is kept");
    });
}
