//! Limits in a control file.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_core::limits::LimitAnswer;
use larder_cuda::job::larder_control::{BusId, Ceiling};
use larder_cuda::job::{Apply, JobConfig, Pauses, Recorded};
use larder_cuda::{DeviceAllocator, HostSide, VmemAllocator, VmemConfig};

use super::common::{MIB, alone_and_clean};
use super::{Folder, by_hand, gpu, job, plain, setup, used, with_config, with_job};
use crate::foreign_captures::{beside, churn};

#[test]
fn am_5_upstreams_case_the_limit_is_one_mebibyte_and_then_two_gibibytes() {
    for pauses in [Pauses::Spread, Pauses::AtRunEnd] {
        let change = |memory: &mut _, config: &mut JobConfig| {
            (*memory, config.pauses) = (plain(u64::MAX), pauses);
        };
        with_config(change, |rig| {
            let host = HostSide::Pinned(4096 * MIB);
            let memory = VmemAllocator::new(&rig.memory, VmemConfig::new(host)).unwrap();
            rig.job.manage_vmem(&memory).unwrap();
            for bytes in [MIB, 2048 * MIB] {
                rig.folder.say(&format!(
                    r#"{{"name": "a", "gpuConfigInfo": {{"01:00.0": {{"maxDeviceMem": {bytes}}}}}}}"#
                ));
                rig.job.poll();
                drop(rig.run(|| ()));
                assert_eq!(rig.memory.limit_bytes(), bytes, "{pauses:?}");
                assert_eq!(memory.vmem_stats().device.limit_bytes, bytes);
            }
        });
    }
}

#[test]
fn a_limit_that_is_lowered_under_live_blocks_is_deferred_and_the_status_tells_when_it_is_met() {
    with_job(|rig| {
        let (job, memory, stream) = (&rig.job, &rig.memory, &rig.stream);
        let [first, second] = [8, 8].map(|mib| memory.alloc(stream, mib * MIB).unwrap());
        rig.folder.order(8, 7, None);
        let work = || {
            job.poll();
            // A run keeps the limit with which it began.
            assert_eq!(rig.limit(), 64);
            assert_eq!(job.state().control_version, None);
            5
        };
        let (value, end) = job.run(3, work).unwrap();
        assert_eq!((value, end.recorded), (5, Some(Recorded::Noted)));
        let adjusted = end.adjusted[0].as_ref().unwrap();
        assert!(!adjusted.is_met());
        let deferred = LimitAnswer::Deferred { bytes: 8 * MIB };
        assert_eq!(adjusted.parts[0].answer, deferred);
        // The status is written at once, not after the usual 10 s.
        let report = rig.report();
        assert_eq!((report.version, report.limit_bytes), (7, 8 * MIB));
        let held = (report.held_bytes, report.deferred_bytes);
        assert_eq!(held, (16 * MIB, 8 * MIB));
        assert!(memory.alloc(stream, MIB).is_err(), "the limit binds");
        memory.free(stream, first).unwrap();
        stream.synchronize().unwrap();
        memory.end_step();
        assert_eq!(used(), 8 * MIB);
        // A free does not write the status, but a poll does.
        assert_eq!(rig.larder().deferred_bytes, 8 * MIB);
        job.poll();
        let larder = rig.larder();
        assert_eq!((larder.deferred_bytes, larder.held_bytes), (0, 8 * MIB));
        memory.free(stream, second).unwrap();
    });
}

#[test]
fn s7_5_a_limit_is_set_once_and_kept_by_a_file_that_does_not_name_it() {
    with_job(|rig| {
        // A file that repeats the limit, or names none, changes no limit.
        for (order, version, parts, limit) in [
            (Some(8), 1, 1, 8),
            (Some(8), 2, 0, 8),
            (None, 3, 0, 8),
            (Some(9), 4, 1, 9),
        ] {
            let end = rig.run(|| rig.order(order, version, None));
            assert_eq!(end.adjusted.len(), parts, "order {version}");
            assert_eq!(rig.job.state().control_version, Some(version));
            assert_eq!(rig.limit(), limit, "order {version}");
        }
    });
}

#[test]
fn s7_5_a_limit_above_the_ceiling_is_lowered_to_it_and_said_to_be() {
    for (ceiling, bytes) in [
        (Ceiling::Initial, 64 * MIB),
        (Ceiling::Bytes(96 * MIB), 96 * MIB),
        (Ceiling::None, u64::MAX),
    ] {
        with_config(
            |_, config| config.ceiling = ceiling,
            |rig| {
                for limit in [bytes - 1, bytes, u64::MAX] {
                    let end = rig.run(|| rig.tell(|file| file.limit(gpu(), limit)));
                    // Without a ceiling, the second and third limits are the same, so the third changes nothing.
                    let Some(Ok(adjusted)) = end.adjusted.first() else {
                        assert_eq!(bytes, u64::MAX);
                        continue;
                    };
                    assert_eq!(adjusted.limit_bytes, limit);
                    let lowered = (limit > bytes).then_some(bytes);
                    assert_eq!(adjusted.ceiling_bytes, lowered, "{ceiling:?}");
                    assert_eq!(rig.memory.limit_bytes(), limit.min(bytes));
                }
            },
        );
    }
}

#[test]
fn s7_5_a_gpu_without_an_allocator_is_an_error_value_and_the_other_gets_its_limit() {
    with_job(|rig| {
        let other: BusId = "3b:00.0".parse().unwrap();
        let end = rig.run(|| {
            rig.tell(|file| {
                file.limit(gpu(), 8 * MIB);
                file.limit(other, 8 * MIB);
            });
        });
        let [Ok(adjusted), Err(error)] = &end.adjusted[..] else {
            panic!("{:?}", end.adjusted);
        };
        assert!(adjusted.gpu == gpu() && adjusted.is_met());
        assert_eq!(error.gpu, other);
        assert!(error.to_string().contains("3b:00.0"));
        assert_eq!(rig.limit(), 8);
    });
}

#[test]
fn a_limit_is_put_in_force_inside_of_a_run_if_the_job_says_so() {
    with_config(
        |_, config| config.apply = Apply::AtOnce,
        |rig| {
            drop(rig.run(|| {
                rig.order(8, 1, None);
                assert_eq!((rig.limit(), rig.larder().control_version), (8, Some(1)));
            }));
        },
    );
}

#[test]
fn an_allocator_has_the_limit_of_a_file_that_was_read_before_it() {
    alone_and_clean(|_| {
        let folder = Folder::new();
        folder.order(8, 1, None);
        let (_, job) = job(by_hand(&folder));
        let (_context, memory, _stream) = setup(64 * MIB);
        let inside = job.run(0, || job.manage(&memory));
        inside.unwrap().0.unwrap();
        assert_eq!(memory.limit_bytes(), 8 * MIB);
        job.manage(&memory).unwrap();
        job.poll();
        assert_eq!(folder.report().limit_bytes, 8 * MIB, "counted once");
    });
}

#[test]
fn limits_between_runs_are_put_in_force_at_once_and_those_of_own_loops_at_their_ends() {
    with_job(|rig| {
        drop(rig.run(|| ()));
        rig.order(8, None, None);
        assert_eq!(rig.limit(), 8);
        let took = Duration::from_millis(1);
        drop(rig.job.end_run(0, took).unwrap());
        rig.order(9, None, None);
        assert_eq!(rig.limit(), 8);
        let end = rig.job.end_run(0, took).unwrap();
        assert_eq!((end.adjusted.len(), rig.limit()), (1, 9));
    });
}

#[test]
fn two_jobs_of_one_process_obey_their_own_files_on_one_device() {
    with_job(|one| {
        let folder = Folder::new();
        let (_, job) = job(by_hand(&folder));
        let second = DeviceAllocator::with_config(&one.context, plain(64 * MIB)).unwrap();
        job.manage(&second).unwrap();
        one.order(4, 1, 30);
        folder.order(16, 9, None);
        job.poll();
        assert_eq!((one.limit(), second.limit_bytes()), (4, 16 * MIB));
        assert!(one.memory.alloc(&one.stream, 6 * MIB).is_err());
        let block = second.alloc(&one.stream, 6 * MIB).unwrap();
        let perf = [&one.job, &job].map(|job| job.state().perf.percent());
        assert_eq!(perf, [30, 100]);
        for job in [&one.job, &job] {
            job.want(1);
            job.poll();
        }
        for (report, version, limit, held) in [(one.report(), 1, 4, 0), (folder.report(), 9, 16, 6)]
        {
            assert_eq!((report.version, report.limit_bytes), (version, limit * MIB));
            assert_eq!(report.held_bytes, held * MIB);
        }
        second.free(&one.stream, block).unwrap();
    });
}

#[test]
fn allocators_of_one_gpu_share_its_limit_and_one_that_is_gone_has_no_part() {
    alone_and_clean(|_| {
        let folder = Folder::new();
        let (_, job) = job(by_hand(&folder));
        let (context, first, _stream) = setup(64 * MIB);
        let second = DeviceAllocator::with_config(&context, plain(192 * MIB)).unwrap();
        job.manage(&first).unwrap();
        job.manage(&second).unwrap();
        folder.order(16, None, None);
        job.poll();
        let limits = (first.limit_bytes(), second.limit_bytes());
        assert_eq!(limits, (4 * MIB, 12 * MIB));
        assert_eq!(folder.larder().limit_bytes, 16 * MIB);
        drop(second);
        folder.order(20, None, None);
        job.poll();
        assert_eq!(first.limit_bytes(), 20 * MIB);
        assert_eq!(folder.larder().limit_bytes, 20 * MIB);
        // The job does not keep the allocator alive.
        drop(first);
        job.want(1);
        job.poll();
        assert_eq!(folder.larder().gpus.len(), 0);
    });
}

#[test]
fn a_job_that_obeys_and_looks_spoils_no_capture() {
    let folder = Folder::new();
    let version = AtomicU64::new(0);
    beside(|_, context, streams| {
        let memory = DeviceAllocator::with_config(context, plain(4 * MIB)).unwrap();
        let (clock, job) = job(by_hand(&folder));
        job.manage(&memory).unwrap();
        for limit in [2, 4, 3, 4] {
            let version = version.fetch_add(1, Ordering::Relaxed);
            folder.order(limit, version + 1, None);
            job.poll();
            churn(&memory, streams, if limit == 4 { 4 } else { 0 });
            clock.advance(Duration::from_secs(10));
            job.poll();
        }
        drop(job);
    });
}

/// The owner of a cache ends a run while the callback that a lowered limit calls needs the owner's lock.
#[test]
fn a_callback_of_a_loan_does_not_keep_other_threads_from_ending_their_runs() {
    with_job(|rig| {
        let mut cache = rig
            .memory
            .reserve::<u8>(&rig.stream, 64 * MIB as usize)
            .unwrap();
        cache.loan().set_guaranteed_bytes(0);
        // SAFETY: bytes of any value.
        unsafe { cache.commit(&rig.stream, 0..32 * MIB as usize) }.unwrap();
        let owner = std::sync::Arc::new(std::sync::Mutex::new(()));
        let (begun, begins) = std::sync::mpsc::channel();
        let of_owner = owner.clone();
        cache.loan().on_recall(move |_| {
            let _ = begun.send(());
            drop(of_owner.lock().unwrap());
        });
        std::thread::scope(|scope| {
            let held = owner.lock().unwrap();
            let obeys = scope.spawn(|| rig.order(8, 1, None));
            begins.recv().unwrap();
            drop(rig.run(|| ()));
            drop(held);
            obeys.join().unwrap();
        });
        assert_eq!(cache.loan().recalled_bytes(), 24 * MIB);
    });
}
