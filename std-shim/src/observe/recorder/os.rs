//! System calls of the recorder, each behind a safe function.
//!
//! Nothing here allocates. A failure is the system's error number.

use core::ffi::{CStr, c_char, c_int, c_short};
use core::mem;

use crate::os::errno::last_errno;

/// The reason of a failed system call, as the system's error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Errno(pub(super) c_int);

impl Errno {
    /// Returns the failed call's reason.
    fn last() -> Self {
        Self(last_errno())
    }

    /// Returns whether another process holds the requested lock. Systems use different numbers for
    /// this error.
    pub(super) fn is_locked_elsewhere(self) -> bool {
        self.0 == libc::EACCES || self.0 == libc::EAGAIN
    }
}

/// A file opened for writing. Copying this value copies the descriptor, not the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpenFile(c_int);

impl OpenFile {
    /// Standard error.
    pub(super) const STDERR: Self = Self(libc::STDERR_FILENO);

    /// Opens or creates the file at `path` without truncating it; a program started from this one
    /// does not inherit it.
    pub(super) fn open(path: &CStr) -> Result<Self, Errno> {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOCTTY;
        let mode: libc::c_uint = 0o666;
        // SAFETY: `path` ends in NUL, and a mode follows the flags, as `O_CREAT` requires.
        match unsafe { libc::open(path.as_ptr(), flags, mode) } {
            -1 => Err(Errno::last()),
            file => Ok(Self(file)),
        }
    }

    /// Locks the whole file for this process alone, without waiting. A forked child does not
    /// inherit the lock; the end of the process releases it.
    pub(super) fn lock(self) -> Result<(), Errno> {
        // SAFETY: zeros are a value of this struct of plain numbers: the whole file.
        let mut range: libc::flock = unsafe { mem::zeroed() };
        range.l_type = libc::F_WRLCK as c_short;
        range.l_whence = libc::SEEK_SET as c_short;
        // SAFETY: this command reads one `flock`, which is still alive.
        match unsafe { libc::fcntl(self.0, libc::F_SETLK, &raw const range) } {
            -1 => Err(Errno::last()),
            _ => Ok(()),
        }
    }

    /// Truncates the file to `bytes` bytes. A file without a length, such as a pipe, is unchanged.
    pub(super) fn cut(self, bytes: u64) {
        let Ok(bytes) = libc::off_t::try_from(bytes) else {
            return;
        };
        // SAFETY: takes two numbers; a wrong one is refused.
        unsafe { libc::ftruncate(self.0, bytes) };
    }

    /// Writes all of `bytes`. An error has the number of bytes written before it.
    pub(super) fn write(self, bytes: &[u8]) -> Result<(), (usize, Errno)> {
        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            // SAFETY: `rest` may be read for its length.
            let now = unsafe { libc::write(self.0, rest.as_ptr().cast(), rest.len()) };
            match usize::try_from(now) {
                // A file that accepts no bytes and reports no error would be retried endlessly.
                Ok(0) => return Err((written, Errno(libc::EIO))),
                Ok(now) => written += now,
                Err(_) if Errno::last().0 == libc::EINTR => {}
                Err(_) => return Err((written, Errno::last())),
            }
        }
        Ok(())
    }

    /// Returns the identity of the file to which the descriptor now refers.
    pub(super) fn identity(self) -> Result<Identity, Errno> {
        // SAFETY: zeros are a value of this struct of plain numbers.
        let mut found: libc::stat = unsafe { mem::zeroed() };
        // SAFETY: `found` may be written.
        match unsafe { libc::fstat(self.0, &raw mut found) } {
            0 => Ok(Identity {
                device: found.st_dev,
                file: found.st_ino,
            }),
            _ => Err(Errno::last()),
        }
    }

    /// Closes the file. Afterwards the descriptor may belong to another file.
    pub(super) fn close(self) {
        // SAFETY: takes a number; a wrong one is refused.
        unsafe { libc::close(self.0) };
    }
}

/// The identity of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    device: libc::dev_t,
    file: libc::ino_t,
}

/// Returns the id of this process.
pub(super) fn process() -> libc::pid_t {
    // SAFETY: takes nothing and never fails.
    unsafe { libc::getpid() }
}

/// Returns whether the program runs with privileges that its user does not have, so that the
/// user's environment must not choose a file for it.
pub(super) fn has_borrowed_rights() -> bool {
    // SAFETY: takes nothing and never fails.
    let user = unsafe { libc::getuid() };
    // SAFETY: takes nothing and never fails.
    let rights_of_user = unsafe { libc::geteuid() };
    // SAFETY: takes nothing and never fails.
    let group = unsafe { libc::getgid() };
    // SAFETY: takes nothing and never fails.
    let rights_of_group = unsafe { libc::getegid() };
    (user, group) != (rights_of_user, rights_of_group)
}

/// Calls `f` with the environment variable's value. Another thread must not change the environment
/// during the call; Rust requires that of every program with threads.
pub(super) fn with_variable<R>(name: &CStr, f: impl FnOnce(Option<&[u8]>) -> R) -> R {
    // SAFETY: `name` ends in NUL.
    let value: *const c_char = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return f(None);
    }
    // SAFETY: the environment's values end in NUL and stay valid while no thread changes them.
    let value = unsafe { CStr::from_ptr(value) };
    f(Some(value.to_bytes()))
}

/// Calls `f` with the path of the running program, where the system has a link to it.
pub(super) fn with_program<R>(f: impl FnOnce(&[u8]) -> R) -> Option<R> {
    let mut path = [0_u8; 1024];
    let link = c"/proc/self/exe".as_ptr();
    // SAFETY: `link` ends in NUL and `path` may be written for its length.
    let length = unsafe { libc::readlink(link, path.as_mut_ptr().cast(), path.len()) };
    path.get(..usize::try_from(length).ok()?).map(f)
}

/// Registers `f` to be called when the program ends by `exit` or by returning from `main`.
pub(super) fn at_exit(f: extern "C" fn()) -> bool {
    // SAFETY: `f` may be called from any thread, being a safe function.
    unsafe { libc::atexit(f) == 0 }
}

/// Registers `f` to be called in each forked child before other code of the program runs there.
pub(super) fn in_forked_child(f: unsafe extern "C" fn()) -> bool {
    // SAFETY: `f` only stores an atomic, as its one caller shows, which a forked child may do.
    unsafe { libc::pthread_atfork(None, None, Some(f)) == 0 }
}
