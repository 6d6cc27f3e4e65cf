//! Buffers that grow where they stand: [`ReservedBuffer`].

use cudarc::driver::{DevicePtr, DevicePtrMut, sys};
use larder_core::AllocError;
use larder_cuda::{DeviceAllocError, DeviceConfig, ReservedBuffer};

use crate::common::graph::Graph;
use crate::common::refusal::SWEEP;
use crate::common::setup::Setup;
use crate::common::{MIB, alone_and_clean, assert_filled, fill, under_all_schedules};

const SEEDS: u64 = 8;

const MEBIBYTE: usize = MIB as usize;

/// More than the device has.
const RESERVED: usize = 2 << 30;

/// Returns the address of the first value.
fn base(buffer: &ReservedBuffer<u8>) -> u64 {
    // SAFETY: only the address is used.
    let (whole, stream) = (unsafe { buffer.whole() }, buffer.stream());
    assert_eq!(whole.device_ptr(stream).0, buffer.address());
    buffer.address()
}

impl Setup {
    fn reserve(&self, max_len: usize) -> ReservedBuffer<u8> {
        self.memory.reserve(&self.streams[0], max_len).unwrap()
    }

    /// Commits mebibytes and fills them.
    fn commit(&self, buffer: &mut ReservedBuffer<u8>, stream: usize, from: usize, to: usize) {
        let stream = &self.streams[stream];
        let range = from * MEBIBYTE..to * MEBIBYTE;
        // SAFETY: filled below.
        unsafe { buffer.commit(stream, range.clone()) }.unwrap();
        let mut values = buffer.get_mut(range.clone()).unwrap();
        let (address, _used) = values.device_ptr_mut(stream);
        fill(stream, address, range.len() as u64, from as u8);
    }

    fn decommit(&self, buffer: &mut ReservedBuffer<u8>, stream: usize, from: usize, to: usize) {
        let range = from * MEBIBYTE..to * MEBIBYTE;
        buffer.decommit(&self.streams[stream], range).unwrap();
    }

    #[track_caller]
    fn check(&self, buffer: &ReservedBuffer<u8>, from: usize, to: usize) {
        let (at, bytes) = ((from * MEBIBYTE) as u64, ((to - from) * MEBIBYTE) as u64);
        self.streams[0].synchronize().unwrap();
        assert_filled(&self.streams[0], base(buffer) + at, bytes, from as u8);
    }
}

#[test]
fn a_buffer_grows_and_shrinks_at_one_address_and_captured_graphs_go_on() {
    alone_and_clean(|control| {
        under_all_schedules(control, SEEDS, || {
            let setup = Setup::new(1, DeviceConfig::new());
            let stream = &setup.streams[0];
            let mut buffer = setup.reserve(RESERVED);
            let (first, unit) = (base(&buffer), buffer.unit_bytes());
            assert_eq!((unit, buffer.max_len()), (2 * MIB, RESERVED));
            assert_eq!(setup.memory.pool_stats().pool_bytes, 0, "addresses only");
            setup.commit(&mut buffer, 0, 0, 4);
            let capture = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            stream.begin_capture(capture).unwrap();
            fill(stream, first, MIB, 77);
            let graph = Graph::end_capture(stream).unwrap();
            setup.commit(&mut buffer, 0, 4, 100);
            assert_eq!(buffer.committed_bytes(), 100 * MIB);
            graph.launch(stream).unwrap();
            setup.check(&buffer, 4, 100);
            setup.decommit(&mut buffer, 0, 4, 100);
            graph.launch(stream).unwrap();
            assert_filled(stream, first, MIB, 77);
            assert_filled(stream, first + MIB, 3 * MIB, 0);
            assert_eq!((base(&buffer), buffer.committed_bytes()), (first, 4 * MIB));
            assert!(setup.memory.release(u64::MAX).now_bytes >= 90 * MIB);
        });
    });
}

#[test]
fn neighbours_share_a_unit_until_both_have_left() {
    alone_and_clean(|_| {
        let setup = Setup::new(1, DeviceConfig::new());
        let mut buffer = setup.reserve(RESERVED);
        setup.commit(&mut buffer, 0, 0, 3);
        setup.commit(&mut buffer, 0, 3, 5);
        assert_eq!(buffer.committed_bytes(), 6 * MIB);
        setup.decommit(&mut buffer, 0, 0, 3);
        assert_eq!(buffer.committed_bytes(), 4 * MIB);
        setup.check(&buffer, 3, 5);
        assert!(buffer.get(0..1).is_none() && buffer.get(3 * MEBIBYTE..5 * MEBIBYTE).is_some());
        assert!(buffer.get(5 * MEBIBYTE..7 * MEBIBYTE).is_none());
        setup.decommit(&mut buffer, 0, 3, 5);
        assert_eq!(buffer.committed_bytes(), 0);
    });
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    alone_and_clean(|_| {
        let setup = Setup::new(1, DeviceConfig::with_budget(64 * MIB));
        let stream = &setup.streams[0];
        let mut buffer = setup.reserve(RESERVED);
        setup.commit(&mut buffer, 0, 0, 40);
        let reason = |error: DeviceAllocError| match error {
            DeviceAllocError::Memory { reason, .. } => reason,
            other => panic!("{other}"),
        };
        // SAFETY: refused.
        let beyond = unsafe { buffer.commit(stream, 0..RESERVED + 1) };
        assert!(matches!(
            reason(beyond.unwrap_err()),
            AllocError::TooLarge { .. }
        ));
        // SAFETY: refused.
        let above = unsafe { buffer.commit(stream, 20 * MEBIBYTE..70 * MEBIBYTE) };
        let out = reason(above.unwrap_err());
        assert!(matches!(out, AllocError::OutOfMemory(_)), "{out}");
        assert_eq!(buffer.committed_bytes(), 40 * MIB);
        for range in [30 * MEBIBYTE..42 * MEBIBYTE, RESERVED..RESERVED + 1] {
            let refused = buffer.decommit(stream, range);
            assert_eq!(refused, Err(DeviceAllocError::NotCommitted));
        }
        assert_eq!(buffer.committed_bytes(), 40 * MIB);
        setup.check(&buffer, 0, 40);
        let too_long = setup.memory.reserve::<u8>(stream, usize::MAX);
        assert!(matches!(
            reason(too_long.unwrap_err()),
            AllocError::TooLarge { .. }
        ));
        let many = (0..10).map(|_| setup.memory.reserve::<u8>(stream, RESERVED));
        let many: Result<Vec<_>, _> = many.collect();
        assert!(matches!(
            reason(many.unwrap_err()),
            AllocError::OutOfMemory(_)
        ));
        // Of those that were dropped nothing is left: as many find room again.
        let again: Vec<_> = (0..2).map(|_| setup.reserve(RESERVED)).collect();
        drop(again);
        let mut none = setup.reserve(0);
        // SAFETY: there are no values.
        unsafe { none.commit(stream, 0..0) }.unwrap();
        none.decommit(stream, 0..0).unwrap();
    });
}

#[test]
fn decommitted_units_serve_blocks_and_idle_blocks_serve_units_without_new_memory() {
    alone_and_clean(|control| {
        under_all_schedules(control, SEEDS, || {
            let setup = Setup::new(2, DeviceConfig::with_budget(96 * MIB));
            let mut buffer = setup.reserve(RESERVED);
            setup.commit(&mut buffer, 0, 0, 80);
            setup.decommit(&mut buffer, 0, 16, 80);
            let created = setup.memory.driver_calls().create;
            let block = setup.alloc(0, 60 * MIB, 9);
            let other = setup.alloc(1, 4 * MIB, 8);
            assert!(
                setup.memory.driver_calls().create <= created + 8,
                "the rest of the limit"
            );
            setup.check(&buffer, 0, 16);
            assert_filled(&setup.streams[0], block.addr().get(), 60 * MIB, 9);
            let created = setup.memory.driver_calls().create;
            setup.free(0, block);
            setup.commit(&mut buffer, 1, 16, 70);
            assert_eq!(setup.memory.driver_calls().create, created);
            setup.streams[1].synchronize().unwrap();
            setup.check(&buffer, 16, 70);
            setup.check(&buffer, 0, 16);
            setup.free(1, other);
        });
    });
}

#[test]
fn units_pass_between_streams_in_order_and_a_drop_comes_after_every_use() {
    alone_and_clean(|control| {
        under_all_schedules(control, SEEDS, || {
            let setup = Setup::new(3, DeviceConfig::new());
            let [_, reader, next] = [0, 1, 2].map(|index| &setup.streams[index]);
            let mut buffer = setup.reserve(RESERVED);
            setup.commit(&mut buffer, 0, 0, 8);
            setup.memory.add_stream(reader).unwrap();
            let seen = reader.clone_dtoh(&buffer.get(0..8 * MEBIBYTE).unwrap());
            assert!(seen.unwrap().iter().all(|byte| *byte == 0));
            // Another stream decommits and commits again: it comes after both.
            let mut values = buffer.get_mut(0..MEBIBYTE).unwrap();
            next.memset_zeros(&mut values).unwrap();
            setup.decommit(&mut buffer, 1, 0, 8);
            setup.commit(&mut buffer, 2, 0, 8);
            let copy = reader.clone_dtoh(&buffer.get(0..8 * MEBIBYTE).unwrap());
            assert!(copy.unwrap().iter().all(|byte| *byte == 0));
            let mut values = buffer.get_mut(MEBIBYTE..2 * MEBIBYTE).unwrap();
            reader.memset_zeros(&mut values).unwrap();
            drop(buffer);
            let block = setup.alloc(0, 8 * MIB, 5);
            assert_filled(&setup.streams[0], block.addr().get(), 8 * MIB, 5);
            setup.free(0, block);
        });
    });
}

#[test]
fn while_a_stream_is_captured_nothing_is_committed_or_decommitted_on_it() {
    alone_and_clean(|_| {
        let setup = Setup::new(2, DeviceConfig::new());
        let stream = &setup.streams[0];
        let mut buffer = setup.reserve(RESERVED);
        setup.commit(&mut buffer, 0, 0, 8);
        let mut pool = setup.memory.block_pool(stream, MEBIBYTE, 100).unwrap();
        assert_eq!(pool.alloc(stream), Ok(0));
        let capture = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        stream.begin_capture(capture).unwrap();
        // SAFETY: refused.
        let committed = unsafe { buffer.commit(stream, 0..16 * MEBIBYTE) };
        assert_eq!(committed, Err(DeviceAllocError::Capturing));
        // Nor where every unit has memory.
        // SAFETY: refused.
        let counted = unsafe { buffer.commit(stream, 0..8 * MEBIBYTE) };
        assert_eq!(counted, Err(DeviceAllocError::Capturing));
        assert_eq!(pool.alloc(stream), Err(DeviceAllocError::Capturing));
        let decommitted = buffer.decommit(stream, 0..8 * MEBIBYTE);
        assert_eq!(decommitted, Err(DeviceAllocError::Capturing));
        drop(Graph::end_capture(stream).unwrap());
        assert_eq!(buffer.committed_bytes(), 8 * MIB);
        setup.check(&buffer, 0, 8);
    });
}

#[test]
fn asleep_the_addresses_stay_and_committed_units_come_back_unless_they_are_remakable() {
    alone_and_clean(|control| {
        under_all_schedules(control, SEEDS, || {
            let setup = Setup::new(1, DeviceConfig::new());
            let stream = &setup.streams[0];
            let mut buffer = setup.reserve(RESERVED);
            let mut cache = setup.reserve(RESERVED);
            setup.commit(&mut buffer, 0, 0, 8);
            cache.set_remakable(true);
            setup.commit(&mut cache, 0, 0, 12);
            setup.commit(&mut buffer, 0, 8, 20);
            setup.decommit(&mut buffer, 0, 8, 20);
            let bases = (base(&buffer), base(&cache));
            let slept = setup.memory.sleep().unwrap();
            assert_eq!(
                (slept.copied_bytes, slept.dropped_bytes),
                (8 * MIB, 12 * MIB)
            );
            assert_eq!(control.used(0), 0);
            // SAFETY: refused.
            let asleep = unsafe { buffer.commit(stream, 8 * MEBIBYTE..10 * MEBIBYTE) };
            assert_eq!(asleep, Err(DeviceAllocError::Asleep));
            setup.decommit(&mut cache, 0, 0, 4);
            assert_eq!(cache.committed_bytes(), 8 * MIB);
            drop(cache);
            setup.memory.wake().unwrap();
            assert_eq!(base(&buffer), bases.0);
            setup.check(&buffer, 0, 8);
            setup.commit(&mut buffer, 0, 8, 20);
            setup.check(&buffer, 8, 20);
        });
    });
}

#[test]
fn any_call_of_a_commit_may_be_refused_and_nothing_has_changed() {
    SWEEP.run(20, |refusal| {
        let setup = Setup::new(2, DeviceConfig::with_budget(72 * MIB));
        let stream = &setup.streams[1];
        let mut buffer = setup.reserve(RESERVED);
        setup.commit(&mut buffer, 0, 0, 8);
        setup.commit(&mut buffer, 0, 8, 40);
        setup.decommit(&mut buffer, 0, 8, 40);
        let block = setup.alloc(0, 20 * MIB, 3);
        let live = setup.memory.stats().live_bytes;
        // Some units come back, some move, and some are created.
        let range = 8 * MEBIBYTE..48 * MEBIBYTE;
        // SAFETY: filled below.
        let committed = refusal.around(|| unsafe { buffer.commit(stream, range.clone()) });
        let more = if committed.is_ok() { 40 * MIB } else { 0 };
        assert!(committed.is_ok() || refusal.happened(), "{committed:?}");
        assert_eq!(buffer.committed_bytes(), 8 * MIB + more);
        assert_eq!(setup.memory.stats().live_bytes, live + more);
        if committed.is_ok() {
            setup.decommit(&mut buffer, 1, 8, 48);
        }
        setup.commit(&mut buffer, 1, 8, 30);
        stream.synchronize().unwrap();
        setup.check(&buffer, 8, 30);
        setup.check(&buffer, 0, 8);
        assert_filled(&setup.streams[0], block.addr().get(), 20 * MIB, 3);
        setup.free(0, block);
    });
}

#[test]
fn a_growing_buffer_keeps_its_values_and_its_address_and_makes_few_calls() {
    alone_and_clean(|control| {
        under_all_schedules(control, SEEDS / 2, || {
            let setup = Setup::new(2, DeviceConfig::new());
            let stream = &setup.streams[0];
            let mut buffer = setup.memory.growing::<u8>(stream, RESERVED).unwrap();
            let mut first = None;
            for mebibytes in [1, 2, 7, 60, 200] {
                let old = buffer.len();
                // SAFETY: filled below.
                unsafe { buffer.grow_to(stream, mebibytes * MEBIBYTE) }.unwrap();
                let view = buffer.as_view();
                let (address, used) = view.device_ptr(stream);
                let new = (buffer.len() - old) as u64;
                fill(stream, address + old as u64, new, mebibytes as u8);
                drop(used);
                assert_eq!(*first.get_or_insert(address), address);
                assert_filled(stream, address, MIB, 1);
            }
            // A sixteenth ahead at most, and a unit.
            assert!((200 * MIB..=215 * MIB).contains(&buffer.committed_bytes()));
            let calls = setup.memory.driver_calls();
            assert!(
                calls.create <= 110 && calls.map == calls.create,
                "{calls:?}"
            );
            buffer.shrink_to(&setup.streams[1], 3 * MEBIBYTE).unwrap();
            assert_eq!(
                (buffer.len(), buffer.committed_bytes()),
                (3 * MEBIBYTE, 4 * MIB)
            );
            // SAFETY: filled below.
            unsafe { buffer.grow_to(stream, 100 * MEBIBYTE) }.unwrap();
            fill(stream, first.unwrap() + 3 * MIB, 97 * MIB, 9);
            assert_filled(stream, first.unwrap() + MIB, MIB, 2);
            // What was idle came back.
            assert_eq!(setup.memory.driver_calls().create, calls.create);
            assert!(buffer.as_view().try_slice(..=buffer.len()).is_none());
            // SAFETY: refused.
            let beyond = unsafe { buffer.grow_to(stream, RESERVED + 1) };
            assert!(beyond.is_err() && buffer.len() == 100 * MEBIBYTE);
        });
    });
}

#[test]
fn threads_commit_and_decommit_beside_blocks_that_take_and_leave_the_same_memory() {
    alone_and_clean(|_| {
        let setup = Setup::new(4, DeviceConfig::with_budget(48 * MIB));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let setup = &setup;
                scope.spawn(move || {
                    let stream = &setup.streams[thread];
                    let mut buffer = setup.memory.reserve::<u8>(stream, RESERVED / 8).unwrap();
                    for round in 0..60 {
                        let first = round * 3 % 16;
                        setup.commit(&mut buffer, thread, first, first + 4);
                        let block = setup.alloc(thread, 4 * MIB, round as u8);
                        let at = base(&buffer) + first as u64 * MIB;
                        assert_filled(stream, at, 4 * MIB, first as u8);
                        assert_filled(stream, block.addr().get(), 4 * MIB, round as u8);
                        setup.free(thread, block);
                        setup.decommit(&mut buffer, thread, first, first + 4);
                    }
                });
            }
        });
    });
}

#[test]
fn growth_from_1_gib_to_32_makes_three_calls_a_unit_and_copies_nothing() {
    alone_and_clean(|control| {
        const GIB: usize = 1 << 30;
        control.reset(1, 40 << 30);
        let setup = Setup::new(1, DeviceConfig::new());
        let stream = &setup.streams[0];
        let mut buffer = setup.reserve(32 * GIB);
        assert_eq!(buffer.unit_bytes(), 32 * MIB);
        for (from, to) in [(0, 1), (1, 32)] {
            let before = setup.memory.driver_calls();
            // SAFETY: never read.
            unsafe { buffer.commit(stream, from * GIB..to * GIB) }.unwrap();
            let after = setup.memory.driver_calls();
            let units = ((to - from) * GIB) as u64 / buffer.unit_bytes();
            assert_eq!(after.create - before.create, units);
            assert_eq!(after.total() - before.total(), 3 * units);
        }
        for copy in [
            "cuMemcpyDtoDAsync_v2",
            "cuMemcpyHtoDAsync_v2",
            "cuMemcpyDtoHAsync_v2",
        ] {
            assert_eq!(control.calls(Some(copy)), 0);
        }
    });
}

#[test]
fn steps_are_laid_out_beside_reserved_addresses() {
    alone_and_clean(|_| {
        let setup = Setup::new(1, DeviceConfig::new());
        let stream = &setup.streams[0];
        // At the lowest addresses, where the step's blocks would lie; with idle memory in it.
        let mut buffer = setup.reserve(RESERVED);
        setup.commit(&mut buffer, 0, 0, 6);
        setup.decommit(&mut buffer, 0, 2, 6);
        for _ in 0..6 {
            let _step = setup.memory.step(stream).unwrap();
            for bytes in [3 * MIB, 700_000, 5 * MIB] {
                let one = setup.memory.alloc(stream, bytes).unwrap();
                let other = setup.memory.alloc(stream, 2 * bytes).unwrap();
                setup.free(0, one);
                setup.free(0, other);
            }
        }
        let stats = setup.memory.step_stats(stream).unwrap();
        assert_eq!((stats.misses, stats.rejected), (0, 0), "{stats:?}");
        assert!(stats.hits >= 18, "{stats:?}");
        setup.check(&buffer, 0, 2);
    });
}
