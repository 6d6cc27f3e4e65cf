//! The status that a job reports.

use std::time::Duration;

use larder_cuda::job::larder_control::Clock;
use larder_cuda::job::{JobConfig, Recorded};
use larder_cuda::{
    HostSide, PinnedAllocator, PinnedConfig, StreamAllocator, VmemAllocator, VmemConfig,
};
use serde_json::Value;

use super::common::MIB;
use super::{Folder, by_hand, gpu, job, plain, with_config, with_job};

#[test]
fn am_7_a_status_has_antmans_names_and_the_numbers_of_both_sides() {
    let change = |memory: &mut _, config: &mut JobConfig| {
        *memory = plain(8 * MIB);
        (config.name, config.priority) = ("the job".into(), Some(4));
    };
    with_config(change, |rig| {
        let (context, stream) = (&rig.context, &rig.stream);
        let host = VmemConfig::new(HostSide::Pinned(64 * MIB));
        let memory = VmemAllocator::new(&rig.memory, host).unwrap();
        let pinned = PinnedAllocator::with_limit(context, PinnedConfig::default(), 32 * MIB);
        let pinned = pinned.unwrap();
        rig.job.manage_vmem(&memory).unwrap();
        rig.job.manage_pinned(&pinned).unwrap();
        let blocks = [6, 6].map(|mib| memory.alloc(stream, mib * MIB).unwrap());
        let buffer = pinned.zeros::<u8>(MIB as usize).unwrap();
        let step = Duration::from_micros(1234);
        let (_, end) = rig.job.run(12, || rig.clock.advance(step)).unwrap();
        assert_eq!(end.recorded, Some(Recorded::Written));
        let text = std::fs::read(rig.folder.0.join("status.json")).unwrap();
        let status: Value = serde_json::from_slice(&text).unwrap();
        let expected = serde_json::json!({
            "/miniBatchDuration": 1234,
            "/Durations/graph_12": 1234,
            "/gpuUsageInfo/01:00.0/deviceMemUsedMax": 6 * MIB,
            "/gpuUsageInfo/01:00.0/deviceMemUsedMin": 6 * MIB,
            "/gpuUsageInfo/01:00.0/deviceMemPoolSize": 6 * MIB,
            "/gpuUsageInfo/01:00.0/deviceMemStable": 6 * MIB,
            "/gpuUsageInfo/01:00.0/hostMemUsedMax": 7 * MIB,
            "/gpuUsageInfo/01:00.0/hostMemUsedMin": 7 * MIB,
            "/gpuUsageInfo/01:00.0/hostMemPoolSize": 96 * MIB,
            "/gpuUsageInfo/01:00.0/swapReason": "OOM",
            "/gpuUsageInfo/01:00.0/deviceMemUsedNvidia": -1,
            "/larder/name": "the job",
            "/larder/pid": std::process::id(),
            "/larder/priority": 4,
            "/larder/perfControl": 100,
            "/larder/gpus/01:00.0/limitBytes": 8 * MIB,
            "/larder/heldBytes": 6 * MIB,
        });
        for (path, expected) in expected.as_object().unwrap() {
            assert_eq!(status.pointer(path), Some(expected), "{path}");
        }
        drop(buffer);
        for block in blocks {
            memory.free(stream, block).unwrap();
        }
    });
}

#[test]
fn peaks_are_of_an_interval_and_the_allocators_own_counters_go_on() {
    with_job(|rig| {
        let memory = &rig.memory;
        for (mib, recorded) in [
            (8, Recorded::Written),
            (4, Recorded::Written),
            (4, Recorded::Unchanged),
        ] {
            let end = rig.run(|| {
                let block = memory.alloc(&rig.stream, mib * MIB).unwrap();
                memory.free(&rig.stream, block).unwrap();
                rig.clock.advance(Duration::from_secs(10));
            });
            assert_eq!(end.recorded, Some(recorded));
            let usage = rig.folder.status().gpus[&gpu()].usage;
            assert_eq!(usage.device_peak_bytes, mib * MIB);
        }
        let stats = memory.stats();
        assert_eq!((stats.allocations, stats.peak_live_bytes), (3, 8 * MIB));
        assert_eq!(stats.largest_bytes, 8 * MIB);
        assert!(stats.peak_reserved_bytes >= 8 * MIB);
        assert_eq!(rig.clock.now(), Duration::from_secs(30));
    });
}

#[test]
fn what_the_job_wants_and_the_share_in_force_stand_in_the_next_status() {
    with_job(|rig| {
        rig.job.poll();
        assert_eq!(rig.report().wanted_bytes, u64::MAX);
        rig.job.want(5 * MIB);
        rig.order(None, 2, 40);
        let report = rig.report();
        assert_eq!((report.wanted_bytes, report.version), (5 * MIB, 2));
        assert_eq!(rig.larder().perf_control, 40);
    });
}

#[test]
fn what_is_lent_and_what_is_not_stand_in_the_status() {
    with_job(|rig| {
        let here = |rig: &super::Rig| rig.larder().gpus[&gpu()].clone();
        let mut cache = rig
            .memory
            .reserve::<u8>(&rig.stream, 12 * MIB as usize)
            .unwrap();
        let block = rig.memory.alloc(&rig.stream, 4 * MIB).unwrap();
        rig.job.poll();
        assert_eq!(
            (here(rig).guaranteed_bytes, here(rig).lent_bytes),
            (None, 0)
        );
        cache.loan().set_guaranteed_bytes(2 * MIB);
        // SAFETY: bytes of any value.
        unsafe { cache.commit(&rig.stream, 0..6 * MIB as usize) }.unwrap();
        rig.job.want(0);
        rig.job.poll();
        assert_eq!(
            (here(rig).guaranteed_bytes, here(rig).lent_bytes),
            (Some(6 * MIB), 4 * MIB)
        );
        cache.decommit(&rig.stream, 0..6 * MIB as usize).unwrap();
        rig.stream.synchronize().unwrap();
        rig.job.want(MIB);
        rig.job.poll();
        assert_eq!(
            (rig.report().wanted_bytes, here(rig).held_bytes),
            (MIB, 10 * MIB)
        );
        assert_eq!(
            here(rig).guaranteed_bytes,
            Some(6 * MIB),
            "committed or not, and without what is idle"
        );
        rig.job.want(20 * MIB);
        rig.job.poll();
        // Of 20 MiB the cache would lend 10.
        assert_eq!(
            (here(rig).guaranteed_bytes, here(rig).lent_bytes),
            (Some(10 * MIB), 0)
        );
        assert_eq!(rig.report().guaranteed_bytes, Some(10 * MIB));
        rig.memory.free(&rig.stream, block).unwrap();
    });
}

#[test]
fn a_status_that_cannot_be_written_is_a_warning_and_the_next_one_is_written() {
    let folder = Folder::new();
    let mut config = by_hand(&folder);
    config.files.status = Some(folder.0.join("none/status.json"));
    let (clock, job) = job(config);
    let (_, end) = job.run(0, || ()).unwrap();
    assert_eq!((end.recorded, end.warnings.len()), (None, 1));
    assert_eq!(job.state().unwritten, 1);
    assert!(job.state().problem.unwrap().contains("none"));
    std::fs::create_dir_all(folder.0.join("none")).unwrap();
    clock.advance(Duration::from_secs(10));
    let (_, end) = job.run(0, || ()).unwrap();
    assert_eq!(end.recorded, Some(Recorded::Written));
}
