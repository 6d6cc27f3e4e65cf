//! Programs on the driver's interface that know nothing of Larder, with the library preloaded.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{compiled, library, on_stand_in, package, stand_in, words};
use crate::jobs::{DEADLINE, Machine, Process, wait};

const MIB: u64 = 1 << 20;

/// How a program gets the driver's functions.
const WAYS: [&str; 3] = ["linked", "dlsym", "proc"];

/// `tests/programs/interposed.c`, linked with the driver and not.
struct Programs {
    folder: TempDir,
}

impl Programs {
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let driver = folder.path().join("libcuda.so");
        std::os::unix::fs::symlink(stand_in(), &driver).unwrap();
        for way in ["linked", "looked"] {
            let mut command = Command::new("cc");
            command.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"]);
            command.arg(package().join("tests/programs/interposed.c"));
            command.arg("-o").arg(folder.path().join(way));
            if way == "linked" {
                command.arg("-DLINKED").arg(&driver);
                command.arg(format!("-Wl,-rpath,{}", folder.path().display()));
            }
            match command.arg("-ldl").output() {
                Err(error) => {
                    println!("skipped: cc: {error}");
                    return None;
                }
                Ok(output) => assert!(output.status.success(), "{}", words(&output)),
            }
        }
        Some(Self { folder })
    }

    /// A program that waits for what it is to call. Nothing is preloaded.
    fn command(&self, way: &str) -> Command {
        let file = if way == "linked" { "linked" } else { "looked" };
        let mut command = Command::new(self.folder.path().join(file));
        command
            .arg(way)
            .env("DRIVER", self.folder.path().join("libcuda.so"))
            .env("LARDER_STAND_IN_BYTES", (64 * MIB).to_string());
        command
    }

    fn start(&self, way: &str, set: impl FnOnce(&mut Command)) -> Running {
        let mut command = self.command(way);
        set(&mut command);
        Running::new(command)
    }
}

/// Has the library in front of the driver, with a limit.
fn limited(bytes: u64) -> impl FnOnce(&mut Command) {
    move |command| {
        command
            .env("LD_PRELOAD", library())
            .env("LARDER_CUDA_LIMIT", bytes.to_string())
            .env("LARDER_CUDA_SAY", "1");
    }
}

/// A program that runs.
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
                // Nobody listens to a program that is over.
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
        writeln!(self.asks.as_mut().unwrap(), "{call}").unwrap();
    }

    fn answer(&mut self) -> String {
        let answer = self.answers.recv_timeout(DEADLINE);
        answer.expect("the program goes on")
    }

    /// Makes a call; the driver's answer.
    fn call(&mut self, call: &str) -> String {
        self.ask(call);
        self.answer()
    }

    /// Makes calls that succeed.
    #[track_caller]
    fn done(&mut self, calls: &[&str]) {
        for call in calls {
            assert_eq!(self.call(call), "0", "{call}");
        }
    }

    /// Bytes that are free, as the driver says.
    #[track_caller]
    fn free(&mut self) -> u64 {
        let said = self.call("info");
        let numbers: Vec<u64> = said.split(' ').map(|word| word.parse().unwrap()).collect();
        assert_eq!(numbers[0], 0, "{said}");
        numbers[1]
    }

    /// Ends the program; what it said on standard error.
    fn end(mut self) -> String {
        drop(self.asks.take());
        let output = self.child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", words(&output));
        String::from_utf8(output.stderr).unwrap()
    }
}

const NO_MEMORY: &str = "2";

/// Every call, and some that the driver refuses.
const ALL: &[&str] = &[
    "info",
    "alloc 1 100",
    "retain 0 0",
    "current 0",
    "stream 50",
    "alloc 1 5000000",
    "fill 1 7 50",
    "finish",
    "first 1",
    "managed 2 1000000",
    "pitch 3 1000 100",
    "alloc 4 0",
    "alloc 4 99999999999",
    "info",
    "total 0",
    "total 9",
    "launch 50",
    "launch-ex 50",
    "free 2",
    "free 3",
    "free 3",
    "info",
    "async 5 3000000 50",
    "fill 5 9 50",
    "finish",
    "first 5",
    "free-async 5 50",
    "finish",
    "pool 6 0",
    "from-pool 7 6 50",
    "free-async 7 50",
    "finish",
    "info",
    "trim 6",
    "info",
    "end-pool 6",
    "create 8 4194304",
    "reserve 9 8388608",
    "map 9 8",
    "access 9 4194304",
    "let-go 8",
    "hold 10 9",
    "let-go 10",
    "let-go 10",
    "unmap 9 4194304",
    "info",
    "capture 50",
    "launch 50",
    "captured 50 11",
    "graph 11 50",
    "end-stream 50",
    "context 12 0",
    "alloc 13 2000000",
    "info",
    "destroy 12",
    "current 0",
    "info",
    "reset 0",
    "alloc 14 1000000",
    "info",
    "release 0",
    "release 0",
    "info",
];

#[test]
fn answers_are_the_drivers_as_long_as_there_is_room() {
    let Some(programs) = Programs::new() else {
        return;
    };
    let said = |way: &str, set: &dyn Fn(&mut Command)| {
        let mut program = programs.start(way, set);
        let said: Vec<_> = ALL.iter().map(|call| program.call(call)).collect();
        (said, program.end())
    };
    for way in WAYS {
        let (plain, _) = said(way, &|_| {});
        assert_eq!(plain.len(), ALL.len());
        let preload = |command: &mut Command| {
            command.env("LD_PRELOAD", library());
        };
        let (unasked, errors) = said(way, &preload);
        assert_eq!((unasked, errors.as_str()), (plain.clone(), ""), "{way}");
        let (with_room, errors) = said(way, &|command| limited(1 << 40)(command));
        assert_eq!((with_room, errors.as_str()), (plain, ""), "{way}");
    }
}

#[test]
fn no_more_than_the_limit_is_given_and_questions_are_answered_by_it() {
    let Some(programs) = Programs::new() else {
        return;
    };
    for way in WAYS {
        let mut program = programs.start(way, limited(10 * MIB));
        program.done(&["retain 0 0", "current 0", "alloc 1 6291456"]);
        assert_eq!(program.call("info"), format!("0 {} {}", 4 * MIB, 10 * MIB));
        assert_eq!(program.call("total 0"), format!("0 {}", 10 * MIB));
        assert_eq!(program.call("total 1"), format!("0 {}", 10 * MIB));
        for call in ["alloc 2 4194305", "managed 2 4194305", "pitch 2 512 8193"] {
            assert_eq!(program.call(call), NO_MEMORY, "{way} {call}");
        }
        assert_eq!(program.call("create 2 6291456"), NO_MEMORY);
        program.done(&["pitch 2 500 8192"]);
        assert_eq!(program.free(), 0);
        assert_eq!(program.call("alloc 3 1"), NO_MEMORY);
        // What the driver does not take back stays charged, and what it refuses is not.
        program.done(&["current 60"]);
        assert_ne!(program.call("free 2"), "0", "without a context");
        program.done(&["current 0"]);
        assert_eq!(program.free(), 0);
        program.done(&["free 2"]);
        assert_ne!(program.call("alloc 3 0"), "0");
        assert_eq!(program.free(), 4 * MIB);
        program.done(&["free 1", "alloc 1 10485760", "free 1"]);
        assert_eq!(program.free(), 10 * MIB);
        let said = program.end();
        assert!(said.contains("out of memory within its limit"), "{said}");
        assert_eq!(said.matches("larder_cuda: ").count(), 1, "{said}");
    }
}

#[test]
fn physical_memory_is_charged_until_its_last_handle_and_mapping_are_gone() {
    let Some(programs) = Programs::new() else {
        return;
    };
    let mut program = programs.start("proc", limited(10 * MIB));
    program.done(&["retain 0 0", "current 0", "reserve 20 16777216"]);
    program.done(&["create 1 4194304", "create 2 4194304"]);
    assert_eq!(program.call("create 3 4194304"), NO_MEMORY);
    program.done(&["map 20 1", "let-go 1"]);
    assert_eq!(program.free(), 2 * MIB);
    assert_ne!(program.call("unmap 20 2097152"), "0");
    assert_eq!(program.free(), 2 * MIB);
    program.done(&["hold 3 20", "unmap 20 4194304"]);
    assert_eq!(program.free(), 2 * MIB);
    program.done(&["let-go 3"]);
    assert_eq!(program.free(), 6 * MIB);
    assert_ne!(program.call("let-go 3"), "0");
    // Two mappings of one, unmapped by one call.
    program.done(&["create 4 4194304", "map 20 4", "reserve 21 4194304"]);
    program.done(&["map 21 4", "let-go 4", "unmap 21 4194304"]);
    assert_eq!(program.free(), 2 * MIB);
    program.done(&["unmap 20 4194304", "let-go 2"]);
    assert_eq!(program.free(), 10 * MIB);
    // Two handles of one.
    program.done(&["create 5 4194304", "map 20 5", "hold 6 20"]);
    program.done(&["unmap 20 4194304", "let-go 5"]);
    assert_eq!(program.free(), 6 * MIB);
    program.done(&["let-go 6"]);
    assert_eq!(program.free(), 10 * MIB);
    program.end();
}

#[test]
fn a_pool_is_charged_for_what_it_holds_and_gives_idle_memory_back_before_a_refusal() {
    let Some(programs) = Programs::new() else {
        return;
    };
    let mut program = programs.start("dlsym", limited(10 * MIB));
    program.done(&["retain 0 0", "current 0", "stream 50", "pool 6 0"]);
    for value in 10..18 {
        program.done(&[&format!("from-pool {value} 6 50")]);
    }
    assert_eq!(program.free(), 2 * MIB);
    for value in 10..18 {
        program.done(&[&format!("free-async {value} 50")]);
    }
    program.done(&["finish"]);
    assert_eq!(program.free(), 2 * MIB, "the pool keeps it");
    program.done(&["from-pool 10 6 50"]);
    assert_eq!(program.free(), 2 * MIB, "and gives it again");
    program.done(&["alloc 1 9437184"]);
    assert_eq!(program.free(), 0);
    assert_eq!(program.call("from-pool 11 6 50"), NO_MEMORY);
    program.done(&["free-async 10 50", "end-pool 6"]);
    // The device's own pool keeps nothing.
    program.done(&["free 1", "async 2 10485760 50"]);
    assert_eq!(program.call("async 3 1 50"), NO_MEMORY);
    program.done(&["free-async 2 50", "finish"]);
    assert_eq!(program.free(), 10 * MIB);
    // What a graph takes is not looked at.
    program.done(&["alloc 1 10485760", "capture 50"]);
    assert_ne!(program.call("async 2 1048576 50"), NO_MEMORY);
    program.end();
}

#[test]
fn a_destroyed_pool_is_charged_until_its_last_block_is_freed() {
    let Some(programs) = Programs::new() else {
        return;
    };
    let mut program = programs.start("dlsym", limited(10 * MIB));
    program.done(&["retain 0 0", "current 0", "stream 50", "pool 6 0"]);
    program.done(&["from-pool 10 6 50", "from-pool 11 6 50", "end-pool 6"]);
    assert_eq!(program.free(), 8 * MIB);
    assert_eq!(program.call("alloc 1 9437184"), NO_MEMORY);
    program.done(&["free-async 10 50", "finish"]);
    assert_eq!(program.free(), 8 * MIB, "one block is left");
    program.done(&["free 11"]);
    assert_eq!(program.free(), 10 * MIB);
    program.end();
}

#[test]
fn a_pool_that_is_used_while_the_driver_refuses_to_destroy_it_is_charged_once() {
    let Some(programs) = Programs::new() else {
        return;
    };
    let folder = programs.folder.path();
    let (refuses, program) = (folder.join("librefuses.so"), folder.join("refused"));
    for (source, made, driver) in [
        ("late_refusal.c", &refuses, None),
        ("interposed.c", &program, Some(&refuses)),
    ] {
        let mut command = Command::new("cc");
        command.args(["-std=gnu11", "-D_GNU_SOURCE", "-DLINKED", "-pthread"]);
        command.arg(package().join("tests/programs").join(source));
        command.arg("-o").arg(made).args(driver);
        if driver.is_none() {
            command.args(["-shared", "-fPIC"]);
        }
        command.arg(folder.join("libcuda.so")).arg("-ldl");
        command.arg(format!("-Wl,-rpath,{}", folder.display()));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", words(&output));
    }
    let mut command = programs.command("linked");
    limited(10 * MIB)(&mut command);
    let mut linked = Command::new(program);
    linked.arg("linked");
    for (name, value) in command.get_envs() {
        linked.env(name, value.unwrap());
    }
    let mut program = Running::new(linked);
    program.done(&["retain 0 0", "current 0", "stream 50", "pool 6 0"]);
    program.done(&["from-pool 10 6 50"]);
    assert_eq!(program.call("end-pool 6"), "999");
    assert_eq!(
        program.free(),
        8 * MIB,
        "a block of before, and one of between"
    );
    program.done(&["free-async 10 50", "end-pool 6"]);
    assert_eq!(program.free(), 8 * MIB, "one block is left");
    program.end();
}

#[test]
fn plain_memory_that_is_freed_in_a_stream_is_charged_no_more() {
    let Some(programs) = Programs::new() else {
        return;
    };
    let mut program = programs.start("dlsym", limited(10 * MIB));
    program.done(&["retain 0 0", "current 0", "stream 50", "alloc 1 4194304"]);
    program.done(&["free-async 1 50", "finish"]);
    assert_eq!(program.free(), 10 * MIB);
    program.end();
}

#[test]
fn a_device_that_does_not_exist_is_the_drivers_to_refuse() {
    const INVALID_DEVICE: &str = "101";
    let Some(programs) = Programs::new() else {
        return;
    };
    let mut program = programs.start("proc", limited(10 * MIB));
    program.done(&["retain 0 0", "current 0"]);
    for device in ["-1", "9", "99"] {
        // Beyond the limit, too.
        for bytes in [4 * MIB, 16 * MIB] {
            let call = format!("create 1 {bytes} {device}");
            assert_eq!(program.call(&call), INVALID_DEVICE, "{call}");
        }
    }
    assert_eq!(program.free(), 10 * MIB);
    assert_eq!(program.end(), "");
}

#[test]
fn a_limit_that_cannot_be_read_leaves_nothing_free_and_says_what_would_be_right() {
    let Some(programs) = Programs::new() else {
        return;
    };
    // Some bytes are no page: most likely the unit is missing.
    for limit in ["many", "4", "2097151"] {
        let mut program = programs.start("dlsym", |command| {
            limited(0)(command);
            command.env("LARDER_CUDA_LIMIT", limit);
        });
        program.done(&["retain 0 0", "current 0"]);
        assert_eq!(program.free(), 0);
        assert_eq!(program.call("alloc 1 1"), NO_MEMORY);
        assert_eq!(program.free(), 0);
        let said = program.end();
        let variable = format!("LARDER_CUDA_LIMIT is {limit:?}: set it to a size such as 1.5GiB");
        assert!(said.contains(&variable), "{said}");
        assert!(said.contains("2 MiB"), "{said}");
        assert!(!said.contains("control file"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let mut program = programs.start("dlsym", limited(2 * MIB));
    program.done(&["retain 0 0", "current 0", "alloc 1 2097152"]);
    assert_eq!(program.end(), "");
}

#[test]
fn memory_goes_with_its_context_and_no_other() {
    let Some(programs) = Programs::new() else {
        return;
    };
    let mut program = programs.start("linked", limited(10 * MIB));
    program.done(&["retain 0 0", "current 0", "alloc 1 1048576"]);
    program.done(&["context 2 0", "alloc 3 2097152"]);
    assert_eq!(program.free(), 7 * MIB);
    assert_ne!(program.call("destroy 0"), "0", "it is the primary one");
    assert_eq!(program.free(), 7 * MIB);
    program.done(&["destroy 2", "current 0"]);
    assert_eq!(program.free(), 9 * MIB);
    program.done(&["context 2 0", "alloc 3 2097152", "destroy-v1 2"]);
    program.done(&["current 0"]);
    assert_eq!(program.free(), 9 * MIB);
    program.done(&["retain 0 0", "release 0"]);
    assert_eq!(program.free(), 9 * MIB, "it was retained twice");
    program.done(&["reset 0", "current 0"]);
    assert_eq!(program.free(), 10 * MIB);
    program.done(&["alloc 1 1048576", "release 0"]);
    program.done(&["retain 0 0", "current 0"]);
    assert_eq!(program.free(), 10 * MIB);
    program.end();
}

/// A call that the driver refuses changes nothing of what is charged, and the same call goes through afterwards.
#[test]
fn what_the_driver_refuses_is_charged_as_if_it_was_not_asked() {
    let Some(programs) = Programs::new() else {
        return;
    };
    let mut program = programs.start("proc", limited(32 * MIB));
    program.done(&["retain 0 0", "current 0", "stream 50", "reserve 20 8388608"]);
    // The function, the call, and how much less is free behind it, in MiB.
    let calls = [
        ("cuMemAlloc_v2", "alloc 1 1048576", 1),
        ("cuMemAllocManaged", "managed 2 1048576", 1),
        ("cuMemAllocPitch_v2", "pitch 3 1024 1024", 1),
        ("cuMemCreate", "create 4 4194304", 4),
        ("cuMemMap", "map 20 4", 0),
        ("cuMemRetainAllocationHandle", "hold 5 20", 0),
        ("cuMemUnmap", "unmap 20 4194304", 0),
        ("cuMemRelease", "let-go 4", 0),
        ("cuMemRelease", "let-go 5", -4),
        ("cuMemAllocAsync", "async 6 2097152 50", 2),
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
        ("cuMemAlloc_v2", "alloc 10 1048576", 1),
        ("cuCtxDestroy_v2", "destroy 9", -1),
        ("cuCtxSetCurrent", "current 0", 0),
        ("cuDevicePrimaryCtxReset_v2", "reset 0", -2),
    ];
    for (function, call, less) in calls {
        let before = program.free();
        program.done(&[&format!("refuse {function}")]);
        assert_eq!(program.call(call), "999", "{call}");
        if function == "cuCtxDestroy_v2" || function == "cuDevicePrimaryCtxReset_v2" {
            program.done(&["current 0"]);
        }
        assert_eq!(program.free(), before, "{call}, refused");
        if function == "cuCtxDestroy_v2" {
            program.done(&["current 9"]);
        }
        program.done(&[call]);
        program.done(&["current 0"]);
        let after = before as i64 - less * MIB as i64;
        assert_eq!(program.free() as i64, after, "{call}");
        if call.starts_with("context") {
            program.done(&["current 9"]);
        }
    }
    program.end();
}

/// Starts a program as a job on the machine's one device.
fn start_job(programs: &Programs, machine: &Machine, name: &str) -> Running {
    let mut command = machine.shared(programs.command("proc"));
    let file = |ending: &str| machine.jobs().join(format!("{name}.{ending}.json"));
    command
        .env("LD_PRELOAD", library())
        .env("GPU_CONFIG_FILE", file("control"))
        .env("GPU_STATUS_FILE", file("status"));
    let mut running = Running::new(command);
    running.done(&["retain 0 0", "current 0", "stream 50"]);
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
    // It waits for its first limit.
    job.ask("alloc 1 8388608");
    wait("its status", || machine.top("old")["alive"] == "yes");
    set("10MiB");
    assert_eq!(job.answer(), "0");
    assert_eq!(job.free(), 2 * MIB);
    wait("what it holds in its status", || held() == Some(8 * MIB));
    set("4MiB");
    wait("the lower limit", || job.free() == 0);
    assert_eq!(job.call("alloc 2 1"), NO_MEMORY);
    job.done(&["free 1", "alloc 1 4194304"]);
    assert_eq!(job.call("alloc 2 1"), NO_MEMORY);
    wait("less in its status", || held() == Some(4 * MIB));

    job.done(&["launch 50", "finish"]);
    machine.control("pause", "old");
    wait("the pause", || machine.top("old")["perf"] == 0);
    job.ask("launch 50");
    // Time enough for a launch that does not wait.
    machine.top("old");
    assert!(job.answers.try_recv().is_err(), "a suspended job launches");
    machine.control("resume", "old");
    assert_eq!(job.answer(), "0");
    // What is captured is not launched, and does not wait.
    machine.control("pause", "old");
    wait("the pause", || machine.top("old")["perf"] == 0);
    job.done(&["capture 50", "launch 50", "captured 50 11"]);
    machine.control("resume", "old");
    job.done(&["graph 11 50", "finish"]);
    job.end();
}

/// Launches go on at a share of the time, and the status counts the slices.
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
        job.done(&["launch 50", "launch-ex 50"]);
        // A status is written when an order was obeyed.
        percent = 161 - percent;
        share(percent);
        runs() > Some(0)
    });
    // A stream that has gone is waited for no more, and what is captured is not launched.
    job.done(&["stream 51", "launch 51", "end-stream 51", "capture 50"]);
    for _ in 0..100 {
        job.done(&["launch 50"]);
    }
    job.done(&["captured 50 11", "graph 11 50", "finish"]);
    job.end();
}

/// Streams that a paced program has launched on are waited for at the end of a slice, in one call each.
struct Waits {
    job: Running,
    seen: u64,
}

impl Waits {
    /// Starts a job at a share of the time, and waits until that is in force.
    fn start(programs: &Programs, machine: &Machine) -> Self {
        let control = machine.jobs().join("old.control.json");
        fs::write(&control, r#"{"perfControl": 80}"#).unwrap();
        let mut job = start_job(programs, machine, "old");
        // Then something was waited for.
        wait("a pause", || {
            job.done(&["launch 50"]);
            job.call("calls cuStreamSynchronize") != "0"
        });
        let mut waits = Self { job, seen: 0 };
        waits.launch(50);
        waits
    }

    /// A launch, which the driver may refuse; how many streams were waited for before it.
    fn launch(&mut self, stream: u32) -> u64 {
        self.job.call(&format!("launch {stream}"));
        let now = self.job.call("calls cuStreamSynchronize").parse().unwrap();
        now - std::mem::replace(&mut self.seen, now)
    }

    /// How many streams of the slice are waited for beside one of this launch, however soon its end comes.
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

#[test]
fn a_paced_program_waits_for_no_stream_of_a_context_that_has_gone() {
    let Some(programs) = Programs::new() else {
        return;
    };
    let machine = Machine::new();
    let mut waits = Waits::start(&programs, &machine);
    waits.job.done(&["context 12 0", "stream 51"]);
    waits.launch(51);
    waits.job.done(&["current 0"]);
    assert_eq!(waits.beside(50), 1, "the context is there");
    for destroy in ["destroy", "destroy-v1"] {
        waits.job.done(&["current 0", "context 12 0", "stream 51"]);
        waits.launch(51);
        waits.job.done(&[&format!("{destroy} 12"), "current 0"]);
        assert_eq!(waits.beside(50), 0, "{destroy}");
    }
    for end in ["end-stream", "end-stream-v1"] {
        waits.job.done(&["stream 51"]);
        waits.launch(51);
        waits.job.done(&[&format!("{end} 51")]);
        assert_eq!(waits.beside(50), 0, "{end}");
    }

    // The primary context goes with its last release.
    waits.job.done(&["stream 51"]);
    waits.launch(51);
    waits.job.done(&["retain 0 0", "release 0"]);
    assert_eq!(waits.beside(50), 1, "retained twice");
    waits.launch(51);
    waits
        .job
        .done(&["release 0", "retain 0 0", "current 0", "stream 52"]);
    assert_eq!(waits.beside(52), 0, "released");
    waits.job.done(&["stream 51"]);
    waits.launch(51);
    waits.job.done(&["reset 0", "current 0", "stream 52"]);
    assert_eq!(waits.beside(52), 0, "reset");
    waits.job.end();
}

#[test]
fn a_paced_program_waits_for_a_stream_that_the_driver_did_not_destroy() {
    let Some(programs) = Programs::new() else {
        return;
    };
    let machine = Machine::new();
    let mut waits = Waits::start(&programs, &machine);
    waits.job.done(&["stream 51"]);
    waits.launch(51);
    waits.job.done(&["refuse cuStreamDestroy_v2"]);
    assert_eq!(waits.job.call("end-stream 51"), "999");
    assert_eq!(waits.beside(50), 1);
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
    // All of it is its own.
    first.done(&["alloc 2 1048576", "alloc 1 62914560"]);
    let mut second = start_job(&programs, &machine, "second");
    // It waits until the first frees.
    second.ask("alloc 1 20971520");
    wait("a lower limit of the first", || first.free() == 0);
    first.done(&["free 1"]);
    assert_eq!(second.answer(), "0");
    assert_eq!(first.call("alloc 1 62914560"), NO_MEMORY);
    first.done(&["alloc 1 20971520"]);
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

/// A path by which nothing is preloaded, though the library is there.
#[test]
fn a_library_that_is_linked_stands_in_front_of_nothing() {
    let Some(programs) = Programs::new() else {
        return;
    };
    let linked = link_with_library(programs.folder.path());
    let mut command = programs.command("linked");
    command.env("LARDER_CUDA_LIMIT", MIB.to_string());
    let mut of_library = Command::new(linked);
    of_library.arg("linked");
    for (name, value) in command.get_envs() {
        of_library.env(name, value.unwrap());
    }
    let mut program = Running::new(of_library);
    program.done(&["retain 0 0", "current 0", "alloc 1 8388608"]);
    program.end();
}

fn link_with_library(folder: &Path) -> PathBuf {
    let program = folder.join("with-library");
    let mut command = Command::new("cc");
    command
        .args(["-std=gnu11", "-DLINKED"])
        .arg(package().join("tests/programs/interposed.c"))
        .arg("-o")
        .arg(&program)
        // In front of the driver.
        .arg("-Wl,--no-as-needed")
        .arg(library())
        .arg(folder.join("libcuda.so"))
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .arg(format!(
            "-Wl,-rpath,{}",
            library().parent().unwrap().display()
        ))
        .arg("-ldl");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    program
}
