//! `install.sh`: what it installs, programs that pkg-config and CMake build with it, and that
//! nothing is left of it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::contract::has_static_libraries;
use crate::program::Heap::System;
use crate::program::{command, new_folder, preload, run, source};
use crate::real::is_installed;

const PREFIX: &str = "/opt/larder";
const LIBDIR: &str = "lib/x86_64-linux-gnu";
const FILES: &str = concat!(
    "include/larder.h\n",
    "LIB/cmake/larder/larder-config-version.cmake\n",
    "LIB/cmake/larder/larder-config.cmake\n",
    "LIB/liblarder.a\n",
    "LIB/liblarder.so\n",
    "LIB/liblarder.so.0\n",
    "LIB/liblarder.so.",
    env!("CARGO_PKG_VERSION"),
    "\nLIB/pkgconfig/larder.pc\n"
);

/// Runs `install.sh` for a folder that stands for the root of the system.
fn install(root: &Path, arguments: &[&str]) -> std::process::Output {
    Command::new(preload().join("install.sh"))
        .args(arguments)
        .env("DESTDIR", root)
        .env(
            "CARGO_TARGET_DIR",
            Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("malloc"),
        )
        .env_remove("CARGO_INCREMENTAL")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Returns the output of a command that must succeed.
#[track_caller]
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn files(folder: &Path) -> String {
    let find = "find . ! -type d -printf '%P\\n' | LC_ALL=C sort";
    output(Command::new("sh").args(["-c", find]).current_dir(folder))
}

/// Checks that a program's heap is Larder's, and which library it loads.
#[track_caller]
fn check(program: &Path, lib: &Path, loads: bool) {
    let what = program.display().to_string();
    run(command(program, System).env("LD_LIBRARY_PATH", lib)).assert_says("Larder's\n", &what);
    let needed = output(Command::new("readelf").arg("-d").arg(program));
    assert_eq!(needed.contains("[liblarder.so.0]"), loads, "{needed}");
}

fn build_with_pkg_config(root: &Path, lib: &Path) {
    for (compiler, language) in [("cc", "c"), ("c++", "c++")] {
        for is_static in [false, true] {
            if is_static && !has_static_libraries() {
                println!("skipped: there is no libc.a");
                continue;
            }
            let mut ask = Command::new("pkg-config");
            ask.args(["--cflags", "--libs", "larder"])
                .args(is_static.then_some("--static"))
                .env("PKG_CONFIG_PATH", lib.join("pkgconfig"))
                .env("PKG_CONFIG_SYSROOT_DIR", root);
            let program = new_folder().join(language);
            output(
                Command::new(compiler)
                    .args(is_static.then_some("-static"))
                    .args(["-x", language])
                    .arg(source("header.c"))
                    .args(["-x", "none", "-o"])
                    .arg(&program)
                    .args(output(&mut ask).split_whitespace()),
            );
            check(&program, lib, !is_static);
        }
    }
}

fn build_with_cmake(prefix: &Path, lib: &Path) {
    let folder = new_folder();
    for name in ["header.c", "CMakeLists.txt"] {
        fs::copy(source(name), folder.join(name)).unwrap();
    }
    let mut path = std::ffi::OsString::from("-DCMAKE_PREFIX_PATH=");
    path.push(prefix);
    output(
        Command::new("cmake")
            .args([".", "-B", "."])
            .arg(path)
            .current_dir(&folder),
    );
    output(
        Command::new("cmake")
            .args(["--build", "."])
            .current_dir(&folder),
    );
    for (library, loads) in [("larder", true), ("static", false)] {
        for language in ["c", "c++"] {
            check(&folder.join(format!("{language}-{library}")), lib, loads);
        }
    }
}

/// A C++ program may have operators of its own beside those of the installed archive.
fn build_with_own_operators(lib: &Path) {
    let program = new_folder().join("replaced");
    output(
        Command::new("c++")
            .args(["-w", "-pthread", "-o"])
            .arg(&program)
            .arg(source("replaced.cpp"))
            .args([lib.join("liblarder.a"), "-ldl".into()]),
    );
    run(&mut command(&program, System)).assert_says("13 of each\n", "");
}

#[test]
fn programs_find_what_is_installed_and_nothing_is_left_of_it() {
    for libdir in ["lib", LIBDIR] {
        installs_and_uninstalls(libdir);
    }
}

fn installs_and_uninstalls(libdir: &str) {
    let root = new_folder();
    let prefix = root.join(&PREFIX[1..]);
    let installed = install(&root, &["--prefix", PREFIX, "--libdir", libdir]);
    let said = String::from_utf8_lossy(&installed.stderr);
    assert!(installed.status.success() && said.is_empty(), "{said}");
    assert_eq!(files(&prefix), FILES.replace("LIB", libdir));
    let lib = prefix.join(libdir);
    build_with_own_operators(&lib);
    let dynamic = output(
        Command::new("readelf")
            .arg("-d")
            .arg(lib.join("liblarder.so")),
    );
    assert!(dynamic.contains("soname: [liblarder.so.0]"), "{dynamic}");
    if is_installed("pkg-config") {
        build_with_pkg_config(&root, &lib);
    }
    if is_installed("cmake") && is_installed("make") {
        build_with_cmake(&prefix, &lib);
    }
    assert!(
        install(
            &root,
            &["--prefix", PREFIX, "--libdir", libdir, "--uninstall"]
        )
        .status
        .success()
    );
    assert_eq!(files(&root), "");
}

#[test]
fn an_option_that_install_sh_does_not_know_is_refused() {
    for (arguments, said) in [
        (&["--prefx"][..], "there is no option --prefx"),
        (&["--prefix"][..], "--prefix needs a folder"),
        (&["--prefix=lib"][..], "must be an absolute path, not 'lib'"),
        (
            &["--libdir=../lib"][..],
            "a folder in the prefix, not '../lib'",
        ),
    ] {
        let root = new_folder();
        let end = install(&root, arguments);
        assert_eq!(end.status.code(), Some(2), "{arguments:?}");
        assert!(
            String::from_utf8_lossy(&end.stderr).contains(said),
            "{arguments:?}"
        );
        assert_eq!(files(&root), "");
    }
    let help = install(Path::new("/nonexistent"), &["--help"]);
    assert!(String::from_utf8_lossy(&help.stdout).contains("--uninstall"));
}
