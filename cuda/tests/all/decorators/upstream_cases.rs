//! Upstream's own tests of the guard and reset allocators, on a device.

use larder_core::decorate::{CheckError, Damage, GuardConfig, Guarded, Poisoned, Which};
use larder_core::{Block, BlockAllocator, Pattern, Request};
use larder_cuda::{CheckedConfig, DeviceAccess, StreamMemory};

use super::{Setup, alloc, read, write};
use crate::common::alone_and_clean;

type Guards<'a> = Guarded<&'a StreamMemory, &'a DeviceAccess>;

const BOTH: [GuardConfig; 2] = [GuardConfig::new(), GuardConfig::tensorflow()];

fn guards<'a>(
    memory: &'a StreamMemory,
    access: &'a DeviceAccess,
    config: GuardConfig,
) -> Guards<'a> {
    Guarded::new(memory, access, config, 8).unwrap()
}

fn found(allocator: &Guards<'_>, block: Block) -> Damage {
    match allocator.free_checked(block, None) {
        Ok(Some(CheckError::Damaged(damage))) => damage,
        other => panic!("{other:?}"),
    }
}

fn on_a_device(act: impl Fn(&StreamMemory, &DeviceAccess, GuardConfig)) {
    alone_and_clean(|_| {
        for config in BOTH {
            let setup = Setup::new();
            let (memory, access) = setup.on_stream();
            act(&memory, &access, config);
            assert_eq!(memory.stats().live_bytes, 0);
        }
    });
}

#[test]
fn s4_4_writing_the_whole_block_hurts_no_guard_on_a_device() {
    on_a_device(|memory, access, config| {
        let allocator = guards(memory, access, config);
        let block = alloc(&allocator, 8 * 8);
        write(access, block.addr().get(), &[0; 64]);
        assert_eq!(allocator.check(&block), Ok(()));
        assert!(matches!(allocator.free_checked(block, None), Ok(None)));
    });
}

#[test]
fn s4_4_a_float_in_front_of_the_block_is_found_on_a_device() {
    on_a_device(|memory, access, config| {
        for words in [8, 211] {
            let allocator = guards(memory, access, config);
            let block = alloc(&allocator, words * 8);
            let addr = block.addr();
            write(access, addr.get() - 8, &999.0f32.to_le_bytes());
            let damage = found(&allocator, block);
            assert_eq!((damage.which, damage.offset), (Which::Front, -8));
            assert_eq!((damage.expected, damage.found), (0xab, 0));
            assert_eq!((damage.addr, damage.bytes), (addr, words * 8));
        }
    });
}

#[test]
fn s4_4_a_float_behind_the_block_is_found_on_a_device() {
    on_a_device(|memory, access, config| {
        for words in [8, 22] {
            let allocator = guards(memory, access, config);
            let block = alloc(&allocator, words * 8);
            let end = block.addr().get() + words * 8;
            write(access, end, &999.0f32.to_le_bytes());
            let damage = found(&allocator, block);
            let offset = i64::try_from(words * 8).unwrap();
            assert_eq!((damage.which, damage.offset), (Which::Tail, offset));
            assert_eq!((damage.expected, damage.found), (0xcd, 0));
        }
    });
}

fn floats(access: &DeviceAccess, at: u64, count: u64) -> Vec<f32> {
    let bytes = read(access, at, count * 4);
    let words = bytes.chunks_exact(4);
    words
        .map(|word| f32::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

fn resets<A: BlockAllocator>(allocator: &A, access: &DeviceAccess) {
    let block = alloc(allocator, 1024 * 4);
    let at = block.addr().get();
    let is_reset = |floats: Vec<f32>| floats.iter().all(|float| !float.is_finite());
    assert!(is_reset(floats(access, at, 1024)));
    write(access, at, &1.0f32.to_le_bytes());
    assert_eq!(floats(access, at, 2)[0].to_bits(), 1.0f32.to_bits());
    allocator.free(block).unwrap();
    assert!(is_reset(floats(access, at, 1024)));
}

#[test]
fn s4_4_blocks_are_no_numbers_before_they_are_written_and_after_they_are_freed() {
    on_a_device(|memory, access, config| {
        resets(
            &Poisoned::new(memory, access, Pattern::F32_NAN).unwrap(),
            access,
        );
        let guarded = guards(memory, access, config);
        resets(
            &Poisoned::new(&guarded, access, Pattern::F32_NAN).unwrap(),
            access,
        );
        assert_eq!(guarded.take_finding(), None);
    });
}

#[test]
fn s4_4_resets_around_guards_tell_the_sizes_of_the_blocks() {
    alone_and_clean(|_| {
        let setup = Setup::new();
        for config in [CheckedConfig::new(), CheckedConfig::tensorflow()] {
            let memory = setup.checked(config);
            assert!(memory.tracks_sizes());
            let block = alloc(&memory, 4);
            assert_eq!(memory.requested_bytes(&block), Some(4));
            assert_eq!(memory.granted_bytes(&block), Some(256));
            assert!(memory.allocation_id(&block).is_some());
            memory.free(block).unwrap();
        }
    });
}

#[test]
fn s4_5_a_block_behind_a_guard_keeps_its_alignment() {
    on_a_device(|memory, access, _| {
        let allocator = guards(memory, access, GuardConfig::new());
        for log in 0..=16 {
            let align = larder_core::Align::new(1 << log).unwrap();
            let block = allocator.alloc(&Request::new(100).aligned(align));
            let block = block.unwrap().block;
            assert!(block.addr().is_aligned(align), "{block:?} at {align:?}");
            write(access, block.addr().get(), &[0; 100]);
            assert!(matches!(allocator.free_checked(block, None), Ok(None)));
        }
    });
}
