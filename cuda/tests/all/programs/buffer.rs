//! [`Buffer`]: the expected contents of a block in reused memory.

use core::ops::{Deref, DerefMut};
use std::sync::Mutex;

/// Memory of buffers that are gone: fresh memory costs more time than all the rest of a program.
static SPARE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Bytes.
#[derive(Debug)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    pub(crate) fn new() -> Self {
        let spare = SPARE.lock().ok().and_then(|mut spare| spare.pop());
        Self(spare.unwrap_or_default())
    }
}

impl Deref for Buffer {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut bytes = core::mem::take(&mut self.0);
        bytes.clear();
        if let Ok(mut spare) = SPARE.lock() {
            spare.push(bytes);
        }
    }
}
