//! Constructs a pool in place. A pool is about 14 KiB long, which is too much for the stack of the thread that makes a
//! process's first allocation. Most of a new pool is zero, so most pages of fresh memory stay untouched.

use super::{RegionConfig, RegionPool};
use crate::best_fit::BestFit;
use crate::engine::{Chunk, Chunks};
use crate::error::ConfigError;
use crate::shared::Shared;
use crate::sync::{Locked, Wait};

impl<'t> RegionPool<'t> {
    /// Writes to `at` the value that [`new`](Self::new) returns.
    ///
    /// # Safety
    /// `at` is aligned and valid for writes, and all its bytes are 0.
    pub(crate) unsafe fn place(
        at: *mut Self,
        config: RegionConfig,
        table: &'t mut [Chunk],
    ) -> Result<(), ConfigError> {
        let granule = config.validate()?;
        // SAFETY: `at` is valid for writes and all zero, and so are its parts. The part that is not written is a
        // number, which is 0 in a new pool.
        unsafe {
            Chunks::place(&raw mut (*at).chunks, granule, config.limit_bytes, table)?;
            (&raw mut (*at).config).write(config);
        }
        Ok(())
    }
}

impl<'t, S, W: Wait> Shared<RegionPool<'t>, S, W> {
    /// Writes to `at` the value that [`with_wait`](Self::with_wait) returns for [`RegionPool::new`], with little use of
    /// the stack.
    ///
    /// # Errors
    /// See [`RegionPool::new`]; no allocator exists at `at` then.
    ///
    /// # Safety
    /// `at` is aligned and valid for writes, and all its bytes are 0.
    pub unsafe fn place(
        at: *mut Self,
        config: RegionConfig,
        table: &'t mut [Chunk],
        source: S,
    ) -> Result<(), ConfigError> {
        // SAFETY: `at` is valid for writes, and so are its parts; the pool's bytes are still 0 here, since outside
        // them only the lock's word was written.
        unsafe {
            let pool = Locked::place(&raw mut (*at).pool);
            RegionPool::place(pool, config, table)?;
            (&raw mut (*at).id).write((*pool).id());
            (&raw mut (*at).source).write(source);
        }
        Ok(())
    }
}

/// Lists the fields of a pool. [`RegionPool::place`] writes all of them except `tickets`, which stays zero. This does
/// not compile if there are other fields.
const _: fn(RegionPool<'_>) = |pool| {
    let RegionPool {
        tickets: _,
        // These are written.
        chunks: _,
        config: _,
    } = pool;
};

#[cfg(all(test, not(larder_loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use core::mem::MaybeUninit;

    use super::*;
    use crate::block::{BlockAllocator, Request};
    use crate::regions::FixedRange;
    use crate::units::{Addr, AddrRange};
    use crate::{Growth, Spin};

    type Allocator<'t> = Shared<RegionPool<'t>, FixedRange, Spin>;

    #[test]
    fn an_allocator_made_in_place_is_as_any_other() {
        let config = RegionConfig {
            growth: Growth::Range {
                unit_bytes: 0x1000,
                ahead_divisor: None,
            },
            ..RegionConfig::default()
        };
        let source = || FixedRange::new(AddrRange::new(Addr::new(0x10000), 0x8000).unwrap());
        let (mut table, mut other_table) = ([Chunk::VACANT; 64], [Chunk::VACANT; 64]);
        let mut place = MaybeUninit::<Allocator<'_>>::zeroed();
        // SAFETY: the bytes are zero and belong to the test.
        unsafe { Allocator::place(place.as_mut_ptr(), config, &mut table, source()) }.unwrap();
        // SAFETY: written by the line above.
        let placed = unsafe { place.assume_init_ref() };
        let other = Shared::new(RegionPool::new(config, &mut other_table).unwrap(), source());
        for bytes in [100, 5000, 0x2000, 0x9000] {
            let [first, second] = [placed, &other].map(|allocator| {
                let grant = allocator.alloc(&Request::new(bytes));
                assert!(allocator.with(|pool| pool.check_invariants()).is_ok());
                grant.ok().map(|grant| grant.block.addr())
            });
            assert_eq!(first, second);
        }
        assert_eq!(placed.stats().live_bytes, other.stats().live_bytes);
        assert_eq!(placed.stats().limit_bytes, other.stats().limit_bytes);
    }

    #[test]
    fn nothing_is_made_of_a_table_that_is_too_short() {
        let mut place = MaybeUninit::<Allocator<'_>>::zeroed();
        let source = FixedRange::new(AddrRange::new(Addr::new(0x10000), 0x8000).unwrap());
        let config = RegionConfig::default();
        // SAFETY: the bytes are zero and belong to the test.
        let made = unsafe { Allocator::place(place.as_mut_ptr(), config, &mut [], source) };
        assert!(made.is_err());
    }
}
