//! The thread of a listener. It alone has the watcher, so no lock of ours is held while the system is
//! asked to watch: the watcher's own thread may want that lock at the same moment.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::thread::Builder;

use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};
use notify::{Config, Event, RecommendedWatcher, RecursiveMode, Watcher};

use super::{ListenerShared, WatchMode};

/// Starts a thread that looks until the generation is over. The caller has counted it.
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
            // Set again by whatever comes from here on, so that nothing is missed.
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

/// The folders that the system watches for us.
///
/// T1: nothing is asked of a watcher that is not alive, not even to end: it panics where its own thread could
/// not be started, for want of threads, say.
/// T2: a folder in `folders` is watched as long as its path leads to the folder that it was then.
struct Watching<W: Watcher> {
    /// `None` where the system cannot, or nobody wants it: looking at each interval is enough then.
    watcher: Option<W>,
    folders: BTreeMap<PathBuf, Identity>,
}

/// Which folder a path leads to: device and number, where there are such.
type Identity = (u64, u64);

/// `None` if there is no folder at the path.
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

    /// The watcher, if it is alive (T1). One that is not is left as it is: its end would be a call too.
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

    /// Watches the folders of the files that have handlers, and no others. A folder that is refused is
    /// asked for again at the next look.
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
            // A folder that is gone is no longer watched, even when one of its name comes back (T2).
            let same = !moved && identity(folder) == Some(*then);
            let keep = same && wanted.contains(folder.as_path());
            if !keep {
                // It may be gone already, and its watch with it.
                let _ = watcher.unwatch(folder);
            }
            keep
        });
        for folder in wanted {
            if folders.contains_key(folder) {
                continue;
            }
            // Asked for first: should another take its place meanwhile, the next look finds out.
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
        // It is told to end here, without our lock.
        let _ = self.alive();
    }
}

/// Something happened in a folder; on the watcher's thread.
fn heard(shared: &ListenerShared, event: notify::Result<Event>) {
    let mut state = shared.lock();
    let (ours, moved) = match &event {
        // Our own looks open and read files.
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

    /// As notify's where its thread could not be started.
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
            panic!("a dead watcher was told to end");
        }
    }

    #[test]
    fn nothing_is_asked_of_a_watcher_without_a_thread() {
        let listener = Listener::new(ListenerConfig::default());
        let path = std::env::temp_dir().join("control");
        let shared = &listener.shared;
        shared
            .lock()
            .registry
            .add(&path, Box::new(|_: &[u8]| ()), false);
        let mut watching = Watching::<Dead>::new(shared);
        watching.follow(shared);
        watching.follow(shared);
        assert_eq!(shared.lock().stats.watched, 0);
        watching.end(shared);
        // One that dies before it was asked for anything.
        Watching::<Dead>::new(shared).end(shared);
    }
}
