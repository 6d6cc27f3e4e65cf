//! Constructs a set in place, for [`Heap`](crate::Heap). A set is 10 KiB long, which is too much for a small stack.

use super::SpanSet;
use super::walk::SetWalk;
use crate::small::Policy;

impl SpanSet {
    /// Writes to `at` the value that [`new`](Self::new) returns.
    ///
    /// # Safety
    /// `at` is aligned and valid for writes, and all its bytes are 0.
    pub(in crate::small) unsafe fn place(at: *mut Self, policy: Policy) {
        // SAFETY: `at` is valid for writes, so its parts are, too. The parts that are not written are null pointers,
        // numbers and flags, which are 0 in a new set.
        unsafe {
            (&raw mut (*at).policy).write(policy);
            (&raw mut (*at).walk).write(SetWalk::None);
        }
    }
}

/// Lists the fields that [`SpanSet::place`] writes and those that it leaves zero. This does not compile if a field is
/// missing.
const _: fn(SpanSet) = |set| {
    let SpanSet {
        classes: _,
        received: _,
        aging: _,
        made_bytes: _,
        asked_bytes: _,
        lists_to_flush: _,
        #[cfg(test)]
            looks: _,
        // Written:
        policy: _,
        walk: _,
    } = set;
};
