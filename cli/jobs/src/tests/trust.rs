//! Jobs that start again, neighbours that lie, files that disappear: the total holds, and no job
//! takes from another.
#![cfg(target_os = "linux")]

use larder_model::Random;

use super::coordinate::{settings, settle};
use super::*;
use crate::alive::alive;

/// Returns a job of this process.
fn own(priority: i64, wanted: u64) -> Status {
    Status {
        life: Life::this(),
        ..Status::new(priority, wanted)
    }
}

fn job(folder: &TempDir, name: &str) -> JobPaths {
    JobPaths::ours(folder.path(), name)
}

fn places(folder: &TempDir) -> [PathBuf; 1] {
    [folder.path().to_owned()]
}

fn control(job: &JobPaths) -> ControlFile {
    let text = fs::read(&job.control).unwrap();
    ControlFile::parse(text).unwrap().file
}

/// Returns the reported problem of a job, if any.
fn problem(said: &[CoordinationEvent], of: &str) -> Option<String> {
    said.iter().find_map(|said| match said {
        CoordinationEvent::Problem { job, problem } if job == of => Some(problem.clone()),
        _ => None,
    })
}

#[test]
fn a_job_that_starts_again_has_nothing_before_an_order_of_its_own() {
    let folder = folder();
    let first = process(None).unwrap();
    let begun = own(1, 60 * MIB).again(&first);
    let mut jobs = vec![
        (job(&folder, "a"), begun),
        (job(&folder, "b"), own(1, 90 * MIB)),
    ];
    let mut coordination = Coordination::new(settings(100 * MIB));
    let mut time = 0;
    jobs.iter().for_each(|(job, status)| status.write(job));
    settle(&mut coordination, folder.path(), &mut jobs, &mut time);
    assert_eq!((jobs[0].1.limit, jobs[1].1.limit), (50 * MIB, 50 * MIB));
    assert_eq!(control(&jobs[0].0).life, jobs[0].1.life);
    kill(first);
    let second = process(None).unwrap();
    jobs[0].1 = jobs[0].1.again(&second);
    // The control file is for the job's former life.
    let (files, again) = &mut jobs[0];
    again.obey(files);
    assert_eq!((again.limit, again.version), (0, None));
    // A coordinator that begins now does not give it more than there is either.
    let mut coordination = Coordination::new(settings(100 * MIB));
    settle(&mut coordination, folder.path(), &mut jobs, &mut time);
    assert_eq!((jobs[0].1.limit, jobs[1].1.limit), (50 * MIB, 50 * MIB));
    assert_eq!(control(&jobs[0].0).life, Life::of(second.id()));
    kill(second);
}

#[test]
fn a_coordinator_that_begins_counts_a_living_job_whose_status_is_gone() {
    let folder = folder();
    let mut time = 0;
    let mut jobs = vec![(job(&folder, "a"), own(1, 60 * MIB))];
    let mut first = Coordination::new(settings(100 * MIB));
    jobs[0].1.write(&jobs[0].0);
    settle(&mut first, folder.path(), &mut jobs, &mut time);
    // The job is ordered to have less, and has not obeyed.
    let files = jobs[0].0.clone();
    let mut lowered = control(&files);
    lowered.limit(gpu(), 20 * MIB);
    lowered.control_version = lowered.control_version.map(|version| version + 1);
    fs::write(&files.control, lowered.to_text()).unwrap();
    fs::remove_file(&files.status).unwrap();
    let mut second = Coordination::new(settings(100 * MIB));
    let other = job(&folder, "b");
    own(9, 90 * MIB).write(&other);
    let said = second.round(&places(&folder), Duration::ZERO).unwrap();
    assert_eq!(second.charged_bytes(), 100 * MIB);
    assert_eq!(control(&other).gpus[&gpu()].max_device_mem, Some(40 * MIB));
    assert!(
        problem(&said, "a").unwrap().contains("status is missing"),
        "{said:?}"
    );
    // The job writes its status again, and obeys.
    jobs[0].1.write(&files);
    jobs.push((other, own(9, 90 * MIB)));
    settle(&mut second, folder.path(), &mut jobs, &mut time);
    assert_eq!((jobs[0].1.limit, jobs[1].1.limit), (10 * MIB, 90 * MIB));
}

#[test]
fn a_status_that_says_what_cannot_be_takes_from_nobody() {
    for lie in [u64::MAX, 1 << 60, 101 * MIB] {
        let folder = folder();
        let mut time = 0;
        let mut coordination = Coordination::new(settings(100 * MIB));
        let liar = Status {
            limit: lie,
            held: lie,
            ..own(0, lie)
        };
        liar.write(&job(&folder, "a_liar"));
        let mut jobs = vec![(job(&folder, "b"), own(1, 90 * MIB))];
        jobs[0].1.write(&jobs[0].0);
        let mut said = Vec::new();
        // The lying job keeps its claim, and sets its own limit.
        for _ in 0..5 {
            said.extend(settle(
                &mut coordination,
                folder.path(),
                &mut jobs,
                &mut time,
            ));
        }
        assert!(
            problem(&said, "a_liar").unwrap().contains("not believed"),
            "{said:?}"
        );
        assert_eq!(jobs[0].1.limit, 90 * MIB, "{lie}");
    }
}

#[test]
fn a_limit_that_nobody_gave_counts_until_there_was_time_to_obey() {
    let folder = folder();
    let mut coordination = Coordination::new(settings(100 * MIB));
    let liar = Status {
        limit: u64::MAX,
        ..own(0, 0)
    };
    liar.write(&job(&folder, "liar"));
    let files = job(&folder, "b");
    let mut honest = own(1, 90 * MIB);
    honest.write(&files);
    let round = |coordination: &mut Coordination, second| {
        coordination
            .round(&places(&folder), Duration::from_secs(second))
            .unwrap()
    };
    round(&mut coordination, 0);
    assert_eq!(
        coordination.charged_bytes(),
        100 * MIB,
        "it may grow so far"
    );
    let said = round(&mut coordination, 1);
    assert!(
        problem(&said, "liar")
            .unwrap()
            .contains("takes no limit but its own"),
        "{said:?}"
    );
    honest.obey(&files);
    assert_eq!(honest.limit, 90 * MIB);
}

#[test]
fn a_status_that_names_another_gpu_takes_from_nobody() {
    let folder = folder();
    let mut time = 0;
    let mut coordination = Coordination::new(settings(100 * MIB));
    let mut jobs = vec![
        (
            job(&folder, "a_liar"),
            Status {
                gpu: "fe:00.0",
                ..own(9, 100 * MIB)
            },
        ),
        (job(&folder, "b"), own(1, 90 * MIB)),
    ];
    jobs.iter().for_each(|(job, status)| status.write(job));
    settle(&mut coordination, folder.path(), &mut jobs, &mut time);
    assert_eq!(jobs[1].1.limit, 90 * MIB);
}

#[test]
fn a_clock_that_is_moved_ends_nobody() {
    let folder = folder();
    let files = job(&folder, "a");
    own(1, MIB).write(&files);
    let text = fs::read_to_string(&files.status).unwrap();
    let now = unix_ms(SystemTime::now());
    for wrote in [1, now - 60_000, now + 60_000, u64::MAX] {
        let mut status: serde_json::Value = serde_json::from_str(&text).unwrap();
        status["larder"]["writtenAtUnixMs"] = wrote.into();
        fs::write(&files.status, status.to_string()).unwrap();
        assert_eq!(
            JobView::look(&files, SystemTime::now()).alive,
            Liveness::Yes,
            "{wrote}"
        );
    }
}

#[test]
fn what_a_person_says_to_the_next_run_of_a_job_is_obeyed_by_it() {
    let folder = folder();
    let files = job(&folder, "a");
    let first = process(None).unwrap();
    let mut said = ControlFile::default();
    said.limit(gpu(), 60 * MIB);
    said.life = Life::of(first.id());
    said.control_version = Some(7);
    fs::write(&files.control, said.to_text()).unwrap();
    // The order is for the existing run, beside its limit.
    ControlChange::share(PerfControl::SUSPENDED)
        .give(&files)
        .unwrap();
    let kept = control(&files);
    assert_eq!((kept.life, kept.control_version), (said.life, Some(7)));
    kill(first);
    assert_eq!(alive(None, said.life), Liveness::No);
    ControlChange::share(PerfControl::FULL)
        .give(&files)
        .unwrap();
    let next = control(&files);
    assert_eq!(
        (next.life, next.control_version, next.perf_control),
        (None, None, Some(100))
    );
    assert_eq!(
        next.gpus[&gpu()].max_device_mem,
        None,
        "that was the former run's"
    );
}

#[test]
fn a_status_that_a_neighbour_wrote_for_a_process_of_another_user_is_not_believed() {
    let folder = folder();
    let files = job(&folder, "a");
    // A status whose life belongs to a process other than the one it names is not believed.
    let other = process(None).unwrap();
    let borrowed = Status {
        pid: other.id(),
        ..own(1, 90 * MIB)
    };
    borrowed.write(&files);
    assert!(JobView::look(&files, SystemTime::now()).problems[0].contains("not believed"));
    kill(other);
    own(1, 90 * MIB).write(&files);
    if std::os::unix::fs::chown(&files.status, Some(12345), None).is_err() {
        println!("skipped: only the superuser gives files away");
        return;
    }
    let mut coordination = Coordination::new(settings(100 * MIB));
    let said = coordination
        .round(&places(&folder), Duration::ZERO)
        .unwrap();
    assert!(
        problem(&said, "a").unwrap().contains("not believed"),
        "{said:?}"
    );
    assert_eq!(coordination.charged_bytes(), 0);
    assert!(!files.control.exists());
    let view = JobView::look(&files, SystemTime::now());
    assert!(view.problems[0].contains("user 12345"), "{view:?}");
}

#[test]
fn a_users_own_control_file_is_written_and_counts_as_far_as_there_is_room() {
    const USER: u32 = 12345;
    let folder = folder();
    let files = job(&folder, "a");
    // A process of that user.
    let Ok(process) = process(Some(USER)) else {
        println!("skipped: only the superuser becomes somebody else");
        return;
    };
    let mut status = own(0, 50 * MIB).again(&process);
    status.write(&files);
    let mut said = ControlFile::default();
    said.limit(gpu(), u64::MAX);
    said.gpus.get_mut(&gpu()).unwrap().may_hold = Some(u64::MAX);
    (said.life, said.control_version) = (status.life, Some(1));
    fs::write(&files.control, said.to_text()).unwrap();
    for file in [&files.status, &files.control] {
        std::os::unix::fs::chown(file, Some(USER), Some(USER)).unwrap();
    }
    // An earlier coordinator gave most memory to another job.
    let other = job(&folder, "b");
    let mut given = Status {
        limit: 70 * MIB,
        held: 70 * MIB,
        version: Some(1),
        ..own(1, 70 * MIB)
    };
    given.write(&other);
    let mut ordered = ControlFile::default();
    ordered.limit(gpu(), 70 * MIB);
    (ordered.life, ordered.control_version) = (given.life, Some(1));
    fs::write(&other.control, ordered.to_text()).unwrap();
    let mut coordination = Coordination::new(settings(100 * MIB));
    for second in 0..5 {
        coordination
            .round(&places(&folder), Duration::from_secs(second))
            .unwrap();
        assert_eq!(coordination.charged_bytes(), 100 * MIB);
        given.obey(&other);
        status.obey(&files);
        std::os::unix::fs::chown(&files.status, Some(USER), Some(USER)).unwrap();
    }
    assert_eq!((given.limit, status.limit), (70 * MIB, 30 * MIB));
    kill(process);
}

#[test]
fn a_file_of_antmans_name_hides_no_living_job() {
    let folder = folder();
    let files = job(&folder, "a");
    let mut ordered = ControlFile::default();
    ordered.limit(gpu(), 60 * MIB);
    (ordered.life, ordered.control_version) = (Life::this(), Some(1));
    fs::write(&files.control, ordered.to_text()).unwrap();
    fs::write(folder.path().join("a_pai2sche.json"), "{}").unwrap();
    let mut coordination = Coordination::new(settings(100 * MIB));
    coordination
        .round(&places(&folder), Duration::ZERO)
        .unwrap();
    assert_eq!(coordination.charged_bytes(), 60 * MIB);
}

#[test]
fn a_job_that_has_memory_counts_though_the_new_floors_leave_none_for_it() {
    let folder = folder();
    let mut time = 0;
    let mut jobs = ["a", "b"]
        .map(|name| (job(&folder, name), own(1, 50 * MIB)))
        .to_vec();
    jobs.iter().for_each(|(job, status)| status.write(job));
    let mut first = Coordination::new(settings(100 * MIB));
    settle(&mut first, folder.path(), &mut jobs, &mut time);
    let floor_bytes = 80 * MIB;
    let mut second = Coordination::new(CoordinationSettings {
        floor_bytes,
        ..settings(100 * MIB)
    });
    second.round(&places(&folder), Duration::ZERO).unwrap();
    assert_eq!(second.charged_bytes(), 100 * MIB);
}

#[test]
fn a_job_of_two_gpus_counts_on_each_and_has_the_orders_of_one_coordinator() {
    let folder = folder();
    let files = job(&folder, "a");
    let other: BusId = "02:00.0".parse().unwrap();
    own(1, 50 * MIB).write(&files);
    let mut status = fs::read_to_string(&files.status).unwrap();
    let on_gpu = format!("\"gpus\":{{\"{GPU}\":");
    let limit = "{\"limitBytes\":0,\"heldBytes\":0,\"deferredBytes\":0,\"wantedBytes\":9}";
    status = status.replacen(
        &on_gpu,
        &format!("\"gpus\":{{\"{other}\":{limit},\"{GPU}\":"),
        1,
    );
    fs::write(&files.status, status).unwrap();
    // The coordinator of the other GPU was first.
    let of = |gpu| {
        Coordination::new(CoordinationSettings {
            gpu: Some(gpu),
            ..settings(100 * MIB)
        })
    };
    let (mut first, mut second) = (of(other), of(gpu()));
    for _ in 0..2 {
        // The first coordinator takes the file, and then reads again.
        first.round(&places(&folder), Duration::ZERO).unwrap();
    }
    let said = second.round(&places(&folder), Duration::ZERO).unwrap();
    assert!(
        matches!(said[0], CoordinationEvent::Joined { .. }),
        "{said:?}"
    );
    assert!(
        problem(&said, "a").unwrap().contains("several GPUs"),
        "{said:?}"
    );
    assert_eq!(
        control(&files).gpus.keys().copied().collect::<Vec<_>>(),
        [other]
    );
    drop(first);
    for _ in 0..2 {
        second.round(&places(&folder), Duration::ZERO).unwrap();
    }
    assert!(control(&files).gpus.contains_key(&gpu()));
}

#[test]
fn of_two_living_processes_of_a_name_nobody_is_told_in_place_of_the_other() {
    let folder = folder();
    let files = job(&folder, "a");
    let earlier = process(None).unwrap();
    let mut ordered = ControlFile::default();
    (ordered.life, ordered.perf_control) = (Life::of(earlier.id()), Some(50));
    fs::write(&files.control, ordered.to_text()).unwrap();
    own(1, MIB).write(&files);
    let refused = ControlChange::share(PerfControl::SUSPENDED)
        .give(&files)
        .unwrap_err();
    assert!(matches!(refused, OrderError::TwoProcesses(..)), "{refused}");
    assert_eq!(control(&files), ordered);
    kill(earlier);
    ControlChange::share(PerfControl::SUSPENDED)
        .give(&files)
        .unwrap();
    let said = control(&files);
    assert!(
        said.is_for(Life::this()) && said.perf_control == Some(0),
        "{said:?}"
    );
}

/// Returns a number of any size, often near the total.
fn any(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.below(120) * MIB,
        1 => u64::MAX - random.below(3),
        _ => random.next_u64() >> random.below(64),
    }
}

#[test]
fn no_lie_takes_what_another_was_given() {
    let rounds = match std::env::var_os("LARDER_ROUNDS").is_some_and(|word| word == "all") {
        true => 2_000,
        false => 20,
    };
    for seed in 0..rounds {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let folder = folder();
        let mut coordination = Coordination::new(settings(100 * MIB));
        let mut honest = ["b", "c"]
            .map(|name| (job(&folder, name), own(1, 30 * MIB)))
            .to_vec();
        honest.iter().for_each(|(job, status)| status.write(job));
        let mut time = 0;
        settle(&mut coordination, folder.path(), &mut honest, &mut time);
        for round in 0..20 {
            for name in ["a_liar", "d_liar"] {
                let lie = Status {
                    version: Some(any(&mut random)).filter(|version| version % 3 > 0),
                    limit: any(&mut random),
                    held: any(&mut random),
                    ended: random.below(9) == 0,
                    ..own(0, any(&mut random))
                };
                lie.write(&job(&folder, name));
            }
            if random.below(5) == 0 {
                coordination = Coordination::new(settings(100 * MIB));
            }
            time += random.below(2);
            coordination
                .round(&places(&folder), Duration::from_secs(time))
                .unwrap();
            for (job, status) in &mut honest {
                status.obey(job);
                assert_eq!(status.limit, 30 * MIB, "round {round}");
            }
        }
    }
}

#[test]
fn who_may_not_command_a_job_is_told_so() {
    const USER: u32 = 12345;
    let folder = folder();
    let files = job(&folder, "a");
    let Ok(process) = process(Some(USER)) else {
        println!("skipped: only the superuser becomes somebody else");
        return;
    };
    own(0, MIB).again(&process).write(&files);
    fs::write(&files.control, "{}").unwrap();
    std::os::unix::fs::chown(&files.status, Some(USER), None).unwrap();
    // The file is owned by a third user, and this process, the superuser's, leaves it unchanged.
    std::os::unix::fs::chown(&files.control, Some(USER + 1), None).unwrap();
    let refused = ControlChange::share(PerfControl::SUSPENDED)
        .give(&files)
        .unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("orders here are those of user 12345"),
        "{refused}"
    );
    let view = JobView::look(&files, SystemTime::now());
    assert!(view.problems[0].contains("it is not obeyed"), "{view:?}");
    kill(process);
}
