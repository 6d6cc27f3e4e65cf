//! Status files: AntMan's text byte for byte, our part next to it, and reading both.

use larder_control::{DeviceUsage, GpuStatus, JobStatus, SleepState, StatusFile, SwapReason};
use larder_model::Random;

fn usage(first: u64) -> DeviceUsage {
    DeviceUsage {
        device_peak_bytes: first,
        device_live_bytes: first + 1,
        device_reserved_bytes: first + 2,
        device_stable_bytes: first + 3,
        host_peak_bytes: first + 4,
        host_live_bytes: first + 5,
        host_limit_bytes: first + 6,
    }
}

fn squeezed(status: &StatusFile) -> String {
    status.to_text().split_whitespace().collect()
}

#[test]
fn s7_6_the_text_is_antmans() {
    let mut status = StatusFile::default();
    let gpu = "00:1e.0".parse().unwrap();
    status
        .gpus
        .insert(gpu, GpuStatus::new(usage(10), SwapReason::Oom));
    status.mini_batch_micros = 100;
    status.durations.insert("graph_7".into(), 100);
    let expected = concat!(
        r#"{"gpuUsageInfo":{"00:1e.0":{"deviceMemUsedMax":10,"deviceMemUsedMin":11,"deviceMemPoolSize":12,"#,
        r#""deviceMemStable":13,"hostMemUsedMax":14,"hostMemUsedMin":15,"hostMemPoolSize":16,"#,
        r#""swapReason":"OOM","deviceMemUsedNvidia":-1}},"miniBatchDuration":100,"Durations":{"graph_7":100}}"#,
    );
    assert_eq!(squeezed(&status), expected);
    assert_eq!(StatusFile::parse(expected).unwrap(), status);
}

#[test]
fn s7_6_empty_maps_are_null() {
    let status = StatusFile::default();
    assert_eq!(
        squeezed(&status),
        r#"{"gpuUsageInfo":null,"miniBatchDuration":0,"Durations":null}"#
    );
    assert_eq!(StatusFile::parse(status.to_text()).unwrap(), status);
    assert_eq!(StatusFile::parse("{}").unwrap(), status);
}

#[test]
fn our_part_stands_beside_antmans_and_what_is_not_known_is_kept() {
    let mut status = StatusFile::default();
    let mut job = JobStatus::default();
    job.pid = 12;
    job.name = "a job".into();
    job.limit_bytes = u64::MAX;
    job.perf_control = 50;
    status.larder = Some(job.clone());
    let text = squeezed(&status);
    let ours = r#""larder":{"pid":12,"name":"ajob","limitBytes":18446744073709551615,"deferredBytes":0,"heldBytes":0,"perfControl":50,"writtenAtUnixMs":0}"#;
    assert!(text.contains(ours), "{text}");
    job.soft_limit_bytes = Some(5);
    job.priority = Some(-1);
    status.larder = Some(job);
    let text = squeezed(&status);
    assert!(text.contains(r#""softLimitBytes":5"#) && text.contains(r#""priority":-1"#));

    let text = r#"{"gpuUsageInfo":{"00:1e.0":{"deviceMemUsedMax":1,"deviceMemUsedMin":1,"deviceMemPoolSize":1,
        "deviceMemStable":1,"hostMemUsedMax":1,"hostMemUsedMin":1,"hostMemPoolSize":1,"new":[1]}},"later":{"a":0.1},
        "larder":{"pid":1,"name":"x","limitBytes":1,"perfControl":1,"more":true}}"#;
    let status = StatusFile::parse(text).unwrap();
    let again = status.to_text();
    for kept in [r#""new""#, r#""later""#, r#""more": true"#] {
        assert!(again.contains(kept), "{again}");
    }
    assert_eq!(StatusFile::parse(again).unwrap(), status);
}

#[test]
fn a_torn_or_wrong_status_is_an_error() {
    let mut status = StatusFile::default();
    status.gpus.insert(
        "00:1e.0".parse().unwrap(),
        GpuStatus::new(usage(1), SwapReason::None),
    );
    let text = status.to_text();
    for end in 0..text.len() - 1 {
        assert!(
            StatusFile::parse(&text.as_bytes()[..end]).is_err(),
            "torn at {end}"
        );
    }
    for (from, to) in [
        ("00:1e.0", "GPU 0"),
        ("\"\"", "\"WHY\""),
        ("-1", "\"x\""),
        ("null", "5"),
    ] {
        assert!(StatusFile::parse(text.replace(from, to)).is_err(), "{to}");
    }
    let padded = |bytes: usize| format!("{{}}{}", " ".repeat(bytes - 2));
    assert!(StatusFile::parse(padded(StatusFile::MAX_BYTES)).is_ok());
    assert!(StatusFile::parse(padded(StatusFile::MAX_BYTES + 1)).is_err());
}

#[test]
fn any_status_is_read_as_it_was_written() {
    for seed in 0..2000 {
        let mut random = Random::new(seed);
        let mut status = StatusFile::default();
        for _ in 0..random.index(4) {
            let reason = *random.pick(&[SwapReason::None, SwapReason::Fragment, SwapReason::Oom]);
            let gpu = larder_control::BusId::new(random.next_u64() as u8, 0, 0).unwrap();
            status.gpus.insert(
                gpu,
                GpuStatus::new(usage(random.next_u64() >> random.index(64) >> 1), reason),
            );
        }
        for _ in 0..random.index(4) {
            status
                .durations
                .insert(format!("graph_{}", random.next_u64()), random.next_u64());
        }
        status.mini_batch_micros = random.next_u64();
        if random.index(2) == 0 {
            let mut job = JobStatus::default();
            job.name = format!("\"\\\u{1}ü{}", random.next_u64());
            job.deferred_bytes = random.next_u64();
            job.perf_control = random.next_u64() as i32;
            job.written_at_unix_ms = random.next_u64();
            job.soft_limit_bytes = (random.index(2) == 0).then_some(random.next_u64());
            status.larder = Some(job);
        }
        assert_eq!(
            StatusFile::parse(status.to_text()).as_ref(),
            Ok(&status),
            "seed {seed}"
        );
    }
}

#[test]
fn what_a_gpu_holds_is_never_taken_for_nothing_because_a_number_is_missing() {
    let mut status = StatusFile::default();
    let gpu = "00:1e.0".parse().unwrap();
    status
        .gpus
        .insert(gpu, GpuStatus::new(usage(1), SwapReason::None));
    let text = status.to_text();
    for name in [
        "deviceMemUsedMax",
        "deviceMemUsedMin",
        "deviceMemPoolSize",
        "deviceMemStable",
        "hostMemUsedMax",
        "hostMemUsedMin",
        "hostMemPoolSize",
    ] {
        assert!(text.contains(name));
        assert!(
            StatusFile::parse(text.replace(name, "other")).is_err(),
            "{name}"
        );
    }
    // Fields that are not numbers of bytes may be missing.
    for name in ["swapReason", "deviceMemUsedNvidia", "miniBatchDuration"] {
        let read = StatusFile::parse(text.replace(name, "other")).unwrap();
        assert_eq!(read.gpus[&gpu].usage, usage(1), "{name}");
    }
    assert!(StatusFile::parse("{}").is_ok());
}

#[test]
fn an_error_shows_a_files_text_without_its_control_characters() {
    let text = "{\"gpuUsageInfo\":{\"00:1e.0\":{\"swapReason\":\"\\u001b[2J\\n\"}}}";
    let error = StatusFile::parse(text).unwrap_err().to_string();
    assert!(!error.contains(char::is_control), "{error:?}");
}

#[test]
fn a_status_says_how_far_a_job_sleeps_and_an_old_one_says_nothing() {
    let job = r#""pid": 1, "name": "a", "limitBytes": 5, "perfControl": 100, "gpus": {"00:1e.0": {"limitBytes": 5}}"#;
    let gpu = "00:1e.0".parse().unwrap();
    for (sleep, expected) in [
        ("", None),
        (r#", "sleep": {"state": "awake"}"#, Some(SleepState::Awake)),
        (
            r#", "sleep": {"state": "awake", "problem": "it cannot"}"#,
            None,
        ),
        (
            r#", "sleep": {"state": "waking", "wakeBytes": 9, "problem": "no memory"}"#,
            Some(SleepState::Waking),
        ),
        (
            r#", "sleep": {"state": "asleep", "copiedBytes": 7, "wakeBytes": 9, "new": 1}"#,
            Some(SleepState::Asleep),
        ),
    ] {
        let text = format!("{{\"larder\": {{{job}{sleep}}}}}");
        let status = StatusFile::parse(&text).unwrap();
        assert_eq!(StatusFile::parse(status.to_text()).unwrap(), status);
        let report = status.report(gpu).unwrap();
        assert_eq!(report.sleep, expected, "{sleep}");
        assert_eq!(report.wake_bytes, if sleep.contains('9') { 9 } else { 0 });
    }
}
