//! An allocator made where it is to lie. It is some 14 KiB long: too much for the stack of whoever calls a process's first
//! allocation. And what is new of it is zero but for a few fields, so most pages of fresh memory stay untouched.

use heapless::Vec;

use super::chunk::{Chunk, Link};
use super::{Bfc, BfcAllocator, BfcConfig, Counters, Regions};
use crate::bfc::grow::GrowthState;
use crate::error::ConfigError;
use crate::sync::{Locked, Wait};

impl<'t> Bfc<'t> {
    /// Makes what [`new`](Self::new) returns.
    ///
    /// # Safety
    /// `at` is aligned and valid for writes, and all its bytes are 0.
    unsafe fn place(
        at: *mut Self,
        config: BfcConfig,
        table: &'t mut [Chunk],
    ) -> Result<(), ConfigError> {
        let (granule, table) = Self::parts(&config, table)?;
        // SAFETY: the caller's place. What is not written are numbers, which are 0 when they are new: the bins, the streams,
        // the regions but for their order, and the rest.
        unsafe {
            (&raw mut (*at).limit_bytes).write(config.limit_bytes);
            (&raw mut (*at).config).write(config);
            (&raw mut (*at).granule).write(granule);
            (&raw mut (*at).counters).write(Counters::default());
            (&raw mut (*at).growth).write(GrowthState::default());
            (&raw mut (*at).newest_region).write(None);
            (&raw mut (*at).wilderness).write(Link::NIL);
            (&raw mut (*at).table).write(table);
            (&raw mut (*at).regions.order).write(Vec::new());
            (&raw mut (*at).memory).write(Regions);
        }
        Ok(())
    }
}

impl<'t, S, W: Wait> BfcAllocator<'t, S, W> {
    /// Makes at `at` what [`with_wait`](Self::with_wait) of [`Bfc::new`] returns, with little stack.
    ///
    /// # Errors
    /// Those of [`Bfc::new`]; nothing is made then.
    ///
    /// # Safety
    /// `at` is aligned and valid for writes, and all its bytes are 0.
    pub unsafe fn place(
        at: *mut Self,
        config: BfcConfig,
        table: &'t mut [Chunk],
        source: S,
    ) -> Result<(), ConfigError> {
        // SAFETY: the caller's place.
        let (lock, id, from) =
            unsafe { (&raw mut (*at).bfc, &raw mut (*at).id, &raw mut (*at).source) };
        // SAFETY: a part of it.
        let bfc = unsafe { Locked::place(lock) };
        // SAFETY: a part of it, beside which the lock's word was written.
        unsafe { Bfc::place(bfc, config, table) }?;
        // SAFETY: made just now.
        let made = unsafe { &*bfc };
        // SAFETY: a part of the caller's place.
        unsafe { id.write(made.id()) };
        // SAFETY: a part of the caller's place.
        unsafe { from.write(source) };
        Ok(())
    }
}

/// What [`Bfc::place`] leaves zero: this does not compile if there is more.
const _: fn(Bfc<'_>) = |bfc| {
    let Bfc {
        excused_bytes: _,
        shrinking: _,
        apart: _,
        bins: _,
        streams: _,
        // Written.
        limit_bytes: _,
        config: _,
        granule: _,
        counters: _,
        growth: _,
        newest_region: _,
        wilderness: _,
        table: _,
        regions: _,
        memory: _,
    } = bfc;
};

#[cfg(all(test, not(larder_loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use core::mem::MaybeUninit;

    use super::*;
    use crate::block::{BlockAllocator, Request};
    use crate::region::FixedRange;
    use crate::units::{Addr, AddrRange};
    use crate::{Growth, Spin};

    type Allocator<'t> = BfcAllocator<'t, FixedRange, Spin>;

    #[test]
    fn an_allocator_made_in_place_is_as_any_other() {
        let config = BfcConfig {
            growth: Growth::Range {
                unit_bytes: 0x1000,
                ahead_divisor: None,
            },
            ..BfcConfig::default()
        };
        let source = || FixedRange::new(AddrRange::new(Addr::new(0x10000), 0x8000).unwrap());
        let (mut table, mut other_table) = ([Chunk::VACANT; 64], [Chunk::VACANT; 64]);
        let mut place = MaybeUninit::<Allocator<'_>>::zeroed();
        // SAFETY: zero bytes, and ours.
        unsafe { Allocator::place(place.as_mut_ptr(), config, &mut table, source()) }.unwrap();
        // SAFETY: made just now.
        let placed = unsafe { place.assume_init_ref() };
        let other = BfcAllocator::new(Bfc::new(config, &mut other_table).unwrap(), source());
        for bytes in [100, 5000, 0x2000, 0x9000] {
            let [first, second] = [placed, &other].map(|allocator| {
                let grant = allocator.alloc(&Request::new(bytes));
                assert!(allocator.with(|bfc| bfc.check_invariants()).is_ok());
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
        let config = BfcConfig::default();
        // SAFETY: zero bytes, and ours.
        let made = unsafe { Allocator::place(place.as_mut_ptr(), config, &mut [], source) };
        assert!(made.is_err());
    }
}
