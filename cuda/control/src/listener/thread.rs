//! The thread of a listener. It alone has the watcher, so no lock of ours is held while the system is
//! asked to watch: the watcher's own thread may want that lock at the same moment.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::thread::Builder;

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher};

use super::{Looking, Shared};

/// Starts a thread that looks until the generation is over. The caller has counted it.
pub(super) fn start(shared: Arc<Shared>, generation: u64) -> io::Result<()> {
    Builder::new()
        .name("larder-listener".into())
        .spawn(move || {
            serve(&shared, generation);
            shared.lock().stats.threads -= 1;
        })
        .map(drop)
}

fn serve(shared: &Arc<Shared>, generation: u64) {
    let mut watching = Watching::new(shared);
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
struct Watching {
    /// `None` where the system cannot, or nobody wants it: looking at each interval is enough then.
    watcher: Option<RecommendedWatcher>,
    folders: BTreeSet<PathBuf>,
}

impl Watching {
    fn new(shared: &Arc<Shared>) -> Self {
        let listening = shared.clone();
        let watcher = (shared.config.looking == Looking::Watch)
            .then(|| notify::recommended_watcher(move |event| heard(&listening, event)).ok())
            .flatten();
        Self {
            watcher,
            folders: BTreeSet::new(),
        }
    }

    /// Watches the folders of the files that have handlers, and no others. A folder that is refused is
    /// asked for again at the next look.
    fn follow(&mut self, shared: &Shared) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        let paths = shared.lock().registry.paths();
        let wanted: BTreeSet<PathBuf> = paths
            .iter()
            .filter_map(|path| path.parent().map(PathBuf::from))
            .collect();
        let before = self.folders.len();
        self.folders.retain(|folder| {
            // A folder that is gone is no longer watched, even when one of its name comes back.
            let keep = wanted.contains(folder) && folder.is_dir();
            if !keep {
                // It may be gone already, and its watch with it.
                let _ = watcher.unwatch(folder);
            }
            keep
        });
        for folder in wanted {
            if !self.folders.contains(&folder)
                && watcher.watch(&folder, RecursiveMode::NonRecursive).is_ok()
            {
                self.folders.insert(folder);
            }
        }
        let mut state = shared.lock();
        state.stats.watched = state.stats.watched + self.folders.len() - before;
    }

    fn end(self, shared: &Shared) {
        shared.lock().stats.watched -= self.folders.len();
        // Its end is waited for here, without our lock.
        drop(self.watcher);
    }
}

/// Something happened in a folder; on the watcher's thread.
fn heard(shared: &Shared, event: notify::Result<Event>) {
    let mut state = shared.lock();
    let ours = match &event {
        // Our own looks open and read files.
        Ok(event) => {
            let looked_at = matches!(event.kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write));
            event.need_rescan()
                || (!looked_at && event.paths.iter().any(|path| state.registry.contains(path)))
        }
        Err(_) => true,
    };
    if ours {
        state.woken = true;
        shared.wake.notify_all();
    }
}
