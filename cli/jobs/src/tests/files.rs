//! Finding, reading and changing control and status files.

use super::*;

#[test]
fn files_pair_up_by_our_names_and_by_those_of_antman() {
    let folder = folder();
    for name in [
        "a.status.json",
        "a.control.json",
        "b_sche2pai.json",
        "c_pai2sche.json",
        ".a.control.json.1.tmp",
        ".hidden.status.json",
        ".status.json",
        "notes.txt",
    ] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let jobs = find(&[folder.path().to_owned()], Twins::Hidden).unwrap();
    assert_eq!(names(&jobs), ["a", "b", "c"]);
    assert_eq!(jobs[1].status, folder.path().join("b_pai2sche.json"));
    assert_eq!(jobs[2].control, folder.path().join("c_sche2pai.json"));
    let alone = find(
        &[jobs[0].control.clone(), jobs[0].status.clone()],
        Twins::Hidden,
    )
    .unwrap();
    assert_eq!(names(&alone), ["a"]);
    assert!(matches!(
        find(&[folder.path().join("notes.txt")], Twins::Hidden),
        Err(FilesError::NotNamed(_))
    ));
    assert!(matches!(
        find(&[folder.path().join("nowhere")], Twins::Hidden),
        Err(FilesError::Refused { .. })
    ));
    let error = find_named(folder.path(), "x").unwrap_err().to_string();
    assert!(error.contains("there are: a, b, c"), "{error}");
}

#[test]
fn a_control_file_alone_is_no_second_job_beside_another_pair_of_its_name() {
    let (ours, theirs) = ("x.status.json", "x_pai2sche.json");
    let both = ["x.control.json", "x_sche2pai.json"];
    for (statuses, found) in [
        (&[][..], &[ours][..]),
        (&[ours], &[ours]),
        // A file from another program does not hide a job of ours.
        (&[theirs], &[ours, theirs]),
        (&[ours, theirs], &[ours, theirs]),
    ] {
        let folder = folder();
        for name in both.iter().chain(statuses).chain(&["y_sche2pai.json"]) {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let place = folder.path().to_owned();
        let jobs = find(std::slice::from_ref(&place), Twins::Hidden).unwrap();
        let (other, pairs) = jobs.split_last().unwrap();
        assert_eq!(other.name, "y");
        let status: Vec<_> = pairs.iter().map(|job| job.status.clone()).collect();
        let expected: Vec<_> = found.iter().map(|name| place.join(name)).collect();
        assert_eq!(status, expected, "{statuses:?}");
        assert_eq!(find_named(&place, "x").unwrap().status, expected[0]);
        // A file that is named explicitly counts.
        let named = find(&both.map(|name| place.join(name)), Twins::Hidden).unwrap();
        assert_eq!(names(&named), ["x", "x"]);
    }
}

#[test]
fn an_order_changes_what_it_says_and_keeps_the_rest() {
    let folder = folder();
    let job = JobPaths::ours(folder.path(), "a");
    let text =
        json!({"mine": {"x": 1.5}, "gpuConfigInfo": {"02:00.0": {"maxDeviceMem": 7, "y": [1]}}});
    fs::write(&job.control, text.to_string()).unwrap();
    let order = ControlChange {
        limit_bytes: Some(2 << 30),
        gpu: Some(gpu()),
        perf: PerfControl::new(50).ok(),
        asleep: Some(true),
    };
    assert_eq!(order.give(&job).unwrap(), [""; 0]);
    let text = fs::read_to_string(&job.control).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let expected = json!({"mine": {"x": 1.5}, "perfControl": 50, "asleep": true, "gpuConfigInfo": {
        GPU: {"maxDeviceMem": 2_147_483_648_u64},
        "02:00.0": {"maxDeviceMem": 7, "y": [1]}}});
    assert_eq!(value, expected);
}

#[test]
fn the_gpu_of_a_limit_is_the_one_that_the_job_names() {
    let folder = folder();
    let job = JobPaths::ours(folder.path(), "a");
    let order = ControlChange {
        limit_bytes: Some(0),
        ..ControlChange::default()
    };
    assert!(matches!(order.give(&job), Err(OrderError::NoGpu)));
    assert!(!job.control.exists());
    Status::new(0, 1).write(&job);
    order.give(&job).unwrap();
    let view = JobView::look(&job, SystemTime::now());
    assert_eq!(view.gpus[0].target_limit_bytes, Some(0));
    let two = json!({"gpuUsageInfo": {"01:00.0": {}, "02:00.0": {}}});
    let two = two.to_string().replace(
        "{}",
        r#"{"deviceMemUsedMax":0,"deviceMemUsedMin":0,"deviceMemPoolSize":0,"deviceMemStable":0,
           "hostMemUsedMax":0,"hostMemUsedMin":0,"hostMemPoolSize":0}"#,
    );
    fs::write(&job.status, two).unwrap();
    assert!(
        matches!(order.give(&job), Err(OrderError::SeveralGpus(names)) if names == "01:00.0, 02:00.0")
    );
}

#[test]
fn a_control_file_that_says_nothing_readable_is_not_written() {
    let folder = folder();
    let job = JobPaths::ours(folder.path(), "a");
    fs::write(&job.control, "{\"gpuCon").unwrap();
    let pause = ControlChange {
        perf: Some(PerfControl::SUSPENDED),
        ..ControlChange::default()
    };
    assert!(matches!(pause.give(&job), Err(OrderError::Unreadable(_))));
    assert_eq!(fs::read_to_string(&job.control).unwrap(), "{\"gpuCon");
    assert!(matches!(
        ControlChange::default().give(&job),
        Err(OrderError::Empty)
    ));
    fs::write(&job.control, "{\"perfControl\": 300}").unwrap();
    let dropped = pause.give(&job).unwrap();
    assert!(dropped[0].contains("perfControl"), "{dropped:?}");
}
