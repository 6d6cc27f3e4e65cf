//! Files of jobs that this test writes itself: what is found, shown, sent, divided.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use larder_control::{BusId, Compat, ControlFile, PerfControl, StatusFile};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::json;
use tempfile::TempDir;

use crate::alive::Alive;
use crate::arguments::{parse_limit, show_bytes, show_micros};
use crate::coordinate::{Coordination, CoordinationEvent, CoordinationSettings};
use crate::files::{FilesError, JobFiles, find, find_named};
use crate::order::{Order, OrderError};
use crate::top::screen::{Act, Screen, look, send};
use crate::top::table::{HEADINGS, table};
use crate::view::{JobView, unix_ms};

const GPU: &str = "01:00.0";
const MIB: u64 = 1 << 20;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A job's status, as a job would write it now.
struct Status {
    pid: u32,
    version: Option<u64>,
    limit: u64,
    held: u64,
    wanted: u64,
    priority: i64,
    ended: bool,
}

impl Status {
    fn new(priority: i64, wanted: u64) -> Self {
        Self {
            pid: std::process::id(),
            version: None,
            limit: 0,
            held: 0,
            wanted,
            priority,
            ended: false,
        }
    }

    fn write(&self, job: &JobFiles) {
        let text = json!({
            "gpuUsageInfo": { GPU: {
                "deviceMemUsedMax": self.held, "deviceMemUsedMin": self.held,
                "deviceMemPoolSize": self.held, "deviceMemStable": self.held,
                "hostMemUsedMax": 0, "hostMemUsedMin": 0, "hostMemPoolSize": 0,
                "swapReason": "OOM", "deviceMemUsedNvidia": -1 } },
            "miniBatchDuration": 2500, "Durations": null,
            "larder": { "pid": self.pid, "name": job.name, "limitBytes": self.limit,
                "heldBytes": self.held, "perfControl": 100, "priority": self.priority,
                "controlVersion": self.version, "ended": self.ended,
                "writtenAtUnixMs": unix_ms(SystemTime::now()),
                "gpus": { GPU: { "limitBytes": self.limit, "heldBytes": self.held,
                    "deferredBytes": self.held.saturating_sub(self.limit),
                    "wantedBytes": self.wanted } } },
        });
        let text = text.to_string();
        StatusFile::parse(&text).unwrap();
        fs::write(&job.status, text).unwrap();
    }

    /// Does what the control file says.
    fn obey(&mut self, job: &JobFiles) {
        if let Ok(text) = fs::read(&job.control) {
            let file = ControlFile::parse(text, Compat::Corrected).unwrap().file;
            self.version = file.control_version;
            self.limit = file.gpus[&gpu()].max_device_mem.unwrap();
        }
        self.held = self.wanted.min(self.limit);
        self.write(job);
    }
}

fn gpu() -> BusId {
    GPU.parse().unwrap()
}

fn names(jobs: &[JobFiles]) -> Vec<&str> {
    jobs.iter().map(|job| job.name.as_str()).collect()
}

#[test]
fn files_pair_up_by_our_names_and_by_those_of_antman() {
    let folder = folder();
    for name in [
        "a.status.json",
        "a.control.json",
        "b_sche2pai.json",
        "c_pai2sche.json",
        ".a.control.json.1.tmp",
        ".hidden.status.json",
        ".status.json",
        "notes.txt",
    ] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let jobs = find(&[folder.path().to_owned()]).unwrap();
    assert_eq!(names(&jobs), ["a", "b", "c"]);
    assert_eq!(jobs[1].status, folder.path().join("b_pai2sche.json"));
    assert_eq!(jobs[2].control, folder.path().join("c_sche2pai.json"));
    let alone = find(&[jobs[0].control.clone(), jobs[0].status.clone()]).unwrap();
    assert_eq!(names(&alone), ["a"]);
    assert!(matches!(
        find(&[folder.path().join("notes.txt")]),
        Err(FilesError::NotNamed(_))
    ));
    assert!(matches!(
        find(&[folder.path().join("nowhere")]),
        Err(FilesError::Refused { .. })
    ));
    let error = find_named(folder.path(), "x").unwrap_err().to_string();
    assert!(error.contains("there are: a, b, c"), "{error}");
}

#[test]
fn an_order_changes_what_it_says_and_keeps_the_rest() {
    let folder = folder();
    let job = JobFiles::ours(folder.path(), "a");
    let text =
        json!({"mine": {"x": 1.5}, "gpuConfigInfo": {"02:00.0": {"maxDeviceMem": 7, "y": [1]}}});
    fs::write(&job.control, text.to_string()).unwrap();
    let order = Order {
        limit_bytes: Some(2 << 30),
        gpu: Some(gpu()),
        perf: PerfControl::new(50).ok(),
    };
    assert_eq!(order.give(&job).unwrap(), [""; 0]);
    let text = fs::read_to_string(&job.control).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let expected = json!({"mine": {"x": 1.5}, "perfControl": 50, "gpuConfigInfo": {
        GPU: {"maxDeviceMem": 2_147_483_648_u64},
        "02:00.0": {"maxDeviceMem": 7, "y": [1]}}});
    assert_eq!(value, expected);
}

#[test]
fn the_gpu_of_a_limit_is_the_one_that_the_job_names() {
    let folder = folder();
    let job = JobFiles::ours(folder.path(), "a");
    let order = Order {
        limit_bytes: Some(0),
        ..Order::default()
    };
    assert!(matches!(order.give(&job), Err(OrderError::NoGpu)));
    assert!(!job.control.exists());
    Status::new(0, 1).write(&job);
    order.give(&job).unwrap();
    let view = JobView::look(&job, SystemTime::now());
    assert_eq!(view.gpus[0].target_limit_bytes, Some(0));
    let two = json!({"gpuUsageInfo": {"01:00.0": {}, "02:00.0": {}}});
    let two = two.to_string().replace(
        "{}",
        r#"{"deviceMemUsedMax":0,"deviceMemUsedMin":0,"deviceMemPoolSize":0,"deviceMemStable":0,
           "hostMemUsedMax":0,"hostMemUsedMin":0,"hostMemPoolSize":0}"#,
    );
    fs::write(&job.status, two).unwrap();
    assert!(
        matches!(order.give(&job), Err(OrderError::SeveralGpus(names)) if names == "01:00.0, 02:00.0")
    );
}

#[test]
fn a_control_file_that_says_nothing_readable_is_not_written() {
    let folder = folder();
    let job = JobFiles::ours(folder.path(), "a");
    fs::write(&job.control, "{\"gpuCon").unwrap();
    let pause = Order {
        perf: Some(PerfControl::SUSPENDED),
        ..Order::default()
    };
    assert!(matches!(pause.give(&job), Err(OrderError::Unreadable(_))));
    assert_eq!(fs::read_to_string(&job.control).unwrap(), "{\"gpuCon");
    assert!(matches!(
        Order::default().give(&job),
        Err(OrderError::Empty)
    ));
    fs::write(&job.control, "{\"perfControl\": 300}").unwrap();
    let dropped = pause.give(&job).unwrap();
    assert!(dropped[0].contains("perfControl"), "{dropped:?}");
}

#[test]
fn the_table_shows_the_living_the_dead_and_what_is_wrong_with_files() {
    let folder = folder();
    let place = [folder.path().to_owned()];
    let job = JobFiles::ours(folder.path(), "alive");
    let mut status = Status::new(3, 0);
    (status.limit, status.held) = (8 * MIB, 12 * MIB);
    status.write(&job);
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let dead = JobFiles::ours(folder.path(), "dead");
    let mut status = Status::new(0, 0);
    status.pid = child.id();
    status.write(&dead);
    child.wait().unwrap();
    fs::write(folder.path().join("torn.status.json"), "{").unwrap();
    let jobs = look(&place).unwrap();
    let alive: Vec<_> = jobs.iter().map(|job| job.alive).collect();
    if fs::metadata("/proc/self/stat").is_ok() {
        assert_eq!(alive, [Alive::Yes, Alive::No, Alive::Unknown]);
        assert_eq!(jobs[0].problems, [""; 0]);
        assert!(jobs[1].problems[0].contains("control forget dead"));
    }
    let text = table(&jobs);
    let line = |name: &str| {
        let mut lines = text.lines();
        lines.find(|line| line.trim().starts_with(name)).unwrap()
    };
    for part in [
        "yes", "12.0 MiB", "8.0 MiB", "4.0 MiB", "OOM", "2.5 ms", GPU,
    ] {
        assert!(line("alive").contains(part), "{part} in {text}");
    }
    assert!(line("dead").contains(" dead "), "{text}");
    assert!(text.contains("torn: not a job's status"), "{text}");
}

/// What stands in the terminal, line by line.
fn drawn(screen: &Screen, width: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, 8)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect();
    (0..8).map(line).collect()
}

fn screen_of(folder: &Path) -> Screen {
    let mut screen = Screen::new(64 * MIB);
    screen.show(look(&[folder.to_owned()]).unwrap());
    screen
}

fn press(screen: &mut Screen, code: KeyCode) -> Act {
    screen.key(KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn a_terminal_shows_the_columns_that_fit_and_the_keys() {
    let folder = folder();
    assert!(drawn(&screen_of(folder.path()), 60)[0].starts_with("no jobs yet"));
    let job = JobFiles::ours(folder.path(), "train");
    let mut status = Status::new(7, 0);
    status.limit = 512 * MIB;
    status.write(&job);
    let screen = screen_of(folder.path());
    let wide = drawn(&screen, 200);
    for heading in HEADINGS {
        assert!(wide[0].contains(heading), "{heading} in {wide:?}");
    }
    assert!(wide[1].contains("train") && wide[1].contains("512 MiB"));
    assert!(wide[7].contains("q end"));
    let narrow = drawn(&screen, 80);
    for heading in ["job", "alive", "limit", "target", "perf", "problem"] {
        assert!(narrow[0].contains(heading), "{heading} in {narrow:?}");
    }
    assert!(!narrow[0].contains("stable"));
}

#[test]
fn keys_write_the_selected_jobs_control_file() {
    let folder = folder();
    for name in ["a", "b"] {
        let mut status = Status::new(0, 0);
        status.limit = 128 * MIB;
        status.write(&JobFiles::ours(folder.path(), name));
    }
    let mut screen = screen_of(folder.path());
    assert_eq!(press(&mut screen, KeyCode::Down), Act::Nothing);
    // There is no third one.
    press(&mut screen, KeyCode::Down);
    let sent = |screen: &mut Screen, code| {
        let Act::Tell(job, order) = press(screen, code) else {
            panic!("{code:?} tells");
        };
        assert_eq!(send(&job, &order), "b: sent");
        screen.show(look(&[folder.path().to_owned()]).unwrap());
        let text = fs::read(&job.control).unwrap();
        let file = ControlFile::parse(text, Compat::Corrected).unwrap().file;
        let limit = file.gpus.get(&gpu()).and_then(|gpu| gpu.max_device_mem);
        (limit.map(|bytes| bytes / MIB), file.perf_control)
    };
    assert_eq!(sent(&mut screen, KeyCode::Char('+')), (Some(192), None));
    assert_eq!(sent(&mut screen, KeyCode::Char('+')), (Some(256), None));
    assert_eq!(sent(&mut screen, KeyCode::Char('-')), (Some(192), None));
    assert_eq!(sent(&mut screen, KeyCode::Char('p')), (Some(192), Some(0)));
    assert_eq!(sent(&mut screen, KeyCode::Char('7')), (Some(192), Some(70)));
    assert_eq!(
        sent(&mut screen, KeyCode::Char('r')),
        (Some(192), Some(100))
    );
    press(&mut screen, KeyCode::Char('l'));
    for letter in "1GiBx".chars() {
        assert_eq!(press(&mut screen, KeyCode::Char(letter)), Act::Nothing);
    }
    assert!(drawn(&screen, 80)[6].contains("limit: 1GiBx"));
    press(&mut screen, KeyCode::Backspace);
    assert_eq!(sent(&mut screen, KeyCode::Enter), (Some(1024), Some(100)));
    assert!(!JobFiles::ours(folder.path(), "a").control.exists());
    assert_eq!(press(&mut screen, KeyCode::Char('q')), Act::Quit);
}

#[test]
fn a_limit_that_is_typed_wrong_is_said_and_not_written() {
    let folder = folder();
    let job = JobFiles::ours(folder.path(), "a");
    Status::new(0, 0).write(&job);
    let mut screen = screen_of(folder.path());
    for code in [KeyCode::Char('l'), KeyCode::Char('q'), KeyCode::Enter] {
        assert_eq!(press(&mut screen, code), Act::Nothing);
    }
    assert!(drawn(&screen, 80)[6].contains("`q` is not a byte count"));
    assert!(!job.control.exists());
}

#[test]
fn the_selection_stays_with_its_job_when_others_come_and_go() {
    let folder = folder();
    for name in ["b", "c"] {
        Status::new(0, 0).write(&JobFiles::ours(folder.path(), name));
    }
    let mut screen = screen_of(folder.path());
    press(&mut screen, KeyCode::Down);
    Status::new(0, 0).write(&JobFiles::ours(folder.path(), "a"));
    screen.show(look(&[folder.path().to_owned()]).unwrap());
    let Act::Tell(job, _) = press(&mut screen, KeyCode::Char('p')) else {
        panic!("it tells");
    };
    assert_eq!(job.name, "c");
}

fn settings(total_bytes: u64) -> CoordinationSettings {
    CoordinationSettings {
        total_bytes,
        step_bytes: MIB,
        calm: Duration::from_secs(1),
        floor_bytes: 0,
        perf_beside: PerfControl::FULL,
        gpu: None,
    }
}

/// Rounds until nothing is said any more, each job obeying after each.
fn settle(
    coordination: &mut Coordination,
    folder: &Path,
    jobs: &mut [(JobFiles, Status)],
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
        JobFiles::ours(folder.path(), "low"),
        Status::new(1, 90 * MIB),
    )];
    jobs[0].1.write(&jobs[0].0);
    let said = settle(&mut coordination, folder.path(), &mut jobs, &mut time);
    assert_eq!(jobs[0].1.limit, 90 * MIB);
    assert!(
        matches!(&said[0], CoordinationEvent::Joined { job, priority: 1, limit_bytes: 0 } if job == "low")
    );
    let high = JobFiles::ours(folder.path(), "high");
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
            let job = JobFiles::ours(folder.path(), name);
            (job, Status::new(priority, 80 * MIB))
        })
        .into();
    let mut first = Coordination::new(settings(100 * MIB));
    for (job, status) in &jobs {
        status.write(job);
    }
    settle(&mut first, folder.path(), &mut jobs, &mut time);
    let before = jobs[1].1.version.unwrap();
    // The last order of the first one has not been obeyed: `a` counts with the larger limit.
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
    let mut child = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    let mut time = 0;
    let mut dead = Status::new(1, 60 * MIB);
    dead.pid = child.id();
    let mut jobs = vec![(JobFiles::ours(folder.path(), "dead"), dead)];
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
        // Once, and with the way out.
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
    let mut child = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    let mut time = 0;
    let mut status = Status::new(1, 60 * MIB);
    status.pid = child.id();
    let mut jobs = vec![(JobFiles::ours(folder.path(), "a"), status)];
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
        JobFiles::ours(folder.path(), "good"),
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
    // A good job that writes rubbish keeps what it has.
    fs::write(&jobs[0].0.status, "rubbish").unwrap();
    coordination
        .round(&place, Duration::from_secs(500))
        .unwrap();
    assert_eq!(coordination.charged_bytes(), 40 * MIB);
}

#[test]
fn a_job_without_memory_yet_is_waited_for_without_a_word() {
    let folder = folder();
    let job = JobFiles::ours(folder.path(), "a");
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
    let mut jobs = vec![(JobFiles::ours(folder.path(), "a"), Status::new(1, 40 * MIB))];
    jobs[0].1.write(&jobs[0].0);
    let mut coordination = Coordination::new(settings(100 * MIB));
    settle(&mut coordination, folder.path(), &mut jobs, &mut time);
    let order = Order {
        limit_bytes: Some(90 * MIB),
        gpu: None,
        perf: Some(PerfControl::SUSPENDED),
    };
    order.give(&jobs[0].0).unwrap();
    coordination
        .round(&[folder.path().to_owned()], Duration::from_secs(500))
        .unwrap();
    let view = JobView::look(&jobs[0].0, SystemTime::now());
    assert_eq!(view.gpus[0].target_limit_bytes, Some(40 * MIB));
    // A pause by hand is nobody else's business.
    assert_eq!(view.target_perf, Some(0));
}

#[test]
fn sizes_and_times_are_shown_in_the_unit_that_suits() {
    assert_eq!(show_bytes(0), "0 B");
    assert_eq!(show_bytes(1023), "1023 B");
    assert_eq!(show_bytes(1024), "1.0 KiB");
    assert_eq!(show_bytes(100 << 30), "100 GiB");
    assert_eq!(show_bytes(u64::MAX), "none");
    assert_eq!(show_micros(999), "999 us");
    assert_eq!(show_micros(1_500), "1.5 ms");
    assert_eq!(show_micros(600_000_000), "10 min");
    assert!(matches!(
        Screen::new(1).key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)),
        Act::Quit
    ));
}

#[test]
fn a_limit_is_a_byte_count_or_0() {
    assert_eq!(parse_limit(" 0"), Ok(0));
    assert_eq!(parse_limit("8 GiB"), Ok(8 << 30));
    for text in ["", "0GiB", "-1", "8GB"] {
        assert!(parse_limit(text).is_err(), "{text}");
    }
}

#[test]
fn the_command_line_is_consistent() {
    <crate::Command as clap::CommandFactory>::command().debug_assert();
}
