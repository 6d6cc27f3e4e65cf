//! Control files, valid and not.

use std::process::Command;

use larder_cuda::job::JobFiles;

use super::common::{MIB, alone};
use super::{Folder, by_hand, gpu, job, setup};

#[test]
fn am_5_torn_and_bad_files_change_nothing() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("torn");
    let (_, job) = job(by_hand(&folder));
    let (_context, memory, _stream) = setup(64 * MIB);
    job.manage(&memory).unwrap();
    folder.order(Some(8 * MIB), Some(3), Some(60));
    job.poll();
    let good = std::fs::read_to_string(folder.0.join("control.json")).unwrap();
    let torn = (0..good.len() - 2).map(|end| good[..end].replace("60", "10"));
    let others = [
        "not JSON",
        "[]",
        r#"{"gpuConfigInfo": {"01:00.0": {"maxDeviceMem": -1}}, "perfControl": 101}"#,
        r#"{"gpuConfigInfo": {"02:00.0": {"maxDeviceMem": 1}}, "perfControl": "5"}"#,
    ];
    for text in torn.chain(others.map(String::from)) {
        folder.say(&text);
        job.poll();
        drop(job.run(0, || ()).unwrap());
        assert_eq!(memory.limit_bytes(), 8 * MIB, "{text}");
        assert_eq!(job.state().perf.percent(), 60, "{text}");
    }
    assert!(job.state().refused_files > 10);
    assert!(job.state().problem.is_some());
}

#[test]
fn an_order_is_confirmed_when_its_limit_is_in_force_and_a_file_without_a_number_confirms_none() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("confirmed");
    let (_, job) = job(by_hand(&folder));
    let (_context, memory, _stream) = setup(64 * MIB);
    job.manage(&memory).unwrap();
    let confirmed = || folder.status().larder.unwrap().control_version;
    folder.order(Some(8 * MIB), Some(1), None);
    job.poll();
    assert_eq!(confirmed(), Some(1));
    let ran = job.run(0, || {
        folder.order(Some(4 * MIB), Some(2), None);
        job.poll();
        assert_eq!((confirmed(), memory.limit_bytes()), (Some(1), 8 * MIB));
        folder.order(Some(6 * MIB), Some(3), None);
        job.poll();
    });
    drop(ran.unwrap());
    // Version 2 was never in force, and is never confirmed.
    let report = folder.status().report(gpu()).unwrap();
    assert_eq!((report.version, report.limit_bytes), (3, 6 * MIB));
    // The same limit again, under another number.
    folder.order(Some(6 * MIB), Some(4), None);
    job.poll();
    assert_eq!(confirmed(), Some(4));
    folder.order(Some(6 * MIB), None, None);
    job.poll();
    assert_eq!(confirmed(), None);
}

/// Run by the test below, with the environment that it wants.
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
        child.args([
            "--ignored",
            "--exact",
            "--nocapture",
            "jobs::files::says_its_files",
        ]);
        for (name, value) in [("GPU_CONFIG_FILE", control), ("GPU_STATUS_FILE", status)] {
            child.env_remove(name);
            child.envs(value.map(|value| (name, value)));
        }
        String::from_utf8(child.output().unwrap().stdout).unwrap()
    };
    let both = says(Some("/a/control"), Some("b"));
    assert!(
        both.contains(r#"files: Some("/a/control") Some("b")."#),
        "{both}"
    );
    let none = says(None, Some(""));
    assert!(none.contains("files: None None."), "{none}");
}
