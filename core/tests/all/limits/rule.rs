//! The live bytes allowed to pools while a budget above them is in excess.

use larder_core::limits::{BudgetConfig, LimitAnswer, LimitTree};

const NO_LIMIT: BudgetConfig = BudgetConfig::new(u64::MAX);

#[test]
fn while_a_budget_is_in_excess_each_pool_may_have_what_it_holds_less_the_excess() {
    let mut tree = LimitTree::new(4, BudgetConfig::new(100)).unwrap();
    let root = tree.root();
    let [a, b, c] = [60, 30, 0].map(|bytes| {
        let pool = tree.add(root, NO_LIMIT).unwrap();
        tree.charge(pool, bytes).unwrap();
        pool
    });
    assert_eq!(tree.live_limit(a), Some(u64::MAX));
    assert_eq!(
        tree.set(root, 50, None),
        LimitAnswer::Deferred { bytes: 40 }
    );
    let may = |tree: &LimitTree| [a, b, c].map(|pool| tree.live_limit(pool).unwrap());
    assert_eq!(may(&tree), [20, 0, 0]);
    // Its own memory going back leaves a pool its bound, and lifts those of the others.
    tree.credit(a, 20).unwrap();
    assert_eq!(may(&tree), [20, 10, 0]);
    tree.credit(b, 20).unwrap();
    assert_eq!(may(&tree), [u64::MAX; 3]);
}

#[test]
fn the_budget_most_in_excess_on_the_way_up_binds() {
    let mut tree = LimitTree::new(3, BudgetConfig::new(100)).unwrap();
    let tenant = tree.add(tree.root(), NO_LIMIT).unwrap();
    let pool = tree.add(tenant, BudgetConfig::new(90)).unwrap();
    tree.charge(pool, 60).unwrap();
    assert_eq!(tree.live_limit(pool), Some(90));
    let _ = tree.set(tree.root(), 50, None);
    assert_eq!(tree.live_limit(pool), Some(50));
    let _ = tree.set(tenant, 30, None);
    assert_eq!(tree.live_limit(pool), Some(30));
    let refusal = tree.in_excess(pool, 7).unwrap();
    assert_eq!((refusal.budget, refusal.wanted_bytes), (tenant, 7));
    let _ = tree.set(pool, 10, None);
    assert_eq!(tree.live_limit(pool), Some(10));
    assert_eq!(tree.in_excess(pool, 7).unwrap().budget, pool);
    let _ = tree.set(pool, 90, None);
    let _ = tree.set(tenant, 60, None);
    assert_eq!(tree.in_excess(pool, 7).unwrap().budget, tree.root());
    let _ = tree.set(tree.root(), 60, None);
    assert_eq!(tree.in_excess(pool, 7), None);
    assert_eq!(tree.refusal(pool, 1).unwrap().budget, tenant);
    assert_eq!(tree.refusal(pool, 0), None);
}
