//! [`Listener`]: calls handlers with the content of files each time the content changes.
//!
//! `registry` is the state under the only lock (LISTEN1 to LISTEN4); `thread` is the thread that polls. The
//! lock is held only for updates of that state, never while a file is read, while a callback runs or is
//! dropped, or while the system is requested to watch a folder.

mod registry;
mod thread;

#[cfg(test)]
mod orders;

use core::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use registry::{FileContent, HandlerId, PollTurn, Registry};

use crate::whole_file::{FileAct, FileError, read_orders};

type Callback = Box<dyn FnMut(&[u8]) + Send>;

/// How a listener notices that a file changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WatchMode {
    /// The system notifies a thread (by inotify on Linux), which also polls at each interval.
    Watch,
    /// A thread polls at each interval.
    Poll,
    /// Only [`Listener::poll_now`] polls.
    Manual,
}

/// Configuration of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ListenerConfig {
    /// How the listener notices that a file changed.
    pub watch_mode: WatchMode,
    /// The time between two polls of the listener's thread.
    pub interval: Duration,
    /// Maximum size of a file in bytes; larger files are not read.
    pub max_bytes: usize,
}

impl Default for ListenerConfig {
    /// Makes a configuration that watches, polls each second, and reads files of up to 1 MiB.
    fn default() -> Self {
        Self {
            watch_mode: WatchMode::Watch,
            interval: Duration::from_secs(1),
            max_bytes: 1 << 20,
        }
    }
}

/// Calls handlers with the content of their files: first the present content, then each change.
///
/// A file has changed if its content has: it is read as a whole and compared, so it does not matter whether
/// it was renamed over another file, has an older time or has the same size. The removal of a file is not a
/// change; its return is a change, whatever the file contains. A file that cannot be read, or whose owner may
/// not command ([`read_orders`]), is retried at the next poll. Contents that exist only between two polls are
/// never seen.
///
/// Callbacks run one at a time, on the listener's thread or inside [`Self::poll_now`]. They never run under a
/// lock of the listener, so they may register handlers and drop handles, even their own. A new handler gets
/// the content at the next poll, which its registration starts. A panic in a callback is caught and counted;
/// the handler stays.
///
/// The thread starts with the first handler and ends with the last; no call waits for its end.
///
/// ```
/// use std::sync::mpsc;
/// use larder_control::{Listener, ListenerConfig};
///
/// # let folder = std::env::temp_dir().join(format!("listener-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let path = folder.join("control.json");
/// # std::fs::write(&path, "{}")?;
/// let listener = Listener::new(ListenerConfig::default());
/// let (sender, receiver) = mpsc::channel();
/// let handle = listener.register(&path, move |text| drop(sender.send(text.to_vec())))?;
/// assert_eq!(receiver.recv()?, std::fs::read(&path)?);
/// drop(handle); // the callback runs no more
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Listener {
    shared: Arc<ListenerShared>,
}

/// A registration of a handler. Dropping it ends the registration.
///
/// When the drop returns, the callback is not running, will never run again, and has itself been dropped. So
/// a drop waits for a callback that runs in another thread, and must not happen where that callback waits for
/// this thread. A drop inside the handler's own callback does not wait, and the running call is the last.
#[must_use = "a handle that is dropped ends the registration"]
pub struct Registration {
    shared: Arc<ListenerShared>,
    path: PathBuf,
    id: HandlerId,
}

/// Counters of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ListenerStats {
    /// Files with handlers.
    pub files: usize,
    /// Handlers of all files.
    pub handlers: usize,
    /// Running threads: 1 while there are handlers, more while an old thread is ending.
    pub threads: usize,
    /// Folders that the system watches.
    pub watched: usize,
    /// Polls of all files.
    pub polls: u64,
    /// New contents found.
    pub changes: u64,
    /// Number of times that a file existed but could not be read.
    pub unreadable: u64,
    /// Panics of callbacks.
    pub panics: u64,
}

struct ListenerShared {
    config: ListenerConfig,
    state: Mutex<ListenerState>,
    /// Signal that wakes the listener's thread.
    wake: Condvar,
    /// Signal that the turn is free or a callback has ended.
    turned: Condvar,
}

struct ListenerState {
    registry: Registry<Callback, ThreadId>,
    stats: ListenerStats,
    /// Incremented when the last handler is removed, so that threads of older generations end.
    generation: u64,
    /// Whether a thread of this generation has been started.
    served: bool,
    /// Whether there is a reason to poll immediately.
    woken: bool,
    /// Whether a watched folder has been moved or removed.
    moved: bool,
    /// The newest error of reading a file; `None` once all files could be read.
    problem: Option<String>,
}

impl Listener {
    /// Makes a listener without files and without a thread.
    pub fn new(config: ListenerConfig) -> Self {
        Self {
            shared: Arc::new(ListenerShared {
                config,
                state: Mutex::new(ListenerState {
                    registry: Registry::new(),
                    stats: ListenerStats::default(),
                    generation: 0,
                    served: false,
                    woken: false,
                    moved: false,
                    problem: None,
                }),
                wake: Condvar::new(),
                turned: Condvar::new(),
            }),
        }
    }

    /// Calls `callback` with the file's present content, then with each new content. The file need not exist
    /// yet. Several handlers of a file run in the order of their registration.
    ///
    /// # Errors
    /// The path is empty ([`FileAct::Listen`]) or the thread cannot be started ([`FileAct::Thread`]);
    /// nothing is registered then.
    pub fn register(
        &self,
        path: impl AsRef<Path>,
        callback: impl FnMut(&[u8]) + Send + 'static,
    ) -> Result<Registration, FileError> {
        let path = path.as_ref();
        let failed = |act| FileError::at(path, act);
        let whole = std::path::absolute(path).map_err(failed(FileAct::Listen))?;
        let shared = &self.shared;
        let mut state = shared.lock();
        let id = state.registry.add(&whole, Box::new(callback));
        state.woken = true;
        // From here on dropping the handle ends the registration, even after an error.
        let handle = Registration {
            shared: Arc::clone(shared),
            path: whole,
            id,
        };
        shared.wake.notify_all();
        if state.served || shared.config.watch_mode == WatchMode::Manual {
            return Ok(handle);
        }
        state.served = true;
        state.stats.threads += 1;
        let generation = state.generation;
        drop(state);
        if let Err(error) = thread::start(shared.clone(), generation) {
            let mut state = shared.lock();
            state.stats.threads -= 1;
            // The next registration retries.
            state.served &= state.generation != generation;
            drop(state);
            return Err(failed(FileAct::Thread)(error));
        }
        Ok(handle)
    }

    /// Polls all files now, in this thread, and runs the callbacks that are due. Waits while another thread
    /// polls, and does nothing inside a callback.
    pub fn poll_now(&self) {
        self.shared.poll();
    }

    /// Returns the error of reading a file at the last poll, as text; `None` if all files could be read or do
    /// not exist.
    pub fn problem(&self) -> Option<String> {
        self.shared.lock().problem.clone()
    }

    /// Returns the counters so far.
    pub fn stats(&self) -> ListenerStats {
        let state = self.shared.lock();
        ListenerStats {
            files: state.registry.paths().len(),
            handlers: state.registry.handlers(),
            ..state.stats
        }
    }
}

impl ListenerShared {
    fn lock(&self) -> MutexGuard<'_, ListenerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, ListenerState>) -> MutexGuard<'a, ListenerState> {
        self.turned
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(&self) {
        let me = std::thread::current().id();
        let mut state = self.lock();
        loop {
            match state.registry.take_turn(me) {
                PollTurn::Mine => break,
                PollTurn::Inside => return,
                PollTurn::Taken => state = self.wait(state),
            }
        }
        state.stats.polls += 1;
        let paths = state.registry.paths();
        drop(state);
        let mut problem = None;
        for path in paths {
            problem = self.read_file(&path).err().or(problem);
        }
        let mut state = self.lock();
        state.problem = problem.map(|error| error.to_string());
        state.registry.end_turn();
        drop(state);
        self.turned.notify_all();
    }

    /// Reads one file and runs its handlers. Returns an error if the file could not be read. The caller has
    /// the turn.
    fn read_file(&self, path: &Path) -> Result<(), FileError> {
        let (seen, read) = match read_orders(path, self.config.max_bytes, None) {
            Ok(Some(text)) => (FileContent::Text(text), Ok(())),
            Ok(None) => (FileContent::Missing, Ok(())),
            Err(error) => (FileContent::Unreadable, Err(error)),
        };
        let mut state = self.lock();
        state.stats.unreadable += u64::from(matches!(seen, FileContent::Unreadable));
        state.stats.changes += u64::from(state.registry.record(path, seen));
        // A handler that a callback registers waits for the next round, so that each round ends.
        let newest = state.registry.next_id();
        let mut after = 0;
        while let Some((id, mut callback, text)) = state.registry.next(path, after, newest) {
            drop(state);
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| callback(&text)));
            state = self.lock();
            state.stats.panics += u64::from(outcome.is_err());
            let gone = state.registry.done(path, id, callback);
            drop(state);
            drop_quietly(gone);
            drop_quietly(outcome);
            state = self.lock();
            state.registry.ended();
            self.turned.notify_all();
            after = id;
        }
        read
    }
}

/// Drops a value of a callback and catches a panic of the drop.
fn drop_quietly<T>(value: T) {
    if let Err(again) = panic::catch_unwind(AssertUnwindSafe(|| drop(value))) {
        // The panic's payload may panic when dropped, so it is leaked.
        std::mem::forget(again);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let me = std::thread::current().id();
        let mut state = self.shared.lock();
        let callback = state.registry.remove(&self.path, self.id);
        if state.registry.is_empty() {
            state.generation += 1;
            state.served = false;
            self.shared.wake.notify_all();
        }
        while state.registry.runs_elsewhere(self.id, me) {
            state = self.shared.wait(state);
        }
        drop(state);
        drop(callback);
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("config", &self.shared.config)
            .field("stats", &self.stats())
            .finish()
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
