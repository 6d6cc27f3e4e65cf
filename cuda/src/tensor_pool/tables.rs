//! The tables of a pool, owned.
//!
//! Invariant K1: a [`Table`] is the only owner of its records, which are lent once, when it is made;
//! the borrower is gone before it. [`Tables`] stands behind the pool among the fields of what owns
//! both, so that it is dropped after it.

use core::fmt;
use core::ptr::NonNull;

use larder_core::lifetime::prmalloc::{
    AllocStat, BinRecord, BlockRecord, LiveRecord, MemberRecord, PlanTables, PlannerTables,
    PolicyTables, PoolBin, PoolBlock, PoolTables, PoolVirtual, SlotTables, VirtualRecord,
};

use super::TensorPoolConfig;
use crate::waiting::Yield;

/// All tables of one pool.
#[derive(Default)]
pub(super) struct Tables(Vec<Box<dyn OwnedTable>>);

/// A table of whatever records.
trait OwnedTable: Send + Sync {}

struct Table<T>(NonNull<[T]>);

impl<T: Send + Sync> OwnedTable for Table<T> {}

// SAFETY: K1; it does nothing with its records but drop them, on whichever thread that may be.
unsafe impl<T: Send> Send for Table<T> {}
// SAFETY: a shared one does nothing.
unsafe impl<T: Sync> Sync for Table<T> {}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        // SAFETY: K1: it was a box when it was made, and nobody borrows it any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Tables {
    /// Tables as long as the configuration says.
    ///
    /// # Safety
    /// What is lent is gone before the first value.
    pub(super) unsafe fn lend(config: &TensorPoolConfig) -> (Self, PoolTables<'static, Yield>) {
        let mut made = Self::default();
        let lent = made.of_pool(config);
        (made, lent)
    }

    fn of_pool(&mut self, config: &TensorPoolConfig) -> PoolTables<'static, Yield> {
        PoolTables {
            planner: PlannerTables {
                pending: self.table(config.stats, || AllocStat::VACANT),
                plans: PlanTables {
                    stats: self.table(config.stats, || AllocStat::VACANT),
                    order: self.table(config.stats, || 0),
                    policies: [(); 3].map(|()| self.of_policy(config)),
                    small: config.plans_small.then(|| self.of_policy(config)),
                },
            },
            slots: [(); 2].map(|()| self.of_slot(config)),
            // As many again, so that they are found quickly.
            live: self.table(config.live.saturating_mul(2), || LiveRecord::VACANT),
        }
    }

    fn of_policy(&mut self, config: &TensorPoolConfig) -> PolicyTables<'static> {
        PolicyTables {
            bins: self.table(config.bins, || BinRecord::VACANT),
            blocks: self.table(config.blocks, || BlockRecord::VACANT),
            virtuals: self.table(config.virtuals, || VirtualRecord::VACANT),
            members: self.table(config.stats, || MemberRecord::VACANT),
        }
    }

    fn of_slot(&mut self, config: &TensorPoolConfig) -> SlotTables<'static, Yield> {
        SlotTables {
            bins: self.table(config.bins, PoolBin::vacant),
            blocks: self.table(config.blocks, PoolBlock::vacant),
            virtuals: self.table(config.virtuals, PoolVirtual::vacant),
        }
    }

    fn table<T: Send + Sync + 'static>(
        &mut self,
        records: usize,
        vacant: impl FnMut() -> T,
    ) -> &'static mut [T] {
        let mut vacant = vacant;
        let made: Box<[T]> = (0..records).map(|_| vacant()).collect();
        let mut records = NonNull::from(Box::leak(made));
        self.0.push(Box::new(Table(records)));
        // SAFETY: K1: lent here, once, to a borrower that is gone before the table is.
        unsafe { records.as_mut() }
    }
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tables").field(&self.0.len()).finish()
    }
}
