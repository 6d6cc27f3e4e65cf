//! The state of one thread: its part of the heap, how that part begins and ends, and how a thread
//! waits for locks.
//!
//! # Files
//! * `tls` the storage of a thread's part, `local` the part itself
//! * `attach` the thread's first slow path · `end` what runs when a thread ends
//! * `wait` how a thread waits for a lock
//!
//! The thread's part is a constant without a destructor, so it can be used at any moment of a
//! thread's life, even before `main` and inside destructors of other thread-local values. The
//! system reports the end of a thread (`end`).

mod attach;
pub(crate) mod end;
pub(crate) mod local;
pub(crate) mod tls;
pub(crate) mod wait;

pub(crate) use attach::{attach, attach_to_free, with_local};
