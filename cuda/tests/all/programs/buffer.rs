//! [`Bytes`]: the expected contents of a block, in reused memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory of dropped contents, for reuse: fresh memory would take more time than the rest of a program.
static SPARE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Contents, shared with the graphs that write them. They are empty until the whole block has been written.
#[derive(Clone, Debug)]
pub(crate) struct Bytes(Arc<Mutex<Reused>>);

#[derive(Debug)]
struct Reused(Vec<u8>);

impl Bytes {
    pub(crate) fn new() -> Self {
        let spare = SPARE.lock().ok().and_then(|mut spare| spare.pop());
        Self(Arc::new(Mutex::new(Reused(spare.unwrap_or_default()))))
    }

    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let mut bytes: MutexGuard<'_, Reused> =
            self.0.lock().unwrap_or_else(PoisonError::into_inner);
        act(&mut bytes.0)
    }

    /// Sets the length; new bytes are 0. With few optimizations, `Vec::resize` writes single bytes.
    pub(crate) fn resize(contents: &mut Vec<u8>, bytes: usize) {
        const ZEROES: [u8; 1 << 12] = [0; 1 << 12];
        contents.truncate(bytes);
        while contents.len() < bytes {
            let more = ZEROES.len().min(bytes - contents.len());
            contents.extend_from_slice(&ZEROES[..more]);
        }
    }

    pub(crate) fn part(&self, from: u64, bytes: u64) -> Vec<u8> {
        self.with(|all| all[from as usize..][..bytes as usize].to_vec())
    }
}

impl Drop for Reused {
    fn drop(&mut self) {
        let mut bytes = core::mem::take(&mut self.0);
        bytes.clear();
        if let Ok(mut spare) = SPARE.lock() {
            spare.push(bytes);
        }
    }
}
