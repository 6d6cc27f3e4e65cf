//! Compiles programs, runs them on a heap, and compares their exits and output.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::is_long;
use crate::library;

pub(crate) fn times() -> usize {
    if is_long() { 10_000 } else { 20 }
}

pub(crate) fn contract_arguments() -> &'static [&'static str] {
    if is_long() { &["all"] } else { &[] }
}

/// Returns the time after which a process counts as hung.
fn limit() -> Duration {
    Duration::from_secs(if is_long() { 3600 } else { 1000 })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heap {
    /// The C library's.
    System,
    /// Larder's, through `LD_PRELOAD`.
    Preloaded,
    /// Larder's, in a program linked with `liblarder.so`.
    Linked,
    /// Larder's, in a program linked with `liblarder.a`.
    Inside,
    /// Larder's, in a program linked statically with `liblarder.a` and the C library.
    Alone,
}

use Heap::{Alone, Inside, Linked, Preloaded, System};

#[derive(PartialEq, Eq, Debug)]
pub(crate) struct End {
    pub(crate) status: ExitStatus,
    pub(crate) out: Vec<u8>,
    pub(crate) err: Vec<u8>,
}

impl End {
    /// Standard output.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    /// Standard error.
    pub(crate) fn complaints(&self) -> String {
        String::from_utf8_lossy(&self.err).into_owned()
    }

    /// Asserts that a signal ended the process, and that standard error begins with these words.
    #[track_caller]
    pub(crate) fn assert_ended_by(&self, signal: libc::c_int, words: &str, what: &str) {
        let complaints = self.complaints();
        let what = format!("{what}: {}{}{complaints}", self.status, self.text());
        assert_eq!(self.status.signal(), Some(signal), "{what}");
        assert!(complaints.starts_with(words), "{what}");
    }

    /// Asserts success, output that ends with this text, and nothing on standard error.
    #[track_caller]
    pub(crate) fn assert_says(&self, text: &str, what: &str) {
        let (said, complaints) = (self.text(), self.complaints());
        let is_right = self.status.success() && said.ends_with(text) && complaints.is_empty();
        assert!(is_right, "{what}: {}{said}{complaints}", self.status);
    }
}

pub(crate) fn new_folder() -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("malloc/{number}"));
    if folder.exists() {
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::create_dir_all(&folder).unwrap();
    folder
}

pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/malloc/programs")
        .join(name)
}

/// Returns the folder of the library's package and its header.
pub(crate) fn preload() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("preload")
}

/// Compiles a C or C++ program for a heap, without optimizations that rely on what `malloc` does.
pub(crate) fn compile(name: &str, heap: Heap) -> PathBuf {
    build(name, heap, &[])
}

/// Compiles a program that exports the names of its functions.
pub(crate) fn compile_with_names(name: &str, heap: Heap) -> PathBuf {
    build(name, heap, &["-rdynamic"])
}

/// Compiles a program that contains the C++ library.
pub(crate) fn compile_with_static_cpp(name: &str, heap: Heap) -> PathBuf {
    build(name, heap, &["-static-libstdc++", "-static-libgcc"])
}

pub(crate) fn compile_library(name: &str) -> PathBuf {
    build(name, System, &["-shared", "-fPIC"])
}

/// Compiles a C library with an option that defines a macro.
pub(crate) fn compile_library_with(name: &str, defined: &str) -> PathBuf {
    build(name, System, &["-shared", "-fPIC", defined])
}

/// Builds each program once for each way of linking it.
fn build(name: &str, heap: Heap, options: &[&str]) -> PathBuf {
    type Built = Mutex<BTreeMap<String, Arc<OnceLock<PathBuf>>>>;
    static BUILT: Built = Mutex::new(BTreeMap::new());
    let linked = if heap == Preloaded { System } else { heap };
    let key = format!("{name} {linked:?} {options:?}");
    let built = BUILT.lock().unwrap().entry(key).or_default().clone();
    built.get_or_init(|| link(name, linked, options)).clone()
}

fn link(name: &str, heap: Heap, options: &[&str]) -> PathBuf {
    let built = new_folder().join(name.replace('.', "-"));
    let mut command = match name.ends_with(".c") {
        true => Command::new("cc"),
        false => Command::new("c++"),
    };
    match name.ends_with(".c") {
        true => command.args(["-std=gnu11", "-O1", "-fno-builtin"]),
        false => command.args(["-std=c++17", "-O0"]),
    };
    command.args(["-w", "-pthread", "-I"]).arg(preload());
    command.args(options);
    command.arg(source(name)).arg("-o").arg(&built);
    match heap {
        System | Preloaded => {}
        Linked => {
            let mut place = OsString::from("-Wl,-rpath,");
            place.push(library::folder());
            command.arg(library::shared()).arg(place);
        }
        Inside => {
            command
                .arg(library::folder().join("liblarder.a"))
                .arg("-ldl");
        }
        Alone => {
            command
                .arg(library::folder().join("liblarder.a"))
                .arg("-static");
        }
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} does not compile: {said}");
    built
}

/// Returns a command that runs a program, with Larder preloaded if `heap` says so.
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>, heap: Heap) -> Command {
    let mut command = Command::new(program);
    command.env_remove("LD_PRELOAD").stdin(Stdio::null());
    // This variable is for the tests.
    command.env_remove("LARDER_ROUNDS");
    if heap == Preloaded {
        command.env("LD_PRELOAD", library::shared());
    }
    command
}

/// Runs a command to its end. If it hangs, ends all the processes that it started.
pub(crate) fn run(command: &mut Command) -> End {
    let folder = new_folder();
    let (out, err) = (folder.join("out"), folder.join("err"));
    // Files, because a pipe stays open as long as a hung process has it.
    let mut child = command
        .process_group(0)
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&err).unwrap())
        .spawn()
        .unwrap();
    let (begin, limit) = (Instant::now(), limit());
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > limit {
            let group = -libc::pid_t::try_from(child.id()).unwrap();
            // SAFETY: ends the processes of our own group, whose leader has not been waited for.
            unsafe { libc::kill(group, libc::SIGKILL) };
            child.wait().unwrap();
            panic!("hangs: {command:?}: {:?}", fs::read_to_string(&out));
        }
        thread::sleep(Duration::from_millis(1));
    };
    let read = |path: &Path| fs::read(path).unwrap();
    let end = End {
        status,
        out: read(&out),
        err: read(&err),
    };
    fs::remove_dir_all(folder).unwrap();
    end
}

/// Runs a C or C++ program on the system's heap, and `processes` times on Larder's in each of these
/// ways. Checks that it succeeds with the same output.
pub(crate) fn same(name: &str, arguments: &[&str], ways: &[Heap], processes: usize) {
    let expected = run(command(compile(name, System), System).args(arguments));
    let said = expected.text();
    assert!(expected.status.success(), "{name} on the system: {said}");
    for &way in ways {
        let program = compile(name, way);
        for _ in 0..processes {
            let end = run(command(&program, way).args(arguments));
            let complaints = end.complaints();
            assert!(
                end == expected,
                "{name} {way:?}: {}\n{}{complaints}",
                end.status,
                end.text()
            );
        }
    }
}

/// The usual ways to use Larder's heap.
pub(crate) const ALL: [Heap; 3] = [Preloaded, Linked, Inside];
