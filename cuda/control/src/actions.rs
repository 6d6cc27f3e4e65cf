//! Actions before and after each run: a registry that a session owns.
//!
//! A group's phases run in increasing order; inside a phase, actions run in the order in which they were
//! added. All actions get the same options. A group runs the actions that are registered when it starts: an
//! action added while it runs waits for the next run, and an action removed while it runs may still run.
//!
//! There are two locks: that of the registry, to read or replace the list, and one per action, for the
//! action's timing. Neither is held while an action runs, so an action may add, remove and run other actions.

use core::fmt;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Clock;

/// When actions run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Group {
    /// Before a run.
    Pre,
    /// After a run.
    Post,
}

/// Consequence of an action's error for the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnError {
    /// The error is counted and otherwise ignored.
    Ignore,
    /// The error is returned as a warning, and the next action runs.
    Warn,
    /// The group stops and the run fails. Upstream does this for every action.
    #[default]
    Fail,
}

type Call<O> = dyn Fn(&O) -> Result<(), Box<dyn Error + Send + Sync>> + Send + Sync;

/// Identifies an added action, for its removal. A registry never reuses an id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ActionId(u64);

/// Number and duration of an action's runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ActionTiming {
    /// Runs that ended, with or without an error.
    pub runs: u64,
    /// Runs that ended with an error.
    pub errors: u64,
    /// Time of all runs.
    pub total: Duration,
    /// Time of the longest run.
    pub max: Duration,
}

/// A copy of the registry's entry for an action.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ActionInfo {
    /// The action's id, with which it can be removed.
    pub id: ActionId,
    /// The action's group.
    pub group: Group,
    /// The action's phase.
    pub phase: i32,
    /// The action's name.
    pub name: String,
    /// Consequence of the action's errors.
    pub on_error: OnError,
    /// The action's timing so far.
    pub timing: ActionTiming,
}

/// An action ended with an error.
#[derive(Debug, thiserror::Error)]
#[error(
    "the action {name} in phase {phase} {} the run: {error}; fix it, or add it with another policy",
    match group {
        Group::Pre => "before",
        Group::Post => "after",
    }
)]
#[non_exhaustive]
pub struct ActionFailed {
    /// The action's group.
    pub group: Group,
    /// The action's phase.
    pub phase: i32,
    /// The action's name.
    pub name: String,
    /// The error that the action returned.
    #[source]
    pub error: Box<dyn Error + Send + Sync>,
}

/// The outcome of a group that ended without a failure.
#[derive(Debug, Default)]
#[must_use = "it has the warnings"]
pub struct Ran {
    /// Number of actions that ran.
    pub actions: usize,
    /// Errors of actions with the policy [`OnError::Warn`], in order.
    pub warnings: Vec<ActionFailed>,
}

struct Action<O: ?Sized> {
    id: ActionId,
    group: Group,
    phase: i32,
    name: String,
    on_error: OnError,
    timing: Mutex<ActionTiming>,
    call: Box<Call<O>>,
}

/// The list of actions. The list is replaced as a whole, so that a running group keeps its own copy.
struct ActionList<O: ?Sized> {
    /// All actions, ordered by group, phase and addition.
    actions: Arc<[Arc<Action<O>>]>,
    next: u64,
}

/// The actions of a session. `O` is the type of the options that each action gets, such as the graph that ran
/// and the duration of the run.
///
/// ```
/// use larder_control::{Group, ManualClock, OnError, RunActions};
///
/// let actions = RunActions::<str>::new(ManualClock::new());
/// actions.add(Group::Post, 2, "greet", OnError::Fail, |graph: &str| {
///     if graph.is_empty() { return Err("a run without a graph".into()); }
///     Ok(())
/// });
/// assert_eq!(actions.run(Group::Post, "resnet")?.actions, 1);
/// assert!(actions.run(Group::Post, "").is_err());
/// assert_eq!(actions.find(Group::Post, 2, "greet").unwrap().timing.runs, 2);
/// # Ok::<(), larder_control::ActionFailed>(())
/// ```
pub struct RunActions<O: ?Sized> {
    clock: Arc<dyn Clock>,
    list: Mutex<ActionList<O>>,
}

impl<O: ?Sized> RunActions<O> {
    /// Makes a registry without actions. `clock` times the actions.
    pub fn new(clock: impl Clock + 'static) -> Self {
        let list = ActionList {
            actions: Arc::new([]),
            next: 0,
        };
        Self {
            clock: Arc::new(clock),
            list: Mutex::new(list),
        }
    }

    /// Adds an action at the end of its phase. Several actions may have the same name. O(actions).
    pub fn add(
        &self,
        group: Group,
        phase: i32,
        name: impl Into<String>,
        on_error: OnError,
        call: impl Fn(&O) -> Result<(), Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> ActionId {
        let (name, call) = (name.into(), Box::new(call));
        self.with(|list| {
            let id = ActionId(list.next);
            list.next += 1;
            let action = Arc::new(Action {
                id,
                group,
                phase,
                name,
                on_error,
                timing: Mutex::default(),
                call,
            });
            let place = list
                .actions
                .partition_point(|other| (other.group, other.phase) <= (group, phase));
            let (before, after) = list.actions.split_at(place);
            let actions = before.iter().cloned().chain([action]);
            list.actions = actions.chain(after.iter().cloned()).collect();
            id
        })
    }

    /// Removes an action. Returns false if there is no such action. O(actions).
    pub fn remove(&self, id: ActionId) -> bool {
        // Dropping an action runs the caller's code, so no lock is held.
        let old = self.with(|list| {
            let kept: Arc<[_]> = list
                .actions
                .iter()
                .filter(|action| action.id != id)
                .cloned()
                .collect();
            core::mem::replace(&mut list.actions, kept)
        });
        old.iter().any(|action| action.id == id)
    }

    /// Returns the first action with this name in the phase. O(actions).
    pub fn find(&self, group: Group, phase: i32, name: &str) -> Option<ActionInfo> {
        let actions = self.actions();
        let found = actions
            .iter()
            .find(|action| (action.group, action.phase) == (group, phase) && action.name == name);
        found.map(|action| action.info())
    }

    /// Returns all actions, in the order in which they run.
    pub fn infos(&self) -> Vec<ActionInfo> {
        self.actions().iter().map(|action| action.info()).collect()
    }

    /// Runs a group's actions.
    ///
    /// # Errors
    ///
    /// The first error of an action whose policy is [`OnError::Fail`]. The actions after that one do not run.
    /// The effects of the actions before it stay, but their warnings are lost.
    pub fn run(&self, group: Group, options: &O) -> Result<Ran, ActionFailed> {
        let mut ran = Ran::default();
        for action in self.actions().iter().filter(|action| action.group == group) {
            ran.actions += 1;
            let start = self.clock.now();
            let result = (action.call)(options);
            action.time(self.clock.now().saturating_sub(start), result.is_err());
            match (result, action.on_error) {
                (Ok(()), _) | (Err(_), OnError::Ignore) => {}
                (Err(error), OnError::Warn) => ran.warnings.push(action.failed(error)),
                (Err(error), OnError::Fail) => return Err(action.failed(error)),
            }
        }
        Ok(ran)
    }

    fn actions(&self) -> Arc<[Arc<Action<O>>]> {
        self.with(|list| Arc::clone(&list.actions))
    }

    fn with<R>(&self, f: impl FnOnce(&mut ActionList<O>) -> R) -> R {
        f(&mut self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<O: ?Sized> Action<O> {
    fn time(&self, took: Duration, error: bool) {
        let mut timing = self.timing.lock().unwrap_or_else(PoisonError::into_inner);
        timing.runs += 1;
        timing.errors += u64::from(error);
        timing.total = timing.total.saturating_add(took);
        timing.max = timing.max.max(took);
    }

    fn failed(&self, error: Box<dyn Error + Send + Sync>) -> ActionFailed {
        ActionFailed {
            group: self.group,
            phase: self.phase,
            name: self.name.clone(),
            error,
        }
    }

    fn info(&self) -> ActionInfo {
        ActionInfo {
            id: self.id,
            group: self.group,
            phase: self.phase,
            name: self.name.clone(),
            on_error: self.on_error,
            timing: *self.timing.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl<O: ?Sized> fmt::Debug for RunActions<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunActions")
            .field("actions", &self.infos())
            .finish_non_exhaustive()
    }
}
