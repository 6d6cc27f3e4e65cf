//! Programs that use the driver's interface and know nothing of Larder, with the library preloaded.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{compiled, library, on_stand_in, package, stand_in, words};
use crate::jobs::{DEADLINE, Machine, Process, wait};

const MIB: u64 = 1 << 20;

/// The ways in which a program gets the driver's functions.
const WAYS: [&str; 3] = ["linked", "dlsym", "proc"];

/// `tests/programs/interposed.c`, built as each test needs it.
struct Programs {
    folder: TempDir,
}

impl Programs {
    /// Builds the program twice: linked with the driver, and without it.
    fn new() -> Option<Self> {
        let programs = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        std::os::unix::fs::symlink(stand_in(), programs.file("libcuda.so")).unwrap();
        let driver = programs.file("libcuda.so");
        programs.build("looked", "interposed.c", &[])?;
        programs.build("linked", "interposed.c", &[&driver])?;
        Some(programs)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Builds a source, linked with `libraries` in this order. Returns `None`, and prints why, if there is no compiler.
    fn build(&self, name: &str, source: &str, libraries: &[&PathBuf]) -> Option<()> {
        let mut command = Command::new("cc");
        command.args([
            "-std=gnu11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
        ]);
        if name.ends_with(".so") {
            command.args(["-D_GNU_SOURCE", "-shared", "-fPIC"]);
        }
        if !libraries.is_empty() {
            command.args(["-DLINKED", "-Wl,--no-as-needed"]);
        }
        command.arg(package().join("tests/programs").join(source));
        command.arg("-o").arg(self.file(name)).args(libraries);
        for library in libraries {
            let folder = library.parent().unwrap();
            command.arg(format!("-Wl,-rpath,{}", folder.display()));
        }
        match command.arg("-ldl").output() {
            Err(error) => {
                println!("skipped: cc: {error}");
                None
            }
            Ok(output) => {
                assert!(output.status.success(), "{}", words(&output));
                Some(())
            }
        }
    }

    /// Returns a program that waits for calls to make, with nothing preloaded.
    fn command(&self, file: &str, way: &str) -> Command {
        let mut command = Command::new(self.file(file));
        command
            .arg(way)
            .env("DRIVER", self.file("libcuda.so"))
            .env("LARDER_STAND_IN_BYTES", (64 * MIB).to_string());
        command
    }

    fn start(&self, way: &str, set: impl FnOnce(&mut Command)) -> Running {
        let file = if way == "linked" { "linked" } else { "looked" };
        let mut command = self.command(file, way);
        set(&mut command);
        Running::new(command)
    }
}

/// Preloads the library and sets a limit.
fn limited(bytes: u64) -> impl FnOnce(&mut Command) {
    move |command| {
        command
            .env("LD_PRELOAD", library())
            .env("LARDER_CUDA_LIMIT", bytes.to_string())
            .env("LARDER_CUDA_SAY", "1");
    }
}

/// Replaces words such as `4M` and `4M+1` with numbers of bytes.
fn in_bytes(words: &str) -> String {
    let bytes = |word: &str| {
        let (mebibytes, more) = word.split_once('M')?;
        let more = more.trim_start_matches('+').parse().unwrap_or(0);
        Some((mebibytes.parse::<u64>().ok()? * MIB + more).to_string())
    };
    let bytes = |word: &str| bytes(word).unwrap_or_else(|| word.to_owned());
    words.split(' ').map(bytes).collect::<Vec<_>>().join(" ")
}

struct Running {
    child: Child,
    asks: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Running {
    fn new(mut command: Command) -> Self {
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.stderr(Stdio::piped()).spawn().unwrap();
        let (gives, answers) = mpsc::channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        thread::spawn(move || {
            for line in lines {
                // The test may have stopped listening.
                let _ = gives.send(line.unwrap());
            }
        });
        Self {
            asks: child.stdin.take(),
            answers,
            child,
        }
    }

    fn ask(&mut self, call: &str) {
        writeln!(self.asks.as_mut().unwrap(), "{}", in_bytes(call)).unwrap();
    }

    fn answer(&mut self) -> String {
        let answer = self.answers.recv_timeout(DEADLINE);
        answer.expect("the program goes on")
    }

    /// Makes a call. Returns the driver's answer.
    fn call(&mut self, call: &str) -> String {
        self.ask(call);
        self.answer()
    }

    /// Plays a script of calls, separated by line breaks or semicolons. A call has to succeed, unless it is followed by
    /// `refused`, `no memory` (refused for lack of memory) or `= answer`. `room 4M` compares the free bytes that the
    /// driver reports.
    #[track_caller]
    fn play(&mut self, script: &str) {
        let calls = script.split(['\n', ';']).map(str::trim);
        for line in calls.filter(|line| !line.is_empty() && !line.starts_with("//")) {
            if let Some(room) = line.strip_prefix("room ") {
                let room: u64 = in_bytes(room).parse().unwrap();
                assert_eq!(self.free(), room, "{line}: {script}");
            } else if let Some((call, wanted)) = line.split_once(" = ") {
                assert_eq!(self.call(call), in_bytes(wanted), "{line}: {script}");
            } else if let Some(call) = line.strip_suffix(" no memory") {
                assert_eq!(self.call(call), NO_MEMORY, "{line}: {script}");
            } else if let Some(call) = line.strip_suffix(" refused") {
                assert_ne!(self.call(call), "0", "{line}: {script}");
            } else {
                assert_eq!(self.call(line), "0", "{line}: {script}");
            }
        }
    }

    /// Returns the free bytes that the driver reports.
    #[track_caller]
    fn free(&mut self) -> u64 {
        let said = self.call("info");
        let numbers: Vec<u64> = said.split(' ').map(|word| word.parse().unwrap()).collect();
        assert_eq!(numbers[0], 0, "{said}");
        numbers[1]
    }

    /// Ends the program. Returns what it wrote to standard error.
    fn end(mut self) -> String {
        drop(self.asks.take());
        let output = self.child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", words(&output));
        String::from_utf8(output.stderr).unwrap()
    }
}

const NO_MEMORY: &str = "2";

/// Every call, including some that the driver refuses.
const ALL: &str = "info; alloc 1 100; retain 0 0; current 0; stream 50; alloc 1 5000000; fill 1 7 50; finish;
    first 1; managed 2 1000000; pitch 3 1000 100; alloc 4 0; alloc 4 99999999999; info; total 0; total 9;
    launch 50; launch-ex 50; free 2; free 3; free 3; info; async 5 3000000 50; fill 5 9 50; finish; first 5;
    free-async 5 50; finish; pool 6 0; from-pool 7 6 50; free-async 7 50; finish; info; trim 6; info;
    end-pool 6; create 8 4M; reserve 9 8M; map 9 8; access 9 4M; let-go 8; hold 10 9; let-go 10; let-go 10;
    unmap 9 4M; info; capture 50; launch 50; captured 50 11; graph 11 50; end-stream 50; context 12 0;
    alloc 13 2000000; info; destroy 12; current 0; info; reset 0; alloc 14 1000000; info; release 0; release 0;
    info";

#[test]
fn answers_are_the_drivers_as_long_as_there_is_room() {
    let Some(programs) = Programs::new() else {
        return;
    };
    let said = |way: &str, set: &dyn Fn(&mut Command)| {
        let mut program = programs.start(way, set);
        let calls = ALL.split(';').map(str::trim);
        let said: Vec<_> = calls.map(|call| program.call(call)).collect();
        (said, program.end())
    };
    for way in WAYS {
        let (plain, _) = said(way, &|_| {});
        let preload = |command: &mut Command| {
            command.env("LD_PRELOAD", library());
        };
        let (unasked, errors) = said(way, &preload);
        assert_eq!((unasked, errors.as_str()), (plain.clone(), ""), "{way}");
        let (with_room, errors) = said(way, &|command| limited(1 << 40)(command));
        assert_eq!((with_room, errors.as_str()), (plain, ""), "{way}");
    }
}

/// Plays a script under a limit of 10 MiB, with the first device's primary context current. Returns what the program
/// wrote to standard error, or `None` if there is no compiler.
#[track_caller]
fn played(way: &str, script: &str) -> Option<String> {
    let programs = Programs::new()?;
    let mut program = programs.start(way, limited(10 * MIB));
    program.play("retain 0 0; current 0; stream 50");
    program.play(script);
    Some(program.end())
}

#[test]
fn no_more_than_the_limit_is_given_and_questions_are_answered_by_it() {
    for way in WAYS {
        let said = played(
            way,
            "alloc 1 6M
            info = 0 4M 10M
            total 0 = 0 10M; total 1 = 0 10M
            alloc 2 4M+1 no memory; managed 2 4M+1 no memory; pitch 2 512 8193 no memory
            create 2 6M no memory
            pitch 2 500 8192; room 0M
            alloc 3 1 no memory
            // What the driver does not take back stays charged, and what it refuses is not.
            current 60; free 2 refused
            current 0; room 0M
            free 2
            alloc 3 0 refused
            room 4M
            free 1; alloc 1 10M; free 1; room 10M",
        );
        let Some(said) = said else { return };
        assert!(said.contains("out of memory within its limit"), "{said}");
        assert_eq!(said.matches("larder_cuda: ").count(), 1, "{said}");
    }
}

#[test]
fn physical_memory_is_charged_until_its_last_handle_and_mapping_are_gone() {
    played(
        "proc",
        "reserve 20 16M; create 1 4M; create 2 4M; create 3 4M no memory
        map 20 1; let-go 1; room 2M
        unmap 20 2M refused; room 2M
        hold 3 20; unmap 20 4M; room 2M
        let-go 3; room 6M; let-go 3 refused
        // Two mappings of one, unmapped by one call.
        create 4 4M; map 20 4; reserve 21 4M; map 21 4; let-go 4; unmap 21 4M; room 2M
        unmap 20 4M; let-go 2; room 10M
        // Two handles of one.
        create 5 4M; map 20 5; hold 6 20; unmap 20 4M; let-go 5; room 6M
        let-go 6; room 10M",
    );
}

#[test]
fn a_pool_is_charged_for_what_it_holds_and_gives_idle_memory_back_before_a_refusal() {
    played(
        "dlsym",
        "pool 6 0
        from-pool 10 6 50; from-pool 11 6 50; from-pool 12 6 50; from-pool 13 6 50
        from-pool 14 6 50; from-pool 15 6 50; from-pool 16 6 50; from-pool 17 6 50
        room 2M
        free-async 10 50; free-async 11 50; free-async 12 50; free-async 13 50
        free-async 14 50; free-async 15 50; free-async 16 50; free-async 17 50
        // The pool keeps it, and gives it again.
        finish; room 2M
        from-pool 10 6 50; room 2M
        alloc 1 9M; room 0M
        from-pool 11 6 50 no memory
        free-async 10 50; end-pool 6
        // The device's own pool keeps nothing.
        free 1; async 2 10M 50; async 3 1 50 no memory
        free-async 2 50; finish; room 10M
        // What a graph takes is not looked at: the stand-in refuses it.
        alloc 1 10M; capture 50; async 2 1M 50 = 801",
    );
}

#[test]
fn a_destroyed_pool_is_charged_until_its_last_block_is_freed() {
    played(
        "dlsym",
        "pool 6 0; from-pool 10 6 50; from-pool 11 6 50; end-pool 6; room 8M
        alloc 1 9M no memory
        // One block is left.
        free-async 10 50; finish; room 8M
        free 11; room 10M",
    );
}

#[test]
fn a_pool_that_is_used_while_the_driver_refuses_to_destroy_it_is_charged_once() {
    let Some(programs) = Programs::new() else {
        return;
    };
    let (driver, refuses) = (programs.file("libcuda.so"), programs.file("librefuses.so"));
    programs.build("librefuses.so", "late_refusal.c", &[&driver]);
    programs.build("refused", "interposed.c", &[&refuses, &driver]);
    let mut command = programs.command("refused", "linked");
    limited(10 * MIB)(&mut command);
    let mut program = Running::new(command);
    program.play(
        "retain 0 0; current 0; stream 50; pool 6 0; from-pool 10 6 50; end-pool 6 = 999
        // A block of before, and one of between.
        room 8M
        // One block is left.
        free-async 10 50; end-pool 6; room 8M",
    );
    program.end();
}

#[test]
fn plain_memory_that_is_freed_in_a_stream_is_charged_no_more() {
    played("dlsym", "alloc 1 4M; free-async 1 50; finish; room 10M");
}

#[test]
fn a_device_that_does_not_exist_is_the_drivers_to_refuse() {
    let said = played(
        "proc",
        "create 1 4M -1 = 101; create 1 4M 9 = 101; create 1 4M 99 = 101
        // Beyond the limit, too.
        create 1 16M -1 = 101; create 1 16M 9 = 101; create 1 16M 99 = 101
        room 10M",
    );
    assert_eq!(said.unwrap_or_default(), "");
}

#[test]
fn a_limit_that_cannot_be_read_leaves_nothing_free_and_says_what_would_be_right() {
    let Some(programs) = Programs::new() else {
        return;
    };
    // A limit of less than a page most likely lacks its unit.
    for limit in ["many", "4", "2097151"] {
        let mut program = programs.start("dlsym", |command| {
            limited(0)(command);
            command.env("LARDER_CUDA_LIMIT", limit);
        });
        program.play("retain 0 0; current 0; room 0M; alloc 1 1 no memory; room 0M");
        let said = program.end();
        let variable = format!(
            "LARDER_CUDA_LIMIT is {limit:?}: set it to a size of at least 2 MiB, such as 1.5GiB"
        );
        assert!(said.contains(&variable), "{said}");
        assert!(said.contains("2 MiB"), "{said}");
        assert!(!said.contains("control file"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let mut program = programs.start("dlsym", limited(2 * MIB));
    program.play("retain 0 0; current 0; alloc 1 2M");
    assert_eq!(program.end(), "");
}

#[test]
fn memory_goes_with_its_context_and_no_other() {
    played(
        "linked",
        "alloc 1 1M; context 2 0; alloc 3 2M; room 7M
        // It is the primary one.
        destroy 0 refused; room 7M
        destroy 2; current 0; room 9M
        context 2 0; alloc 3 2M; destroy-v1 2; current 0; room 9M
        // It was retained twice.
        retain 0 0; release 0; room 9M
        reset 0; current 0; room 10M
        alloc 1 1M; release 0; retain 0 0; current 0; room 10M",
    );
}

/// A call that the driver refuses changes no charge, and the same call succeeds afterwards.
#[test]
fn what_the_driver_refuses_is_charged_as_if_it_was_not_asked() {
    let Some(programs) = Programs::new() else {
        return;
    };
    let mut program = programs.start("proc", limited(32 * MIB));
    program.play("retain 0 0; current 0; stream 50; reserve 20 8M");
    // The function, the call, and by how many MiB the call lowers the free bytes.
    let calls = [
        ("cuMemAlloc_v2", "alloc 1 1M", 1),
        ("cuMemAllocManaged", "managed 2 1M", 1),
        ("cuMemAllocPitch_v2", "pitch 3 1024 1024", 1),
        ("cuMemCreate", "create 4 4M", 4),
        ("cuMemMap", "map 20 4", 0),
        ("cuMemRetainAllocationHandle", "hold 5 20", 0),
        ("cuMemUnmap", "unmap 20 4M", 0),
        ("cuMemRelease", "let-go 4", 0),
        ("cuMemRelease", "let-go 5", -4),
        ("cuMemAllocAsync", "async 6 2M 50", 2),
        ("cuMemFreeAsync", "free-async 6 50", 0),
        ("cuCtxSynchronize", "finish", -2),
        ("cuMemPoolCreate", "pool 7 0", 0),
        ("cuMemAllocFromPoolAsync", "from-pool 8 7 50", 1),
        ("cuMemFreeAsync", "free-async 8 50", 0),
        ("cuMemPoolTrimTo", "trim 7", -1),
        ("cuMemAllocFromPoolAsync", "from-pool 8 7 50", 1),
        ("cuMemFreeAsync", "free-async 8 50", 0),
        ("cuMemPoolDestroy", "end-pool 7", -1),
        ("cuMemFree_v2", "free 2", -1),
        ("cuCtxCreate_v2", "context 9 0", 0),
        ("cuMemAlloc_v2", "alloc 10 1M", 1),
        ("cuCtxDestroy_v2", "destroy 9", -1),
        ("cuCtxSetCurrent", "current 0", 0),
        ("cuDevicePrimaryCtxReset_v2", "reset 0", -2),
    ];
    for (function, call, less) in calls {
        let before = program.free();
        program.play(&format!("refuse {function}; {call} = 999"));
        if function == "cuCtxDestroy_v2" || function == "cuDevicePrimaryCtxReset_v2" {
            program.play("current 0");
        }
        assert_eq!(program.free(), before, "{call}, refused");
        if function == "cuCtxDestroy_v2" {
            program.play("current 9");
        }
        program.play(call);
        program.play("current 0");
        let after = before as i64 - less * MIB as i64;
        assert_eq!(program.free() as i64, after, "{call}");
        if call.starts_with("context") {
            program.play("current 9");
        }
    }
    program.end();
}

/// Starts a program as a job on the machine's only device.
fn start_job(programs: &Programs, machine: &Machine, name: &str) -> Running {
    let mut command = machine.shared(programs.command("looked", "proc"));
    let file = |ending: &str| machine.jobs().join(format!("{name}.{ending}.json"));
    command
        .env("LD_PRELOAD", library())
        .env("GPU_CONFIG_FILE", file("control"))
        .env("GPU_STATUS_FILE", file("status"));
    let mut running = Running::new(command);
    running.play("retain 0 0; current 0; stream 50");
    running
}

#[test]
fn a_limit_that_is_lowered_is_obeyed_and_a_suspended_launch_waits() {
    let Some(programs) = Programs::new() else {
        return;
    };
    let machine = Machine::new();
    let set = |limit: &str| {
        let mut command = machine.larder(&["control", "set", "old", "--limit", limit]);
        let output = command.arg("--in").arg(machine.jobs()).output().unwrap();
        assert!(output.status.success(), "{}", words(&output));
    };
    let held = || machine.top("old")["gpus"][0]["device_held_bytes"].as_u64();
    let mut job = start_job(&programs, &machine, "old");
    // The job waits for its first limit.
    job.ask("alloc 1 8M");
    wait("its status", || machine.top("old")["alive"] == "yes");
    set("10MiB");
    assert_eq!(job.answer(), "0");
    assert_eq!(job.free(), 2 * MIB);
    wait("what it holds in its status", || held() == Some(8 * MIB));
    set("4MiB");
    wait("the lower limit", || job.free() == 0);
    assert_eq!(job.call("alloc 2 1"), NO_MEMORY);
    job.play("free 1; alloc 1 4M");
    assert_eq!(job.call("alloc 2 1"), NO_MEMORY);
    wait("less in its status", || held() == Some(4 * MIB));

    job.play("launch 50; finish");
    machine.control("pause", "old");
    wait("the pause", || machine.top("old")["perf"] == 0);
    job.ask("launch 50");
    // This takes long enough for a launch that does not wait.
    machine.top("old");
    assert!(job.answers.try_recv().is_err(), "a suspended job launches");
    machine.control("resume", "old");
    assert_eq!(job.answer(), "0");
    // A captured launch is not executed and does not wait.
    machine.control("pause", "old");
    wait("the pause", || machine.top("old")["perf"] == 0);
    job.play("capture 50; launch 50; captured 50 11");
    machine.control("resume", "old");
    job.play("graph 11 50; finish");
    job.end();
}

/// Launches continue at a share of the time, and the status counts the slices.
#[test]
fn launches_are_paced_in_slices_of_time() {
    let Some(programs) = Programs::new() else {
        return;
    };
    let machine = Machine::new();
    let control = machine.jobs().join("old.control.json");
    let share = |percent: u32| {
        fs::write(&control, format!(r#"{{"perfControl": {percent}}}"#)).unwrap();
    };
    share(80);
    let mut job = start_job(&programs, &machine, "old");
    let status = machine.jobs().join("old.status.json");
    let runs = || -> Option<u64> {
        let status: Value = serde_json::from_str(&fs::read_to_string(&status).ok()?).ok()?;
        status["miniBatchDuration"].as_u64()
    };
    let mut percent = 80;
    wait("a slice in its status", || {
        job.play("launch 50; launch-ex 50");
        // A status is written after an order was obeyed.
        percent = 161 - percent;
        share(percent);
        runs() > Some(0)
    });
    // A destroyed stream is no longer waited for, and captured launches are not executed.
    job.play("stream 51; launch 51; end-stream 51; capture 50");
    for _ in 0..100 {
        job.play("launch 50");
    }
    job.play("captured 50 11; graph 11 50; finish");
    job.end();
}

/// Counts the streams for which a paced program waits at the end of a slice, in one call for each stream.
struct Waits {
    job: Running,
    seen: u64,
}

impl Waits {
    /// Starts a job at a share of the time, and waits until the share is in force.
    fn start(programs: &Programs, machine: &Machine) -> Self {
        let control = machine.jobs().join("old.control.json");
        fs::write(&control, r#"{"perfControl": 80}"#).unwrap();
        let mut job = start_job(programs, machine, "old");
        // Once it is, a stream has been waited for.
        wait("a pause", || {
            job.play("launch 50");
            job.call("calls cuStreamSynchronize") != "0"
        });
        let mut waits = Self { job, seen: 0 };
        waits.launch(50);
        waits
    }

    /// Makes a launch, which the driver may refuse. Returns how many streams were waited for before it.
    fn launch(&mut self, stream: u32) -> u64 {
        self.job.call(&format!("launch {stream}"));
        let now = self.job.call("calls cuStreamSynchronize").parse().unwrap();
        now - std::mem::replace(&mut self.seen, now)
    }

    /// Returns how many streams are waited for at the end of the slice, besides `stream`.
    fn beside(&mut self, stream: u32) -> u64 {
        let at_once = self.launch(stream);
        if at_once > 0 {
            return at_once;
        }
        loop {
            let waited = self.launch(stream);
            if waited > 0 {
                return waited - 1;
            }
        }
    }
}

/// The calls before a launch on stream 51, the calls after it, the stream of the later launches, and whether stream 51
/// is also waited for.
const WAITED: [(&str, &str, u32, bool); 9] = [
    ("context 12 0; stream 51", "current 0", 50, true),
    (
        "stream 51",
        "refuse cuStreamDestroy_v2; end-stream 51 = 999",
        50,
        true,
    ),
    (
        "current 0; context 12 0; stream 51",
        "destroy 12; current 0",
        50,
        false,
    ),
    (
        "current 0; context 12 0; stream 51",
        "destroy-v1 12; current 0",
        50,
        false,
    ),
    ("stream 51", "end-stream 51", 50, false),
    ("stream 51", "end-stream-v1 51", 50, false),
    // The primary context was retained twice and is destroyed with its last release.
    ("stream 51", "retain 0 0; release 0", 50, true),
    ("", "release 0; retain 0 0; current 0; stream 52", 52, false),
    ("stream 51", "reset 0; current 0; stream 52", 52, false),
];

#[test]
fn a_paced_program_waits_for_streams_that_are_there() {
    let Some(programs) = Programs::new() else {
        return;
    };
    let machine = Machine::new();
    let mut waits = Waits::start(&programs, &machine);
    for (before, after, stream, is_waited_for) in WAITED {
        waits.job.play(before);
        waits.launch(51);
        waits.job.play(after);
        let beside = waits.beside(stream);
        assert_eq!(
            beside,
            u64::from(is_waited_for),
            "{before}; launch 51; {after}"
        );
    }
    waits.job.end();
}

#[test]
fn programs_that_know_nothing_are_balanced_by_the_coordinator() {
    let Some(programs) = Programs::new() else {
        return;
    };
    let machine = Machine::new();
    let mut coordinate = machine.larder(&["coordinate", "--total", "64MiB"]);
    coordinate.arg(machine.jobs());
    coordinate.args(["--step", "2MiB", "--interval", "0.02", "--calm", "0.2"]);
    let _coordinator = Process::start(machine.path(), "coordinator", coordinate);
    let mut first = start_job(&programs, &machine, "first");
    // The first job may have all of the memory.
    first.play("alloc 2 1M; alloc 1 60M");
    let mut second = start_job(&programs, &machine, "second");
    // The second job waits until the first one frees memory.
    second.ask("alloc 1 20M");
    wait("a lower limit of the first", || first.free() == 0);
    first.play("free 1");
    assert_eq!(second.answer(), "0");
    assert_eq!(first.call("alloc 1 60M"), NO_MEMORY);
    first.play("alloc 1 20M");
    first.end();
    second.end();
}

#[test]
fn what_the_librarys_own_allocators_hold_is_not_charged_to_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compiled(folder.path(), "calls.c") else {
        return;
    };
    let mut command = on_stand_in(&program);
    limited(2 * MIB)(&mut command);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
}

/// The library is linked, but nothing is preloaded.
#[test]
fn a_library_that_is_linked_stands_in_front_of_nothing() {
    let Some(programs) = Programs::new() else {
        return;
    };
    // The library comes before the driver.
    let libraries = [&library(), &programs.file("libcuda.so")];
    programs.build("with-library", "interposed.c", &libraries);
    let mut command = programs.command("with-library", "linked");
    command.env("LARDER_CUDA_LIMIT", MIB.to_string());
    let mut program = Running::new(command);
    program.play("retain 0 0; current 0; alloc 1 8M");
    program.end();
}
