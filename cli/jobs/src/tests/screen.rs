//! The screen of `top`, and its keys.

use super::*;

#[test]
fn the_table_shows_the_living_the_dead_and_what_is_wrong_with_files() {
    let folder = folder();
    let place = [folder.path().to_owned()];
    let job = JobPaths::ours(folder.path(), "alive");
    let mut status = Status::new(3, 0);
    (status.limit, status.held) = (8 * MIB, 12 * MIB);
    status.write(&job);
    let mut child = Command::new("true").spawn().unwrap();
    let dead = JobPaths::ours(folder.path(), "dead");
    let mut status = Status::new(0, 0);
    status.pid = child.id();
    status.write(&dead);
    child.wait().unwrap();
    fs::write(folder.path().join("torn.status.json"), "{").unwrap();
    let jobs = look(&place).unwrap();
    let alive: Vec<_> = jobs.iter().map(|job| job.alive).collect();
    if fs::metadata("/proc/self/stat").is_ok() {
        assert_eq!(alive, [Liveness::Yes, Liveness::No, Liveness::Unknown]);
        assert_eq!(jobs[0].problems, [""; 0]);
        assert!(jobs[1].problems[0].contains("control forget dead"));
    }
    let text = table(&jobs, &[], true, usize::MAX).unwrap();
    let line = |name: &str| {
        let mut lines = text.lines();
        lines.find(|line| line.trim().starts_with(name)).unwrap()
    };
    for part in ["limit lowered", "12 MiB", "8 MiB", "4 MiB", "2.5 ms", GPU] {
        assert!(line("alive").contains(part), "{part} in {text}");
    }
    assert!(line("dead").contains(" dead "), "{text}");
    assert!(text.contains("torn: not a job's status"), "{text}");
}

#[test]
fn the_state_is_in_words_that_are_no_failure_where_there_is_none() {
    let folder = folder();
    Status::new(3, 0).write(&JobPaths::ours(folder.path(), "night"));
    let mut job = look(&[folder.path().to_owned()]).unwrap().remove(0);
    let state = |job: &JobView| {
        let wide = table(std::slice::from_ref(job), &[], true, usize::MAX).unwrap();
        assert!(!wide.contains("OOM"), "{wide}");
        let named = ["state".to_owned()];
        let text = table(std::slice::from_ref(job), &named, false, usize::MAX).unwrap();
        let line = text.lines().nth(2).unwrap();
        line.strip_prefix("night").unwrap().trim().to_owned()
    };
    // From the last to the first that applies.
    job.alive = Liveness::Unknown;
    job.gpus[0].limit_bytes = None;
    assert_eq!(state(&job), "unknown");
    job.alive = Liveness::Yes;
    assert_eq!(state(&job), "runs");
    job.gpus[0].limit_bytes = Some(0);
    assert_eq!(state(&job), "waits for memory");
    job.gpus[0].host_live_bytes = 1;
    assert_eq!(state(&job), "blocks on the host");
    job.gpus[0].deferred_bytes = Some(1);
    assert_eq!(state(&job), "limit lowered");
    job.perf = Some(0);
    assert_eq!(state(&job), "paused");
    job.sleep = Some(SleepState::Waking);
    assert_eq!(state(&job), "waking");
    job.sleep = Some(SleepState::Asleep);
    assert_eq!(state(&job), "asleep");
    job.alive = Liveness::No;
    assert_eq!(state(&job), "dead");
    job.ended = true;
    assert_eq!(state(&job), "ended");
}

#[test]
fn a_job_that_has_ended_holds_nothing() {
    let folder = folder();
    let mut status = Status::new(0, 0);
    (status.ended, status.held) = (true, 12 * MIB);
    status.write(&JobPaths::ours(folder.path(), "day"));
    let jobs = look(&[folder.path().to_owned()]).unwrap();
    let held: Vec<String> = ["used".into(), "held".into()].into();
    let text = table(&jobs, &held, false, usize::MAX).unwrap();
    assert!(!text.contains("MiB"), "{text}");
}

#[test]
fn a_narrow_table_breaks_no_number_and_a_wrong_column_lists_the_right_ones() {
    let folder = folder();
    let job = JobPaths::ours(folder.path(), "alive");
    Status::new(3, 0).write(&job);
    let jobs = look(&[folder.path().to_owned()]).unwrap();
    let named = [];
    for width in [80, 40] {
        let text = table(&jobs, &named, false, width).unwrap();
        assert!(
            text.lines().all(|line| line.chars().count() <= width),
            "{text}"
        );
        let wide = table(&jobs, &named, false, usize::MAX).unwrap();
        let words = |text: &str| -> std::collections::BTreeSet<String> {
            text.split_whitespace()
                .filter(|word| !word.starts_with('─'))
                .map(str::to_owned)
                .collect()
        };
        assert_eq!(words(&text), words(&wide));
    }
    let chosen = table(&jobs, &["age".to_owned()], false, 80).unwrap();
    assert!(
        chosen.starts_with("job ") && chosen.contains("age"),
        "{chosen}"
    );
    assert!(!chosen.contains("limit"), "{chosen}");
    let error = table(&jobs, &["size".to_owned()], false, 80).unwrap_err();
    assert!(
        error.contains("`size`") && error.contains("used,peak"),
        "{error}"
    );
}

/// Returns the lines of the terminal.
fn drawn(screen: &Screen, width: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, 12)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect();
    (0..12).map(line).collect()
}

fn screen_of(folder: &Path) -> Screen {
    let mut screen = Screen::new(64 * MIB);
    screen.show(look(&[folder.to_owned()]).unwrap());
    screen
}

fn press(screen: &mut Screen, code: KeyCode) -> KeyAction {
    screen.key(KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn a_terminal_shows_the_columns_that_fit_and_the_keys() {
    let folder = folder();
    assert!(drawn(&screen_of(folder.path()), 60)[0].starts_with("no jobs yet"));
    let job = JobPaths::ours(folder.path(), "train");
    let mut status = Status::new(7, 0);
    status.limit = 512 * MIB;
    status.write(&job);
    let screen = screen_of(folder.path());
    let wide = drawn(&screen, 200);
    for heading in HEADINGS {
        assert!(wide[0].contains(heading), "{heading} in {wide:?}");
    }
    assert!(wide[1].contains("train") && wide[1].contains("512 MiB"));
    let narrow = drawn(&screen, 80);
    for heading in ["job", "state", "limit", "target", "perf"] {
        assert!(narrow[0].contains(heading), "{heading} in {narrow:?}");
    }
    assert!(!narrow[0].contains("stable"));
    for width in [40, 80] {
        let keys = drawn(&screen, width).concat();
        for key in ["+/- limit", "p pause", "r resume", "q end"] {
            assert!(keys.contains(key), "{key} in {keys}");
        }
    }
}

#[test]
fn a_narrow_terminal_breaks_no_number_and_no_name() {
    let folder = folder();
    for name in ["train", "night-7d9c5b6f4-xk2lp"] {
        let mut status = Status::new(7, 0);
        (status.limit, status.held) = (1234 * MIB, 23_456 * MIB);
        status.write(&JobPaths::ours(folder.path(), name));
    }
    let screen = screen_of(folder.path());
    let words = |width| -> Vec<Vec<String>> {
        let lines = drawn(&screen, width).into_iter().take(3);
        let words = lines.map(|line| line.split_whitespace().map(str::to_owned).collect());
        words.collect()
    };
    let whole = words(200);
    for width in 21..=80 {
        for (line, whole) in words(width).iter().zip(&whole) {
            assert_eq!(line[0], whole[0], "{width}");
            assert!(line.iter().all(|word| whole.contains(word)), "{line:?}");
        }
    }
    for heading in ["job", "limit"] {
        assert!(words(40)[0].contains(&heading.to_owned()));
    }
}

#[test]
fn what_is_wrong_stands_whole_below_the_table_the_selected_jobs_first() {
    let folder = folder();
    for name in ["a", "b"] {
        fs::write(folder.path().join(format!("{name}.status.json")), "{").unwrap();
    }
    let mut screen = screen_of(folder.path());
    let problem = |screen: &Screen| drawn(screen, 40)[3].clone();
    assert!(problem(&screen).starts_with("a: not a job's status"));
    press(&mut screen, KeyCode::Down);
    assert!(problem(&screen).starts_with("b: not a job's status"));
    let jobs = look(&[folder.path().to_owned()]).unwrap();
    let shown = drawn(&screen, 40).join("\n");
    for word in jobs[1].problems[0].split_whitespace() {
        assert!(shown.contains(word), "{word} in {shown}");
    }
}

#[test]
fn keys_write_the_selected_jobs_control_file() {
    let folder = folder();
    for name in ["a", "b"] {
        let mut status = Status::new(0, 0);
        status.limit = 128 * MIB;
        status.write(&JobPaths::ours(folder.path(), name));
    }
    let mut screen = screen_of(folder.path());
    assert_eq!(press(&mut screen, KeyCode::Down), KeyAction::Nothing);
    // There is no third line.
    press(&mut screen, KeyCode::Down);
    let sent = |screen: &mut Screen, code| {
        let KeyAction::Tell(job, order) = press(screen, code) else {
            panic!("{code:?} tells");
        };
        assert_eq!(send(&job, &order), "b: sent");
        screen.show(look(&[folder.path().to_owned()]).unwrap());
        let text = fs::read(&job.control).unwrap();
        let file = ControlFile::parse(text).unwrap().file;
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
        assert_eq!(
            press(&mut screen, KeyCode::Char(letter)),
            KeyAction::Nothing
        );
    }
    assert!(drawn(&screen, 80).concat().contains("limit: 1GiBx"));
    press(&mut screen, KeyCode::Char('\u{200b}'));
    assert!(drawn(&screen, 80).concat().contains("1GiBx\\u{200b}█"));
    press(&mut screen, KeyCode::Backspace);
    press(&mut screen, KeyCode::Backspace);
    assert_eq!(sent(&mut screen, KeyCode::Enter), (Some(1024), Some(100)));
    assert!(!JobPaths::ours(folder.path(), "a").control.exists());
    assert_eq!(press(&mut screen, KeyCode::Char('q')), KeyAction::Quit);
}

#[test]
fn a_limit_that_is_typed_wrong_is_said_and_not_written() {
    let folder = folder();
    let job = JobPaths::ours(folder.path(), "a");
    Status::new(0, 0).write(&job);
    let mut screen = screen_of(folder.path());
    for code in [KeyCode::Char('l'), KeyCode::Char('q'), KeyCode::Enter] {
        assert_eq!(press(&mut screen, code), KeyAction::Nothing);
    }
    assert!(
        drawn(&screen, 80)
            .concat()
            .contains("`q` is not a byte count")
    );
    assert!(!job.control.exists());
}

#[test]
fn the_selection_stays_with_its_job_when_others_come_and_go() {
    let folder = folder();
    for name in ["b", "c"] {
        Status::new(0, 0).write(&JobPaths::ours(folder.path(), name));
    }
    let mut screen = screen_of(folder.path());
    press(&mut screen, KeyCode::Down);
    Status::new(0, 0).write(&JobPaths::ours(folder.path(), "a"));
    screen.show(look(&[folder.path().to_owned()]).unwrap());
    let KeyAction::Tell(job, _) = press(&mut screen, KeyCode::Char('p')) else {
        panic!("it tells");
    };
    assert_eq!(job.name, "c");
}

#[test]
fn names_and_problems_that_a_terminal_obeys_are_shown_escaped_and_counted_so() {
    let folder = folder();
    let (name, shown) = (
        "a\u{1b}[2J\n\u{9b}\u{202e}b",
        "a\\u{1b}[2J\\u{a}\\u{9b}\\u{202e}b",
    );
    let job = JobPaths::ours(folder.path(), name);
    let mut status = Status::new(7, 0);
    status.limit = 512 * MIB;
    status.write(&job);
    fs::write(&job.control, "{").unwrap();
    let jobs = look(&[folder.path().to_owned()]).unwrap();
    let text = table(&jobs, &[], true, usize::MAX).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[2].starts_with(shown), "{text}");
    assert!(lines[3].starts_with(&format!("{shown}: ")), "{text}");
    // Cells are below their headings: both lines end with the last column.
    assert_eq!(lines[0].chars().count(), lines[2].chars().count());
    let drawn = drawn(&screen_of(folder.path()), 250);
    assert!(drawn[1].starts_with(&format!("{shown} ")), "{drawn:?}");
    assert!(drawn[2].starts_with(&format!("{shown}: ")), "{drawn:?}");
    let line = json(&jobs[0]).unwrap();
    assert!(!line.chars().any(char::is_control) && !line.contains('\u{202e}'));
    let back: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (&back["name"], &back["says_name"]),
        (&json!(name), &json!(name))
    );
}

#[test]
fn a_message_below_the_table_is_one_line_without_controls() {
    let mut screen = Screen::new(1);
    screen.say("b\u{1b}]0;x\u{7}\nc: sent");
    let said = "b\\u{1b}]0;x\\u{7}\\u{a}c: sent";
    assert!(
        drawn(&screen, 60)
            .iter()
            .any(|line| line.trim_end() == said)
    );
}
