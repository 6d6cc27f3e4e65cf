//! Rounds of the coordinator over jobs that answer by their files.

use super::*;

pub(super) fn settings(total_bytes: u64) -> CoordinationSettings {
    CoordinationSettings {
        total_bytes,
        step_bytes: MIB,
        calm: Duration::from_secs(1),
        floor_bytes: 0,
        perf_beside: PerfControl::FULL,
        gpu: None,
        turn: None,
    }
}

/// Runs rounds until no more events happen, each job obeying after each.
pub(super) fn settle(
    coordination: &mut Coordination,
    folder: &Path,
    jobs: &mut [(JobPaths, Status)],
    time: &mut u64,
) -> Vec<CoordinationEvent> {
    let mut all = Vec::new();
    loop {
        *time += 1;
        let said = coordination
            .round(&[PathBuf::from(folder)], Duration::from_secs(*time))
            .unwrap();
        let held: u64 = jobs.iter().map(|(_, status)| status.held).sum();
        assert!(held <= coordination.charged_bytes());
        if said.is_empty() {
            return all;
        }
        all.extend(said);
        for (job, status) in &mut *jobs {
            status.obey(job);
        }
    }
}

#[test]
fn memory_moves_to_the_higher_priority_and_back_when_that_one_wants_less() {
    let folder = folder();
    let mut time = 0;
    let mut coordination = Coordination::new(settings(100 * MIB));
    let mut jobs = vec![(
        JobPaths::ours(folder.path(), "low"),
        Status::new(1, 90 * MIB),
    )];
    jobs[0].1.write(&jobs[0].0);
    let said = settle(&mut coordination, folder.path(), &mut jobs, &mut time);
    assert_eq!(jobs[0].1.limit, 90 * MIB);
    assert!(
        matches!(&said[0], CoordinationEvent::Joined { job, priority: 1, limit_bytes: 0 } if job == "low")
    );
    let high = JobPaths::ours(folder.path(), "high");
    jobs.push((high, Status::new(5, 70 * MIB)));
    jobs[1].1.write(&jobs[1].0);
    let said = settle(&mut coordination, folder.path(), &mut jobs, &mut time);
    assert_eq!((jobs[0].1.limit, jobs[1].1.limit), (30 * MIB, 70 * MIB));
    let why = said.iter().find_map(|said| match said {
        CoordinationEvent::Limit { job, why, .. } if job == "low" => Some(why.as_str()),
        _ => None,
    });
    assert_eq!(why, Some("for high"));
    jobs[1].1.wanted = 20 * MIB;
    jobs[1].1.write(&jobs[1].0);
    settle(&mut coordination, folder.path(), &mut jobs, &mut time);
    assert_eq!((jobs[0].1.limit, jobs[1].1.limit), (80 * MIB, 20 * MIB));
}

#[test]
fn another_coordinator_takes_over_and_no_old_answer_counts() {
    let folder = folder();
    let mut time = 0;
    let mut jobs: Vec<_> = [("a", 1), ("b", 2)]
        .map(|(name, priority)| {
            let job = JobPaths::ours(folder.path(), name);
            (job, Status::new(priority, 80 * MIB))
        })
        .into();
    let mut first = Coordination::new(settings(100 * MIB));
    for (job, status) in &jobs {
        status.write(job);
    }
    settle(&mut first, folder.path(), &mut jobs, &mut time);
    let before = jobs[1].1.version.unwrap();
    // The last order of the first coordinator has not been obeyed: `a` counts with the larger
    // limit.
    jobs[0].1.limit = 5 * MIB;
    jobs[0].1.version = Some(0);
    jobs[0].1.write(&jobs[0].0);
    let mut second = Coordination::new(settings(100 * MIB));
    let place = [folder.path().to_owned()];
    second.round(&place, Duration::ZERO).unwrap();
    assert_eq!(second.charged_bytes(), 100 * MIB);
    jobs[1].1.wanted = 40 * MIB;
    jobs[1].1.write(&jobs[1].0);
    settle(&mut second, folder.path(), &mut jobs, &mut time);
    assert_eq!((jobs[0].1.limit, jobs[1].1.limit), (60 * MIB, 40 * MIB));
    assert!(jobs[1].1.version.unwrap() > before);
}

#[test]
fn a_dead_jobs_memory_counts_until_it_is_reported_gone() {
    let folder = folder();
    let place = [folder.path().to_owned()];
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let mut time = 0;
    let mut dead = Status::new(1, 60 * MIB);
    dead.pid = child.id();
    let mut jobs = vec![(JobPaths::ours(folder.path(), "dead"), dead)];
    jobs[0].1.write(&jobs[0].0);
    let mut coordination = Coordination::new(settings(100 * MIB));
    settle(&mut coordination, folder.path(), &mut jobs, &mut time);
    assert_eq!(coordination.charged_bytes(), 60 * MIB);
    child.kill().unwrap();
    child.wait().unwrap();
    let said = coordination
        .round(&place, Duration::from_secs(500))
        .unwrap();
    assert_eq!(coordination.charged_bytes(), 60 * MIB);
    if fs::metadata("/proc/self/stat").is_ok() {
        // Reported once, and with the remedy.
        assert!(
            matches!(&said[..], [CoordinationEvent::Problem { problem, .. }] if problem.contains("control forget dead")),
            "{said:?}"
        );
        let again = coordination.round(&place, Duration::from_secs(500));
        assert_eq!(again.unwrap(), []);
    }
    fs::remove_file(&jobs[0].0.status).unwrap();
    let said = coordination
        .round(&place, Duration::from_secs(501))
        .unwrap();
    assert!(
        matches!(&said[0], CoordinationEvent::Gone { job, .. } if job == "dead"),
        "{said:?}"
    );
    assert_eq!(coordination.charged_bytes(), 0);
}

#[test]
fn a_job_that_said_its_end_is_gone_once_its_process_is() {
    let folder = folder();
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let mut time = 0;
    let mut status = Status::new(1, 60 * MIB);
    status.pid = child.id();
    let mut jobs = vec![(JobPaths::ours(folder.path(), "a"), status)];
    jobs[0].1.write(&jobs[0].0);
    let mut coordination = Coordination::new(settings(100 * MIB));
    settle(&mut coordination, folder.path(), &mut jobs, &mut time);
    jobs[0].1.ended = true;
    jobs[0].1.write(&jobs[0].0);
    settle(&mut coordination, folder.path(), &mut jobs, &mut time);
    assert_eq!(coordination.charged_bytes(), 60 * MIB);
    child.kill().unwrap();
    child.wait().unwrap();
    let said = coordination
        .round(&[folder.path().to_owned()], Duration::from_secs(500))
        .unwrap();
    assert!(said.contains(&CoordinationEvent::Gone {
        job: "a".into(),
        why: "it ended"
    }));
    assert_eq!(coordination.charged_bytes(), 0);
}

#[test]
fn rubbish_is_said_once_and_disturbs_nobody() {
    let folder = folder();
    let place = [folder.path().to_owned()];
    let mut time = 0;
    fs::write(folder.path().join("x.status.json"), "[1, 2").unwrap();
    fs::write(folder.path().join("antman_pai2sche.json"), "{}").unwrap();
    let mut jobs = vec![(
        JobPaths::ours(folder.path(), "good"),
        Status::new(1, 40 * MIB),
    )];
    jobs[0].1.write(&jobs[0].0);
    let mut coordination = Coordination::new(settings(100 * MIB));
    let said = settle(&mut coordination, folder.path(), &mut jobs, &mut time);
    assert_eq!(jobs[0].1.limit, 40 * MIB);
    let problems = said
        .iter()
        .filter(|said| matches!(said, CoordinationEvent::Problem { .. }));
    assert_eq!(problems.count(), 2, "{said:?}");
    // A good job that writes garbage keeps its memory.
    fs::write(&jobs[0].0.status, "rubbish").unwrap();
    coordination
        .round(&place, Duration::from_secs(500))
        .unwrap();
    assert_eq!(coordination.charged_bytes(), 40 * MIB);
}

#[test]
fn a_job_without_memory_yet_is_waited_for_without_a_word() {
    let folder = folder();
    let job = JobPaths::ours(folder.path(), "a");
    let early = json!({"larder": {"pid": std::process::id(), "name": "a", "limitBytes": 0,
        "perfControl": 100}});
    fs::write(&job.status, early.to_string()).unwrap();
    let place = [folder.path().to_owned()];
    let mut coordination = Coordination::new(CoordinationSettings {
        gpu: Some(gpu()),
        ..settings(MIB)
    });
    assert_eq!(coordination.round(&place, Duration::ZERO).unwrap(), []);
    Status::new(1, MIB).write(&job);
    let said = coordination.round(&place, Duration::ZERO).unwrap();
    assert!(
        matches!(said[0], CoordinationEvent::Joined { .. }),
        "{said:?}"
    );
}

#[test]
fn a_limit_that_was_changed_by_hand_is_changed_back() {
    let folder = folder();
    let mut time = 0;
    let mut jobs = vec![(JobPaths::ours(folder.path(), "a"), Status::new(1, 40 * MIB))];
    jobs[0].1.write(&jobs[0].0);
    let mut coordination = Coordination::new(settings(100 * MIB));
    settle(&mut coordination, folder.path(), &mut jobs, &mut time);
    let order = ControlChange {
        limit_bytes: Some(90 * MIB),
        perf: Some(PerfControl::SUSPENDED),
        ..ControlChange::default()
    };
    order.give(&jobs[0].0).unwrap();
    coordination
        .round(&[folder.path().to_owned()], Duration::from_secs(500))
        .unwrap();
    let view = JobView::look(&jobs[0].0, SystemTime::now());
    assert_eq!(view.gpus[0].target_limit_bytes, Some(40 * MIB));
    // A pause by hand is not changed.
    assert_eq!(view.target_perf, Some(0));
}
