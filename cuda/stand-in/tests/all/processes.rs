//! Memory that two processes count and share, and the system resources that a process holds. The second process is this
//! test program again, running [`second_process`].

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::common::GRANULARITY;
use crate::scripts::Stage;

/// The variable with the script of the second process.
const SCRIPT: &str = "LARDER_TEST_SCRIPT";
/// The variable that names the file in which the stand-in counts.
const SHARED: &str = "LARDER_STAND_IN_SHARED";

/// A stage, and a file for counting, which is removed at the end.
struct Counted {
    stage: Stage,
    path: PathBuf,
}

impl Counted {
    fn new(name: &str) -> Self {
        let process = std::process::id();
        let path = env::temp_dir().join(format!("larder-memory-{process}-{name}"));
        let _ = fs::remove_file(&path);
        let stage = Stage::new(None);
        Self { stage, path }
    }

    /// Plays a script, in which `FILE` is the file's name.
    fn play(&mut self, script: &str) {
        let script = self.script(script);
        self.stage.play(&script);
    }

    fn script(&self, script: &str) -> String {
        script.replace("FILE", &format!("\"{}\"", self.path.display()))
    }

    /// Starts a process and waits until it has played a script.
    fn second(&self, script: &str, environment: Option<&str>) -> Second {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "processes::second_process", "--nocapture"])
            .env(SCRIPT, self.script(script))
            .envs(environment.map(|name| (name, &self.path)))
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
}

impl Drop for Counted {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A second process, killed at the end.
struct Second {
    child: Child,
    /// The process's output, which must stay open.
    said: BufReader<ChildStdout>,
}

impl Second {
    /// Lets the process exit normally.
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

/// Does nothing unless another test started this process for it.
#[test]
fn second_process() {
    let Ok(script) = env::var(SCRIPT) else {
        return;
    };
    let mut stage = match env::var_os(SHARED) {
        Some(_) => Stage::of_environment(),
        None => Stage::new(None),
    };
    stage.play(&script);
    println!("\nready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
fn two_processes_run_out_of_the_same_memory() {
    let mut counted = Counted::new("two");
    counted.play("share FILE\ncuMemAlloc >mine 16M");
    let second = counted.second("share FILE\ncuMemAlloc >theirs 32M", None);
    counted.play(
        "free 16M
        used 0 = 16M
        OUT_OF_MEMORY cuMemAlloc >more 16M+1
        OUT_OF_MEMORY cuMemCreate >more 32M prop:0 0
        cuMemFree mine
        free 32M",
    );
    // A process that exits normally also frees everything.
    second.finish();
    counted.play("free 64M\ncuMemAlloc >all 64M");
}

#[test]
fn what_another_process_imports_is_one_memory_and_counts_once() {
    let mut counted = Counted::new("import");
    counted.play(
        "share FILE
        cuMemAddressReserve >v 2M 0 0 0
        cuMemCreate >h 2M prop:0:1 0
        cuMemMap v 2M 0 h 0
        cuMemSetAccess v 2M right:0:3 1
        cuMemsetD8 v 7 100
        cuMemExportToShareableHandle >fd h 1 0",
    );
    let (process, descriptor) = (std::process::id(), counted.stage.value("fd"));
    let script = format!(
        "share FILE
        opened fd /proc/{process}/fd/{descriptor}
        cuMemImportFromShareableHandle >h fd 1
        cuMemAddressReserve >v 2M 0 0 0
        cuMemMap v 2M 0 h 0
        cuMemSetAccess v 2M right:0:3 1
        cuMemRelease h
        bytes v 100 = 7
        cuMemsetD8 v+50 8 50
        used 0 = 0"
    );
    let second = counted.second(&script, None);
    counted.play("bytes v 50 = 7\nbytes v+50 50 = 8\nfree 62M");
    second.finish();
    counted.play("free 62M\ncuMemUnmap v 2M\ncuMemRelease h\nfree 64M");
}

#[test]
fn the_environment_names_the_file() {
    let mut counted = Counted::new("environment");
    counted.play("share FILE");
    let second = counted.second("cuMemAlloc >theirs 32M", Some(SHARED));
    counted.play("free 32M");
    drop(second);
    counted.play("free 64M");
}

#[test]
fn a_killed_process_gives_its_memory_back() {
    let mut counted = Counted::new("killed");
    counted.play("share FILE");
    let mut second = counted.second("share FILE\ncuMemAlloc >theirs 32M", None);
    counted.play("free 32M");
    second.child.kill().unwrap();
    // Until its parent waits for it, a process with that PID still exists, but holds nothing.
    let stat = format!("/proc/{}/stat", second.child.id());
    while !fs::read_to_string(&stat).unwrap().contains(") Z") {
        std::thread::yield_now();
    }
    counted.play("free 64M");
    drop(second);
    counted.play("free 64M");
}

#[test]
fn the_file_says_how_much_there_is() {
    let mut counted = Counted::new("total");
    // Memory that is already in use is included.
    counted.play("cuMemAlloc >mine 1024\nshare FILE\nfree 64M-1024");
    counted.play("set_memory 0 32M\ncuMemFree mine");
    let second = counted.second("share FILE\ncuMemAlloc >theirs 32M", None);
    // The second process took the size that the first one had set.
    counted.play("free 0");
    drop(second);
    counted.play("cuDeviceTotalMem >total 0\nis total 32M");
}

#[test]
fn a_file_that_is_none_is_not_used() {
    let mut counted = Counted::new("foreign");
    fs::write(&counted.path, "not a file to count in").unwrap();
    counted.play(
        "INVALID_VALUE share FILE
        INVALID_VALUE share \"/nowhere/at/all\"
        INVALID_VALUE share \"/dev/null\"
        free 64M",
    );
    fs::remove_file(&counted.path).unwrap();
    counted.play("share FILE\ncuMemAlloc >one 1024");
    // If another program overwrites the file, the driver continues without it.
    fs::write(&counted.path, "spoilt").unwrap();
    counted.play("free 64M-1024\ncuMemAlloc >two 1024");
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns whether this process has memory at an address.
fn is_mapped(at: u64) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let range = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [range.0, range.1].map(|end| u64::from_str_radix(end, 16).unwrap());
        (start..end).contains(&at)
    })
}

#[test]
fn a_reset_closes_everything() {
    let mut counted = Counted::new("reset");
    counted.play("share FILE");
    let before = open_files();
    counted.play(
        "cuMemAddressReserve >v 2M 0 0 0
        cuMemCreate >h 2M prop:0 0
        cuMemMap v 2M 0 h 0
        cuMemSetAccess v 2M right:0:3 1
        cuMemHostAlloc >pinned 100 0
        cuMemAllocManaged >managed 100 1
        cuMemHostAlloc >much 4G 0",
    );
    assert_eq!(open_files(), before + 1);
    let middle = counted.stage.value("much+2G");
    assert!(is_mapped(middle));
    counted.play("reset 2 64M");
    assert_eq!(open_files(), before - 1);
    assert!(!is_mapped(middle));
    counted.play("alive\nused 0 = 0");
}

#[test]
fn handles_need_no_descriptors() {
    const HANDLES: usize = 2000;
    let mut stage = Stage::new(None);
    let bytes = HANDLES * GRANULARITY;
    stage.play(&format!(
        "set_memory 0 {bytes}\ncuMemAddressReserve >v {bytes} 0 0 0"
    ));
    let before = open_files();
    for handle in 0..HANDLES {
        let at = format!("v+{}", handle * GRANULARITY);
        stage.play(&format!(
            "cuMemCreate >h 2M prop:0 0\ncuMemMap {at} 2M 0 h 0"
        ));
    }
    assert!(open_files() < before + 100, "{before} before");
    // Each mapping has its own bytes, and those of the last ones are in the right place.
    stage.play(&format!(
        "cuMemSetAccess v {bytes} right:0:3 1
        cuMemsetD8 v 1 2M
        cuMemsetD8 v+{bytes}-2M 2 2M
        bytes v 2 = 1
        bytes v+2M 2 = 0
        bytes v+{bytes}-2M 2 = 2"
    ));
}
