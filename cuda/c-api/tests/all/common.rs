//! The library, and the programs that the tests run.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{LazyLock, Mutex};

use larder_trace::{Event, Trace};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Builds the library, the stand-in and `larder` in this test's profile, because cargo builds no shared object and no
/// other package's program for a test. Returns their folder.
pub(crate) fn built() -> &'static Path {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        let program = env::current_exe().unwrap();
        let profile = program.ancestors().nth(2).unwrap().to_owned();
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // With all packages and tests, dependencies are built as by `cargo test --workspace`, so only the shared object
        // is new.
        cargo.args([
            "build",
            "--quiet",
            "--workspace",
            "--lib",
            "--bins",
            "--tests",
        ]);
        cargo.arg("--target-dir").arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        let status = cargo.current_dir(package()).status().unwrap();
        assert!(status.success(), "{cargo:?}: {status}");
        profile
    });
    &BUILT
}

pub(crate) fn library() -> PathBuf {
    built().join("liblarder_cuda.so")
}

pub(crate) fn stand_in() -> PathBuf {
    built().join("deps/liblarder_cuda_stand_in.so")
}

/// Returns a program that runs on the stand-in and finds the library.
pub(crate) fn on_stand_in(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .env("LARDER_CUDA_DRIVER", "stand-in")
        .env("LARDER_CUDA_STAND_IN", stand_in())
        .env("LARDER_CUDA_LIBRARY", library())
        .env("LARDER_STAND_IN_BYTES", (64_u64 << 30).to_string())
        .env("PYTHONPATH", package().join("python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null());
    command
}

/// Compiles `tests/programs/<source>`. Returns `None`, and prints why, if there is no such compiler.
pub(crate) fn compiled(folder: &Path, source: &str) -> Option<PathBuf> {
    compiled_with(folder, source, &[])
}

/// Compiles `tests/programs/<source>` into a shared object of this name.
pub(crate) fn compiled_shared(folder: &Path, source: &str, name: &str) -> Option<PathBuf> {
    let soname = format!("-Wl,--as-needed,-soname,{name}");
    let program = compiled_with(folder, source, &["-shared", "-fPIC", &soname])?;
    let library = folder.join(name);
    fs::rename(program, &library).unwrap();
    Some(library)
}

/// Compiles `tests/programs/<source>` with more options.
pub(crate) fn compiled_with(folder: &Path, source: &str, options: &[&str]) -> Option<PathBuf> {
    let (compiler, standard) = match source.ends_with(".cpp") {
        true => ("c++", "-std=c++17"),
        false => ("cc", "-std=gnu11"),
    };
    let program = folder.join(source.replace('.', "_"));
    let mut command = Command::new(compiler);
    command
        .args([standard, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .arg("-I")
        .arg(package().join("include"))
        .arg(package().join("tests/programs").join(source))
        .arg("-o")
        .arg(&program)
        .args(options)
        .arg(library())
        .arg(format!("-Wl,-rpath,{}", built().display()))
        .arg("-ldl");
    match command.output() {
        Err(error) => {
            println!("skipped: {compiler}: {error}");
            None
        }
        Ok(output) => {
            assert!(output.status.success(), "{}", words(&output));
            Some(program)
        }
    }
}

/// Returns the system's Python. Returns `None`, and prints why, if there is none.
pub(crate) fn python() -> Option<Command> {
    let found = Command::new("python3").arg("--version").output();
    if found.is_err() {
        println!("skipped: there is no python3");
        return None;
    }
    Some(on_stand_in("python3"))
}

/// Returns the status and all output of a process.
pub(crate) fn words(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    format!("{}\n{out}\n{err}", output.status)
}

/// Runs a program, which has to succeed. Returns the JSON that it prints.
#[track_caller]
pub(crate) fn said(command: &mut Command) -> Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", words(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A recorded run of the repository, and a copy in plain text for programs.
pub(crate) struct Recorded {
    pub(crate) trace: Trace,
    pub(crate) packed: PathBuf,
    pub(crate) plain: PathBuf,
}

impl Recorded {
    pub(crate) fn new(folder: &TempDir, name: &str) -> Self {
        let traces = package().join("../../benches/traces");
        let packed = traces.join(format!("{name}.trace.zst"));
        let trace = Trace::load(&packed).unwrap();
        let lines = trace.events().iter().map(|event| match event {
            Event::Alloc { id, bytes } => format!("a {id} {bytes}\n"),
            Event::Free { id } => format!("f {id}\n"),
            Event::Step { number } => format!("s {number}\n"),
        });
        let plain = folder.path().join(format!("{name}.trace"));
        fs::write(&plain, lines.collect::<String>()).unwrap();
        Self {
            trace,
            packed,
            plain,
        }
    }
}

/// The lock of the tests that use this process's only stand-in.
pub(crate) static STAND_IN: Mutex<()> = Mutex::new(());
