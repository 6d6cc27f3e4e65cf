//! Jobs that start again, neighbours that lie, files that disappear: the total is never exceeded,
//! and no job takes memory from another.
#![cfg(target_os = "linux")]

use larder_model::Random;

use super::*;
use crate::alive::alive;

/// Returns a job of this process.
fn own(priority: i64, wanted: u64) -> Status {
    Status {
        life: Life::this(),
        ..Status::new(priority, wanted)
    }
}

fn control(job: &JobPaths) -> ControlFile {
    let text = fs::read(&job.control).unwrap();
    ControlFile::parse(text).unwrap().file
}

/// Returns a control file that limits the process with this life to `limit_bytes`.
fn orders(life: Option<Life>, limit_bytes: u64) -> ControlFile {
    let mut orders = ControlFile::default();
    orders.limit(gpu(), limit_bytes);
    (orders.life, orders.control_version) = (life, Some(1));
    orders
}

fn pause() -> ControlChange {
    ControlChange::share(PerfControl::SUSPENDED)
}

#[test]
fn a_job_that_starts_again_has_nothing_before_an_order_of_its_own() {
    let first = process(None).unwrap();
    let begun = own(1, 60 * MIB).again(&first);
    let mut world = World::new(&[("a", begun), ("b", own(1, 90 * MIB))]);
    world.settle();
    assert_eq!(world.limits(), [50, 50]);
    assert_eq!(control(&world.jobs[0].0).life, world.jobs[0].1.life);
    kill(first);
    let second = process(None).unwrap();
    // The control file is for the job's former life.
    let (files, again) = &mut world.jobs[0];
    *again = again.again(&second);
    again.obey(files);
    assert_eq!((again.limit, again.version), (0, None));
    // A coordinator that begins now does not give the jobs more than the total either.
    world.restart();
    world.settle();
    assert_eq!(world.limits(), [50, 50]);
    assert_eq!(control(&world.jobs[0].0).life, Life::of(second.id()));
    kill(second);
}

#[test]
fn a_coordinator_that_begins_counts_a_living_job_whose_status_is_gone() {
    let mut world = World::new(&[("a", own(1, 60 * MIB))]);
    world.settle();
    // The job was ordered to hold less, and has not obeyed yet.
    let files = world.jobs[0].0.clone();
    let mut lowered = control(&files);
    lowered.limit(gpu(), 20 * MIB);
    lowered.control_version = lowered.control_version.map(|version| version + 1);
    fs::write(&files.control, lowered.to_text()).unwrap();
    fs::remove_file(&files.status).unwrap();
    world.restart();
    let other = world.paths("b");
    own(9, 90 * MIB).write(&other);
    let said = world.round(0);
    assert_eq!(world.charged(), 100);
    assert_eq!(control(&other).gpus[&gpu()].max_device_mem, Some(40 * MIB));
    let problem = problem(&said, "a").unwrap();
    assert!(problem.contains("status is missing"), "{problem}");
    // The job writes its status again, and obeys.
    world.want(0, 60);
    world.join("b", own(9, 90 * MIB));
    world.settle();
    assert_eq!(world.limits(), [10, 90]);
}

#[test]
fn a_status_that_says_what_cannot_be_takes_from_nobody() {
    for lie in [u64::MAX, 1 << 60, 101 * MIB] {
        let mut world = World::new(&[("b", own(1, 90 * MIB))]);
        let liar = Status {
            limit: lie,
            held: lie,
            ..own(0, lie)
        };
        liar.write(&world.paths("a_liar"));
        // The lying job keeps its claim, and sets its own limit.
        let said: Vec<_> = (0..5).flat_map(|_| world.settle()).collect();
        let problem = problem(&said, "a_liar").unwrap();
        assert!(problem.contains("not believed"), "{problem}");
        assert_eq!(world.limits(), [90], "{lie}");
    }
}

#[test]
fn a_limit_that_nobody_gave_counts_until_there_was_time_to_obey() {
    let mut world = World::new(&[("b", own(1, 90 * MIB))]);
    let liar = Status {
        limit: u64::MAX,
        ..own(0, 0)
    };
    liar.write(&world.paths("liar"));
    world.round(0);
    assert_eq!(world.charged(), 100, "it may grow so far");
    let problem = problem(&world.round(1), "liar").unwrap();
    assert!(problem.contains("takes no limit but its own"), "{problem}");
    let (files, honest) = &mut world.jobs[0];
    honest.obey(files);
    assert_eq!(world.limits(), [90]);
}

#[test]
fn a_status_that_names_another_gpu_takes_from_nobody() {
    let liar = Status {
        gpu: "fe:00.0",
        ..own(9, 100 * MIB)
    };
    let mut world = World::new(&[("a_liar", liar), ("b", own(1, 90 * MIB))]);
    world.settle();
    assert_eq!(world.limits()[1], 90);
}

#[test]
fn a_clock_that_is_moved_ends_nobody() {
    let world = World::new(&[("a", own(1, MIB))]);
    let files = &world.jobs[0].0;
    let text = fs::read_to_string(&files.status).unwrap();
    let now = unix_ms(SystemTime::now());
    for wrote in [1, now - 60_000, now + 60_000, u64::MAX] {
        let mut status: serde_json::Value = serde_json::from_str(&text).unwrap();
        status["larder"]["writtenAtUnixMs"] = wrote.into();
        fs::write(&files.status, status.to_string()).unwrap();
        let view = JobView::look(files, SystemTime::now());
        assert_eq!(view.alive, Liveness::Yes, "{wrote}");
    }
}

#[test]
fn what_a_person_says_to_the_next_run_of_a_job_is_obeyed_by_it() {
    let world = World::new(&[]);
    let files = world.paths("a");
    let first = process(None).unwrap();
    let said = orders(Life::of(first.id()), 60 * MIB);
    fs::write(&files.control, said.to_text()).unwrap();
    // The order is for the existing run, and its limit stays.
    pause().give(&files).unwrap();
    let kept = control(&files);
    assert_eq!((kept.life, kept.control_version), (said.life, Some(1)));
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
    let former = next.gpus[&gpu()].max_device_mem;
    assert_eq!(former, None, "that was the former run's");
}

#[test]
fn a_status_that_a_neighbour_wrote_for_a_process_of_another_user_is_not_believed() {
    let mut world = World::new(&[]);
    let files = world.paths("a");
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
    let problem = problem(&world.round(0), "a").unwrap();
    assert!(problem.contains("not believed"), "{problem}");
    assert_eq!(world.charged(), 0);
    assert!(!files.control.exists());
    let view = JobView::look(&files, SystemTime::now());
    assert!(view.problems[0].contains("user 12345"), "{view:?}");
}

#[test]
fn a_users_own_control_file_is_written_and_counts_as_far_as_there_is_room() {
    const USER: u32 = 12345;
    // This process belongs to that user.
    let Ok(process) = process(Some(USER)) else {
        println!("skipped: only the superuser becomes somebody else");
        return;
    };
    // An earlier coordinator gave most memory to another job.
    let given = Status {
        limit: 70 * MIB,
        held: 70 * MIB,
        version: Some(1),
        ..own(1, 70 * MIB)
    };
    let mut world = World::new(&[("a", own(0, 50 * MIB).again(&process)), ("b", given)]);
    let [files, other] = ["a", "b"].map(|name| world.paths(name));
    let mut said = orders(world.jobs[0].1.life, u64::MAX);
    said.gpus.get_mut(&gpu()).unwrap().may_hold = Some(u64::MAX);
    fs::write(&files.control, said.to_text()).unwrap();
    let give_back = |file| std::os::unix::fs::chown(file, Some(USER), Some(USER)).unwrap();
    for file in [&files.status, &files.control] {
        give_back(file);
    }
    let ordered = orders(Life::this(), 70 * MIB);
    fs::write(&other.control, ordered.to_text()).unwrap();
    for second in 0..5 {
        world.round(second);
        assert_eq!(world.charged(), 100);
        for (files, status) in &mut world.jobs {
            status.obey(files);
        }
        give_back(&files.status);
    }
    assert_eq!(world.limits(), [30, 70]);
    kill(process);
}

#[test]
fn a_file_of_antmans_name_hides_no_living_job() {
    let mut world = World::new(&[]);
    let ordered = orders(Life::this(), 60 * MIB);
    fs::write(world.paths("a").control, ordered.to_text()).unwrap();
    fs::write(world.folder.path().join("a_pai2sche.json"), "{}").unwrap();
    world.round(0);
    assert_eq!(world.charged(), 60);
}

#[test]
fn a_job_that_has_memory_counts_though_the_new_floors_leave_none_for_it() {
    let mut world = World::new(&[("a", own(1, 50 * MIB)), ("b", own(1, 50 * MIB))]);
    world.settle();
    let floor_bytes = 80 * MIB;
    world.coordination = Coordination::new(CoordinationSettings {
        floor_bytes,
        ..settings(100 * MIB)
    });
    world.round(0);
    assert_eq!(world.charged(), 100);
}

#[test]
fn a_job_of_two_gpus_counts_on_each_and_has_the_orders_of_one_coordinator() {
    let mut world = World::new(&[("a", own(1, 50 * MIB))]);
    let files = world.paths("a");
    let other: BusId = "02:00.0".parse().unwrap();
    let mut status: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&files.status).unwrap()).unwrap();
    status["larder"]["gpus"][other.to_string()] =
        json!({"limitBytes": 0, "heldBytes": 0, "deferredBytes": 0, "wantedBytes": 9});
    fs::write(&files.status, status.to_string()).unwrap();
    // The coordinator of the other GPU was first.
    let of = |gpu| {
        Coordination::new(CoordinationSettings {
            gpu: Some(gpu),
            ..settings(100 * MIB)
        })
    };
    world.coordination = of(other);
    for _ in 0..2 {
        // The first coordinator takes the file, and then reads again.
        world.round(0);
    }
    let first = std::mem::replace(&mut world.coordination, of(gpu()));
    let said = world.round(0);
    let joined = matches!(said[0], CoordinationEvent::Joined { .. });
    assert!(joined, "{said:?}");
    let problem = problem(&said, "a").unwrap();
    assert!(problem.contains("several GPUs"), "{problem}");
    let ordered: Vec<_> = control(&files).gpus.keys().copied().collect();
    assert_eq!(ordered, [other]);
    drop(first);
    for _ in 0..2 {
        world.round(0);
    }
    assert!(control(&files).gpus.contains_key(&gpu()));
}

#[test]
fn of_two_living_processes_of_a_name_nobody_is_told_in_place_of_the_other() {
    let world = World::new(&[("a", own(1, MIB))]);
    let files = world.paths("a");
    let earlier = process(None).unwrap();
    let mut ordered = ControlFile::default();
    (ordered.life, ordered.perf_control) = (Life::of(earlier.id()), Some(50));
    fs::write(&files.control, ordered.to_text()).unwrap();
    let refused = pause().give(&files).unwrap_err();
    assert!(matches!(refused, OrderError::TwoProcesses(..)), "{refused}");
    assert_eq!(control(&files), ordered);
    kill(earlier);
    pause().give(&files).unwrap();
    let said = control(&files);
    let is_for_this = said.is_for(Life::this()) && said.perf_control == Some(0);
    assert!(is_for_this, "{said:?}");
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
        let mut world = World::new(&[("b", own(1, 30 * MIB)), ("c", own(1, 30 * MIB))]);
        world.settle();
        for round in 0..20 {
            for name in ["a_liar", "d_liar"] {
                let lie = Status {
                    version: Some(any(&mut random)).filter(|version| version % 3 > 0),
                    limit: any(&mut random),
                    held: any(&mut random),
                    ended: random.below(9) == 0,
                    ..own(0, any(&mut random))
                };
                lie.write(&world.paths(name));
            }
            if random.below(5) == 0 {
                world.restart();
            }
            world.time += random.below(2);
            world.round(world.time);
            for (files, status) in &mut world.jobs {
                status.obey(files);
                assert_eq!(status.limit, 30 * MIB, "round {round}");
            }
        }
    }
}

#[test]
fn who_may_not_command_a_job_is_told_so() {
    const USER: u32 = 12345;
    let Ok(process) = process(Some(USER)) else {
        println!("skipped: only the superuser becomes somebody else");
        return;
    };
    let world = World::new(&[("a", own(0, MIB).again(&process))]);
    let files = world.paths("a");
    fs::write(&files.control, "{}").unwrap();
    std::os::unix::fs::chown(&files.status, Some(USER), None).unwrap();
    // The file is owned by a third user. This process runs as the superuser, and leaves the file
    // unchanged.
    std::os::unix::fs::chown(&files.control, Some(USER + 1), None).unwrap();
    let refused = pause().give(&files).unwrap_err().to_string();
    let words = "orders here are those of user 12345";
    assert!(refused.contains(words), "{refused}");
    let view = JobView::look(&files, SystemTime::now());
    assert!(view.problems[0].contains("it is not obeyed"), "{view:?}");
    kill(process);
}
