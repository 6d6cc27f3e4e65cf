//! The handlers of each file. This is plain data, and each method is one step under the listener's lock. No
//! other steps interleave, so a test walks every order of these steps.
//!
//! LISTEN1: at most one runner has the turn, and only it reads files and runs callbacks.
//! LISTEN2: a callback is outside of the registry exactly while `running` names its handler.
//! LISTEN3: `remove` takes the handler out of the registry; from then on `next` does not return the handler.
//! The remover waits while `running` still names it, unless the remover is the runner.
//! LISTEN4: a handler gets each content of its file at most once, and only the newest content. Handlers run
//! in the order of their registration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The number of a registration. Numbers only increase.
pub(super) type HandlerId = u64;

/// Outcome of reading a file.
#[derive(Debug)]
pub(super) enum FileContent {
    Missing,
    /// The file exists but cannot be read now.
    Unreadable,
    Text(Vec<u8>),
}

/// Whether a runner may poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PollTurn {
    Mine,
    /// The runner calls from inside a callback of its own poll.
    Inside,
    /// Another runner polls.
    Taken,
}

/// The handlers of all files. `C` is a callback, and `R` identifies a runner, such as a thread.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Registry<C, R> {
    files: BTreeMap<PathBuf, FileRecord<C>>,
    next_id: HandlerId,
    turn: Option<R>,
    running: Option<HandlerId>,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
struct FileRecord<C> {
    /// The last content read.
    text: Arc<[u8]>,
    /// Number of contents read; 0 before the first.
    version: u64,
    /// Whether the file existed at the last read.
    present: bool,
    handlers: Vec<Handler<C>>,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
struct Handler<C> {
    id: HandlerId,
    /// The last version that the handler got.
    delivered: u64,
    /// `None` while it runs (LISTEN2).
    callback: Option<C>,
}

impl<C, R: Copy + PartialEq> Registry<C, R> {
    pub(super) fn new() -> Self {
        Self {
            files: BTreeMap::new(),
            next_id: 1,
            turn: None,
            running: None,
        }
    }

    /// Adds a handler after the others of its file.
    pub(super) fn add(&mut self, path: &Path, callback: C) -> HandlerId {
        let id = self.next_id;
        self.next_id += 1;
        let file = self
            .files
            .entry(path.to_owned())
            .or_insert_with(|| FileRecord {
                text: Arc::from([]),
                version: 0,
                present: false,
                handlers: Vec::new(),
            });
        file.handlers.push(Handler {
            id,
            delivered: 0,
            callback: Some(callback),
        });
        id
    }

    /// Removes a handler, and its file together with the last handler (LISTEN3). The caller drops the
    /// returned callback outside of the lock. A running callback is not returned; its runner drops it.
    pub(super) fn remove(&mut self, path: &Path, id: HandlerId) -> Option<C> {
        let file = self.files.get_mut(path)?;
        let index = file.handlers.iter().position(|handler| handler.id == id)?;
        let removed = file.handlers.remove(index);
        if file.handlers.is_empty() {
            self.files.remove(path);
        }
        removed.callback
    }

    /// Returns whether another runner is inside the handler's callback (LISTEN3).
    pub(super) fn runs_elsewhere(&self, id: HandlerId, me: R) -> bool {
        self.running == Some(id) && self.turn != Some(me)
    }

    pub(super) fn take_turn(&mut self, me: R) -> PollTurn {
        match self.turn {
            None => {
                self.turn = Some(me);
                PollTurn::Mine
            }
            Some(runner) if runner == me => PollTurn::Inside,
            Some(_) => PollTurn::Taken,
        }
    }

    pub(super) fn end_turn(&mut self) {
        self.turn = None;
    }

    /// Records the outcome of a read. Returns true if the content is new.
    pub(super) fn record(&mut self, path: &Path, found: FileContent) -> bool {
        let Some(file) = self.files.get_mut(path) else {
            return false;
        };
        match found {
            FileContent::Missing => file.present = false,
            FileContent::Unreadable => {}
            FileContent::Text(text) if file.present && *file.text == *text => {}
            FileContent::Text(text) => {
                file.text = text.into();
                file.version += 1;
                file.present = true;
                return true;
            }
        }
        false
    }

    /// Returns the next handler after `after` that lacks the newest version, with its callback. The handler
    /// counts as running from now on (LISTEN2). Handlers whose ids are at least `newest` wait for the next
    /// round.
    pub(super) fn next(
        &mut self,
        path: &Path,
        after: HandlerId,
        newest: HandlerId,
    ) -> Option<(HandlerId, C, Arc<[u8]>)> {
        let file = self.files.get_mut(path)?;
        let version = file.version;
        let mut handlers = file.handlers.iter_mut();
        let handler = handlers.find(|handler| {
            handler.id > after && handler.id < newest && handler.delivered < version
        })?;
        let callback = handler.callback.take()?;
        handler.delivered = version;
        self.running = Some(handler.id);
        Some((handler.id, callback, file.text.clone()))
    }

    /// Takes the callback back. If its handler was removed, the callback is returned instead, and the caller
    /// drops it before [`Self::ended`], so that a waiting remover finds it dropped.
    pub(super) fn done(&mut self, path: &Path, id: HandlerId, callback: C) -> Option<C> {
        let handlers = self.files.get_mut(path).map(|file| &mut file.handlers);
        match handlers.and_then(|all| all.iter_mut().find(|handler| handler.id == id)) {
            Some(handler) => {
                handler.callback = Some(callback);
                None
            }
            None => Some(callback),
        }
    }

    /// Records that no callback runs any more.
    pub(super) fn ended(&mut self) {
        self.running = None;
    }

    /// Returns the id of the next handler to be added.
    pub(super) fn next_id(&self) -> HandlerId {
        self.next_id
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub(super) fn contains(&self, path: &Path) -> bool {
        self.files.contains_key(path)
    }

    /// Returns whether a file of this folder has handlers. O(files).
    pub(super) fn has_in(&self, folder: &Path) -> bool {
        self.files.keys().any(|path| path.parent() == Some(folder))
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.files.keys().cloned().collect()
    }

    pub(super) fn handlers(&self) -> usize {
        self.files.values().map(|file| file.handlers.len()).sum()
    }
}
