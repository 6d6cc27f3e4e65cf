//! [`HeldStream`]: one hold of a stream, shared by all allocators of the process, so that other holders can
//! be detected.

use core::ops::Deref;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use cudarc::driver::CudaStream;

use crate::driver::locked;

/// The streams that allocators hold, by the address of cudarc's value.
static HELD: Mutex<BTreeMap<usize, Weak<HeldStream>>> = Mutex::new(BTreeMap::new());

/// A hold on a stream, shared by all allocators.
pub(crate) struct HeldStream(Arc<CudaStream>);

impl HeldStream {
    /// Returns the hold on a stream, which is new if no allocator has one.
    pub(crate) fn of(stream: &Arc<CudaStream>) -> Arc<Self> {
        let mut held = locked(&HELD);
        let key = Arc::as_ptr(stream).addr();
        if let Some(known) = held.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        held.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(Self(stream.clone()));
        held.insert(key, Arc::downgrade(&new));
        new
    }

    pub(crate) const fn arc(&self) -> &Arc<CudaStream> {
        &self.0
    }

    /// Returns the number of holders besides the allocators' tables: the program, its buffers, and copies
    /// under way.
    pub(crate) fn others(&self) -> usize {
        Arc::strong_count(&self.0).saturating_sub(1)
    }
}

impl Deref for HeldStream {
    type Target = CudaStream;

    fn deref(&self) -> &CudaStream {
        &self.0
    }
}
