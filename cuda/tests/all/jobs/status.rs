//! The status that a job reports.

use std::time::Duration;

use larder_cuda::job::Recorded;
use larder_cuda::job::larder_control::Clock;
use larder_cuda::{
    HostSide, PinnedAllocator, PinnedConfig, StreamAllocator, VmemAllocator, VmemConfig,
};
use serde_json::Value;

use super::common::{MIB, alone};
use super::{Folder, by_hand, gpu, job, setup};

#[test]
fn am_7_a_status_has_antmans_names_and_the_numbers_of_both_sides() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("names");
    let mut config = by_hand(&folder);
    config.name = "the job".into();
    config.priority = Some(4);
    let (clock, job) = job(config);
    let (context, device, stream) = setup(8 * MIB);
    let memory = VmemAllocator::new(&device, VmemConfig::new(HostSide::Pinned(64 * MIB))).unwrap();
    let pinned = PinnedAllocator::with_limit(&context, PinnedConfig::default(), 32 * MIB).unwrap();
    job.manage(&device).unwrap();
    job.manage_vmem(&memory).unwrap();
    job.manage_pinned(&pinned).unwrap();
    let blocks = [6, 6].map(|mib| memory.alloc(&stream, mib * MIB).unwrap());
    let buffer = pinned.zeros::<u8>(MIB as usize).unwrap();
    let step = Duration::from_micros(1234);
    let (_, end) = job.run(12, || clock.advance(step)).unwrap();
    assert_eq!(end.recorded, Some(Recorded::Written));
    let text = std::fs::read(folder.0.join("status.json")).unwrap();
    let value: Value = serde_json::from_slice(&text).unwrap();
    let gpu_value = &value["gpuUsageInfo"]["01:00.0"];
    for (name, number) in [
        ("deviceMemUsedMax", 6 * MIB),
        ("deviceMemUsedMin", 6 * MIB),
        ("deviceMemPoolSize", 6 * MIB),
        ("deviceMemStable", 6 * MIB),
        ("hostMemUsedMax", 7 * MIB),
        ("hostMemUsedMin", 7 * MIB),
        ("hostMemPoolSize", 96 * MIB),
    ] {
        assert_eq!(gpu_value[name], number, "{name}");
    }
    assert_eq!(gpu_value["swapReason"], "OOM");
    assert_eq!(gpu_value["deviceMemUsedNvidia"], -1);
    assert_eq!(value["miniBatchDuration"], 1234);
    assert_eq!(value["Durations"]["graph_12"], 1234);
    let ours = &value["larder"];
    assert_eq!(ours["name"], "the job");
    assert_eq!(ours["pid"], std::process::id());
    assert_eq!(
        (&ours["priority"], &ours["perfControl"]),
        (&4.into(), &100.into())
    );
    assert_eq!(ours["gpus"]["01:00.0"]["limitBytes"], 8 * MIB);
    assert_eq!(ours["heldBytes"], 6 * MIB);
    drop(buffer);
    for block in blocks {
        memory.free(&stream, block).unwrap();
    }
}

#[test]
fn peaks_are_of_an_interval_and_the_allocators_own_counters_go_on() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("peaks");
    let (clock, job) = job(by_hand(&folder));
    let (_context, memory, stream) = setup(64 * MIB);
    job.manage(&memory).unwrap();
    let peak = || folder.status().gpus[&gpu()].usage.device_peak_bytes;
    let step = |mib: u64| {
        let (_, end) = job
            .run(0, || {
                let block = memory.alloc(&stream, mib * MIB).unwrap();
                memory.free(&stream, block).unwrap();
                clock.advance(Duration::from_secs(10));
            })
            .unwrap();
        end.recorded
    };
    assert_eq!(step(8), Some(Recorded::Written));
    assert_eq!(peak(), 8 * MIB);
    assert_eq!(step(4), Some(Recorded::Written));
    assert_eq!(peak(), 4 * MIB);
    assert_eq!(step(4), Some(Recorded::Unchanged));
    let stats = memory.stats();
    assert_eq!((stats.allocations, stats.peak_live_bytes), (3, 8 * MIB));
    assert_eq!(stats.largest_bytes, 8 * MIB);
    assert!(stats.peak_reserved_bytes >= 8 * MIB);
    assert_eq!(clock.now(), Duration::from_secs(30));
}

#[test]
fn what_the_job_wants_and_the_share_in_force_stand_in_the_next_status() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("want");
    let (_, job) = job(by_hand(&folder));
    let (_context, memory, _stream) = setup(64 * MIB);
    job.manage(&memory).unwrap();
    job.poll();
    assert_eq!(
        folder.status().report(gpu()).unwrap().wanted_bytes,
        u64::MAX
    );
    job.want(5 * MIB);
    folder.order(None, Some(2), Some(40));
    job.poll();
    let status = folder.status();
    let report = status.report(gpu()).unwrap();
    assert_eq!((report.wanted_bytes, report.version), (5 * MIB, 2));
    assert_eq!(status.larder.unwrap().perf_control, 40);
}

#[test]
fn a_status_that_cannot_be_written_is_a_warning_and_the_next_one_is_written() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("unwritten");
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
