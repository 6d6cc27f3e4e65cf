//! Models the two stacks of remote frees. One line at a time is broken, and each break must be found.
//!
//! The model copies the core's `remote.rs` and `span.rs`, with numbers in place of pointers. The unbroken copy passes,
//! so each twin fails because of its break.

use larder_core::sync::{AtomicU32, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Break {
    Nothing,
    /// A push does not publish the links.
    RelaxedPush,
    /// An announcement does not publish the link.
    RelaxedAnnounce,
    /// Emptying a list does not publish that the owner has read the link.
    TakeKeepsLink,
    /// The owner scans the lists without an announcement.
    PastQueue,
    /// The owner takes spans out of the remote-free queue one by one.
    OneByOne,
    /// Every push announces the span.
    AnnounceAlways,
    /// Each call forgets the spans that the previous call took from the queue and did not receive.
    RestForgotten,
    /// All lists are emptied when the queue is taken, rather than each in its span's turn.
    EmptiedAhead,
}

const SPANS: usize = 2;
const BLOCKS: usize = 2;

/// Blocks are numbered from 1, with 0 for none. A word holds the first block and the number of blocks.
struct Span {
    remote: AtomicU32,
    queue_link: UnsafeCell<u32>,
    links: [UnsafeCell<u32>; BLOCKS],
}

/// The link of a released span.
const RELEASED: u32 = u32::MAX;

struct Protocol {
    broken: Break,
    /// The blocks to free.
    out: Home,
    remote_queue: AtomicU32,
    spans: [Span; SPANS],
}

// SAFETY: loom checks every cell.
unsafe impl Sync for Protocol {}

impl Protocol {
    fn new(broken: Break, out: Home) -> Arc<Self> {
        let span = |_| Span {
            remote: AtomicU32::new(0),
            queue_link: UnsafeCell::new(0),
            links: std::array::from_fn(|_| UnsafeCell::new(0)),
        };
        Arc::new(Self {
            broken,
            out,
            remote_queue: AtomicU32::new(0),
            spans: std::array::from_fn(span),
        })
    }

    const fn order(&self, broken: Break, unbroken: Ordering) -> Ordering {
        match (self.broken, broken) {
            (Break::RelaxedPush, Break::RelaxedPush)
            | (Break::RelaxedAnnounce, Break::RelaxedAnnounce) => Ordering::Relaxed,
            _ => unbroken,
        }
    }

    /// Frees a block, as another thread does.
    fn give(&self, span: usize, block: usize) {
        let Span { remote, links, .. } = &self.spans[span];
        let order = self.order(Break::RelaxedPush, Ordering::AcqRel);
        let mut word = remote.load(Ordering::Relaxed);
        loop {
            // SAFETY: the block is ours until the exchange succeeds; loom checks the access.
            links[block].with_mut(|link| unsafe { *link = word >> 8 });
            let new = (block as u32 + 1) << 8 | ((word & 0xff) + 1);
            match remote.compare_exchange_weak(word, new, order, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        if word == 0 || self.broken == Break::AnnounceAlways {
            self.announce(span);
        }
    }

    fn announce(&self, span: usize) {
        let order = self.order(Break::RelaxedAnnounce, Ordering::Release);
        let mut head = self.remote_queue.load(Ordering::Relaxed);
        loop {
            // SAFETY: loom checks the access.
            let old = self.spans[span]
                .queue_link
                .with_mut(|link| unsafe { link.replace(head) });
            assert!(old != RELEASED, "a released span was announced");
            let new = span as u32 + 1;
            match (self.remote_queue).compare_exchange_weak(head, new, order, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Receives all announced spans; a span with all blocks home is released.
    fn receive(&self, home: &mut Home) {
        if self.broken == Break::PastQueue {
            (0..SPANS).for_each(|span| self.empty(span, home));
            return;
        }
        if self.broken == Break::OneByOne {
            let head = self.remote_queue.load(Ordering::Acquire);
            if head != 0 {
                let span = head as usize - 1;
                self.remote_queue.store(self.link(span), Ordering::Relaxed);
                self.empty(span, home);
            }
            return;
        }
        let mut head = self.remote_queue.swap(0, Ordering::Acquire);
        let mut seen = 0;
        while head != 0 {
            seen += 1;
            assert!(seen <= SPANS, "a span was announced twice");
            let span = head as usize - 1;
            head = self.link(span);
            self.empty(span, home);
        }
    }

    /// Takes the queue if `rest` is empty, and receives one span; `rest` keeps the others for the next call (SET8).
    fn receive_one(&self, home: &mut Home, rest: &mut u32) {
        if *rest == 0 {
            *rest = self.remote_queue.swap(0, Ordering::Acquire);
            let mut ahead = *rest;
            while self.broken == Break::EmptiedAhead && ahead != 0 {
                let span = ahead as usize - 1;
                ahead = self.link(span);
                self.empty(span, home);
            }
        }
        if *rest != 0 {
            let span = *rest as usize - 1;
            *rest = match self.broken {
                Break::RestForgotten => 0,
                _ => self.link(span),
            };
            assert_ne!(*rest, RELEASED, "a span was released before its turn");
            self.empty(span, home);
        }
    }

    fn link(&self, span: usize) -> u32 {
        // SAFETY: loom checks the access.
        self.spans[span].queue_link.with(|link| unsafe { *link })
    }

    fn empty(&self, span: usize, home: &mut Home) {
        let Span {
            remote,
            links,
            queue_link,
        } = &self.spans[span];
        let order = match self.broken {
            Break::TakeKeepsLink => Ordering::Acquire,
            _ => Ordering::AcqRel,
        };
        let word = remote.swap(0, order);
        let mut next = word >> 8;
        for _ in 0..word & 0xff {
            let block = next as usize - 1;
            home[span][block] += 1;
            // SAFETY: the block is ours since the swap; loom checks the access.
            next = links[block].with(|link| unsafe { *link });
        }
        if word != 0 && home[span] == self.out[span] {
            // SAFETY: no other thread reaches the span any more; loom checks the access.
            queue_link.with_mut(|link| unsafe { *link = RELEASED });
        }
    }
}

/// The number of times that each block came back.
type Home = [[u32; BLOCKS]; SPANS];

/// Models frees by one thread while the owner receives in another thread. The owner is spawned last, so that loom
/// explores its first read of the queue after the frees that it may see.
fn run(broken: Break, frees: &'static [(usize, usize)]) {
    let mut out = Home::default();
    for (span, block) in frees {
        out[*span][*block] = 1;
    }
    loom::model(move || {
        let protocol = Protocol::new(broken, out);
        let other = Arc::clone(&protocol);
        let freeing = thread::spawn(move || {
            for (span, block) in frees {
                other.give(*span, *block);
            }
        });
        let owner = Arc::clone(&protocol);
        let receiving = thread::spawn(move || {
            let mut home = Home::default();
            owner.receive(&mut home);
            home
        });
        freeing.join().unwrap();
        let mut home = receiving.join().unwrap();
        for _ in frees {
            protocol.receive(&mut home);
        }
        assert_eq!(home, out, "a block was lost or doubled");
    });
}

/// Models an owner that receives one span per call: twice during the frees, which may add blocks to spans that it has
/// already taken, and then until all blocks are home.
fn run_in_parts(
    broken: Break,
    before: &'static [(usize, usize)],
    beside: &'static [(usize, usize)],
) {
    let mut out = Home::default();
    for (span, block) in before.iter().chain(beside) {
        out[*span][*block] = 1;
    }
    loom::model(move || {
        let protocol = Protocol::new(broken, out);
        for (span, block) in before {
            protocol.give(*span, *block);
        }
        let other = Arc::clone(&protocol);
        let freeing = thread::spawn(move || {
            for (span, block) in beside {
                other.give(*span, *block);
            }
        });
        let owner = Arc::clone(&protocol);
        let receiving = thread::spawn(move || {
            let (mut home, mut rest) = (Home::default(), 0);
            owner.receive_one(&mut home, &mut rest);
            owner.receive_one(&mut home, &mut rest);
            (home, rest)
        });
        freeing.join().unwrap();
        let (mut home, mut rest) = receiving.join().unwrap();
        for _ in before.iter().chain(beside) {
            protocol.receive_one(&mut home, &mut rest);
        }
        assert_eq!(rest, 0, "spans were taken that nobody freed blocks of");
        assert_eq!(home, out, "a block was lost or doubled");
    });
}

/// The last block of a span.
const LAST_BLOCK: &[(usize, usize)] = &[(0, 0)];
/// Both blocks of one span.
const ONE_SPAN: &[(usize, usize)] = &[(0, 0), (0, 1)];
/// A block of each span.
const TWO_SPANS: &[(usize, usize)] = &[(0, 0), (1, 0)];
/// Another block of each span.
const OTHER_BLOCKS: &[(usize, usize)] = &[(0, 1), (1, 1)];

models! {
    the_copy_is_sound_while_nothing_is_broken =>
        { run(Break::Nothing, LAST_BLOCK); run(Break::Nothing, ONE_SPAN); run(Break::Nothing, TWO_SPANS) };
    spans_received_over_several_calls_are_received_once_whatever_comes_between =>
        { run_in_parts(Break::Nothing, TWO_SPANS, OTHER_BLOCKS); run_in_parts(Break::Nothing, &[], TWO_SPANS) };
    broken_twin_a_rest_that_the_next_call_forgets_is_found rejected "a block was lost or doubled" =>
        run_in_parts(Break::RestForgotten, TWO_SPANS, &[]);
    /// SET8 broken: a span whose last block is home is released before its link is read.
    broken_twin_lists_emptied_before_their_turn_are_found rejected "a span was released before its turn" =>
        run_in_parts(Break::EmptiedAhead, TWO_SPANS, OTHER_BLOCKS);
    /// REMOTE1 broken: without publication, the owner follows links whose values it may not see.
    broken_twin_a_relaxed_push_is_found rejected "Causality violation" => run(Break::RelaxedPush, ONE_SPAN);
    broken_twin_a_relaxed_announcement_is_found rejected "Causality violation" =>
        run(Break::RelaxedAnnounce, TWO_SPANS);
    /// The next announcer may write the link before the owner has read it.
    broken_twin_a_list_emptied_without_handing_the_link_on_is_found rejected "Causality violation" =>
        run(Break::TakeKeepsLink, ONE_SPAN);
    /// REMOTE2 broken: the span is released while a thread is about to announce it.
    broken_twin_an_owner_that_goes_past_the_queue_is_found rejected "Causality violation" =>
        run(Break::PastQueue, LAST_BLOCK);
    broken_twin_spans_taken_one_by_one_are_found rejected "a block was lost or doubled" =>
        run(Break::OneByOne, TWO_SPANS);
    /// REMOTE1 broken: a span is announced while it is in the remote-free queue.
    broken_twin_a_push_that_always_announces_is_found rejected "a span was announced twice" =>
        run(Break::AnnounceAlways, ONE_SPAN);
}
