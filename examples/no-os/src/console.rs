//! The functions that the program needs from outside: a way to print, and a way to stop.

use core::fmt::{self, Write};
use core::panic::PanicInfo;

#[link(name = "c")]
unsafe extern "C" {
    fn write(file: i32, bytes: *const u8, count: usize) -> isize;
    pub(crate) safe fn abort() -> !;
}

const STDOUT: i32 = 1;
const STDERR: i32 = 2;

/// An open file, unbuffered.
struct File(i32);

impl Write for File {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut left = text.as_bytes();
        while !left.is_empty() {
            // SAFETY: the bytes are valid for reads during the call.
            let written = unsafe { write(self.0, left.as_ptr(), left.len()) };
            match usize::try_from(written) {
                Ok(count) if count > 0 => left = &left[count.min(left.len())..],
                _ => return Err(fmt::Error),
            }
        }
        Ok(())
    }
}

/// Prints a line.
pub fn line(words: fmt::Arguments) {
    // If the output is closed, the error cannot be reported.
    let _ = writeln!(File(STDOUT), "{words}");
}

#[panic_handler]
fn stop(panic: &PanicInfo) -> ! {
    let _ = writeln!(File(STDERR), "{panic}");
    abort()
}
