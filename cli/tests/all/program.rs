//! The installable program: one file with all its commands, completions and manual pages.

use std::fs;
use std::process::{Command, Output};

use crate::replay_command::{carried, stderr, stdout};

const PROGRAM: &str = env!("CARGO_BIN_EXE_larder");

/// Runs the program without the variables that select a driver.
fn ran(program: &std::path::Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    for variable in ["LARDER_CUDA_DRIVER", "LARDER_CUDA_STAND_IN"] {
        command.env_remove(variable);
    }
    command.args(arguments).output().unwrap()
}

#[test]
fn a_copy_of_the_program_alone_replays_on_the_stand_in_and_runs_a_job() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy");
    fs::copy(PROGRAM, &copy).unwrap();
    let trace = carried("resnet50_train");
    let device = [
        "replay",
        "--driver",
        "stand-in",
        "--allocator",
        "device",
        "--json",
        &trace,
    ];
    let output = ran(&copy, &device);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("\"driver\":\"stand-in\""),
        "{}",
        stdout(&output)
    );
    let jobs = folder.path().join("jobs");
    fs::create_dir(&jobs).unwrap();
    let jobs = jobs.to_str().unwrap();
    let job = [
        "job", &trace, "--in", jobs, "--name", "one", "--limit", "1GiB", "--scale", "1000",
        "--driver", "stand-in",
    ];
    let output = ran(&copy, &job);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = ran(&copy, &["top", "--once", jobs]);
    assert!(
        stdout(&output).contains("one") && stdout(&output).contains("ended"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn completions_and_the_page_for_man_name_every_command() {
    let commands = [
        "replay",
        "plan",
        "versus",
        "top",
        "job",
        "control",
        "coordinate",
    ];
    for arguments in [
        &["completions", "bash"][..],
        &["completions", "zsh"],
        &["completions", "fish"],
        &["man"],
    ] {
        let output = ran(PROGRAM.as_ref(), arguments);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let text = stdout(&output);
        for command in commands {
            assert!(text.contains(command), "{command} in {arguments:?}");
        }
    }
    let page = ran(PROGRAM.as_ref(), &["man", "replay"]);
    assert!(
        stdout(&page).contains("larder\\-replay"),
        "{}",
        stdout(&page)
    );
    let wrong = ran(PROGRAM.as_ref(), &["man", "nonesuch"]);
    assert_eq!(wrong.status.code(), Some(2));
}
