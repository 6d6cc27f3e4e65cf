//! Threads that run before all ordinary threads: Linux's `SCHED_FIFO`.
//!
//! A thread with this priority keeps its core until it sleeps; ordinary threads on that core wait,
//! and so do threads that wait for them. New threads inherit the priority.

use std::io;

/// A thread, identified by its thread ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread(i32);

#[cfg(target_os = "linux")]
impl Thread {
    /// Returns the calling thread.
    pub fn this() -> Self {
        // SAFETY: the call has no arguments and always succeeds.
        Self(unsafe { libc::gettid() })
    }

    /// Lets the thread run before ordinary threads and before threads of a lower priority.
    ///
    /// # Errors
    /// If the operating system does not allow it.
    pub fn run_first(self, priority: i32) -> io::Result<()> {
        self.set(libc::SCHED_FIFO, priority)
    }

    /// Makes the thread an ordinary one.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn run_in_turn(self) -> io::Result<()> {
        self.set(libc::SCHED_OTHER, 0)
    }

    fn set(self, policy: i32, priority: i32) -> io::Result<()> {
        let settings = libc::sched_param {
            sched_priority: priority,
        };
        // SAFETY: the settings are read during the call only.
        let failed = unsafe { libc::sched_setscheduler(self.0, policy, &raw const settings) };
        if failed == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// Fails, since priorities are implemented only for Linux.
#[cfg(not(target_os = "linux"))]
impl Thread {
    pub fn this() -> Self {
        Self(0)
    }

    pub fn run_first(self, _priority: i32) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn run_in_turn(self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: 0 is the calling thread, and the call only reads its policy.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn a_thread_runs_first_until_another_says_otherwise() {
        let thread = std::thread::spawn(|| {
            if Thread::this().run_first(1).is_err() {
                return; // not allowed here
            }
            assert_eq!(policy(), libc::SCHED_FIFO);
            let this = Thread::this();
            let other = std::thread::spawn(move || this.run_in_turn().unwrap());
            other.join().unwrap();
            assert_eq!(policy(), libc::SCHED_OTHER);
        });
        thread.join().unwrap();
    }
}
