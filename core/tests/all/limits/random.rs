//! Random trees compared with a naive one, and the rule that nothing is granted above a lowered limit.

use std::collections::BTreeMap;

use larder_core::limits::{
    BudgetConfig, BudgetError, BudgetId, LimitAnswer, LimitEventKind, LimitTree,
};
use larder_model::Random;

/// A budget of the naive tree, which computes its sums anew for every query.
#[derive(Clone, Copy)]
struct Plain {
    id: BudgetId,
    parent: Option<usize>,
    hard: u64,
    soft: u64,
    floor: u64,
    own: u64,
}

struct Slow {
    budgets: BTreeMap<usize, Plain>,
    newest: usize,
    done: Vec<usize>,
}

impl Slow {
    fn path(&self, at: usize) -> Vec<usize> {
        let mut path = vec![at];
        while let Some(parent) = self.budgets[path.last().unwrap()].parent {
            path.push(parent);
        }
        path
    }

    fn used(&self, at: usize) -> u64 {
        let within = |other: &&usize| self.path(**other).contains(&at);
        let within = self.budgets.keys().filter(within);
        within.map(|other| self.budgets[other].own).sum()
    }

    fn excess(&self, at: usize) -> u64 {
        self.used(at).saturating_sub(self.budgets[&at].hard)
    }

    /// Returns the lowest budget that refuses.
    fn refuses(&self, at: usize, bytes: u64) -> Option<usize> {
        let full = |at: &usize| self.used(*at) + bytes > self.budgets[at].hard;
        self.path(at).into_iter().find(full)
    }

    fn live_limit(&self, at: usize) -> u64 {
        let excess = self.path(at).into_iter().map(|at| self.excess(at)).max();
        match excess.unwrap() {
            0 => self.budgets[&at].hard,
            excess => self.budgets[&at]
                .hard
                .min(self.used(at).saturating_sub(excess)),
        }
    }

    fn floors_below(&self, at: usize) -> u64 {
        let children = self
            .budgets
            .values()
            .filter(|plain| plain.parent == Some(at));
        children.map(|plain| plain.floor).sum()
    }

    fn credit(&mut self, at: usize, bytes: u64) {
        let above: Vec<_> = self
            .path(at)
            .into_iter()
            .filter(|at| self.excess(*at) > 0)
            .collect();
        self.budgets.get_mut(&at).unwrap().own -= bytes;
        let done = above.into_iter().filter(|at| self.excess(*at) == 0);
        let done: Vec<_> = done.collect();
        self.done.extend(done);
    }
}

fn pick(slow: &Slow, random: &mut Random) -> usize {
    let at = random.index(slow.budgets.len());
    *slow.budgets.keys().nth(at).unwrap()
}

fn set(tree: &mut LimitTree, slow: &mut Slow, random: &mut Random, at: usize) {
    let plain = slow.budgets[&at];
    let hard = random.below(400);
    let soft = (random.below(2) == 0).then(|| random.below(400));
    let answer = tree.set(plain.id, hard, soft);
    let soft = soft.unwrap_or(plain.soft);
    let fits =
        hard >= plain.floor && hard >= slow.floors_below(at) && (soft == u64::MAX || hard >= soft);
    if fits {
        let record = slow.budgets.get_mut(&at).unwrap();
        (record.hard, record.soft) = (hard, soft);
        slow.done.retain(|done| *done != at);
        assert_eq!(answer, LimitAnswer::with_excess(slow.excess(at)));
    } else {
        assert!(matches!(answer, LimitAnswer::Refused(_)), "{answer:?}");
    }
}

fn add(tree: &mut LimitTree, slow: &mut Slow, random: &mut Random, records: usize) {
    let parent = pick(slow, random);
    let floor = random.below(20);
    let config = BudgetConfig {
        floor_bytes: floor,
        ..BudgetConfig::new(floor + random.below(300))
    };
    let fits = slow.floors_below(parent) + floor <= slow.budgets[&parent].hard
        && slow.budgets.len() < records;
    let added = tree.add(slow.budgets[&parent].id, config);
    assert_eq!(added.is_ok(), fits);
    if let Ok(id) = added {
        slow.newest += 1;
        let plain = Plain {
            id,
            parent: Some(parent),
            hard: config.hard_bytes,
            soft: u64::MAX,
            floor,
            own: 0,
        };
        slow.budgets.insert(slow.newest, plain);
    }
}

fn one(tree: &mut LimitTree, slow: &mut Slow, random: &mut Random, records: usize) {
    let at = pick(slow, random);
    let id = slow.budgets[&at].id;
    match random.below(11) {
        0 => add(tree, slow, random, records),
        1 => {
            let children = slow.budgets.values().any(|plain| plain.parent == Some(at));
            let idle = at != 0 && !children && slow.used(at) == 0;
            assert_eq!(tree.remove(id).is_ok(), idle);
            if idle {
                slow.budgets.remove(&at);
                slow.done.retain(|done| *done != at);
            }
        }
        2 | 3 => set(tree, slow, random, at),
        4..=6 => {
            let bytes = random.below(60);
            match (tree.charge(id, bytes), slow.refuses(at, bytes)) {
                (Ok(()), None) => slow.budgets.get_mut(&at).unwrap().own += bytes,
                (Err(BudgetError::NoRoom(refusal)), Some(full)) => {
                    assert_eq!(refusal.budget, slow.budgets[&full].id);
                    assert_eq!(refusal.used_bytes, slow.used(full));
                }
                (answer, expected) => panic!("{answer:?} where {expected:?} refuses"),
            }
        }
        7 => {
            let bytes = random.below(30);
            tree.hold(id, bytes).unwrap();
            slow.budgets.get_mut(&at).unwrap().own += bytes;
            for at in slow.path(at) {
                if slow.excess(at) > 0 {
                    slow.done.retain(|done| *done != at);
                }
            }
        }
        _ => {
            let bytes = random.below(slow.budgets[&at].own + 2);
            let fits = bytes <= slow.budgets[&at].own;
            assert_eq!(tree.credit(id, bytes).is_ok(), fits);
            if fits {
                slow.credit(at, bytes);
            }
        }
    }
}

#[test]
fn a_tree_answers_as_the_obvious_one() {
    for seed in 0..60 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let records = 2 + random.below(12) as usize;
        let mut tree = LimitTree::new(records, BudgetConfig::new(300)).unwrap();
        let root = Plain {
            id: tree.root(),
            parent: None,
            hard: 300,
            soft: u64::MAX,
            floor: 0,
            own: 0,
        };
        let mut slow = Slow {
            budgets: BTreeMap::from([(0, root)]),
            newest: 0,
            done: Vec::new(),
        };
        for _ in 0..800 {
            one(&mut tree, &mut slow, &mut random, records);
            tree.check_invariants().unwrap();
            for (at, plain) in &slow.budgets {
                let usage = tree.usage(plain.id).unwrap();
                assert_eq!(
                    (usage.used_bytes, usage.own_bytes),
                    (slow.used(*at), plain.own)
                );
                assert_eq!(usage.excess_bytes, slow.excess(*at));
                assert_eq!(tree.live_limit(plain.id), Some(slow.live_limit(*at)));
            }
            if random.below(8) == 0 {
                let mut done = Vec::new();
                while let Some(event) = tree.take_event() {
                    match event.kind {
                        LimitEventKind::ShrinkDone => done.push(event.budget),
                        kind => {
                            assert_eq!(kind, LimitEventKind::SoftCrossed);
                            assert!(event.used_bytes > event.limit_bytes);
                        }
                    }
                }
                let mut expected: Vec<_> =
                    slow.done.drain(..).map(|at| slow.budgets[&at].id).collect();
                expected.dedup();
                for id in &expected {
                    assert!(done.contains(id), "nobody was told");
                }
                assert!(done.iter().all(|id| expected.contains(id)));
            }
        }
    }
}

/// While all pools obey their limits on live bytes, no grant brings the sum of live bytes above the limit in force.
#[test]
fn am_3_nothing_is_granted_above_a_lowered_limit_whichever_pool_grants() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut tree = LimitTree::new(6, BudgetConfig::new(200)).unwrap();
        let tenant = tree.add(tree.root(), BudgetConfig::new(150)).unwrap();
        let parents = [tenant, tenant, tenant, tree.root()];
        let pools = parents.map(|parent| tree.add(parent, BudgetConfig::new(u64::MAX)).unwrap());
        let (mut held, mut live) = ([0_u64; 4], [0_u64; 4]);
        for _ in 0..4000 {
            let at = random.below(4) as usize;
            let bytes = 1 + random.below(30);
            match random.below(5) {
                0 => held[at] += u64::from(tree.charge(pools[at], bytes).is_ok()) * bytes,
                1 => {
                    let idle = bytes.min(held[at] - live[at]);
                    tree.credit(pools[at], idle).unwrap();
                    held[at] -= idle;
                }
                2 => live[at] -= bytes.min(live[at]),
                3 if bytes > 24 => {
                    let which = if bytes > 27 { tenant } else { tree.root() };
                    let _ = tree.set(which, random.below(220), None);
                }
                _ => {
                    let bound = tree.live_limit(pools[at]).unwrap().min(held[at]);
                    if live[at] + bytes <= bound {
                        live[at] += bytes;
                        let hard = |id| tree.usage(id).unwrap().config.hard_bytes;
                        assert!(live.iter().sum::<u64>() <= hard(tree.root()), "the process");
                        let of_tenant = live[..3].iter().sum::<u64>();
                        assert!(at == 3 || of_tenant <= hard(tenant), "the tenant");
                    }
                }
            }
        }
    }
}
