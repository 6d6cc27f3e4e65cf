//! Callbacks about limits, and their registration.

use core::fmt;
use std::sync::{Arc, Mutex, Weak};

use larder_core::limits::{BudgetId, LimitEventKind};

use super::node::{BudgetName, SharedTree};
use crate::driver::locked;

/// An event of a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LimitEvent {
    /// Name of the budget.
    pub budget: BudgetName,
    /// The kind of event.
    pub kind: LimitEventKind,
    /// Bytes held under the budget when the watchers were called.
    pub used_bytes: u64,
    /// The soft limit if that was crossed, otherwise the hard one.
    pub limit_bytes: u64,
}

type Callback = Arc<dyn Fn(&LimitEvent) + Send + Sync>;

struct LimitWatcher {
    number: u64,
    /// The only budget that is watched; `None` for all.
    only: Option<BudgetId>,
    callback: Callback,
}

#[derive(Default)]
struct WatchList {
    newest: u64,
    watchers: Vec<LimitWatcher>,
}

/// The callbacks for events of budgets.
#[derive(Default)]
pub(super) struct Watchers(Mutex<WatchList>);

impl Watchers {
    /// Calls the watchers of a budget, one after the other, without a lock.
    pub(super) fn call(&self, budget: BudgetId, event: &LimitEvent) {
        let callbacks: Vec<Callback> = {
            let list = locked(&self.0);
            let wants_it = |watcher: &&LimitWatcher| watcher.only.is_none_or(|only| only == budget);
            let wanting = list.watchers.iter().filter(wants_it);
            wanting.map(|watcher| watcher.callback.clone()).collect()
        };
        for callback in callbacks {
            callback(event);
        }
    }

    pub(super) fn add(
        &self,
        shared: &Arc<SharedTree>,
        only: Option<BudgetId>,
        callback: impl Fn(&LimitEvent) + Send + Sync + 'static,
    ) -> LimitWatch {
        let mut list = locked(&self.0);
        list.newest += 1;
        let number = list.newest;
        list.watchers.push(LimitWatcher {
            number,
            only,
            callback: Arc::new(callback),
        });
        LimitWatch {
            shared: Arc::downgrade(shared),
            number,
        }
    }

    fn remove(&self, number: u64) {
        let mut list = locked(&self.0);
        let place = list.watchers.iter().position(|one| one.number == number);
        let removed = place.map(|place| list.watchers.swap_remove(place));
        drop(list);
        // Dropped without the lock, since dropping the callback's state may take our locks.
        drop(removed);
    }
}

/// Keeps a callback registered; dropping this unregisters it. A call that another thread has begun may outlast
/// the drop.
#[must_use = "the callback is unregistered when this is dropped"]
pub struct LimitWatch {
    shared: Weak<SharedTree>,
    number: u64,
}

impl Drop for LimitWatch {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.watchers.remove(self.number);
        }
    }
}

impl fmt::Debug for LimitWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitWatch").finish_non_exhaustive()
    }
}
