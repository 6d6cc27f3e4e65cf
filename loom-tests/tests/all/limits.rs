//! Models a tree of budgets (L6) whose limits change while the pools of a tenant charge, allocate and free: no memory
//! exists above a limit, and nothing is granted above a lowered limit once the call that lowers it has returned.
//!
//! The protocol is that of the front ends: memory is charged before it is created and credited after it is released. A
//! lower limit is set in the tree. Then each pool refreshes its live limit, which it reads under its own lock. Each
//! twin breaks one of these rules.

use larder_core::limits::{BudgetConfig, BudgetId, LimitAnswer, LimitTree};
use larder_core::pages::{
    Backing, Handle, Mapping, PageCall, PageConfig, PageDriver, PageEntry, PagePool, PageTables,
};
use larder_core::sync::{Locked, Spin};
use larder_core::{
    Addr, AddrRange, BestFit, Block, BlockAllocator, Chunk, Request, Shared, SubAllocError,
};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};

use crate::explore::{explore, spawn};

const PAGE: u64 = 0x1000;

/// The rule that a twin breaks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Right,
    /// Memory is charged after it was created.
    ChargeAfterCreate,
    /// Memory is credited before it is released.
    CreditBeforeRelease,
    /// A pool's live limit is read before the pool's lock is taken.
    BoundReadBeforeTheLock,
    /// A lowered limit is set in the tree, but no pool refreshes its own.
    NobodyIsTold,
}

/// The state that all pools share: the tree, and the bytes that exist.
struct World {
    tree: Locked<LimitTree, Spin>,
    held: AtomicU64,
    /// Maximum number of bytes that may exist during the run.
    max: u64,
    way: Way,
}

impl World {
    fn create(&self, bytes: u64) {
        let held = self.held.fetch_add(bytes, Ordering::SeqCst) + bytes;
        assert!(held <= self.max, "more exists than the limit allows");
    }
}

struct Driver {
    world: Arc<World>,
    id: BudgetId,
}

impl PageDriver for Driver {
    fn call(&self, step: PageCall) -> Result<(), SubAllocError> {
        let world = &*self.world;
        match step {
            PageCall::Create { bytes, .. } => {
                if world.way == Way::ChargeAfterCreate {
                    world.create(bytes);
                }
                let charged = world.tree.with(|tree| tree.charge(self.id, bytes));
                if charged.is_err() {
                    if world.way == Way::ChargeAfterCreate {
                        world.held.fetch_sub(bytes, Ordering::SeqCst);
                    }
                    return Err(SubAllocError);
                }
                if world.way != Way::ChargeAfterCreate {
                    world.create(bytes);
                }
            }
            PageCall::Release { bytes, .. } => {
                let credit = || world.tree.with(|tree| tree.credit(self.id, bytes)).unwrap();
                if world.way == Way::CreditBeforeRelease {
                    credit();
                }
                world.held.fetch_sub(bytes, Ordering::SeqCst);
                if world.way != Way::CreditBeforeRelease {
                    credit();
                }
            }
            _ => {}
        }
        Ok(())
    }
}

type Allocator = Shared<PagePool<'static>, Driver, Spin>;

#[derive(Clone)]
struct Pool(Arc<Allocator>);

impl Pool {
    fn new(world: &Arc<World>, number: u64) -> Self {
        let root = world.tree.with(|tree| tree.root());
        let added = world
            .tree
            .with(|tree| tree.add(root, BudgetConfig::new(u64::MAX)));
        let start = Addr::new((1 + 16 * number) * PAGE);
        let mut config = PageConfig::new(AddrRange::new(start, 8 * PAGE).unwrap(), Backing::Billed);
        config.page_bytes = PAGE;
        let tables = PageTables {
            entries: vec![PageEntry::EMPTY; 8].leak(),
            handles: vec![Handle::VACANT; 6].leak(),
            mappings: vec![Mapping::VACANT; 8].leak(),
        };
        let paged = PagePool::new(config, vec![Chunk::VACANT; 10].leak(), tables).unwrap();
        let driver = Driver {
            world: world.clone(),
            id: added.unwrap(),
        };
        Self(Arc::new(Shared::new(paged, driver)))
    }

    fn refresh_limit(&self) {
        let driver = self.0.source();
        let world = &*driver.world;
        let bound = || world.tree.with(|tree| tree.live_limit(driver.id)).unwrap();
        if world.way == Way::BoundReadBeforeTheLock {
            let bound = bound();
            self.0.with(|paged| paged.set_limit(bound));
        } else {
            self.0.with(|paged| paged.set_limit(bound()));
        }
    }

    fn alloc(&self, bytes: u64) -> Option<Block> {
        let grant = self.0.alloc(&Request::new(bytes)).ok();
        grant.map(|grant| grant.block)
    }

    fn check(&self) {
        let invariants = self.0.with(|paged| paged.check_invariants());
        assert_eq!(invariants, Ok(()));
    }
}

fn world(limit: u64, max: u64, way: Way) -> Arc<World> {
    Arc::new(World {
        tree: Locked::new(LimitTree::new(4, BudgetConfig::new(limit)).unwrap()),
        held: AtomicU64::new(0),
        max,
        way,
    })
}

/// Sets the limit of all pools. Returns the bytes held above it.
fn set(world: &World, pools: &[&Pool], limit: u64) -> u64 {
    let root = world.tree.with(|tree| tree.root());
    let answer = world.tree.with(|tree| tree.set(root, limit, None));
    assert!(!matches!(answer, LimitAnswer::Refused(_)));
    if world.way != Way::NobodyIsTold {
        for pool in pools {
            pool.refresh_limit();
        }
        for pool in pools {
            pool.0.release_excess();
            pool.refresh_limit();
        }
    }
    let used = world.tree.with(|tree| tree.usage(root)).unwrap().used_bytes;
    used.saturating_sub(limit)
}

fn check(world: &World, pools: &[&Pool]) {
    pools.iter().for_each(|pool| pool.check());
    let root = world.tree.with(|tree| tree.root());
    let used = world.tree.with(|tree| {
        assert_eq!(tree.check_invariants(), Ok(()));
        tree.usage(root).unwrap().used_bytes
    });
    assert_eq!(used, world.held.load(Ordering::SeqCst), "charged is held");
}

fn model(f: impl Fn() + Send + Sync + Clone + 'static) {
    explore(move || spawn(f.clone()).join().unwrap());
}

/// Models two pools that request the last memory of a tenant.
fn two_pools_create(way: Way) {
    model(move || {
        let world = world(2 * PAGE, 2 * PAGE, way);
        let pools = [Pool::new(&world, 0), Pool::new(&world, 1)];
        let other = pools[1].clone();
        let thread = spawn(move || other.alloc(2 * PAGE));
        let mine = pools[0].alloc(2 * PAGE);
        let theirs = thread.join().unwrap();
        assert!(mine.is_none() || theirs.is_none(), "there is room for one");
        check(&world, &[&pools[0], &pools[1]]);
    });
}

/// Models a pool that releases memory while another requests it.
fn one_releases_what_another_wants(way: Way) {
    model(move || {
        let world = world(PAGE, PAGE, way);
        let pools = [Pool::new(&world, 0), Pool::new(&world, 1)];
        let block = pools[0].alloc(PAGE).unwrap();
        pools[0].0.free(block).unwrap();
        let other = pools[1].clone();
        let thread = spawn(move || other.alloc(PAGE));
        pools[0].0.release(PAGE);
        let theirs = thread.join().unwrap();
        let theirs = theirs.or_else(|| pools[1].alloc(PAGE));
        assert!(theirs.is_some(), "there is room now");
        check(&world, &[&pools[0], &pools[1]]);
    });
}

/// Models a limit that is lowered while another thread frees and allocates.
fn lowered_beside_alloc_and_free(way: Way) {
    model(move || {
        let world = world(4 * PAGE, 2 * PAGE, way);
        let pools = [Pool::new(&world, 0), Pool::new(&world, 1)];
        let kept = pools[0].alloc(PAGE).unwrap();
        let half = pools[1].alloc(PAGE / 2).unwrap();
        let other = pools[1].clone();
        let thread = spawn(move || {
            let block = other.alloc(PAGE / 2);
            if let Some(block) = block {
                other.0.free(block).unwrap();
            }
        });
        let above = set(&world, &[&pools[0], &pools[1]], PAGE + PAGE / 2);
        assert_eq!(above, PAGE / 2);
        thread.join().unwrap();
        // Both pages are in use. Pool 1 holds one page, of which half is free, and the excess is half a page.
        assert!(
            pools[1].alloc(PAGE / 2).is_none(),
            "granted above the limit"
        );
        assert!(
            pools[0].alloc(PAGE / 2).is_none(),
            "granted above the limit"
        );
        pools[0].0.free(kept).unwrap();
        pools[0].refresh_limit();
        pools[0].0.release_excess();
        pools[1].refresh_limit();
        let more = pools[1].alloc(PAGE / 2).expect("what was owed has gone");
        for block in [half, more] {
            pools[1].0.free(block).unwrap();
        }
        check(&world, &[&pools[0], &pools[1]]);
    });
}

/// Models a thread that lowers the limit while another thread refreshes the pool's live limit, as an allocation does.
fn two_take_over(way: Way) {
    model(move || {
        let world = world(2 * PAGE, 2 * PAGE, way);
        let pool = Pool::new(&world, 0);
        let block = pool.alloc(PAGE + PAGE / 2).unwrap();
        let other = pool.clone();
        let thread = spawn(move || other.refresh_limit());
        let above = set(&world, &[&pool], PAGE + PAGE / 2);
        assert_eq!(above, PAGE / 2);
        thread.join().unwrap();
        assert!(pool.alloc(PAGE / 2).is_none(), "granted above the limit");
        pool.0.free(block).unwrap();
        check(&world, &[&pool]);
    });
}

/// Models a limit that is lowered while a plan creates memory: no more memory exists than the old limit allows, and
/// none is created once the call has returned.
#[test]
fn l6_a_limit_lowered_while_memory_is_created_is_kept() {
    model(|| {
        let world = world(3 * PAGE, 3 * PAGE, Way::Right);
        let pool = Pool::new(&world, 0);
        let first = pool.alloc(PAGE).unwrap();
        let other = pool.clone();
        let thread = spawn(move || other.alloc(2 * PAGE));
        let above = set(&world, &[&pool], PAGE);
        let at_the_answer = world.held.load(Ordering::SeqCst);
        assert!(at_the_answer <= PAGE + above);
        let theirs = thread.join().unwrap();
        assert!(world.held.load(Ordering::SeqCst) <= PAGE + above);
        for block in [theirs, Some(first)].into_iter().flatten() {
            pool.0.free(block).unwrap();
        }
        assert_eq!(set(&world, &[&pool], 0), 0);
        check(&world, &[&pool]);
    });
}

models! {
    l6_two_pools_together_never_pass_the_budget_above_them => two_pools_create(Way::Right);
    broken_charge_after_the_memory_exists rejected "more exists than the limit allows" =>
        two_pools_create(Way::ChargeAfterCreate);
    l6_memory_that_goes_back_is_there_for_another_pool_and_never_twice => one_releases_what_another_wants(Way::Right);
    broken_credit_before_the_memory_is_gone rejected "more exists than the limit allows" =>
        one_releases_what_another_wants(Way::CreditBeforeRelease);
    l6_nothing_is_granted_above_a_lowered_limit_after_the_answer => lowered_beside_alloc_and_free(Way::Right);
    broken_lowering_that_tells_no_pool rejected "granted above the limit" =>
        lowered_beside_alloc_and_free(Way::NobodyIsTold);
    l6_the_last_to_take_a_bound_over_has_the_newest => two_take_over(Way::Right);
    broken_bound_that_is_read_before_the_lock rejected "granted above the limit" =>
        two_take_over(Way::BoundReadBeforeTheLock);
}
