//! The choice of the driver: every start happens in a process of its own, which is this test program
//! again, running only [`child`].
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use larder_cuda::driver::{Choice, load, load_from_env};

/// Set in a child: what it is to do.
const ACT: &str = "LARDER_TEST_ACT";

/// The first word of the line that a child reports in.
const ANSWER: &str = "the answer: ";

/// Does nothing, unless it runs in a child.
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
            // SAFETY: the number outlives the call.
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

/// A start in a child.
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

    fn with(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    fn choice(self, choice: &str) -> Self {
        self.with("LARDER_CUDA_DRIVER", choice)
    }

    /// The lines that the child answered.
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
}

/// A folder of its own, removed at the end.
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

/// The stand-in beside this program.
fn stand_in_path() -> PathBuf {
    let folder = std::env::current_exe().unwrap();
    folder.parent().unwrap().join("liblarder_cuda_stand_in.so")
}

/// Returns whether this machine has a real driver that works.
fn has_real() -> bool {
    real().starts_with("real")
}

/// Returns the answer of the machine's own driver, or its absence.
fn real() -> String {
    Start::new("load").choice("real").answers()
}

/// Whether a real driver stands in front of what a test puts under the other name: one that is installed,
/// without a device, is looked at first, and its error is the answer.
fn is_of_the_machine(answers: &str) -> bool {
    answers == real() && answers.contains("has no device")
}

#[test]
fn the_stand_in_is_taken_when_it_is_asked_for() {
    let answers = Start::new("load").choice("stand-in").answers();
    let path = stand_in_path();
    assert!(
        answers.starts_with(&format!("stand-in at {}", path.display())),
        "{answers}"
    );
}

#[test]
fn auto_takes_the_real_driver_if_there_is_one_and_says_why_if_not() {
    let answers = Start::new("load").answers();
    if has_real() {
        assert!(answers.starts_with("real"), "{answers}");
        assert!(answers.contains("stand-in opened: false"), "{answers}");
    } else {
        assert!(answers.starts_with("stand-in"), "{answers}");
        assert!(answers.contains("not real: "), "{answers}");
    }
}

#[test]
fn the_real_driver_is_refused_where_there_is_none() {
    if has_real() {
        println!("skipped: this machine has a real driver");
        return;
    }
    let answers = Start::new("load").choice("real").answers();
    assert!(answers.starts_with("error "), "{answers}");
    assert!(answers.contains("LARDER_CUDA_DRIVER=stand-in"), "{answers}");
}

#[test]
fn another_word_for_the_choice_is_an_error_that_names_the_three() {
    let answers = Start::new("load").choice("gpu").answers();
    for word in ["error", "\"gpu\"", "stand-in", "real", "auto"] {
        assert!(answers.contains(word), "{answers}");
    }
}

#[test]
fn a_stand_in_that_is_not_there_is_an_error_that_names_it() {
    let answers = Start::new("load")
        .choice("stand-in")
        .with("LARDER_CUDA_STAND_IN", "/nowhere/stand_in.so")
        .answers();
    assert!(
        answers.contains("error no stand-in driver at /nowhere/stand_in.so"),
        "{answers}"
    );
}

#[test]
fn a_second_choice_that_contradicts_is_an_error() {
    let answers = Start::new("contradict").answers();
    assert!(
        answers.starts_with("error the process uses the driver"),
        "{answers}"
    );
}

/// A stand-in under the real driver's name, first on the library path.
fn decoy(name: &str) -> Folder {
    let folder = Folder::new(&format!("decoy-{name}"));
    std::fs::copy(stand_in_path(), folder.0.join(name)).unwrap();
    folder
}

#[test]
fn a_decoy_is_never_taken_for_the_real_driver() {
    let folder = decoy("libcuda.so");
    let answers = Start::new("load")
        .choice("real")
        .with("LD_LIBRARY_PATH", &folder.0)
        .answers();
    assert!(answers.starts_with("error "), "{answers}");
    if is_of_the_machine(&answers) {
        return;
    }
    assert!(answers.contains("poses as the CUDA driver"), "{answers}");
    assert!(
        answers.contains(&folder.0.display().to_string()),
        "{answers}"
    );
}

#[test]
fn a_decoy_under_the_second_name_is_not_taken_either() {
    let folder = decoy("libcuda.so.1");
    let answers = Start::new("load")
        .choice("real")
        .with("LD_LIBRARY_PATH", &folder.0)
        .answers();
    // A system that has the first name too loads that.
    let refused = answers.starts_with("error ") && answers.contains("poses");
    let other = answers.starts_with("real at /") || is_of_the_machine(&answers);
    assert!(refused || other, "{answers}");
    assert!(
        !answers.contains(&format!("real at {}", folder.0.display())),
        "{answers}"
    );
}

#[test]
fn a_decoy_never_wins_over_our_stand_in() {
    for name in ["libcuda.so", "libcuda.so.1"] {
        let folder = decoy(name);
        for choice in ["auto", "stand-in"] {
            let answers = Start::new("load")
                .choice(choice)
                .with("LD_LIBRARY_PATH", &folder.0)
                .answers();
            let ours = format!("stand-in at {}", stand_in_path().display());
            let real = name == "libcuda.so.1" && choice == "auto" && answers.starts_with("real");
            assert!(
                real || answers.starts_with(&ours),
                "{choice} {name}: {answers}"
            );
        }
    }
}

#[test]
fn a_driver_that_cudarc_has_already_is_noticed() {
    let folder = decoy("libcuda.so");
    let answers = Start::new("cudarc first")
        .choice("stand-in")
        .with("LD_LIBRARY_PATH", &folder.0)
        .answers();
    assert!(
        answers.contains("error cudarc uses another driver"),
        "{answers}"
    );
}

/// Functions of every driver.
const FUNCTIONS: &[&str] = &[
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetPCIBusId",
    "cuDeviceTotalMem_v2",
    "cuDeviceCanAccessPeer",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuStreamWaitEvent",
    "cuStreamGetCtx",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuEventElapsedTime",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemHostGetDevicePointer_v2",
    "cuMemAllocManaged",
    "cuPointerGetAttribute",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuMemsetD16Async",
    "cuMemsetD32Async",
];

/// A library with a driver's functions and no stand-in's mark; `None` where there is no compiler.
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
    for name in FUNCTIONS.iter().filter(|name| **name != left_out) {
        source += &format!("#[no_mangle] pub extern \"C\" fn {name}() -> u32 {{ 801 }}\n");
    }
    source
}

/// A library under the driver's names, so that none of the machine's is found; `None` where there is no
/// compiler.
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
    for choice in ["auto", "real"] {
        let answers = Start::new("load")
            .choice(choice)
            .with("LD_LIBRARY_PATH", &folder.0)
            .answers();
        let real = format!("real at {}, stand-in opened: false", library.display());
        assert_eq!(answers, real);
    }
}

#[test]
fn a_real_driver_that_does_not_work_is_left_for_the_stand_in_with_the_reason() {
    let folder = Folder::new("broken");
    if fake_driver(&folder.0, "").is_none() {
        return;
    }
    let reasons = [
        ("FAKE_BROKEN", "CUDA_ERROR_UNKNOWN"),
        ("FAKE_EMPTY", "has no device"),
        // As NVIDIA's driver answers.
        ("FAKE_ABSENT", "has no device"),
    ];
    for (variable, reason) in reasons {
        let start = |choice| {
            Start::new("load")
                .choice(choice)
                .with("LD_LIBRARY_PATH", &folder.0)
                .with(variable, "1")
                .answers()
        };
        let answers = start("auto");
        assert!(answers.starts_with("stand-in at "), "{answers}");
        assert!(
            answers.contains("not real: ") && answers.contains(reason),
            "{answers}"
        );
        let answers = start("real");
        assert!(
            answers.starts_with("error ") && answers.contains(reason),
            "{answers}"
        );
    }
}

#[test]
fn a_driver_that_lacks_a_function_is_an_error_that_names_it() {
    let folder = Folder::new("old");
    if fake_driver(&folder.0, "cuPointerGetAttribute").is_none() {
        return;
    }
    let answers = Start::new("load")
        .choice("real")
        .with("LD_LIBRARY_PATH", &folder.0)
        .answers();
    assert!(answers.contains("lacks cuPointerGetAttribute"), "{answers}");
}

#[test]
fn a_program_linked_with_a_driver_has_that_one_or_none() {
    let folder = Folder::new("linked");
    let Some(real) = fake_driver(&folder.0, "") else {
        return;
    };
    let stand_in = folder.0.join("another_name.so");
    std::fs::copy(stand_in_path(), &stand_in).unwrap();
    let start = |preloaded: &Path, choice| {
        Start::new("load")
            .choice(choice)
            .with("LD_PRELOAD", preloaded)
            .answers()
    };
    for choice in ["real", "auto"] {
        let answers = start(&real, choice);
        assert!(
            answers.starts_with("real at ") && answers.contains("opened: false"),
            "{answers}"
        );
    }
    let answers = start(&real, "stand-in");
    assert!(
        answers.starts_with("error the process uses the driver"),
        "{answers}"
    );
    for choice in ["stand-in", "auto"] {
        let answers = start(&stand_in, choice);
        let expected = format!("stand-in at {}", stand_in.display());
        assert!(answers.starts_with(&expected), "{answers}");
    }
    let answers = start(&stand_in, "real");
    assert!(answers.contains("poses as the CUDA driver"), "{answers}");
}

#[test]
fn another_library_at_the_stand_ins_path_is_refused() {
    let folder = Folder::new("other");
    let Some(library) = fake_driver(&folder.0, "") else {
        return;
    };
    let answers = Start::new("load")
        .choice("stand-in")
        .with("LARDER_CUDA_STAND_IN", &library)
        .answers();
    assert!(answers.contains("is not a stand-in driver"), "{answers}");
}

#[test]
fn a_real_driver_without_a_device_that_stays_loaded_does_not_hide_the_stand_in() {
    let folder = Folder::new("stays");
    let options = ["-C", "link-arg=-Wl,-z,nodelete,-soname,libcuda.so.1"];
    let Some(library) = fake_library(&folder.0, &fake_source(""), &options) else {
        return;
    };
    // As drivers are installed: the second name is the library, the first one a link to it.
    let second = folder.0.join("libcuda.so.1");
    std::fs::rename(&library, &second).unwrap();
    std::os::unix::fs::symlink(&second, &library).unwrap();
    let answers = Start::new("load")
        .choice("auto")
        .with("LD_LIBRARY_PATH", &folder.0)
        .with("FAKE_EMPTY", "1")
        .answers();
    assert!(answers.starts_with("stand-in at "), "{answers}");
}

#[test]
fn a_stand_in_of_another_version_is_refused() {
    let folder = Folder::new("version");
    let source = fake_source("")
        + "#[no_mangle] pub extern \"C\" fn larder_stand_in_version() -> u32 { 77 }\n";
    let Some(library) = fake_library(&folder.0, &source, &[]) else {
        return;
    };
    let answers = Start::new("load")
        .choice("stand-in")
        .with("LARDER_CUDA_STAND_IN", &library)
        .answers();
    assert!(
        answers.starts_with("error ") && answers.contains("77") && answers.contains("build"),
        "{answers}"
    );
}

#[test]
fn an_empty_variable_is_as_good_as_none() {
    let answers = Start::new("load")
        .choice("")
        .with("LARDER_CUDA_STAND_IN", "")
        .answers();
    assert!(
        answers.starts_with("stand-in at ") || answers.starts_with("real at "),
        "{answers}"
    );
}

#[test]
fn threads_that_load_at_once_get_one_driver() {
    for _ in 0..20 {
        let answers = Start::new("race").answers();
        assert!(answers.starts_with("one of "), "{answers}");
    }
}
