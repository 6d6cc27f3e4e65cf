//! What a program holds of a scope: [`Scope`], [`ScopeHandle`], [`Entered`]; and [`uncounted`].

use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::marker::PhantomData;

use super::blocks;
use super::node::{NodeRef, ScopeNode, ScopeReport};
use super::stack::{self, Kind};

/// A section of code whose allocations are counted while this lives, on the thread that began it.
///
/// Needs a program whose allocator is a [`Tracking`](crate::Tracking); else everything stays 0.
/// Scopes nest: what counts in one counts in all that it was begun in. Stays on its thread; a
/// [`handle`](Self::handle) takes it to others.
///
/// A scope that outlives the one it was begun in, or is forgotten, is cut short when that one ends:
/// the report says so ([`ScopeReport::cut_short`]), and no other scope is harmed. One that is
/// forgotten with none around it counts on while the thread runs, and its counters are never freed.
///
/// ```
/// # use larder::{Larder, Scope, Tracking};
/// # #[global_allocator]
/// # static HEAP: Tracking<Larder> = Tracking::new(Larder::new());
/// let request = Scope::begin();
/// let body = vec![0_u8; 1000];
/// let parsed = {
///     let _parse = Scope::begin();
///     body.to_vec()
/// };
/// let report = request.report();
/// assert_eq!((report.own.allocated_bytes, report.total.allocated_bytes), (1000, 2000));
/// # drop(parsed);
/// ```
///
/// ```compile_fail
/// fn assert_send<T: Send>(_: T) {}
/// assert_send(larder::Scope::begin());
/// ```
///
/// ```compile_fail
/// fn assert_sync<T: Sync>(_: T) {}
/// assert_sync(larder::Scope::begin());
/// ```
#[must_use = "a scope ends when it is dropped"]
pub struct Scope {
    node: NodeRef,
    number: u64,
    /// Its number means something on its own thread only.
    on_its_thread: PhantomData<*const ()>,
}

fn frame(node: Option<NodeRef>, kind: Kind) -> u64 {
    stack::push(node, kind).unwrap_or_else(|| no_memory())
}

#[cold]
fn no_memory() -> ! {
    handle_alloc_error(Layout::new::<ScopeNode>())
}

impl Scope {
    /// Begins a scope. O(1), two small allocations of `System`; without memory for them the
    /// program ends, as by any collection of the standard library.
    pub fn begin() -> Self {
        blocks::watch_forks();
        let node = NodeRef::new(stack::innermost()).unwrap_or_else(|| no_memory());
        Self {
            number: frame(Some(node.clone()), Kind::Scope),
            node,
            on_its_thread: PhantomData,
        }
    }

    /// What was counted so far. O(1), allocates nothing.
    pub fn report(&self) -> ScopeReport {
        self.node.report()
    }

    /// What other threads need to count here too.
    pub fn handle(&self) -> ScopeHandle {
        ScopeHandle(self.node.clone())
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.node.end();
        stack::pop(self.number);
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scope").field(&self.report()).finish()
    }
}

/// A scope for other threads, and for reports after its end.
///
/// ```
/// # use larder::{Larder, Scope, Tracking};
/// # #[global_allocator]
/// # static HEAP: Tracking<Larder> = Tracking::new(Larder::new());
/// let scope = Scope::begin();
/// let handle = scope.handle();
/// let worker = std::thread::spawn(move || {
///     let _counted = handle.enter();
///     vec![0_u8; 5000]
/// });
/// let made = worker.join().unwrap();
/// assert!(scope.report().total.live_bytes >= 5000);
/// # drop(made);
/// ```
#[derive(Clone)]
pub struct ScopeHandle(NodeRef);

impl ScopeHandle {
    /// Counts what this thread allocates to the scope, and to those it was begun in, until the
    /// guard is dropped. Scopes that this thread is in already count nothing meanwhile. O(1); memory
    /// as for [`Scope::begin`].
    pub fn enter(&self) -> Entered {
        Entered {
            number: frame(Some(self.0.clone()), Kind::Entered),
            on_its_thread: PhantomData,
        }
    }

    /// What was counted so far, also after the end. O(1), allocates nothing.
    pub fn report(&self) -> ScopeReport {
        self.0.report()
    }
}

impl fmt::Debug for ScopeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScopeHandle").field(&self.report()).finish()
    }
}

/// While it lives, its thread counts to the scope whose handle was entered.
#[must_use = "counting ends when it is dropped"]
#[derive(Debug)]
pub struct Entered {
    number: u64,
    on_its_thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        stack::pop(self.number);
    }
}

/// Runs `f` with nothing counted for what this thread allocates: for the code that writes a report.
/// What it frees still leaves the scope it was allocated in.
///
/// ```
/// # use larder::{Larder, Scope, Tracking, uncounted};
/// # #[global_allocator]
/// # static HEAP: Tracking<Larder> = Tracking::new(Larder::new());
/// let scope = Scope::begin();
/// let text = uncounted(|| scope.report().to_string());
/// assert_eq!(scope.report().total.allocations, 0);
/// # drop(text);
/// ```
pub fn uncounted<R>(f: impl FnOnce() -> R) -> R {
    let _guard = Entered {
        number: frame(None, Kind::Uncounted),
        on_its_thread: PhantomData,
    };
    f()
}
