//! The player of the pool's scripts: a pool, ours or upstream's, over a sub-allocator that counts.
//!
//! An outcome is the places of the allocated blocks, counted from the sub-allocator's first address, with their numbers
//! if the pool has any (`256#1`), and then the numbers that have changed: upstream's four counters, the idle buffers,
//! the limit, and the sub-allocator's growths and releases in calls and bytes.

use std::collections::{HashMap, VecDeque};

use super::rig::{AnyPool, FIRST};
use crate::golden::{self, Changes, number, option};

/// A pool that a script can create, with the operations that only it has.
pub trait Scripted: AnyPool {
    fn make(words: &[&str]) -> Self;

    /// Carries out an operation that the other pool does not have.
    fn own(&mut self, operation: &str, words: &[&str]);

    fn allocation_id(&self, _: &Self::Block) -> Option<u64> {
        None
    }

    fn numbers(&self) -> Vec<(&'static str, u64)> {
        vec![]
    }
}

pub struct Player<P: Scripted> {
    pool: Option<P>,
    named: HashMap<String, P::Block>,
    /// The blocks of bursts, oldest first.
    burst: VecDeque<P::Block>,
    changes: Changes,
}

impl<P: Scripted> golden::Player for Player<P> {
    fn new() -> Self {
        Self {
            pool: None,
            named: HashMap::new(),
            burst: VecDeque::new(),
            changes: Changes::default(),
        }
    }

    fn carry_out(&mut self, operation: &str, words: &[&str]) -> String {
        if operation == "pool" {
            *self = Self::new();
            self.pool = Some(P::make(words));
        }
        let places = self.answer(operation, words);
        places.join(" ") + &self.changes()
    }
}

impl<P: Scripted> Player<P> {
    fn answer(&mut self, operation: &str, words: &[&str]) -> Vec<String> {
        let pool = self.pool.as_mut().expect("a pool");
        let mut places = Vec::new();
        match operation {
            "alloc" => {
                let align = option(words, "align").map_or(4, number);
                for (name, bytes) in words.iter().filter_map(|word| word.split_once('=')) {
                    let block = match pool.try_alloc(number(bytes), align) {
                        Ok(block) => block,
                        Err(refusal) => {
                            places.push(refusal);
                            continue;
                        }
                    };
                    let at = P::addr(&block).get();
                    assert!(at.is_multiple_of(align) && P::bytes(&block) >= number(bytes));
                    let id = pool.allocation_id(&block).map(|id| format!("#{id}"));
                    places.push(format!("{}{}", at - FIRST, id.unwrap_or_default()));
                    self.named.insert(name.into(), block);
                }
            }
            "free" => {
                for name in words {
                    pool.free(self.named.remove(*name).expect("a block in use"));
                }
            }
            // Allocates and frees each size in turn.
            "pairs" => words.iter().for_each(|bytes| pool.pair(number(bytes))),
            "burst" => self
                .burst
                .extend(pool.burst(number(words[0]) as usize, number(words[1]))),
            "back" => self.burst.drain(..).for_each(|block| pool.free(block)),
            "clear" => pool.clear(),
            "pool" => {}
            other => pool.own(other, words),
        }
        pool.check();
        places
    }

    fn changes(&mut self) -> String {
        let pool = self.pool.as_ref().expect("a pool");
        let (counters, calls) = (pool.counters(), pool.calls());
        let mut numbers = vec![
            ("hits", counters.from_pool),
            ("missed", counters.allocated),
            ("put", counters.put),
            ("evicted", counters.evicted),
            ("idle", pool.idle().into()),
            ("limit", pool.limit().into()),
            ("grown", calls.grows),
            ("grown bytes", calls.grown_bytes),
            ("released", calls.releases),
            ("released bytes", calls.released_bytes),
        ];
        numbers.extend(pool.numbers());
        let changes = numbers.into_iter();
        changes
            .map(|(name, now)| self.changes.note(name, now))
            .collect()
    }
}
