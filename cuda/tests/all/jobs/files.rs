//! Control files, valid and not.

use std::process::Command;

use larder_cuda::job::JobFiles;

use super::with_job;

#[test]
fn am_5_torn_and_bad_files_change_nothing() {
    with_job(|rig| {
        rig.order(8, 3, 60);
        let good = std::fs::read_to_string(rig.folder.0.join("control.json")).unwrap();
        let torn = (0..good.len() - 2).map(|end| good[..end].replace("60", "10"));
        let others = [
            "not JSON",
            "[]",
            r#"{"gpuConfigInfo": {"01:00.0": {"maxDeviceMem": -1}}, "perfControl": 101}"#,
            r#"{"gpuConfigInfo": {"02:00.0": {"maxDeviceMem": 1}}, "perfControl": "5"}"#,
        ];
        for text in torn.chain(others.map(String::from)) {
            rig.folder.say(&text);
            rig.job.poll();
            drop(rig.run(|| ()));
            assert_eq!(rig.limit(), 8, "{text}");
            assert_eq!(rig.job.state().perf.percent(), 60, "{text}");
        }
        let state = rig.job.state();
        assert!(state.refused_files > 10 && state.problem.is_some());
    });
}

#[test]
fn an_order_is_confirmed_when_its_limit_is_in_force_and_a_file_without_a_number_confirms_none() {
    with_job(|rig| {
        let confirmed = || rig.larder().control_version;
        rig.order(8, 1, None);
        assert_eq!(confirmed(), Some(1));
        let end = rig.run(|| {
            rig.order(4, 2, None);
            assert_eq!((confirmed(), rig.limit()), (Some(1), 8));
            rig.order(6, 3, None);
        });
        drop(end);
        // Version 2 was replaced during the run, so it is never confirmed.
        let report = rig.report();
        assert_eq!((report.version, report.limit_bytes), (3, 6 << 20));
        for version in [Some(4), None] {
            rig.order(6, version, None);
            assert_eq!(confirmed(), version);
        }
    });
}

/// The test below runs this in a child process, with other environment variables.
#[test]
#[ignore = "a child of another test"]
fn says_its_files() {
    let files = JobFiles::from_env();
    println!("files: {:?} {:?}.", files.control, files.status);
}

#[test]
fn files_are_named_by_antmans_variables_and_empty_ones_name_none() {
    let says = |control: Option<&str>, status: Option<&str>| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let test = "jobs::files::says_its_files";
        child.args(["--ignored", "--exact", "--nocapture", test]);
        for (name, value) in [("GPU_CONFIG_FILE", control), ("GPU_STATUS_FILE", status)] {
            child.env_remove(name);
            child.envs(value.map(|value| (name, value)));
        }
        String::from_utf8(child.output().unwrap().stdout).unwrap()
    };
    let both = says(Some("/a/control"), Some("b"));
    let named = r#"files: Some("/a/control") Some("b")."#;
    assert!(both.contains(named), "{both}");
    let none = says(None, Some(""));
    assert!(none.contains("files: None None."), "{none}");
}
