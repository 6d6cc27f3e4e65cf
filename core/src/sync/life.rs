//! Locks and atomics in life.

use core::marker::PhantomData;

pub(crate) use core::sync::atomic::{AtomicU64, Ordering};
use spin::mutex::SpinMutex;
use spin::relax::RelaxStrategy;

use super::Wait;

/// Our way of waiting, told to `spin`.
struct Relax<W>(PhantomData<W>);

impl<W: Wait> RelaxStrategy for Relax<W> {
    #[inline]
    fn relax() {
        W::wait();
    }
}

/// A mutual-exclusion lock without poisoning.
pub(crate) struct RawLock<T, W>(SpinMutex<T, Relax<W>>);

impl<T, W: Wait> RawLock<T, W> {
    pub(crate) const fn new(value: T) -> Self {
        Self(SpinMutex::new(value))
    }

    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.0.lock())
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner()
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}
