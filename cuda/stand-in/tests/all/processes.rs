//! Memory counted and shared by two processes. The second one is this test program again, running
//! [`second_process`].

use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::{env, fs};

use larder_cuda_abi::Code;

use super::gpu::*;

/// What the second process is to do, with its argument.
const ROLE: &str = "LARDER_TEST_ROLE";

/// A file to count in; removed at the end.
struct Counted(PathBuf);

impl Counted {
    fn new(name: &str) -> Self {
        let process = std::process::id();
        let path = env::temp_dir().join(format!("larder-memory-{process}-{name}"));
        let _ = fs::remove_file(&path);
        Self(path)
    }

    fn share(&self) -> Code {
        share(self.0.to_str().unwrap())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn share(path: &str) -> Code {
    larder_stand_in_share(CString::new(path).unwrap().as_ptr())
}

/// A second process; killed at the end.
struct Second {
    child: Child,
    /// What it says; it must not find this closed.
    said: BufReader<ChildStdout>,
}

impl Second {
    /// Lets it end by itself.
    fn finish(mut self) {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the second process and waits until it says that it did its part.
fn start(role: &str, argument: &str) -> Second {
    let mut child = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "memory::processes::second_process",
            "--nocapture",
        ])
        .env(ROLE, format!("{role} {argument}"))
        .envs((role == "environment").then_some(("LARDER_STAND_IN_SHARED", argument)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while line.trim_end() != "ready" {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it failed");
    }
    Second { child, said }
}

/// Does nothing unless another test started this process for it.
#[test]
fn second_process() {
    let Ok(role) = env::var(ROLE) else {
        return;
    };
    let (role, argument) = role.split_once(' ').unwrap();
    let _gpu = match role {
        "environment" => gpu_of_environment(),
        _ => gpu(),
    };
    match role {
        "allocate" | "environment" => {
            if role == "allocate" {
                ok(share(argument));
            }
            made(|at| cuMemAlloc_v2(at, DEVICE / 2));
        }
        "import" => {
            let (file, counted) = argument.split_once(' ').unwrap();
            ok(share(counted));
            let file = File::options().read(true).write(true).open(file);
            let handle = import(&file.unwrap());
            let at = reserve(GRANULARITY);
            map(at, GRANULARITY, handle);
            ok(cuMemRelease(handle));
            assert_eq!(read(at, 100), [7; 100]);
            ok(cuMemsetD8_v2(at + 50, 8, 50));
            assert_eq!(larder_stand_in_used(0), 0);
        }
        other => panic!("no role {other}"),
    }
    println!("\nready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
fn two_processes_run_out_of_the_same_memory() {
    let _gpu = gpu();
    let counted = Counted::new("two");
    ok(counted.share());
    let mine = made(|at| cuMemAlloc_v2(at, DEVICE / 4));
    let second = start("allocate", counted.0.to_str().unwrap());
    assert_eq!(free(), DEVICE / 4);
    assert_eq!(larder_stand_in_used(0), DEVICE as u64 / 4);
    let mut at = 0;
    let code = cuMemAlloc_v2(&mut at, DEVICE / 4 + 1);
    assert_eq!(code, Code::OUT_OF_MEMORY);
    let code = cuMemCreate(&mut at, DEVICE / 2, &prop(0), 0);
    assert_eq!(code, Code::OUT_OF_MEMORY);
    ok(cuMemFree_v2(mine));
    assert_eq!(free(), DEVICE / 2);
    // A process that ends well gives everything back as well.
    second.finish();
    assert_eq!(free(), DEVICE);
    ok(cuMemAlloc_v2(&mut at, DEVICE));
}

#[test]
fn what_another_process_imports_is_one_memory_and_counts_once() {
    let _gpu = gpu();
    let counted = Counted::new("import");
    ok(counted.share());
    let at = reserve(GRANULARITY);
    let handle = create_shareable(GRANULARITY);
    map(at, GRANULARITY, handle);
    ok(cuMemsetD8_v2(at, 7, 100));
    let file = export(handle);
    let (process, descriptor) = (std::process::id(), file.as_raw_fd());
    let path = format!("/proc/{process}/fd/{descriptor}");
    let second = start("import", &format!("{path} {}", counted.0.to_str().unwrap()));
    assert_eq!(read(at, 100), [[7; 50], [8; 50]].concat());
    assert_eq!(free(), DEVICE - GRANULARITY);
    second.finish();
    assert_eq!(free(), DEVICE - GRANULARITY);
    ok(cuMemUnmap(at, GRANULARITY));
    ok(cuMemRelease(handle));
    assert_eq!(free(), DEVICE);
}

#[test]
fn the_environment_names_the_file() {
    let _gpu = gpu();
    let counted = Counted::new("environment");
    ok(counted.share());
    let second = start("environment", counted.0.to_str().unwrap());
    assert_eq!(free(), DEVICE / 2);
    drop(second);
    assert_eq!(free(), DEVICE);
}

#[test]
fn a_killed_process_gives_its_memory_back() {
    let _gpu = gpu();
    let counted = Counted::new("killed");
    ok(counted.share());
    let mut second = start("allocate", counted.0.to_str().unwrap());
    assert_eq!(free(), DEVICE / 2);
    second.child.kill().unwrap();
    // Until it is waited for there is still a process of that number, that holds nothing.
    let stat = format!("/proc/{}/stat", second.child.id());
    while !fs::read_to_string(&stat).unwrap().contains(") Z") {
        std::thread::yield_now();
    }
    assert_eq!(free(), DEVICE);
    drop(second);
    assert_eq!(free(), DEVICE);
}

#[test]
fn the_file_says_how_much_there_is() {
    let _gpu = gpu();
    let counted = Counted::new("total");
    let mine = made(|at| cuMemAlloc_v2(at, 1024));
    ok(counted.share());
    assert_eq!(free(), DEVICE - 1024, "what is in use already counts");
    ok(larder_stand_in_set_memory(0, DEVICE as u64 / 2));
    ok(cuMemFree_v2(mine));
    let second = start("allocate", counted.0.to_str().unwrap());
    assert_eq!(free(), 0, "the second process took the first one's number");
    drop(second);
    let total = made(|bytes| cuDeviceTotalMem_v2(bytes, 0));
    assert_eq!(total, DEVICE / 2);
}

#[test]
fn a_file_that_is_none_is_not_used() {
    let _gpu = gpu();
    let counted = Counted::new("foreign");
    fs::write(&counted.0, "not a file to count in").unwrap();
    assert_eq!(counted.share(), Code::INVALID_VALUE);
    assert_eq!(share("/nowhere/at/all"), Code::INVALID_VALUE);
    assert_eq!(share("/dev/null"), Code::INVALID_VALUE);
    assert_eq!(free(), DEVICE);
    fs::remove_file(&counted.0).unwrap();
    ok(counted.share());
    made(|at| cuMemAlloc_v2(at, 1024));
    // Somebody spoils it: the driver goes on alone.
    fs::write(&counted.0, "spoilt").unwrap();
    assert_eq!(free(), DEVICE - 1024);
    made(|at| cuMemAlloc_v2(at, 1024));
}

/// Whether this process has memory at an address.
fn is_mapped(at: usize) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let range = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [range.0, range.1].map(|end| usize::from_str_radix(end, 16).unwrap());
        (start..end).contains(&at)
    })
}

#[test]
fn a_reset_closes_everything() {
    let _gpu = gpu();
    let counted = Counted::new("reset");
    ok(counted.share());
    let files = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = files();
    let at = reserve(GRANULARITY);
    map(at, GRANULARITY, create(GRANULARITY));
    made(|at| cuMemHostAlloc(at, 100, 0));
    made(|at| cuMemAllocManaged(at, 100, 1));
    assert_eq!(files(), before + 1);
    let much = 4 << 30;
    let at = made(|at| cuMemHostAlloc(at, much, 0));
    assert!(is_mapped(at + much / 2));
    larder_stand_in_reset(2, DEVICE as u64);
    assert_eq!(files(), before - 1);
    assert!(!is_mapped(at + much / 2));
    assert_eq!(alive(), "");
    assert_eq!(larder_stand_in_used(0), 0);
}
