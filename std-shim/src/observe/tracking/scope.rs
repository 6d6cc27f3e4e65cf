//! What a program holds of a scope: [`Scope`], [`ScopeHandle`], [`Entered`], [`Scoped`]; and [`uncounted`].

use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::blocks;
use super::node::{NodeRef, ScopeNode, ScopeReport};
use super::stack::{self, Kind};

/// A section of code whose allocations are counted while this lives, on the thread that began it.
///
/// Needs a program whose allocator is a [`Tracking`](crate::Tracking); else everything stays 0.
/// Scopes nest: what counts in one counts in all that it was begun in. Stays on its thread; a
/// [`handle`](Self::handle) takes it to others, and [`around`](Self::around) makes one that goes with a future.
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

/// A node inside the thread's innermost scope.
fn begin_node() -> NodeRef {
    blocks::watch_forks();
    NodeRef::new(stack::innermost()).unwrap_or_else(|| no_memory())
}

impl Scope {
    /// Begins a scope. O(1), two small allocations of `System`; without memory for them the
    /// program ends, as by any collection of the standard library.
    pub fn begin() -> Self {
        let node = begin_node();
        Self {
            number: frame(Some(node.clone()), Kind::Scope),
            node,
            on_its_thread: PhantomData,
        }
    }

    /// Begins a scope that goes with a future: what the future allocates while it is polled or dropped counts there,
    /// whichever threads do that, and what they do in between does not. It is begun in the scope that this thread is
    /// in, and ends when the future is dropped.
    ///
    /// ```
    /// # use larder::{Larder, Scope, Tracking};
    /// # #[global_allocator]
    /// # static HEAP: Tracking<Larder> = Tracking::new(Larder::new());
    /// use std::pin::pin;
    /// use std::task::{Context, Poll, Waker};
    ///
    /// let request = Scope::around(async { vec![0_u8; 1000] });
    /// let scope = request.handle();
    /// // What a runtime does with a task, on any of its threads:
    /// let answer = pin!(request).poll(&mut Context::from_waker(Waker::noop()));
    /// assert!(matches!(&answer, Poll::Ready(body) if body.len() == 1000));
    /// assert_eq!(scope.report().total.live_bytes, 1000);
    /// ```
    pub fn around<F: Future>(future: F) -> Scoped<F> {
        Scoped {
            future: ManuallyDrop::new(future),
            scope: ScopeHandle(begin_node()),
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

/// A future with a scope of its own, made by [`Scope::around`]. It may go to another thread between two polls, if what
/// it is around may.
///
/// A [`Scope`] that is begun inside and held across an `.await` keeps the future on its thread, and is cut short when
/// that poll ends; scopes around inner futures are not. Each poll costs what [`ScopeHandle::enter`] does.
#[must_use = "a future does nothing unless it is polled"]
pub struct Scoped<F> {
    /// Gone after the drop. Where the whole is pinned it is, too.
    future: ManuallyDrop<F>,
    scope: ScopeHandle,
}

impl<F> Scoped<F> {
    /// The scope, for reports and for threads that help.
    pub fn handle(&self) -> ScopeHandle {
        self.scope.clone()
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _entered = self.scope.enter();
        // SAFETY: the future stays where it is until it is dropped there, and no other reference to it can be had.
        let future = unsafe { self.map_unchecked_mut(|scoped| &mut *scoped.future) };
        future.poll(context)
    }
}

impl<F> Drop for Scoped<F> {
    fn drop(&mut self) {
        let _entered = self.scope.enter();
        // SAFETY: the whole is dropped, and the future not touched again.
        unsafe { ManuallyDrop::drop(&mut self.future) };
        self.scope.0.end();
    }
}

impl<F> fmt::Debug for Scoped<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scoped").field(&self.scope.report()).finish()
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
