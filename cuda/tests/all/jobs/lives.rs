//! One job for each control or status file, and control files for one life of a job.

use larder_cuda::job::larder_control::{Life, SleepState};
use larder_cuda::job::{Job, JobError};

use super::common::{MIB, alone_and_clean};
use super::{Folder, by_hand, gpu, job, setup, with_job};

fn order(folder: &Folder, life: Option<Life>, limit_bytes: u64, asleep: bool) {
    folder.tell(|file| {
        file.limit(gpu(), limit_bytes);
        (file.control_version, file.perf_control) = (Some(7), Some(50));
        (file.life, file.asleep) = (life, Some(asleep));
    });
}

/// Returns the life of an earlier process with the same PID.
fn earlier() -> Option<Life> {
    let now = Life::this()?.to_string();
    let mut parts = now.splitn(3, '-');
    let (pid, ticks, boot) = (parts.next()?, parts.next()?, parts.next()?);
    let ticks: u64 = ticks.parse().ok()?;
    format!("{pid}-{}-{boot}", ticks - 1).parse().ok()
}

#[test]
fn what_was_said_to_another_run_of_a_job_is_not_obeyed() {
    let Some(earlier) = earlier() else {
        return;
    };
    alone_and_clean(|_| {
        let folder = Folder::new();
        order(&folder, Some(earlier), 8 * MIB, true);
        let (_, job) = job(by_hand(&folder));
        let (_context, memory, _stream) = setup(16 * MIB);
        job.manage(&memory).unwrap();
        drop(job.run(0, || ()).unwrap());
        assert_eq!(memory.limit_bytes(), 16 * MIB);
        let state = job.state();
        assert_eq!((state.perf.percent(), state.control_version), (100, None));
        assert!(state.problem.unwrap().contains("for another process"));
        let status = folder.larder();
        assert_eq!((status.life, status.control_version), (Life::this(), None));
        assert_eq!(status.sleep.unwrap().state, SleepState::Awake);
        for (life, limit_bytes) in [(Life::this(), 4 * MIB), (None, 2 * MIB)] {
            order(&folder, life, limit_bytes, false);
            job.poll();
            assert_eq!(memory.limit_bytes(), limit_bytes);
        }
        assert_eq!(folder.larder().control_version, Some(7));
    });
}

#[test]
fn a_second_job_with_one_of_the_files_is_refused_until_the_first_has_ended() {
    alone_and_clean(|_| {
        let folder = Folder::new();
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
            let words = refused.to_string();
            assert!(words.contains("has it, or a child of it"), "{words}");
        }
        drop(first);
        drop(job(by_hand(&folder)));
        for entry in std::fs::read_dir(&folder.0).unwrap() {
            let name = entry.unwrap().file_name();
            assert!(!name.to_string_lossy().starts_with('.'), "{name:?} is left");
        }
    });
}

#[test]
fn a_status_that_was_deleted_is_written_again() {
    with_job(|rig| {
        rig.job.poll();
        // Each `want` rings the bell, as the job's thread does every ten seconds. The second one changes no number,
        // so the status is written only because it is missing.
        rig.job.want(MIB);
        rig.job.poll();
        let before = rig.report();
        std::fs::remove_file(rig.folder.0.join("status.json")).unwrap();
        rig.job.want(MIB);
        rig.job.poll();
        assert_eq!(rig.report(), before);
    });
}
