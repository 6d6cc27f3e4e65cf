//! A process that forks while it uses the driver.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use larder_cuda_abi::Code;

use super::api::*;

/// Returns the exit code of a forked child: 0 if the driver refused all its calls.
fn child() -> i32 {
    let absent = Code::NOT_INITIALIZED;
    if cuInit(0) != absent || cuMemAlloc_v2(&mut 0, 512) != absent {
        return 1;
    }
    if cuDriverGetVersion(&mut 0) != absent || cuCtxSynchronize() != absent {
        return 2;
    }
    if larder_stand_in_used(0) != 0 || larder_stand_in_share(c"/dev/null".as_ptr()) != absent {
        return 3;
    }
    larder_stand_in_reset(1, 1);
    0
}

/// Returns the child's wait status, or an error if it hangs.
fn wait_for(process: i32) -> Result<i32, &'static str> {
    let start = Instant::now();
    let mut status = 0;
    while unsafe { libc::waitpid(process, &mut status, libc::WNOHANG) } == 0 {
        if start.elapsed() > Duration::from_secs(60) {
            unsafe { libc::kill(process, libc::SIGKILL) };
            unsafe { libc::waitpid(process, &mut status, 0) };
            return Err("the child hangs");
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(status)
}

#[test]
fn a_forked_child_is_refused_and_leaves_the_parent_alone() {
    let gpu = gpu();
    let path = env::temp_dir().join(format!("larder-fork-{}", std::process::id()));
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    ok(larder_stand_in_share(name.as_ptr()));
    let at = memory(1 << 20);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        // These threads hold the lock most of the time.
        for _ in 0..2 {
            scope.spawn(|| {
                ok(cuCtxSetCurrent(gpu.context));
                while !over.load(Ordering::SeqCst) {
                    ok(cuMemFree_v2(memory(4096)));
                }
            });
        }
        let mut children = (0..20).map(|_| {
            // SAFETY: the child only makes calls that are refused, and ends.
            let process = unsafe { libc::fork() };
            if process == 0 {
                let answer = child();
                unsafe { libc::_exit(answer) };
            }
            wait_for(process)
        });
        let bad = children.find(|child| *child != Ok(0));
        over.store(true, Ordering::SeqCst);
        assert_eq!(bad, None);
    });
    assert_eq!(larder_stand_in_used(0), 1 << 20);
    ok(cuMemFree_v2(at));
    assert_eq!(larder_stand_in_used(0), 0);
    assert_eq!(findings(), "");
    larder_stand_in_reset(1, 1 << 20);
    let _ = fs::remove_file(path);
}
