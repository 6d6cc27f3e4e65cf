//! The locks and atomics of builds for the model checker.
//!
//! The lock is loom's mutex, which has the same contract: a spinning lock would hang, because loom cannot see that it
//! spins. loom's atomics have no `const` constructor, so nothing here is `const`.

use core::marker::PhantomData;
use core::ops::Deref;

use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::sync::atomic as raw;
pub use loom::sync::atomic::{Ordering, fence};

/// An atomic for which the checker tries every order of accesses.
///
/// By itself, loom remembers only the last access. If a thread loads and then swaps, this hides a load that another
/// thread made just before, and the order "swap, then load" is not tried. So every access first increments `turn`. The
/// increment conflicts with every other access, but orders no memory.
#[derive(Debug)]
pub struct Watched<A> {
    turn: raw::AtomicUsize,
    atomic: A,
}

impl<A> Watched<A> {
    fn of(atomic: A) -> Self {
        let turn = raw::AtomicUsize::new(0);
        Self { turn, atomic }
    }
}

impl<A> Deref for Watched<A> {
    type Target = A;

    fn deref(&self) -> &A {
        self.turn.fetch_add(1, Ordering::Relaxed);
        &self.atomic
    }
}

/// A watched atomic.
pub type AtomicPtr<T> = Watched<raw::AtomicPtr<T>>;
/// A watched atomic.
pub type AtomicU8 = Watched<raw::AtomicU8>;
/// A watched atomic.
pub type AtomicU32 = Watched<raw::AtomicU32>;
/// A watched atomic.
pub type AtomicU64 = Watched<raw::AtomicU64>;
/// A watched atomic.
pub type AtomicUsize = Watched<raw::AtomicUsize>;

impl<T> AtomicPtr<T> {
    /// Creates a watched pointer.
    pub fn new(value: *mut T) -> Self {
        Self::of(raw::AtomicPtr::new(value))
    }
}

impl AtomicU8 {
    /// Creates a watched number.
    pub fn new(value: u8) -> Self {
        Self::of(raw::AtomicU8::new(value))
    }
}

impl AtomicU32 {
    /// Creates a watched number.
    pub fn new(value: u32) -> Self {
        Self::of(raw::AtomicU32::new(value))
    }
}

impl AtomicU64 {
    /// Creates a watched number.
    pub fn new(value: u64) -> Self {
        Self::of(raw::AtomicU64::new(value))
    }
}

impl AtomicUsize {
    /// Creates a watched number.
    pub fn new(value: usize) -> Self {
        Self::of(raw::AtomicUsize::new(value))
    }
}

/// The head of a linked list that one thread changes. No process forks in a model.
#[derive(Debug)]
pub(crate) struct ListHead<T>(core::cell::Cell<*mut T>);

impl<T> ListHead<T> {
    pub(crate) const fn new(first: *mut T) -> Self {
        Self(core::cell::Cell::new(first))
    }

    pub(crate) fn get(&self) -> *mut T {
        self.0.get()
    }

    pub(crate) fn set(&self, first: *mut T) {
        self.0.set(first);
    }
}

/// Executes a full barrier. In a program, another thread may make this thread execute one at any time.
pub(crate) fn light_barrier() {
    fence(Ordering::SeqCst);
}

/// A mutex. It needs no handling of panics, because a panic ends the model.
pub(crate) struct RawLock<T, W>(Mutex<T>, PhantomData<fn() -> W>);

impl<T, W> RawLock<T, W> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value), PhantomData)
    }

    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut guard = match self.0.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        };
        f(&mut guard)
    }

    pub(crate) fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut guard = self.0.try_lock().ok()?;
        Some(f(&mut guard))
    }

    pub(crate) fn into_inner(self) -> T {
        match self.0.into_inner() {
            Ok(value) => value,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        match self.0.get_mut() {
            Ok(value) => value,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

/// A word that threads read and write at different times, as a protocol of this crate ensures. loom reports an access
/// at the same time as a write.
#[derive(Debug)]
pub(crate) struct Cell<T>(UnsafeCell<T>);

impl<T: Copy> Cell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Reads the word.
    ///
    /// # Safety
    /// `cell` points to a live cell.
    pub(crate) unsafe fn read(cell: *const Self) -> T {
        // SAFETY: the cell lives.
        let cell = unsafe { &*cell };
        // SAFETY: loom checks that no thread writes at the same time.
        cell.0.with(|value| unsafe { *value })
    }

    /// Writes the word.
    ///
    /// # Safety
    /// `cell` points to a live cell.
    pub(crate) unsafe fn write(cell: *const Self, value: T) {
        // SAFETY: the cell lives.
        let cell = unsafe { &*cell };
        // SAFETY: loom checks that no other thread accesses it at the same time.
        cell.0.with_mut(|place| unsafe { *place = value });
    }
}
