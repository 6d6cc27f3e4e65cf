//! The choice of the driver. Every start happens in a child process, which is this test program again, running only
//! [`child`].
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use larder_cuda::driver::{Choice, load, load_from_env};
use larder_cuda_abi::for_each_function;

/// The variable that tells a child what to do.
const ACT: &str = "LARDER_TEST_ACT";

/// The beginning of the lines in which a child reports.
const ANSWER: &str = "the answer: ";

/// Does nothing unless it runs in a child.
#[test]
fn child() {
    let Ok(act) = std::env::var(ACT) else { return };
    match act.as_str() {
        "load" => say(load_from_env().map(|_| ())),
        "contradict" => {
            let first = load(Choice::StandIn);
            assert!(first.is_ok(), "{first:?}");
            assert!(load(Choice::Auto).is_ok() && load(Choice::StandIn).is_ok());
            say(load(Choice::Real).map(|_| ()));
        }
        "cudarc first" => {
            let mut version = 0;
            // SAFETY: `version` outlives the call.
            let code = unsafe { cudarc::driver::sys::cuDriverGetVersion(&raw mut version) };
            assert_eq!(code as u32, 0);
            say(load_from_env().map(|_| ()));
        }
        "race" => {
            let choices = [Choice::StandIn, Choice::Auto, Choice::StandIn, Choice::Real];
            let start = std::sync::Barrier::new(choices.len());
            let answers: Vec<_> = std::thread::scope(|scope| {
                let start = &start;
                let load = |choice| {
                    scope.spawn(move || {
                        start.wait();
                        load(choice)
                            .map(std::ptr::from_ref)
                            .map(|driver| driver.addr())
                    })
                };
                let threads: Vec<_> = choices.map(load).into();
                let ends = threads.into_iter().map(|thread| thread.join().unwrap());
                ends.collect()
            });
            let had: Vec<_> = answers.iter().flatten().collect();
            assert!(
                !had.is_empty() && had.iter().all(|one| *one == had[0]),
                "{answers:?}"
            );
            println!("{ANSWER}one of {}", had.len());
        }
        other => panic!("no act {other}"),
    }
}

fn say(outcome: Result<(), larder_cuda::LoadError>) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let opened = maps.contains("liblarder_cuda_stand_in");
    match outcome {
        Err(error) => println!("{ANSWER}error {error}"),
        Ok(()) => {
            let driver = load(Choice::Auto).unwrap();
            let kind = match driver.stand_in() {
                Some(_) => "stand-in",
                None => "real",
            };
            let path = driver.path().display();
            println!("{ANSWER}{kind} at {path}, stand-in opened: {opened}");
            if let Some(reason) = driver.no_real() {
                println!("{ANSWER}not real: {reason}");
            }
        }
    }
}

/// A child process that starts the driver.
struct Start {
    command: Command,
}

impl Start {
    fn new(act: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["child", "--exact", "--nocapture"])
            .env(ACT, act);
        for name in ["LARDER_CUDA_DRIVER", "LARDER_CUDA_STAND_IN"] {
            command.env_remove(name);
        }
        Self { command }
    }

    /// Loads a driver by the given choice.
    fn of(choice: &str) -> Self {
        Self::new("load").with("LARDER_CUDA_DRIVER", choice)
    }

    fn with(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Makes the child search this folder for libraries first.
    fn library(self, folder: &Folder) -> Self {
        self.with("LD_LIBRARY_PATH", &folder.0)
    }

    /// Runs the child, and returns the lines that it reported.
    fn answers(mut self) -> String {
        let output = self.command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}\n{errors}");
        let answers = text
            .lines()
            .filter_map(|line| Some(&line[line.find(ANSWER)? + ANSWER.len()..]));
        answers.collect::<Vec<_>>().join("\n")
    }

    /// Checks that the answer begins with `start` and contains all words.
    #[track_caller]
    fn says(self, start: &str, words: &[&str]) {
        let answers = self.answers();
        assert!(answers.starts_with(start), "not {start:?}: {answers}");
        for word in words {
            assert!(answers.contains(word), "no {word:?}: {answers}");
        }
    }
}

/// A new temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("larder-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the path of the stand-in next to this program.
fn stand_in_path() -> PathBuf {
    let folder = std::env::current_exe().unwrap();
    folder.parent().unwrap().join("liblarder_cuda_stand_in.so")
}

/// Returns the beginning of the answer if the stand-in next to this program is loaded.
fn ours() -> String {
    format!("stand-in at {}", stand_in_path().display())
}

fn has_real() -> bool {
    real().starts_with("real")
}

/// Returns the answer of the machine's own driver, or the error if there is none.
fn real() -> String {
    Start::of("real").answers()
}

/// Returns whether the answer comes from the machine's own driver instead of a test's library under the other name. A
/// driver that is installed without a device is tried first, and its error is the answer.
fn is_of_the_machine(answers: &str) -> bool {
    answers == real() && answers.contains("has no device")
}

#[test]
fn the_stand_in_is_taken_when_it_is_asked_for() {
    Start::of("stand-in").says(&ours(), &[]);
}

#[test]
fn auto_takes_the_real_driver_if_there_is_one_and_says_why_if_not() {
    if has_real() {
        Start::new("load").says("real", &["stand-in opened: false"]);
    } else {
        Start::new("load").says("stand-in", &["not real: "]);
    }
}

#[test]
fn the_real_driver_is_refused_where_there_is_none() {
    if has_real() {
        println!("skipped: this machine has a real driver");
        return;
    }
    Start::of("real").says("error ", &["LARDER_CUDA_DRIVER=stand-in"]);
}

#[test]
fn another_word_for_the_choice_is_an_error_that_names_the_three() {
    Start::of("gpu").says("error", &["\"gpu\"", "stand-in", "real", "auto"]);
}

#[test]
fn a_stand_in_that_is_not_there_is_an_error_that_names_it() {
    let path = "/nowhere/stand_in.so";
    let start = Start::of("stand-in").with("LARDER_CUDA_STAND_IN", path);
    start.says(&format!("error no stand-in driver at {path}"), &[]);
}

#[test]
fn a_second_choice_that_contradicts_is_an_error() {
    Start::new("contradict").says("error the process uses the driver", &[]);
}

/// Makes a folder for the front of the library path, with a stand-in under the real driver's name.
fn decoy(name: &str) -> Folder {
    let folder = Folder::new(&format!("decoy-{name}"));
    std::fs::copy(stand_in_path(), folder.0.join(name)).unwrap();
    folder
}

#[test]
fn a_decoy_is_never_taken_for_the_real_driver() {
    let folder = decoy("libcuda.so");
    let answers = Start::of("real").library(&folder).answers();
    assert!(answers.starts_with("error "), "{answers}");
    if is_of_the_machine(&answers) {
        return;
    }
    let place = folder.0.display().to_string();
    let start = Start::of("real").library(&folder);
    start.says("error ", &["poses as the CUDA driver", &place]);
}

#[test]
fn a_decoy_under_the_second_name_is_not_taken_either() {
    let folder = decoy("libcuda.so.1");
    let answers = Start::of("real").library(&folder).answers();
    // On a system that has the first name too, that library is loaded.
    let refused = answers.starts_with("error ") && answers.contains("poses");
    let other = answers.starts_with("real at /") || is_of_the_machine(&answers);
    assert!(refused || other, "{answers}");
    let taken = format!("real at {}", folder.0.display());
    assert!(!answers.contains(&taken), "{answers}");
}

#[test]
fn a_decoy_never_wins_over_our_stand_in() {
    for name in ["libcuda.so", "libcuda.so.1"] {
        let folder = decoy(name);
        for choice in ["auto", "stand-in"] {
            let answers = Start::of(choice).library(&folder).answers();
            let real = name == "libcuda.so.1" && choice == "auto" && answers.starts_with("real");
            let is_ours = answers.starts_with(&ours());
            assert!(real || is_ours, "{choice} {name}: {answers}");
        }
    }
}

#[test]
fn a_driver_that_cudarc_has_already_is_noticed() {
    let folder = decoy("libcuda.so");
    let start = Start::new("cudarc first").with("LARDER_CUDA_DRIVER", "stand-in");
    start
        .library(&folder)
        .says("error cudarc uses another driver", &[]);
}

macro_rules! names {
    ($(fn $name:ident $parameters:tt since $version:literal;)*) => {
        const FUNCTIONS: &[(&str, u32)] = &[$((stringify!($name), $version)),*];
    };
}

for_each_function!(names);

/// A version whose functions every driver has.
const OLDEST: u32 = 10_020;

/// Builds a library with a driver's functions and without the stand-in's mark. Returns `None` if there is no compiler.
fn fake_driver(folder: &Path, left_out: &str) -> Option<PathBuf> {
    fake_library(folder, &fake_source(left_out), &[])
}

fn fake_source(left_out: &str) -> String {
    let mut source = String::from(
        "extern \"C\" { fn getenv(name: *const u8) -> *const u8; }\n\
         fn is_set(name: &[u8]) -> bool { !unsafe { getenv(name.as_ptr()) }.is_null() }\n\
         #[no_mangle] pub extern \"C\" fn cuInit(_: u32) -> u32 {\n\
         if is_set(b\"FAKE_BROKEN\\0\") { 999 } else if is_set(b\"FAKE_ABSENT\\0\") { 100 } else { 0 } }\n\
         #[no_mangle] pub unsafe extern \"C\" fn cuDriverGetVersion(v: *mut i32) -> u32 { *v = 12080; 0 }\n\
         #[no_mangle] pub unsafe extern \"C\" fn cuDeviceGetCount(n: *mut i32) -> u32 { *n = !is_set(b\"FAKE_EMPTY\\0\") as i32; 0 }\n",
    );
    let own = ["cuInit", "cuDriverGetVersion", "cuDeviceGetCount", left_out];
    let is_old = |row: &&(&str, u32)| row.1 <= OLDEST && !own.contains(&row.0);
    for (name, _) in FUNCTIONS.iter().filter(is_old) {
        source += &format!("#[no_mangle] pub extern \"C\" fn {name}() -> u32 {{ 801 }}\n");
    }
    source
}

/// Builds a library under both of the driver's names, so that the machine's driver is not found. Returns `None` if
/// there is no compiler.
fn fake_library(folder: &Path, source: &str, options: &[&str]) -> Option<PathBuf> {
    let file = folder.join("fake.rs");
    std::fs::write(&file, source).unwrap();
    let library = folder.join("libcuda.so");
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let outcome = Command::new(compiler)
        .args([
            "--crate-type",
            "cdylib",
            "--edition",
            "2021",
            "-A",
            "warnings",
            "-o",
        ])
        .args([&library, &file])
        .args(options)
        .output();
    match outcome {
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{errors}");
            std::os::unix::fs::symlink(&library, folder.join("libcuda.so.1")).unwrap();
            Some(library)
        }
        Err(error) => {
            println!("skipped: no compiler ({error})");
            None
        }
    }
}

#[test]
fn a_real_driver_that_works_is_taken_and_the_stand_in_is_not_even_opened() {
    let folder = Folder::new("fake");
    let Some(library) = fake_driver(&folder.0, "") else {
        return;
    };
    let real = format!("real at {}, stand-in opened: false", library.display());
    for choice in ["auto", "real"] {
        assert_eq!(Start::of(choice).library(&folder).answers(), real);
    }
}

#[test]
fn a_real_driver_that_does_not_work_is_left_for_the_stand_in_with_the_reason() {
    let folder = Folder::new("broken");
    if fake_driver(&folder.0, "").is_none() {
        return;
    }
    for (variable, reason) in [
        ("FAKE_BROKEN", "CUDA_ERROR_UNKNOWN"),
        ("FAKE_EMPTY", "has no device"),
        // NVIDIA's driver fails in this way.
        ("FAKE_ABSENT", "has no device"),
    ] {
        let start = |choice| Start::of(choice).library(&folder).with(variable, "1");
        start("auto").says("stand-in at ", &["not real: ", reason]);
        start("real").says("error ", &[reason]);
    }
}

#[test]
fn a_driver_that_lacks_a_function_is_an_error_that_names_it() {
    let folder = Folder::new("old");
    if fake_driver(&folder.0, "cuPointerGetAttribute").is_none() {
        return;
    }
    let start = Start::of("real").library(&folder);
    start.says("error ", &["lacks cuPointerGetAttribute"]);
}

#[test]
fn a_program_linked_with_a_driver_has_that_one_or_none() {
    let folder = Folder::new("linked");
    let Some(real) = fake_driver(&folder.0, "") else {
        return;
    };
    let stand_in = folder.0.join("another_name.so");
    std::fs::copy(stand_in_path(), &stand_in).unwrap();
    let other = format!("stand-in at {}", stand_in.display());
    let contradicts = "error the process uses the driver";
    for (preloaded, choice, start, word) in [
        (&real, "real", "real at ", "opened: false"),
        (&real, "auto", "real at ", "opened: false"),
        (&real, "stand-in", contradicts, ""),
        (&stand_in, "stand-in", &*other, ""),
        (&stand_in, "auto", &*other, ""),
        (&stand_in, "real", "error ", "poses as the CUDA driver"),
    ] {
        Start::of(choice)
            .with("LD_PRELOAD", preloaded)
            .says(start, &[word]);
    }
}

#[test]
fn another_library_at_the_stand_ins_path_is_refused() {
    let folder = Folder::new("other");
    let Some(library) = fake_driver(&folder.0, "") else {
        return;
    };
    let start = Start::of("stand-in").with("LARDER_CUDA_STAND_IN", &library);
    start.says("error ", &["is not a stand-in driver"]);
}

#[test]
fn a_real_driver_without_a_device_that_stays_loaded_does_not_hide_the_stand_in() {
    let folder = Folder::new("stays");
    let options = ["-C", "link-arg=-Wl,-z,nodelete,-soname,libcuda.so.1"];
    let Some(library) = fake_library(&folder.0, &fake_source(""), &options) else {
        return;
    };
    // Drivers are installed like this: the second name is the library, the first one a link to it.
    let second = folder.0.join("libcuda.so.1");
    std::fs::rename(&library, &second).unwrap();
    std::os::unix::fs::symlink(&second, &library).unwrap();
    let start = Start::of("auto").library(&folder);
    start.with("FAKE_EMPTY", "1").says("stand-in at ", &[]);
}

#[test]
fn a_stand_in_of_another_version_is_refused() {
    let folder = Folder::new("version");
    let source = fake_source("")
        + "#[no_mangle] pub extern \"C\" fn larder_stand_in_version() -> u32 { 77 }\n";
    let Some(library) = fake_library(&folder.0, &source, &[]) else {
        return;
    };
    let start = Start::of("stand-in").with("LARDER_CUDA_STAND_IN", &library);
    start.says("error ", &["77", "build"]);
}

#[test]
fn an_empty_variable_is_as_good_as_none() {
    let answers = Start::of("").with("LARDER_CUDA_STAND_IN", "").answers();
    let starts = ["stand-in at ", "real at "];
    let is_loaded = starts.iter().any(|start| answers.starts_with(start));
    assert!(is_loaded, "{answers}");
}

#[test]
fn threads_that_load_at_once_get_one_driver() {
    for _ in 0..20 {
        Start::new("race").says("one of ", &[]);
    }
}
