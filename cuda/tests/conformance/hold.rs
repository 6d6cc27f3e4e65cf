//! Keeps a stream busy until the test releases it, without timing.

use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use larder_cuda_abi::StreamHandle;

use crate::api::stream;

/// Limits the wait, so that a driver that never runs queued work fails the test instead of hanging it.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

/// A stream that a host function keeps busy until this is released or dropped.
///
/// Only one may exist at a time, because a driver may run all host functions on one thread.
#[derive(Debug)]
pub(crate) struct Hold(Arc<Gate>);

impl Hold {
    pub(crate) fn of(stream: StreamHandle) -> Self {
        let gate = Arc::new(Gate::default());
        let waiting = Arc::clone(&gate);
        stream::host_function(stream, move || {
            let open = waiting.open.lock().expect("a gate");
            let waited = waiting
                .opened
                .wait_timeout_while(open, PATIENCE, |open| !*open);
            if waited.expect("a gate").1.timed_out() {
                eprintln!("nobody released the stream");
                std::process::abort();
            }
        })
        .expect("a host function");
        Self(gate)
    }

    /// Lets the stream continue, and waits for it or for a stream that depends on it.
    pub(crate) fn end(self, stream: StreamHandle) {
        drop(self);
        stream::synchronize(stream).expect("work that ends well");
    }

    pub(crate) fn release(self) {
        drop(self);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        *self.0.open.lock().expect("a gate") = true;
        self.0.opened.notify_all();
    }
}
