//! Models a `PoolAllocator` that threads share, and that evicts buffers without its lock: no buffer is allocated twice,
//! allocated during its release, or released twice.

use larder_core::pool::{Pool, PoolAllocator, PoolConfig};
use larder_core::{
    Addr, AddrRange, Block, BlockAllocator, GrowRequest, Request, SubAllocError, SubAllocator,
};
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::explore::{explore, spawn};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Held by the source.
    Home,
    /// Held by the pool.
    Held,
    /// Used by a thread.
    InUse,
}

/// A source of four buffers, which checks each change of state.
#[derive(Clone)]
struct Source(Arc<Mutex<[State; 4]>>);

const FIRST: u64 = 0x1000;
const BYTES: u64 = 256;

fn place(addr: Addr) -> usize {
    ((addr.get() - FIRST) / BYTES) as usize
}

impl Source {
    fn new() -> Self {
        Self(Arc::new(Mutex::new([State::Home; 4])))
    }

    /// Checks the state of a buffer, and changes it.
    fn turn(&self, addr: Addr, from: State, to: State) {
        let mut states = self.0.lock().unwrap();
        let state = &mut states[place(addr)];
        assert_eq!(*state, from, "a buffer changed hands");
        *state = to;
    }

    fn held(&self) -> usize {
        let states = self.0.lock().unwrap();
        states.iter().filter(|state| **state == State::Held).count()
    }
}

impl SubAllocator for Source {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let mut states = self.0.lock().unwrap();
        let home = |state: &State| *state == State::Home;
        let place = states.iter().position(home).ok_or(SubAllocError)?;
        states[place] = State::Held;
        let start = Addr::new(FIRST + place as u64 * BYTES);
        AddrRange::new(start, request.bytes).ok_or(SubAllocError)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        self.turn(range.start(), State::Held, State::Home);
        Ok(())
    }
}

/// The interface of a pool of one size and its broken twins.
trait Shared: Send + Sync + 'static {
    type Held: Send;
    fn new(source: Source) -> Self;
    fn alloc(&self) -> Option<Self::Held>;
    fn addr(held: &Self::Held) -> Addr;
    fn free(&self, held: Self::Held);
    /// Releases the idle buffers.
    fn trim(&self);
}

impl Shared for PoolAllocator<Source> {
    type Held = Block;

    fn new(source: Source) -> Self {
        let pool = Pool::new(PoolConfig::new(1, u64::MAX), 4).unwrap();
        Self::new(pool, source)
    }

    fn alloc(&self) -> Option<Block> {
        let grant = BlockAllocator::alloc(self, &Request::new(BYTES));
        grant.ok().map(|grant| grant.block)
    }

    fn addr(held: &Block) -> Addr {
        held.addr()
    }

    fn free(&self, held: Block) {
        BlockAllocator::free(self, held).unwrap();
    }

    fn trim(&self) {
        PoolAllocator::trim(self);
    }
}

/// Allocates a buffer, uses it and frees it.
fn one_turn<P: Shared>(pool: &P, source: &Source) {
    if let Some(held) = pool.alloc() {
        source.turn(P::addr(&held), State::Held, State::InUse);
        thread::yield_now();
        source.turn(P::addr(&held), State::InUse, State::Held);
        pool.free(held);
    }
}

/// Models an allocation while two buffers are freed, of which the pool keeps one.
fn turns_and_evictions<P: Shared>() {
    explore(|| {
        let source = Source::new();
        let pool = Arc::new(P::new(source.clone()));
        let early = [(); 2].map(|()| pool.alloc().unwrap());
        let (theirs, their_source) = (Arc::clone(&pool), source.clone());
        let other = spawn(move || one_turn(&*theirs, &their_source));
        early.into_iter().for_each(|held| pool.free(held));
        other.join().unwrap();
        assert!(source.held() <= 1, "more is kept than the limit");
        pool.trim();
        assert_eq!(source.held(), 0, "a buffer was lost");
    });
}

/// Models trims during another thread's allocations.
fn turns_and_trims<P: Shared>() {
    explore(|| {
        let source = Source::new();
        let pool = Arc::new(P::new(source.clone()));
        one_turn(&*pool, &source);
        let (theirs, their_source) = (Arc::clone(&pool), source.clone());
        let other = spawn(move || {
            one_turn(&*theirs, &their_source);
            one_turn(&*theirs, &their_source);
        });
        pool.trim();
        other.join().unwrap();
        pool.trim();
        assert_eq!(source.held(), 0, "a buffer was lost");
    });
}

type Ours = PoolAllocator<Source>;

/// Models three threads, two of which evict at once.
#[test]
fn l5_two_threads_evict_at_once() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let source = Source::new();
        let pool = Arc::new(<Ours as Shared>::new(source.clone()));
        let early = [(); 3].map(|()| Shared::alloc(&*pool).unwrap());
        let freeing = early.map(|held| {
            let pool = Arc::clone(&pool);
            spawn(move || Shared::free(&*pool, held))
        });
        for thread in freeing {
            thread.join().unwrap();
        }
        assert_eq!(source.held(), 1, "one is kept");
        pool.with(|pool| pool.check_invariants()).unwrap();
        assert_eq!(pool.counters().evicted, 2);
    });
}

/// A broken twin; `WRONG` is the break.
struct Broken<const WRONG: u8> {
    idle: Mutex<Vec<Addr>>,
    source: Source,
}

/// An evicted buffer is chosen under the lock, but leaves the list only after its release.
const LISTED: u8 = 0;
/// A trim releases the lock between reading the list and emptying it.
const FORGETS: u8 = 1;

impl<const WRONG: u8> Broken<WRONG> {
    fn release(&self, addr: Addr) {
        let range = AddrRange::new(addr, BYTES).unwrap();
        self.source.release(range).unwrap();
    }
}

impl<const WRONG: u8> Shared for Broken<WRONG> {
    type Held = Addr;

    fn new(source: Source) -> Self {
        let idle = Mutex::new(Vec::new());
        Self { idle, source }
    }

    fn alloc(&self) -> Option<Addr> {
        if let Some(addr) = self.idle.lock().unwrap().pop() {
            return Some(addr);
        }
        let request = GrowRequest {
            bytes: BYTES,
            align: larder_core::Align::ONE,
            at: None,
        };
        self.source.grow(request).ok().map(AddrRange::start)
    }

    fn addr(held: &Addr) -> Addr {
        *held
    }

    fn free(&self, held: Addr) {
        let victim = {
            let mut idle = self.idle.lock().unwrap();
            idle.push(held);
            match idle.len() {
                1 => None,
                _ if WRONG == LISTED => Some(idle[0]),
                _ => Some(idle.remove(0)),
            }
        };
        if let Some(victim) = victim {
            self.release(victim);
            if WRONG == LISTED {
                self.idle.lock().unwrap().retain(|addr| *addr != victim);
            }
        }
    }

    fn trim(&self) {
        if WRONG == FORGETS {
            let idle = self.idle.lock().unwrap().clone();
            self.idle.lock().unwrap().clear();
            idle.into_iter().for_each(|addr| self.release(addr));
            return;
        }
        let idle: Vec<Addr> = self.idle.lock().unwrap().drain(..).collect();
        idle.into_iter().for_each(|addr| self.release(addr));
    }
}

models! {
    l5_an_evicted_buffer_is_nobodys => turns_and_evictions::<Ours>();
    l5_a_trimmed_buffer_is_nobodys => turns_and_trims::<Ours>();
    broken_twin_a_victim_still_in_the_list_is_found rejected "a buffer changed hands" =>
        turns_and_evictions::<Broken<LISTED>>();
    broken_twin_a_list_read_and_emptied_under_two_locks_is_found rejected "a buffer" =>
        turns_and_trims::<Broken<FORGETS>>();
}
