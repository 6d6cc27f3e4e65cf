//! Actions before and after a run: order, errors, timing, and changes while a group runs.

use std::error::Error;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use larder_control::{Clock, Group, ManualClock, OnError, RunActions};
use larder_model::Random;

type Log = Mutex<Vec<u64>>;

/// Returns an action that logs its number and then fails if `fails` is set.
fn action(number: u64, fails: bool) -> impl Fn(&Log) -> Result<(), Box<dyn Error + Send + Sync>> {
    move |log| {
        log.lock().unwrap().push(number);
        match fails {
            true => Err(format!("no {number}").into()),
            false => Ok(()),
        }
    }
}

fn note(number: u64) -> impl Fn(&Log) -> Result<(), Box<dyn Error + Send + Sync>> {
    action(number, false)
}

fn fail(number: u64) -> impl Fn(&Log) -> Result<(), Box<dyn Error + Send + Sync>> {
    action(number, true)
}

fn actions() -> RunActions<Log> {
    RunActions::new(ManualClock::new())
}

/// Returns what a group's actions logged.
fn ran(actions: &RunActions<Log>, group: Group) -> Vec<u64> {
    let log = Log::default();
    let _ = actions.run(group, &log);
    log.into_inner().unwrap()
}

#[test]
fn am_9_upstreams_case_of_two_actions() {
    let actions = actions();
    for group in [Group::Pre, Group::Post] {
        actions.add(group, 1, "A", OnError::Fail, note(1));
    }
    actions.add(Group::Post, 2, "B", OnError::Fail, note(2));
    let log = Log::default();
    assert_eq!(actions.run(Group::Post, &log).unwrap().actions, 2);
    assert_eq!(*log.lock().unwrap(), [1, 2]);
    assert_eq!(actions.run(Group::Pre, &log).unwrap().actions, 1);
    assert_eq!(*log.lock().unwrap(), [1, 2, 1]);
}

#[test]
fn am_9_phases_run_in_increasing_order_and_actions_of_a_phase_as_they_were_added() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let actions = actions();
        let mut expected = Vec::new();
        for number in 0..random.below(40) {
            let phase = random.below(5) as i32 - 2;
            let group = [Group::Pre, Group::Post][random.below(2) as usize];
            actions.add(group, phase, "same", OnError::Fail, note(number));
            if group == Group::Post {
                expected.push((phase, number));
            }
        }
        expected.sort_unstable();
        let expected: Vec<_> = expected.into_iter().map(|(_, number)| number).collect();
        assert_eq!(ran(&actions, Group::Post), expected, "seed {seed}");
    }
}

#[test]
fn am_9_the_first_error_stops_the_group_and_names_its_action() {
    let actions = actions();
    actions.add(Group::Post, 3, "after", OnError::Fail, note(3));
    actions.add(Group::Post, 2, "bad", OnError::Fail, fail(2));
    actions.add(Group::Post, 2, "beside", OnError::Fail, note(9));
    actions.add(Group::Post, i32::MIN, "before", OnError::Fail, note(1));
    let log = Log::default();
    let failed = actions.run(Group::Post, &log).unwrap_err();
    assert_eq!(*log.lock().unwrap(), [1, 2]);
    assert_eq!(
        (failed.group, failed.phase, &*failed.name),
        (Group::Post, 2, "bad")
    );
    assert_eq!(
        failed.to_string(),
        "the action bad in phase 2 after the run: no 2; fix it, or add it with another policy"
    );
}

#[test]
fn am_9_a_warning_is_returned_and_an_ignored_error_counted() {
    let actions = actions();
    actions.add(Group::Pre, 0, "quiet", OnError::Ignore, fail(1));
    actions.add(Group::Pre, 0, "loud", OnError::Warn, fail(2));
    actions.add(Group::Pre, 0, "well", OnError::Warn, note(3));
    let log = Log::default();
    let ran = actions.run(Group::Pre, &log).unwrap();
    assert_eq!((ran.actions, &*log.lock().unwrap()), (3, &vec![1, 2, 3]));
    let names: Vec<_> = ran.warnings.iter().map(|failed| &*failed.name).collect();
    assert_eq!(names, ["loud"]);
    let errors = |name| actions.find(Group::Pre, 0, name).unwrap().timing.errors;
    assert_eq!((errors("quiet"), errors("loud"), errors("well")), (1, 1, 0));
}

#[test]
fn actions_are_found_by_group_phase_and_name_the_first_of_a_name_first() {
    let actions = actions();
    let first = actions.add(Group::Post, 1, "twin", OnError::Fail, note(1));
    let second = actions.add(Group::Post, 1, "twin", OnError::Warn, note(2));
    let find = |group, phase, name| actions.find(group, phase, name).map(|info| info.id);
    assert_eq!(find(Group::Post, 1, "twin"), Some(first));
    assert_eq!(find(Group::Pre, 1, "twin"), None);
    assert_eq!(find(Group::Post, 2, "twin"), None);
    assert_eq!(find(Group::Post, 1, "twi"), None);
    assert!(actions.remove(first));
    assert!(!actions.remove(first));
    assert_eq!(find(Group::Post, 1, "twin"), Some(second));
    assert_eq!(ran(&actions, Group::Post), [2]);
    // An ID is never reused.
    assert!(actions.remove(second));
    let third = actions.add(Group::Post, 1, "twin", OnError::Fail, note(3));
    assert!(third != first && third != second);
}

#[test]
fn each_actions_time_is_counted_summed_and_its_longest_kept() {
    let clock = Arc::new(ManualClock::new());
    let actions = RunActions::<u64>::new(Arc::clone(&clock));
    actions.add(Group::Post, 1, "slow", OnError::Ignore, {
        let clock = Arc::clone(&clock);
        move |millis: &u64| {
            clock.sleep(Duration::from_millis(*millis));
            if *millis == 7 {
                Err("seven".into())
            } else {
                Ok(())
            }
        }
    });
    actions.add(Group::Post, 1, "fast", OnError::Fail, |_: &u64| Ok(()));
    for millis in [2, 7, 3] {
        let _ = actions.run(Group::Post, &millis);
    }
    let timing = actions.find(Group::Post, 1, "slow").unwrap().timing;
    assert_eq!((timing.runs, timing.errors), (3, 1));
    assert_eq!(timing.total, Duration::from_millis(12));
    assert_eq!(timing.max, Duration::from_millis(7));
    let timing = actions.find(Group::Post, 1, "fast").unwrap().timing;
    assert_eq!((timing.runs, timing.total), (3, Duration::ZERO));
}

#[test]
fn what_is_added_or_removed_while_a_group_runs_counts_from_the_next_run() {
    let actions = Arc::new_cyclic(|weak: &Weak<RunActions<Log>>| {
        let actions = actions();
        let own = weak.clone();
        actions.add(
            Group::Post,
            1,
            "changes",
            OnError::Fail,
            move |log: &Log| {
                let actions = own.upgrade().unwrap();
                log.lock().unwrap().push(1);
                if let Some(later) = actions.find(Group::Post, 2, "later") {
                    assert!(actions.remove(later.id));
                    actions.add(Group::Post, 1, "new", OnError::Fail, note(3));
                    // An action may also run another group.
                    let _ = actions.run(Group::Pre, log)?;
                }
                Ok(())
            },
        );
        actions.add(Group::Post, 2, "later", OnError::Fail, note(2));
        actions.add(Group::Pre, 0, "inner", OnError::Fail, note(9));
        actions
    });
    assert_eq!(ran(&actions, Group::Post), [1, 9, 2]);
    assert_eq!(ran(&actions, Group::Post), [1, 3]);
}

#[test]
fn threads_add_remove_and_run_at_once() {
    let actions = actions();
    actions.add(Group::Post, 0, "stays", OnError::Fail, note(0));
    thread::scope(|scope| {
        for number in 1..4 {
            let actions = &actions;
            scope.spawn(move || {
                for _ in 0..200 {
                    let id = actions.add(Group::Post, 1, "comes", OnError::Fail, note(number));
                    let log = ran(actions, Group::Post);
                    assert!(log[0] == 0 && log.contains(&number), "{log:?}");
                    assert!(actions.remove(id));
                }
            });
        }
    });
    assert_eq!(ran(&actions, Group::Post), [0]);
    assert_eq!(actions.infos().len(), 1);
}
