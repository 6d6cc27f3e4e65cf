//! The public types of scopes: [`Scope`], [`ScopeHandle`], [`Entered`], [`Scoped`]; and
//! [`uncounted`].

use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::blocks;
use super::node::{NodeRef, ScopeNode, ScopeReport};
use super::stack::{self, FrameKind};

/// A section of code whose allocations are counted while this value lives, on the thread that began
/// it.
///
/// The program's allocator must be a [`Tracking`](crate::Tracking); otherwise all counts stay 0.
/// Scopes nest: an allocation inside a scope also counts in all scopes around it. A scope stays on
/// its thread; a [`handle`](Self::handle) extends it to other threads, and [`around`](Self::around)
/// makes a scope for a future.
///
/// A scope that is forgotten, or that outlives the scope inside which it was begun, is cut short
/// when the outer scope ends: the report says so ([`ScopeReport::cut_short`]), and other scopes are
/// unaffected. A forgotten scope without a scope around it counts as long as the thread runs, and
/// its counters are never freed.
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
    /// Makes the scope `!Send`: its number is valid only on its own thread.
    on_its_thread: PhantomData<*const ()>,
}

fn frame(node: Option<NodeRef>, kind: FrameKind) -> u64 {
    stack::push(node, kind).unwrap_or_else(|| no_memory())
}

#[cold]
fn no_memory() -> ! {
    handle_alloc_error(Layout::new::<ScopeNode>())
}

/// Creates a node inside the thread's innermost scope.
fn begin_node() -> NodeRef {
    blocks::watch_forks();
    NodeRef::new(stack::innermost()).unwrap_or_else(|| no_memory())
}

impl Scope {
    /// Begins a scope. O(1), with two small allocations from `System`. If there is no memory for
    /// them, the program ends, as with any collection of the standard library.
    pub fn begin() -> Self {
        let node = begin_node();
        Self {
            number: frame(Some(node.clone()), FrameKind::Scope),
            node,
            on_its_thread: PhantomData,
        }
    }

    /// Wraps a future in a scope. The scope counts the allocations made while the future is polled
    /// or dropped, on any thread, and no others. It begins inside the current scope of this thread,
    /// and ends when the future is dropped.
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
    /// // A runtime does this with a task, on any of its threads:
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

    /// Returns the counts so far. O(1), allocates nothing.
    pub fn report(&self) -> ScopeReport {
        self.node.report()
    }

    /// Returns a handle with which other threads count for this scope, too.
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
    /// Counts this thread's allocations for the scope, and for those around it, until the guard is
    /// dropped. Scopes that this thread is already in count nothing until then. O(1); needs memory
    /// as [`Scope::begin`] does.
    pub fn enter(&self) -> Entered {
        Entered {
            number: frame(Some(self.0.clone()), FrameKind::Entered),
            on_its_thread: PhantomData,
        }
    }

    /// Returns the counts so far, even after the scope has ended. O(1), allocates nothing.
    pub fn report(&self) -> ScopeReport {
        self.0.report()
    }
}

impl fmt::Debug for ScopeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScopeHandle").field(&self.report()).finish()
    }
}

/// A guard: while it lives, its thread counts for the scope whose handle was entered.
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

/// A future with a scope of its own, made by [`Scope::around`]. It may move to another thread
/// between two polls, if the wrapped future may.
///
/// A [`Scope`] that is begun inside the future and held across an `.await` keeps the future on its
/// thread, and is cut short when that poll ends. Scopes [`around`](Scope::around) inner futures are
/// not cut short. Each poll costs as much as [`ScopeHandle::enter`].
#[must_use = "a future does nothing unless it is polled"]
pub struct Scoped<F> {
    /// Dropped by `drop`. Pinned if the whole value is.
    future: ManuallyDrop<F>,
    scope: ScopeHandle,
}

impl<F> Scoped<F> {
    /// Returns the scope's handle, for reports and for threads that help.
    pub fn handle(&self) -> ScopeHandle {
        self.scope.clone()
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _entered = self.scope.enter();
        // SAFETY: the future stays in place until it is dropped there, and no other reference to it
        // exists.
        let future = unsafe { self.map_unchecked_mut(|scoped| &mut *scoped.future) };
        future.poll(context)
    }
}

impl<F> Drop for Scoped<F> {
    fn drop(&mut self) {
        let _entered = self.scope.enter();
        // SAFETY: the whole is dropped, and the future is not used again.
        unsafe { ManuallyDrop::drop(&mut self.future) };
        self.scope.0.end();
    }
}

impl<F> fmt::Debug for Scoped<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scoped").field(&self.scope.report()).finish()
    }
}

/// Runs `f` without counting this thread's allocations, for code that writes a report. Frees in `f`
/// still count in the scope of the block.
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
        number: frame(None, FrameKind::Uncounted),
        on_its_thread: PhantomData,
    };
    f()
}
