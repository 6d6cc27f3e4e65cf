//! The thread of a job, which writes the status after events outside of runs.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, Builder, JoinHandle};
use std::time::Duration;

use super::JobShared;
use crate::driver::locked;

/// Maximum time between two checks, for programs without runs.
const LONGEST: Duration = Duration::from_secs(10);
/// Maximum time between two checks if the program gets memory directly from the driver, for which there is no
/// callback.
const LONGEST_FOREIGN: Duration = Duration::from_millis(250);

/// Notes that the status is to be written, and wakes the job's thread. The next thread that has the
/// statistics writes the status. If the bell rings often before the job's thread looks, that thread wakes
/// once.
#[derive(Default)]
pub(super) struct Bell {
    state: Mutex<Rung>,
    condition: Condvar,
}

#[derive(Clone, Copy, Default)]
struct Rung {
    rung: bool,
    wakes: bool,
    ended: bool,
}

impl Bell {
    /// Notes that the status may have changed, and does no more because callbacks call this.
    pub(super) fn ring(&self) {
        let mut state = locked(&self.state);
        state.rung = true;
        state.wakes = true;
        drop(state);
        self.condition.notify_all();
    }

    /// Returns whether the bell has rung since the last call.
    pub(super) fn take(&self) -> bool {
        core::mem::take(&mut locked(&self.state).rung)
    }

    fn end(&self) {
        locked(&self.state).ended = true;
        self.condition.notify_all();
    }

    /// Waits until the bell rings, for `longest` at most. It counts as rung afterwards in any case, so
    /// that the numbers decide whether the status has changed. Returns false at the job's end.
    fn wait(&self, longest: Duration) -> bool {
        let state = locked(&self.state);
        let quiet = |state: &mut Rung| !state.wakes && !state.ended;
        let waited = self.condition.wait_timeout_while(state, longest, quiet);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.wakes = false;
        state.rung = true;
        !state.ended
    }
}

/// Starts the thread, which keeps the job's shared parts alive, but not the job.
pub(super) fn start(shared: &Arc<JobShared>) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    Builder::new()
        .name("larder-job".into())
        .spawn(move || serve(&shared))
}

fn serve(shared: &JobShared) {
    let longest = || match shared.managed.has_foreign() {
        true => LONGEST_FOREIGN,
        false => LONGEST,
    };
    while shared.bell.wait(longest()) {
        shared.settle_or_leave();
    }
}

/// Ends the thread, and waits for it unless it is the calling thread.
pub(super) fn end(shared: &JobShared, thread: JoinHandle<()>) {
    shared.bell.end();
    if thread.thread().id() != thread::current().id() {
        // The thread waits for no other thread's callbacks (CTRL2). A panic in it was reported where it
        // happened.
        let _ = thread.join();
    }
}
