//! One job for each name, and commands for one of its lives.

use larder_cuda::job::larder_control::{ControlFile, Life, SleepState};
use larder_cuda::job::{Job, JobError};

use super::common::{MIB, alone};
use super::{Folder, by_hand, gpu, job, setup};

/// An order to a life, asleep or not.
fn order(folder: &Folder, life: Option<Life>, limit_bytes: u64, asleep: bool) {
    let mut file = ControlFile::default();
    file.limit(gpu(), limit_bytes);
    (file.control_version, file.perf_control) = (Some(7), Some(50));
    (file.life, file.asleep) = (life, Some(asleep));
    folder.say(&file.to_text());
}

/// Another run of this process, as it might have been.
fn earlier() -> Option<Life> {
    let now = Life::this()?.to_string();
    let mut parts = now.splitn(3, '-');
    let (pid, ticks, boot) = (parts.next()?, parts.next()?, parts.next()?);
    let ticks: u64 = ticks.parse().ok()?;
    format!("{pid}-{}-{boot}", ticks - 1).parse().ok()
}

#[test]
fn what_was_said_to_another_run_of_a_job_is_not_obeyed() {
    let (Some((_, _turn)), Some(earlier)) = (alone(), earlier()) else {
        return;
    };
    let folder = Folder::new("another_life");
    order(&folder, Some(earlier), 8 * MIB, true);
    let (_, job) = job(by_hand(&folder));
    let (_context, memory, _stream) = setup(16 * MIB);
    job.manage(&memory).unwrap();
    let ran = job.run(0, || ());
    drop(ran.unwrap());
    assert_eq!(memory.limit_bytes(), 16 * MIB);
    assert_eq!(
        (job.state().perf.percent(), job.state().control_version),
        (100, None)
    );
    assert!(job.state().problem.unwrap().contains("an earlier run"));
    let status = folder.status().larder.unwrap();
    assert_eq!((status.life, status.control_version), (Life::this(), None));
    assert_eq!(status.sleep.unwrap().state, SleepState::Awake);
    // To this one, and to any.
    for (life, limit_bytes) in [(Life::this(), 4 * MIB), (None, 2 * MIB)] {
        order(&folder, life, limit_bytes, false);
        job.poll();
        assert_eq!(memory.limit_bytes(), limit_bytes);
    }
    assert_eq!(folder.status().larder.unwrap().control_version, Some(7));
}

#[test]
fn a_second_job_with_one_of_the_files_is_refused_until_the_first_has_ended() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("one_of_a_name");
    let (_, first) = job(by_hand(&folder));
    for shares_control in [true, false] {
        let mut config = by_hand(&folder);
        let other = match shares_control {
            true => &mut config.files.status,
            false => &mut config.files.control,
        };
        *other = Some(folder.0.join("other.json"));
        let refused = Job::new(config).unwrap_err();
        assert!(matches!(refused, JobError::Taken(_)), "{refused}");
        assert!(
            refused.to_string().contains("has it, or a child of it"),
            "{refused}"
        );
    }
    drop(first);
    drop(job(by_hand(&folder)));
    let left = std::fs::read_dir(&folder.0).unwrap();
    let is_hidden = |name: &std::ffi::OsString| name.to_string_lossy().starts_with('.');
    assert_eq!(
        left.map(|entry| entry.unwrap().file_name())
            .filter(is_hidden)
            .count(),
        0
    );
}

#[test]
fn a_status_that_was_deleted_is_written_again() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("deleted");
    let (_, job) = job(by_hand(&folder));
    let (_context, memory, _stream) = setup(MIB);
    job.manage(&memory).unwrap();
    job.poll();
    // A want rings, as the job's thread does each ten seconds; the same one again is no change.
    job.want(MIB);
    job.poll();
    let before = folder.status();
    std::fs::remove_file(folder.0.join("status.json")).unwrap();
    job.want(MIB);
    job.poll();
    let after = folder.status().larder.unwrap();
    assert_eq!(
        after.gpus[&gpu()].held_bytes,
        before.larder.unwrap().gpus[&gpu()].held_bytes
    );
}
