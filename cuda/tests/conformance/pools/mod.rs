//! Memory pools and stream-ordered allocations.

mod allocations;
mod properties;

use larder_cuda_abi::{PoolHandle, constants};

use crate::api::pool;

const BYTES: usize = 1 << 20;

fn ask(of: PoolHandle, attribute: u32) -> u64 {
    pool::attribute(of, attribute).expect("an attribute")
}

/// A pool of device 0, destroyed on drop.
#[derive(Debug)]
struct Pool(PoolHandle);

impl Pool {
    fn new() -> Self {
        Self(pool::create(0).expect("a pool"))
    }

    fn keeping(bytes: u64) -> Self {
        let new = Self::new();
        pool::set_attribute(new.0, constants::POOL_RELEASE_THRESHOLD, bytes).expect("a threshold");
        new
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = pool::destroy(self.0);
    }
}
