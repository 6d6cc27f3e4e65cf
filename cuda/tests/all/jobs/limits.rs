//! Limits in a control file.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_core::limits::LimitAnswer;
use larder_cuda::job::larder_control::{BusId, Ceiling, ControlFile};
use larder_cuda::job::{Apply, JobConfig, Pauses, Recorded};
use larder_cuda::{DeviceAllocator, HostSide, VmemAllocator, VmemConfig};

use super::common::{MIB, alone, alone_and_clean, assert_clean};
use super::{Folder, by_hand, gpu, job, plain, setup};
use crate::foreign_captures::{beside, churn};

#[test]
fn am_5_upstreams_case_the_limit_is_one_mebibyte_and_then_two_gibibytes() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for pauses in [Pauses::Spread, Pauses::AtRunEnd] {
        let folder = Folder::new("upstream");
        let (_, job) = job(JobConfig {
            pauses,
            ..by_hand(&folder)
        });
        let (context, device, stream) = setup(u64::MAX);
        let host = HostSide::Pinned(4096 * MIB);
        let memory = VmemAllocator::new(&device, VmemConfig::new(host)).unwrap();
        job.manage_vmem(&memory).unwrap();
        for bytes in [MIB, 2048 * MIB] {
            folder.say(&format!(
                r#"{{"name": "a", "gpuConfigInfo": {{"01:00.0": {{"maxDeviceMem": {bytes}}}}}}}"#
            ));
            job.poll();
            let ran = job.run(0, || ()).unwrap();
            drop(ran);
            assert_eq!(device.limit_bytes(), bytes, "{pauses:?}");
            assert_eq!(memory.vmem_stats().device.limit_bytes, bytes);
        }
        drop((job, memory, device, stream, context));
        assert_clean(control);
    }
}

#[test]
fn a_limit_that_is_lowered_under_live_blocks_is_deferred_and_the_status_tells_when_it_is_met() {
    alone_and_clean(|control| {
        let folder = Folder::new("deferred");
        let (_, job) = job(by_hand(&folder));
        let (_context, memory, stream) = setup(64 * MIB);
        job.manage(&memory).unwrap();
        let blocks = [8, 8].map(|mib| memory.alloc(&stream, mib * MIB).unwrap());
        folder.order(Some(8 * MIB), Some(7), None);
        let (value, end) = job
            .run(3, || {
                job.poll();
                // The run is under way: it keeps the limit that it began with.
                assert_eq!(memory.limit_bytes(), 64 * MIB);
                assert_eq!(job.state().control_version, None);
                5
            })
            .unwrap();
        assert_eq!((value, end.recorded), (5, Some(Recorded::Noted)));
        let adjusted = end.adjusted[0].as_ref().unwrap();
        assert!(!adjusted.is_met());
        let deferred = LimitAnswer::Deferred { bytes: 8 * MIB };
        assert_eq!(adjusted.parts[0].answer, deferred);
        // Written at once, and not in 10 s.
        let limit = folder.status().larder.unwrap();
        assert_eq!(limit.control_version, Some(7));
        let here = &limit.gpus[&gpu()];
        let numbers = (here.limit_bytes, here.held_bytes, here.deferred_bytes);
        assert_eq!(numbers, (8 * MIB, 16 * MIB, 8 * MIB));
        let report = folder.status().report(gpu()).unwrap();
        assert_eq!((report.version, report.deferred_bytes), (7, 8 * MIB));
        assert!(memory.alloc(&stream, MIB).is_err(), "the limit binds");
        let [first, second] = blocks;
        memory.free(&stream, first).unwrap();
        stream.synchronize().unwrap();
        memory.end_step();
        assert_eq!(control.used(0), 8 * MIB);
        // A free writes no file; a look does.
        assert_eq!(folder.status().larder.unwrap().deferred_bytes, 8 * MIB);
        job.poll();
        let limit = folder.status().larder.unwrap();
        assert_eq!((limit.deferred_bytes, limit.held_bytes), (0, 8 * MIB));
        memory.free(&stream, second).unwrap();
    });
}

#[test]
fn s7_5_a_limit_is_set_once_and_kept_by_a_file_that_does_not_name_it() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("once");
    let (_, job) = job(by_hand(&folder));
    let (_context, memory, _stream) = setup(64 * MIB);
    job.manage(&memory).unwrap();
    // The newest of several files under way counts, and one that says the same, or nothing, changes
    // nothing.
    for (limit, version, parts) in [
        (Some(8 * MIB), 1, 1),
        (Some(8 * MIB), 2, 0),
        (None, 3, 0),
        (Some(9 * MIB), 4, 1),
    ] {
        let (_, end) = job
            .run(0, || {
                folder.order(limit, Some(version), None);
                job.poll();
            })
            .unwrap();
        assert_eq!(end.adjusted.len(), parts, "order {version}");
        assert_eq!(job.state().control_version, Some(version));
        let limit = if version < 4 { 8 } else { 9 };
        assert_eq!(memory.limit_bytes(), limit * MIB);
    }
}

#[test]
fn s7_5_a_limit_above_the_ceiling_is_lowered_to_it_and_said_to_be() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    for (ceiling, bytes) in [
        (Ceiling::Initial, 64 * MIB),
        (Ceiling::Bytes(96 * MIB), 96 * MIB),
        (Ceiling::None, u64::MAX),
    ] {
        let folder = Folder::new("ceiling");
        let (_, job) = job(JobConfig {
            ceiling,
            ..by_hand(&folder)
        });
        let (_context, memory, _stream) = setup(64 * MIB);
        job.manage(&memory).unwrap();
        for limit in [bytes - 1, bytes, u64::MAX] {
            let (_, end) = job
                .run(0, || {
                    folder.order(Some(limit), None, None);
                    job.poll();
                })
                .unwrap();
            // The largest number is the second and the third here.
            let Some(Ok(adjusted)) = end.adjusted.first() else {
                assert_eq!(bytes, u64::MAX);
                continue;
            };
            assert_eq!(adjusted.limit_bytes, limit);
            assert_eq!(adjusted.ceiling_bytes, (limit > bytes).then_some(bytes));
            assert_eq!(memory.limit_bytes(), limit.min(bytes));
        }
    }
}

#[test]
fn s7_5_a_gpu_without_an_allocator_is_an_error_value_and_the_other_gets_its_limit() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("nobody");
    let (_, job) = job(by_hand(&folder));
    let (_context, memory, _stream) = setup(64 * MIB);
    job.manage(&memory).unwrap();
    let other: BusId = "3b:00.0".parse().unwrap();
    let mut file = ControlFile::default();
    file.limit(gpu(), 8 * MIB);
    file.limit(other, 8 * MIB);
    let (_, end) = job
        .run(0, || {
            folder.say(&file.to_text());
            job.poll();
        })
        .unwrap();
    let [Ok(adjusted), Err(error)] = &end.adjusted[..] else {
        panic!("{:?}", end.adjusted);
    };
    assert!(adjusted.gpu == gpu() && adjusted.is_met());
    assert_eq!(error.gpu, other);
    assert!(error.to_string().contains("3b:00.0"));
    assert_eq!(memory.limit_bytes(), 8 * MIB);
}

#[test]
fn a_limit_is_put_in_force_inside_of_a_run_if_the_job_says_so() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("at_once");
    let mut config = by_hand(&folder);
    config.apply = Apply::AtOnce;
    let (_, job) = job(config);
    let (_context, memory, _stream) = setup(64 * MIB);
    job.manage(&memory).unwrap();
    let ran = job.run(0, || {
        folder.order(Some(8 * MIB), Some(1), None);
        job.poll();
        assert_eq!(memory.limit_bytes(), 8 * MIB);
        assert_eq!(folder.status().larder.unwrap().control_version, Some(1));
    });
    drop(ran.unwrap());
}

#[test]
fn an_allocator_has_the_limit_of_a_file_that_was_read_before_it() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("before");
    folder.order(Some(8 * MIB), Some(1), None);
    let (_, job) = job(by_hand(&folder));
    let (_context, memory, _stream) = setup(64 * MIB);
    let inside = job.run(0, || job.manage(&memory));
    inside.unwrap().0.unwrap();
    assert_eq!(memory.limit_bytes(), 8 * MIB);
    job.manage(&memory).unwrap();
    job.poll();
    let gpus = folder.status().larder.unwrap().gpus;
    assert_eq!(gpus[&gpu()].limit_bytes, 8 * MIB, "counted once");
}

#[test]
fn limits_between_runs_are_put_in_force_at_once_and_those_of_own_loops_at_their_ends() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("between");
    let (_, job) = job(by_hand(&folder));
    let (_context, memory, _stream) = setup(64 * MIB);
    job.manage(&memory).unwrap();
    drop(job.run(0, || ()).unwrap());
    folder.order(Some(8 * MIB), None, None);
    job.poll();
    assert_eq!(memory.limit_bytes(), 8 * MIB);
    let took = Duration::from_millis(1);
    drop(job.end_run(0, took).unwrap());
    folder.order(Some(9 * MIB), None, None);
    job.poll();
    assert_eq!(memory.limit_bytes(), 8 * MIB);
    let end = job.end_run(0, took).unwrap();
    assert_eq!(end.adjusted.len(), 1);
    assert_eq!(memory.limit_bytes(), 9 * MIB);
}

#[test]
fn two_jobs_of_one_process_obey_their_own_files_on_one_device() {
    alone_and_clean(|_| {
        let folders = [Folder::new("one"), Folder::new("two")];
        let (context, first, stream) = setup(64 * MIB);
        let second = DeviceAllocator::with_config(&context, plain(64 * MIB)).unwrap();
        let jobs = [0, 1].map(|at| job(by_hand(&folders[at])).1);
        for (job, memory) in jobs.iter().zip([&first, &second]) {
            job.manage(memory).unwrap();
        }
        folders[0].order(Some(4 * MIB), Some(1), Some(30));
        folders[1].order(Some(16 * MIB), Some(9), None);
        jobs.iter().for_each(|job| job.poll());
        assert_eq!(first.limit_bytes(), 4 * MIB);
        assert_eq!(second.limit_bytes(), 16 * MIB);
        assert!(first.alloc(&stream, 6 * MIB).is_err());
        let block = second.alloc(&stream, 6 * MIB).unwrap();
        let perf = [0, 1].map(|at| jobs[at].state().perf.percent());
        assert_eq!(perf, [30, 100]);
        jobs.iter().for_each(|job| {
            job.want(1);
            job.poll();
        });
        let [one, two] = [0, 1].map(|at| folders[at].status().report(gpu()).unwrap());
        assert_eq!(
            (one.version, one.limit_bytes, one.held_bytes),
            (1, 4 * MIB, 0)
        );
        assert_eq!((two.version, two.limit_bytes), (9, 16 * MIB));
        assert_eq!(two.held_bytes, 6 * MIB);
        second.free(&stream, block).unwrap();
    });
}

#[test]
fn allocators_of_one_gpu_share_its_limit_and_one_that_is_gone_has_no_part() {
    alone_and_clean(|_| {
        let folder = Folder::new("shared");
        let (_, job) = job(by_hand(&folder));
        let (context, first, _stream) = setup(64 * MIB);
        let second = DeviceAllocator::with_config(&context, plain(192 * MIB)).unwrap();
        job.manage(&first).unwrap();
        job.manage(&second).unwrap();
        folder.order(Some(16 * MIB), None, None);
        job.poll();
        assert_eq!(
            (first.limit_bytes(), second.limit_bytes()),
            (4 * MIB, 12 * MIB)
        );
        assert_eq!(folder.status().larder.unwrap().limit_bytes, 16 * MIB);
        drop(second);
        folder.order(Some(20 * MIB), None, None);
        job.poll();
        assert_eq!(first.limit_bytes(), 20 * MIB);
        assert_eq!(folder.status().larder.unwrap().limit_bytes, 20 * MIB);
        // The job keeps nothing alive.
        drop(first);
        job.want(1);
        job.poll();
        assert_eq!(folder.status().larder.unwrap().gpus.len(), 0);
    });
}

#[test]
fn a_job_that_obeys_and_looks_spoils_no_capture() {
    let folder = Folder::new("captures");
    let version = AtomicU64::new(0);
    beside(|_, context, streams| {
        let memory = DeviceAllocator::with_config(context, plain(4 * MIB)).unwrap();
        let (clock, job) = job(by_hand(&folder));
        job.manage(&memory).unwrap();
        for limit in [2, 4, 3, 4] {
            let version = version.fetch_add(1, Ordering::Relaxed);
            folder.order(Some(limit * MIB), Some(version + 1), None);
            job.poll();
            churn(&memory, streams, if limit == 4 { 4 } else { 0 });
            clock.advance(Duration::from_secs(10));
            job.poll();
        }
        drop(job);
    });
}
