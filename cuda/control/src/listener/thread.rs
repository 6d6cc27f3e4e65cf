//! The thread of a listener. Only this thread has the watcher, and it calls the watcher with no lock held:
//! the watcher's own thread may take the listener's lock at the same moment.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::thread::Builder;

use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};
use notify::{Config, Event, RecommendedWatcher, RecursiveMode, Watcher};

use super::{ListenerShared, WatchMode};

/// Starts a thread that polls until the generation is over. The caller has counted the thread.
pub(super) fn start(shared: Arc<ListenerShared>, generation: u64) -> io::Result<()> {
    Builder::new()
        .name("larder-listener".into())
        .spawn(move || {
            serve(&shared, generation);
            shared.lock().stats.threads -= 1;
        })
        .map(drop)
}

fn serve(shared: &Arc<ListenerShared>, generation: u64) {
    let mut watching: Watching<RecommendedWatcher> = Watching::new(shared);
    loop {
        {
            let mut state = shared.lock();
            if state.generation != generation {
                break;
            }
            // A later change sets it again, so that no change is missed.
            state.woken = false;
        }
        watching.follow(shared);
        shared.poll();
        let mut state = shared.lock();
        if state.generation == generation && !state.woken {
            let waited = shared.wake.wait_timeout(state, shared.config.interval);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
    }
    watching.end(shared);
}

/// The folders that the system watches for the listener.
///
/// POLL1: no call, not even a drop, goes to a watcher that is not alive, since a watcher panics if its own
/// thread could not be started, for example for lack of threads.
/// POLL2: a folder in `folders` is watched as long as its path leads to the same folder as when it was added.
struct Watching<W: Watcher> {
    /// `None` if the system cannot watch or the mode is not [`WatchMode::Watch`]. The thread then polls at
    /// each interval.
    watcher: Option<W>,
    folders: BTreeMap<PathBuf, Identity>,
}

/// The identity of a folder: device and inode number, if the system has them.
type Identity = (u64, u64);

/// Returns the identity of a folder; `None` if there is no folder at the path.
fn identity(folder: &Path) -> Option<Identity> {
    let data = std::fs::metadata(folder)
        .ok()
        .filter(|data| data.is_dir())?;
    #[cfg(unix)]
    let identity = {
        use std::os::unix::fs::MetadataExt;
        (data.dev(), data.ino())
    };
    #[cfg(not(unix))]
    let identity = (0, u64::from(data.is_dir()));
    Some(identity)
}

impl<W: Watcher> Watching<W> {
    fn new(shared: &Arc<ListenerShared>) -> Self {
        let listening = shared.clone();
        let watcher = (shared.config.watch_mode == WatchMode::Watch)
            .then(|| W::new(move |event| heard(&listening, event), Config::default()).ok())
            .flatten();
        Self {
            watcher,
            folders: BTreeMap::new(),
        }
    }

    /// Returns the watcher, if it is alive (POLL1). A dead watcher is leaked, since its drop would be a
    /// call, too.
    fn alive(&mut self) -> Option<&mut W> {
        if self
            .watcher
            .as_mut()
            .is_some_and(|watcher| watcher.configure(Config::default()).is_err())
        {
            self.folders.clear();
            std::mem::forget(self.watcher.take());
        }
        self.watcher.as_mut()
    }

    /// Watches the folders of the files that have handlers, and no others. A folder that the system refused
    /// is retried at the next poll.
    fn follow(&mut self, shared: &ListenerShared) {
        let before = self.folders.len();
        let (paths, moved) = {
            let mut state = shared.lock();
            (state.registry.paths(), core::mem::take(&mut state.moved))
        };
        self.watch(&paths, moved);
        let mut state = shared.lock();
        state.stats.watched = state.stats.watched + self.folders.len() - before;
    }

    fn watch(&mut self, paths: &[PathBuf], moved: bool) {
        let mut folders = core::mem::take(&mut self.folders);
        let Some(watcher) = self.alive() else {
            return;
        };
        let wanted: BTreeSet<&Path> = paths.iter().filter_map(|path| path.parent()).collect();
        folders.retain(|folder, then| {
            // A deleted folder is no longer watched, even if another takes its name (POLL2).
            let same = !moved && identity(folder) == Some(*then);
            let keep = same && wanted.contains(folder.as_path());
            if !keep {
                // The folder may already be deleted, and its watch with it.
                let _ = watcher.unwatch(folder);
            }
            keep
        });
        for folder in wanted {
            if folders.contains_key(folder) {
                continue;
            }
            // The identity is read first, so that the next poll notices if another folder takes the path
            // after that.
            if let Some(identity) = identity(folder)
                && watcher.watch(folder, RecursiveMode::NonRecursive).is_ok()
            {
                folders.insert(folder.to_owned(), identity);
            }
        }
        self.folders = folders;
    }

    fn end(mut self, shared: &ListenerShared) {
        shared.lock().stats.watched -= self.folders.len();
        // The watcher is dropped here, with no lock held.
        let _ = self.alive();
    }
}

/// Handles an event of a watched folder, on the watcher's thread.
fn heard(shared: &ListenerShared, event: notify::Result<Event>) {
    let mut state = shared.lock();
    let (ours, moved) = match &event {
        // Opens and reads are caused by the listener's own polls.
        Ok(event) => {
            let looked_at = matches!(event.kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write));
            let gone = matches!(
                event.kind,
                EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_))
            );
            let registry = &state.registry;
            let of_file = event.paths.iter().any(|path| registry.contains(path));
            let moved = gone && event.paths.iter().any(|path| registry.has_in(path));
            (
                event.need_rescan() || moved || (!looked_at && of_file),
                moved,
            )
        }
        Err(_) => (true, false),
    };
    state.moved |= moved;
    if ours {
        state.woken = true;
        shared.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use notify::{EventHandler, Result, WatcherKind};

    use super::*;
    use crate::listener::{Listener, ListenerConfig};

    /// Behaves like a watcher of notify whose thread could not be started.
    struct Dead;

    impl Watcher for Dead {
        fn new<F: EventHandler>(_: F, _: Config) -> Result<Self> {
            Ok(Self)
        }

        fn watch(&mut self, _: &Path, _: RecursiveMode) -> Result<()> {
            panic!("a dead watcher was asked to watch");
        }

        fn unwatch(&mut self, _: &Path) -> Result<()> {
            panic!("a dead watcher was asked not to watch");
        }

        fn configure(&mut self, _: Config) -> Result<bool> {
            Err(notify::Error::generic("dead"))
        }

        fn kind() -> WatcherKind {
            WatcherKind::NullWatcher
        }
    }

    impl Drop for Dead {
        fn drop(&mut self) {
            panic!("a dead watcher was dropped");
        }
    }

    #[test]
    fn nothing_is_asked_of_a_watcher_without_a_thread() {
        let listener = Listener::new(ListenerConfig::default());
        let path = std::env::temp_dir().join("control");
        let shared = &listener.shared;
        shared.lock().registry.add(&path, Box::new(|_: &[u8]| ()));
        let mut watching = Watching::<Dead>::new(shared);
        watching.follow(shared);
        watching.follow(shared);
        assert_eq!(shared.lock().stats.watched, 0);
        watching.end(shared);
        // A watcher that died before the first call.
        Watching::<Dead>::new(shared).end(shared);
    }
}
