//! Commands in control files, and reports from status files.

use std::time::Duration;

use larder_control::{
    BusId, Command, ControlFile, GpuLimit, JobReport, JobStatus, PerfControl, StatusFile,
};

use crate::coordinate::{coordinator, policy};

fn gpu() -> BusId {
    "01:00.0".parse().unwrap()
}

fn status(limit: GpuLimit, version: Option<u64>) -> StatusFile {
    let mut job = JobStatus::default();
    job.gpus.insert(gpu(), limit);
    job.control_version = version;
    let mut status = StatusFile::default();
    status.larder = Some(job);
    StatusFile::parse(status.to_text()).unwrap()
}

#[test]
fn a_command_goes_through_the_files_and_comes_back_as_its_confirmation() {
    let mut coordinator = coordinator(100, 10);
    let job = coordinator.join(policy(1, 10)).unwrap();
    let mut limit = GpuLimit::default();
    limit.wanted_bytes = Some(55);
    let report = status(limit.clone(), None).report(gpu()).unwrap();
    assert_eq!((report.version, report.wanted_bytes), (0, 55));
    coordinator.report(job, report, Duration::ZERO).unwrap();
    let commands = coordinator.decide(Duration::ZERO);
    let mut file = ControlFile::default();
    file.perf_control = Some(30);
    for command in &commands {
        file.command(gpu(), command);
    }
    let read = ControlFile::parse(file.to_text()).unwrap();
    assert!(read.problems.is_empty());
    assert_eq!(read.file.gpus[&gpu()].max_device_mem, Some(60));
    assert_eq!(read.file.control_version, Some(1));
    assert_eq!(read.file.version, None);
    assert_eq!(read.file.perf_control, Some(30), "not said, not changed");
    limit.limit_bytes = 60;
    limit.held_bytes = 25;
    let report = status(limit, read.file.control_version).report(gpu());
    let wanted = JobReport {
        version: 1,
        limit_bytes: 60,
        held_bytes: 25,
        deferred_bytes: 0,
        wanted_bytes: 55,
        ..JobReport::default()
    };
    assert_eq!(report, Some(wanted));
    coordinator.report(job, wanted, Duration::ZERO).unwrap();
    assert_eq!(coordinator.decide(Duration::ZERO), []);
}

#[test]
fn a_share_goes_into_the_file_and_leaves_the_version() {
    let job = coordinator(1, 1).join(policy(1, 0)).unwrap();
    let mut file = ControlFile::default();
    file.control_version = Some(4);
    let perf = PerfControl::new(40).unwrap();
    file.command(gpu(), &Command::SetPerf { job, perf });
    assert_eq!(
        (file.perf_control, file.control_version),
        (Some(40), Some(4))
    );
}

#[test]
fn a_status_of_antman_is_no_report_and_of_another_gpu_neither() {
    assert_eq!(StatusFile::default().report(gpu()), None);
    let other: BusId = "02:00.0".parse().unwrap();
    assert_eq!(status(GpuLimit::default(), None).report(other), None);
    let unknown = status(GpuLimit::default(), None).report(gpu()).unwrap();
    assert_eq!(unknown.wanted_bytes, u64::MAX);
}

#[test]
fn a_control_version_that_is_no_number_is_a_problem_and_says_nothing() {
    let read = ControlFile::parse(r#"{"controlVersion": -1}"#).unwrap();
    assert_eq!(read.file.control_version, None);
    assert_eq!(read.problems[0].path, "controlVersion");
}

#[test]
fn am_6_numbers_that_are_no_share_hold_nothing_back() {
    for (number, percent) in [(-1, 100), (0, 0), (1, 1), (99, 99), (100, 100), (150, 100)] {
        assert_eq!(PerfControl::of_file(number).percent(), percent, "{number}");
    }
}
