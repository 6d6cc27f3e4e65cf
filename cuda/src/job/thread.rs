//! The thread of a job: writes the status when something happened outside of runs.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, Builder, JoinHandle};
use std::time::Duration;

use super::JobShared;
use crate::driver::locked;

/// So long after the last look the numbers are looked at in any case, for programs that have no runs.
const LONGEST: Duration = Duration::from_secs(10);
/// Where the program takes memory from the driver by itself: nobody says that it has more or less now.
const LONGEST_FOREIGN: Duration = Duration::from_millis(250);

/// Says that the status is to be written, and wakes the thread for it. The thread that has the state next
/// writes it, so the job's thread is woken once and not until it is written.
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
    /// Says that the status has changed. Called from callbacks: does nothing else.
    pub(super) fn ring(&self) {
        let mut state = locked(&self.state);
        state.rung = true;
        state.wakes = true;
        drop(state);
        self.condition.notify_all();
    }

    /// Whether it rang since this was last asked.
    pub(super) fn take(&self) -> bool {
        core::mem::take(&mut locked(&self.state).rung)
    }

    fn end(&self) {
        locked(&self.state).ended = true;
        self.condition.notify_all();
    }

    /// Waits until it rings, at most for `longest`; then it counts as rung, so that the numbers decide
    /// whether the status has changed. False at the end.
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

/// Starts the thread. It keeps the job's parts and not the job.
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

/// Ends the thread, and waits for it unless it is this one.
pub(super) fn end(shared: &JobShared, thread: JoinHandle<()>) {
    shared.bell.end();
    if thread.thread().id() != thread::current().id() {
        // It has no callbacks of others to wait for (CTRL2); a panic in it was reported where it happened.
        let _ = thread.join();
    }
}
