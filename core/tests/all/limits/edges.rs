//! Each rule of the tree at its boundary.

use larder_core::limits::{BudgetConfig, BudgetError, LimitAnswer, LimitEventKind, LimitTree};

fn named(hard_bytes: u64, name: u32) -> BudgetConfig {
    BudgetConfig {
        name,
        ..BudgetConfig::new(hard_bytes)
    }
}

#[test]
fn a_charge_goes_to_the_whole_path_or_to_none_of_it() {
    let mut tree = LimitTree::new(4, named(100, 1)).unwrap();
    let tenant = tree.add(tree.root(), named(60, 2)).unwrap();
    let pool = tree.add(tenant, named(u64::MAX, 3)).unwrap();
    tree.charge(tree.root(), 30).unwrap();
    tree.charge(pool, 60).unwrap();
    let used =
        |tree: &LimitTree| [tree.root(), tenant, pool].map(|id| tree.usage(id).unwrap().used_bytes);
    assert_eq!(used(&tree), [90, 60, 60]);
    let Err(BudgetError::NoRoom(refusal)) = tree.charge(pool, 1) else {
        panic!("the tenant is full");
    };
    assert_eq!((refusal.budget, refusal.name), (tenant, 2));
    assert_eq!(
        (
            refusal.limit_bytes,
            refusal.used_bytes,
            refusal.wanted_bytes
        ),
        (60, 60, 1)
    );
    assert_eq!(used(&tree), [90, 60, 60]);
    let Err(BudgetError::NoRoom(refusal)) = tree.charge(tree.root(), 11) else {
        panic!("the root is full");
    };
    assert_eq!((refusal.name, refusal.used_bytes), (1, 90));
    tree.charge(tree.root(), 10).unwrap();
    tree.credit(pool, 60).unwrap();
    assert_eq!(used(&tree), [40, 0, 0]);
    tree.check_invariants().unwrap();
}

#[test]
fn a_charge_that_cannot_be_counted_is_refused() {
    let mut tree = LimitTree::new(2, BudgetConfig::new(u64::MAX)).unwrap();
    let pool = tree.add(tree.root(), BudgetConfig::new(u64::MAX)).unwrap();
    tree.charge(tree.root(), 1).unwrap();
    let Err(BudgetError::NoRoom(refusal)) = tree.charge(pool, u64::MAX) else {
        panic!("the root would overflow");
    };
    assert_eq!(refusal.budget, tree.root());
    assert_eq!(tree.usage(pool).unwrap().used_bytes, 0);
    tree.charge(pool, u64::MAX - 1).unwrap();
    tree.check_invariants().unwrap();
}

#[test]
fn more_than_was_charged_is_not_credited() {
    let mut tree = LimitTree::new(2, BudgetConfig::new(10)).unwrap();
    let pool = tree.add(tree.root(), BudgetConfig::new(10)).unwrap();
    tree.charge(pool, 5).unwrap();
    assert_eq!(tree.credit(pool, 6), Err(BudgetError::NotCharged));
    // What the pool was charged is not the root's own.
    assert_eq!(tree.credit(tree.root(), 1), Err(BudgetError::NotCharged));
    assert_eq!(tree.credit(pool, 5), Ok(()));
}

#[test]
fn a_removed_budget_is_known_by_no_id_of_before() {
    let mut tree = LimitTree::new(2, BudgetConfig::new(10)).unwrap();
    let first = tree.add(tree.root(), BudgetConfig::new(10)).unwrap();
    assert_eq!(
        tree.add(tree.root(), BudgetConfig::new(1)),
        Err(BudgetError::Full { records: 2 })
    );
    tree.remove(first).unwrap();
    let second = tree.add(tree.root(), BudgetConfig::new(7)).unwrap();
    assert_ne!(first, second);
    assert_eq!(tree.charge(first, 1), Err(BudgetError::Unknown));
    assert_eq!(
        tree.set(first, 1, None),
        LimitAnswer::Refused(BudgetError::Unknown)
    );
    assert_eq!(tree.usage(first), None);
    assert_eq!(tree.live_limit(first), None);
    assert_eq!(tree.live_limit(second), Some(7));
    tree.check_invariants().unwrap();
}

#[test]
fn a_budget_in_use_is_not_removed() {
    let mut tree = LimitTree::new(8, BudgetConfig::new(10)).unwrap();
    let root = tree.root();
    let [a, b, c] = [1, 2, 3].map(|name| tree.add(root, named(10, name)).unwrap());
    let below = tree.add(b, BudgetConfig::new(10)).unwrap();
    tree.charge(below, 1).unwrap();
    assert_eq!(tree.remove(root), Err(BudgetError::InUse));
    assert_eq!(tree.remove(b), Err(BudgetError::InUse));
    assert_eq!(tree.remove(below), Err(BudgetError::InUse));
    tree.credit(below, 1).unwrap();
    assert_eq!(tree.remove(b), Err(BudgetError::InUse));
    tree.remove(below).unwrap();
    // In the middle of the list, at its end, at its front.
    for id in [b, a, c] {
        tree.remove(id).unwrap();
        tree.check_invariants().unwrap();
    }
    assert_eq!(tree.remove(c), Err(BudgetError::Unknown));
}

#[test]
fn without_a_record_there_is_no_tree() {
    let error = LimitTree::new(0, BudgetConfig::new(1)).unwrap_err();
    assert_eq!(error, BudgetError::Full { records: 0 });
}

#[test]
fn floors_and_soft_limits_bound_the_hard_one() {
    let mut tree = LimitTree::new(4, BudgetConfig::new(100)).unwrap();
    let config = BudgetConfig {
        hard_bytes: 80,
        soft_bytes: 50,
        floor_bytes: 40,
        name: 0,
    };
    let tenant = tree.add(tree.root(), config).unwrap();
    let refused = |floor_bytes| BudgetError::BelowFloor { floor_bytes };
    assert_eq!(
        tree.set(tenant, 39, Some(39)),
        LimitAnswer::Refused(refused(40))
    );
    assert_eq!(
        tree.set(tenant, 49, None),
        LimitAnswer::Refused(BudgetError::BelowSoft { soft_bytes: 50 })
    );
    assert_eq!(tree.set(tenant, 40, Some(40)), LimitAnswer::Applied);
    let other = BudgetConfig {
        floor_bytes: 61,
        ..BudgetConfig::new(61)
    };
    assert_eq!(tree.add(tree.root(), other), Err(refused(101)));
    let other = BudgetConfig {
        floor_bytes: 60,
        ..other
    };
    tree.add(tree.root(), other).unwrap();
    assert_eq!(
        tree.set(tree.root(), 99, None),
        LimitAnswer::Refused(refused(100))
    );
    assert_eq!(tree.set(tree.root(), 100, None), LimitAnswer::Applied);
    let contradiction = BudgetConfig {
        hard_bytes: 1,
        floor_bytes: 2,
        ..config
    };
    assert!(tree.add(tenant, contradiction).is_err());
    tree.check_invariants().unwrap();
}

#[test]
fn a_soft_limit_tells_once_until_it_was_left() {
    let config = BudgetConfig {
        soft_bytes: 10,
        ..named(20, 7)
    };
    let mut tree = LimitTree::new(1, config).unwrap();
    let root = tree.root();
    tree.charge(root, 10).unwrap();
    assert_eq!(tree.take_event(), None, "up to the limit is not past it");
    tree.charge(root, 1).unwrap();
    let event = tree.take_event().unwrap();
    assert_eq!((event.kind, event.name), (LimitEventKind::SoftCrossed, 7));
    assert_eq!((event.used_bytes, event.limit_bytes), (11, 10));
    tree.charge(root, 1).unwrap();
    assert_eq!(tree.take_event(), None);
    tree.credit(root, 2).unwrap();
    tree.charge(root, 1).unwrap();
    assert!(tree.take_event().is_some());
    // Crossed and left again before anybody asked.
    tree.credit(root, 11).unwrap();
    tree.charge(root, 11).unwrap();
    tree.credit(root, 11).unwrap();
    assert_eq!(tree.take_event(), None);
    // A soft limit lowered below what is used is crossed as well.
    tree.charge(root, 5).unwrap();
    assert_eq!(tree.set(root, 20, Some(4)), LimitAnswer::Applied);
    assert!(tree.has_events() && tree.take_event().is_some());
    assert!(tree.take_event().is_none() && !tree.has_events());
}

#[test]
fn a_deferred_shrink_tells_when_the_last_byte_above_has_gone() {
    let mut tree = LimitTree::new(2, BudgetConfig::new(100)).unwrap();
    let pool = tree.add(tree.root(), BudgetConfig::new(100)).unwrap();
    tree.charge(pool, 50).unwrap();
    let answer = tree.set(tree.root(), 30, None);
    assert_eq!(answer, LimitAnswer::Deferred { bytes: 20 });
    assert!(tree.charge(pool, 1).is_err() && tree.charge(pool, 0).is_err());
    tree.credit(pool, 19).unwrap();
    assert_eq!(tree.take_event(), None);
    tree.check_invariants().unwrap();
    tree.credit(pool, 1).unwrap();
    let event = tree.take_event().unwrap();
    assert_eq!(event.kind, LimitEventKind::ShrinkDone);
    assert_eq!((event.budget, event.used_bytes), (tree.root(), 30));
    // One that a raised limit ends is nobody's news.
    assert_eq!(
        tree.set(tree.root(), 10, None),
        LimitAnswer::Deferred { bytes: 20 }
    );
    assert_eq!(tree.set(tree.root(), 30, None), LimitAnswer::Applied);
    tree.credit(pool, 30).unwrap();
    assert_eq!(tree.take_event(), None);
}

#[test]
fn what_is_held_already_counts_beyond_the_limit() {
    let mut tree = LimitTree::new(2, BudgetConfig::new(100)).unwrap();
    let pool = tree.add(tree.root(), BudgetConfig::new(u64::MAX)).unwrap();
    tree.charge(pool, 90).unwrap();
    tree.hold(pool, 11).unwrap();
    assert_eq!(tree.excess_bytes(tree.root()), Some(1));
    assert!(tree.charge(pool, 0).is_err());
    tree.check_invariants().unwrap();
    tree.credit(pool, 1).unwrap();
    let event = tree.take_event().unwrap();
    assert_eq!(
        (event.kind, event.used_bytes),
        (LimitEventKind::ShrinkDone, 100)
    );
    // What cannot be counted changes nothing.
    let Err(BudgetError::NoRoom(refusal)) = tree.hold(pool, u64::MAX - 99) else {
        panic!("the pool's number would overflow");
    };
    assert_eq!(refusal.budget, pool);
    assert_eq!(tree.usage(tree.root()).unwrap().used_bytes, 100);
}

#[test]
fn what_stands_below_is_known() {
    let mut tree = LimitTree::new(4, BudgetConfig::new(1)).unwrap();
    let a = tree.add(tree.root(), BudgetConfig::new(1)).unwrap();
    let b = tree.add(a, BudgetConfig::new(1)).unwrap();
    let c = tree.add(tree.root(), BudgetConfig::new(1)).unwrap();
    assert!(tree.is_within(b, a) && tree.is_within(b, tree.root()) && tree.is_within(a, a));
    assert!(!tree.is_within(a, b) && !tree.is_within(c, a));
    tree.remove(c).unwrap();
    assert!(!tree.is_within(c, tree.root()));
}
