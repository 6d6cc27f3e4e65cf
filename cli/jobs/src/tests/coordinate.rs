//! Rounds of the coordinator over jobs that answer through their files.

use super::*;

#[test]
fn memory_moves_to_the_higher_priority_and_back_when_that_one_wants_less() {
    let mut world = World::new(&[("low", Status::new(1, 90 * MIB))]);
    let said = world.settle();
    assert_eq!(world.limits(), [90]);
    assert!(
        matches!(&said[0], CoordinationEvent::Joined { job, priority: 1, limit_bytes: 0 } if job == "low")
    );
    world.join("high", Status::new(5, 70 * MIB));
    let said = world.settle();
    assert_eq!(world.limits(), [30, 70]);
    let why = said.iter().find_map(|said| match said {
        CoordinationEvent::Limit { job, why, .. } if job == "low" => Some(why.as_str()),
        _ => None,
    });
    assert_eq!(why, Some("for high"));
    world.want(1, 20);
    world.settle();
    assert_eq!(world.limits(), [80, 20]);
}

#[test]
fn lent_memory_moves_to_a_lower_priority_and_the_reason_names_it() {
    let mut world = World::new(&[("cache", Status::new(5, 90 * MIB))]);
    world.jobs[0].1.guaranteed = Some(20 * MIB);
    world.settle();
    assert_eq!(world.limits(), [90]);
    world.join("work", Status::new(1, 60 * MIB));
    let said = world.settle();
    assert_eq!(world.limits(), [40, 60]);
    let why = said.iter().find_map(|said| match said {
        CoordinationEvent::Limit { job, why, .. } if job == "cache" => Some(why.as_str()),
        _ => None,
    });
    assert_eq!(why, Some("for work"));
}

#[test]
fn another_coordinator_takes_over_and_no_old_answer_counts() {
    let mut world = World::new(&[
        ("a", Status::new(1, 80 * MIB)),
        ("b", Status::new(2, 80 * MIB)),
    ]);
    world.settle();
    let before = world.jobs[1].1.version.unwrap();
    // The last order of the first coordinator has not been obeyed: `a` counts as the larger of its
    // two limits.
    (world.jobs[0].1.limit, world.jobs[0].1.version) = (5 * MIB, Some(0));
    world.want(0, 80);
    world.restart();
    world.round(0);
    assert_eq!(world.charged(), 100);
    world.want(1, 40);
    world.settle();
    assert_eq!(world.limits(), [60, 40]);
    assert!(world.jobs[1].1.version.unwrap() > before);
}

#[test]
fn a_dead_jobs_memory_counts_until_it_is_reported_gone() {
    let process = process(None).unwrap();
    let mut dead = Status::new(1, 60 * MIB);
    dead.pid = process.id();
    let mut world = World::new(&[("dead", dead)]);
    world.settle();
    kill(process);
    // Its status may have been read just before its end.
    assert_eq!(world.round(500), []);
    let said = world.round(500);
    assert_eq!(world.charged(), 60);
    if fs::metadata("/proc/self/stat").is_ok() {
        // It is reported once, with the remedy.
        let problem = problem(&said, "dead").unwrap();
        assert!(problem.contains("control forget dead"), "{problem}");
        assert_eq!(world.round(500), []);
    }
    fs::remove_file(&world.jobs[0].0.status).unwrap();
    assert!(is_gone(&world.round(501), "dead"));
    assert_eq!(world.charged(), 0);
}

#[test]
fn a_job_that_said_its_end_is_gone_once_its_process_is() {
    let process = process(None).unwrap();
    let mut status = Status::new(1, 60 * MIB);
    status.pid = process.id();
    let mut world = World::new(&[("a", status)]);
    world.settle();
    world.jobs[0].1.ended = true;
    world.want(0, 60);
    world.settle();
    assert_eq!(world.charged(), 60);
    kill(process);
    assert!(world.round(500).contains(&CoordinationEvent::Gone {
        job: "a".into(),
        why: "it ended"
    }));
    assert_eq!(world.charged(), 0);
}

#[test]
fn rubbish_is_said_once_and_disturbs_nobody() {
    let mut world = World::new(&[("good", Status::new(1, 40 * MIB))]);
    fs::write(world.folder.path().join("x.status.json"), "[1, 2").unwrap();
    fs::write(world.folder.path().join("antman_pai2sche.json"), "{}").unwrap();
    let said = world.settle();
    assert_eq!(world.limits(), [40]);
    let is_problem = |said: &&CoordinationEvent| matches!(said, CoordinationEvent::Problem { .. });
    assert_eq!(said.iter().filter(is_problem).count(), 2, "{said:?}");
    // A job whose status becomes garbage keeps its memory.
    fs::write(&world.jobs[0].0.status, "rubbish").unwrap();
    world.round(500);
    assert_eq!(world.charged(), 40);
}

#[test]
fn a_job_without_memory_yet_is_waited_for_without_a_word() {
    let mut world = World::new(&[]);
    let job = world.paths("a");
    let early = json!({"larder": {"pid": std::process::id(), "name": "a", "limitBytes": 0,
        "perfControl": 100}});
    fs::write(&job.status, early.to_string()).unwrap();
    world.coordination = Coordination::new(CoordinationSettings {
        gpu: Some(gpu()),
        ..settings(MIB)
    });
    assert_eq!(world.round(0), []);
    Status::new(1, MIB).write(&job);
    let said = world.round(0);
    let joined = matches!(said[0], CoordinationEvent::Joined { .. });
    assert!(joined, "{said:?}");
}

#[test]
fn a_limit_that_was_changed_by_hand_is_changed_back() {
    let mut world = World::new(&[("a", Status::new(1, 40 * MIB))]);
    world.settle();
    let order = ControlChange {
        limit_bytes: Some(90 * MIB),
        perf: Some(PerfControl::SUSPENDED),
        ..ControlChange::default()
    };
    order.give(&world.jobs[0].0).unwrap();
    world.round(500);
    let view = JobView::look(&world.jobs[0].0, SystemTime::now());
    assert_eq!(view.gpus[0].target_limit_bytes, Some(40 * MIB));
    // A pause that was set by hand stays.
    assert_eq!(view.target_perf, Some(0));
}
