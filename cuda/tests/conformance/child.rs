//! Tests in their own process: those that need a driver that is not initialized, and those that break their context for
//! good.

use std::process::Command;

use libloading::Library;

use crate::gpu::{self, Gpu};

const VARIABLE: &str = "LARDER_CONFORMANCE_CHILD";
const LIBRARY: &str = "LARDER_CONFORMANCE_LIBRARY";
const DONE: &str = "the child's body has run to its end";

/// Returns the name of the test that contains the closure.
fn test_of<F>(_: &F) -> &'static str {
    let name = std::any::type_name::<F>().trim_end_matches("::{{closure}}");
    name.split_once("::").expect("the program's name first").1
}

/// Runs this test again in a child process, where `body` runs.
pub(crate) fn bare(body: impl FnOnce()) {
    run(test_of(&body), body);
}

fn run(name: &str, body: impl FnOnce()) {
    if std::env::var(VARIABLE).as_deref() == Ok(name) {
        let library = std::env::var(LIBRARY).expect("the parent's driver");
        // SAFETY: the library is a driver, whose initializers do nothing; it stays loaded for the rest of the process.
        let library = unsafe { Library::new(library) };
        core::mem::forget(library.expect("the parent's driver"));
        body();
        println!("{DONE}");
        std::process::exit(0);
    }
    let _turn = gpu::turn();
    let program = std::env::current_exe().expect("this program's path");
    let output = Command::new(program)
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, name)
        .env(LIBRARY, gpu::driver().path())
        .output()
        .expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let good = output.status.success() && text.contains(DONE);
    assert!(good, "{}: {text}\n{errors}", output.status);
}

/// Runs, in a child process, a test that NVIDIA's driver passes too. A context is current, which the body may break.
pub(crate) fn portable(body: impl FnOnce(&Gpu)) {
    let name = test_of(&body);
    if std::env::var(VARIABLE).as_deref() == Ok(name) {
        let gpu = gpu::portable();
        body(&gpu);
        core::mem::forget(gpu);
        println!("{DONE}");
        std::process::exit(0);
    }
    run(name, || ());
}
