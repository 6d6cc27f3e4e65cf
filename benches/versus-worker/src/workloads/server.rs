//! A server over minutes: the process's memory compared with its live bytes, while threads come and go and phases
//! change.
//!
//! Sessions, each with its own thread, answer requests. Each request allocates its own blocks and frees them,
//! and puts entries into a store that all sessions share. The session that needs room removes and frees the
//! oldest entry, or in one case of eight a random entry. Sizes are log-normal; each phase has its own median and
//! its own room in the store. A minute has each phase once.
//!
//! The run has a fixed length, so its amount of work varies. Its answer only confirms that every block held what was
//! written to it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::block::Block;
use crate::clock::{Clock, Live, Outcome};
use crate::list::SERVER_SECONDS;
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::Tally;

/// The number of readings of the memory, and the number of those before the store is full.
const LOOKS: u32 = 240;
const FILLING: usize = 23;

const SESSIONS: usize = 64;
/// The median number of requests in a session.
const MEDIAN_REQUESTS: f64 = 60.0;
const PAUSE_US: (usize, usize) = (5_000, 35_000);

/// Number of blocks of a request, and bytes of the entries that it puts into the store.
const BLOCKS: usize = 64;
const ENTRIES_BYTES: usize = 24 << 10;
/// One request in this many has a buffer, whose size in bytes has these bounds.
const BUFFER_EVERY: usize = 16;
const BUFFER: (f64, f64) = (65_536.0, 2_097_152.0);

const BYTES_DEVIATION: f64 = 1.5;
const MAX_BYTES: f64 = 1024.0 * 1024.0;

const SHARDS: usize = 64;
const STORE_BYTES: usize = 256 << 20;

/// The length of a phase, and the median size and the store's room (in eighths) of each phase.
const PHASE: Duration = Duration::from_secs(10);
const PHASES: [(f64, usize); 6] = [
    (200.0, 8),
    (100.0, 6),
    (400.0, 8),
    (200.0, 5),
    (800.0, 7),
    (150.0, 6),
];

/// A part of the store.
#[derive(Default)]
struct Shard {
    entries: VecDeque<(Block, usize)>,
    bytes: usize,
    tally: Tally,
}

/// The state that all sessions share.
struct Server {
    start: Instant,
    store: Vec<Mutex<Shard>>,
    live_bytes: AtomicU64,
    requests: AtomicU64,
}

/// # Panics
/// If a block lost its contents.
pub fn server(scale: Scale) -> Outcome {
    let run = Duration::from_millis(scale.of(1000 * SERVER_SECONDS) as u64);
    let clock = Clock::start();
    let server = Server {
        start: Instant::now(),
        store: (0..SHARDS).map(|_| Mutex::default()).collect(),
        live_bytes: AtomicU64::new(0),
        requests: AtomicU64::new(0),
    };
    let mut looks = Vec::with_capacity(LOOKS as usize);
    let mut sessions = 0;
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let mut begin = || {
            sessions += 1;
            let (server, sender, seed) = (&server, sender.clone(), sessions);
            scope.spawn(move || {
                server.session(seed, run);
                // The receiver is dropped when the run is over.
                let _ = sender.send(());
            });
        };
        (0..SESSIONS).for_each(|_| begin());
        for look in 1..=LOOKS {
            let due = server.start + run * look / LOOKS;
            while let Some(wait) = due.checked_duration_since(Instant::now()) {
                if receiver.recv_timeout(wait).is_ok() && server.start.elapsed() < run {
                    begin();
                }
            }
            looks.push(server.look());
        }
    });
    let mut tally = Tally::default();
    for shard in server.store {
        let shard = shard.into_inner().unwrap_or_else(PoisonError::into_inner);
        tally.join(&shard.tally);
        for (block, _) in shard.entries {
            tally.read(block.finish());
        }
    }
    let _ = tally.answer();
    let requests = server.requests.into_inner();
    clock
        .stop(requests, 0)
        .with_live(Some(mean(&looks[FILLING..])))
}

/// Returns the readings as one, with their mean live bytes, and with resident bytes whose ratio to these live bytes is
/// the mean of the readings' ratios. The ratio of the means would mostly show the phases with the fullest store.
fn mean(looks: &[Live]) -> Live {
    let count = looks.len() as f64;
    let bytes = looks.iter().map(|look| look.bytes as f64).sum::<f64>() / count;
    let ratio = |look: &Live| Some(look.rss_bytes? as f64 / look.bytes as f64);
    let ratios: Option<f64> = looks.iter().map(ratio).sum();
    Live {
        bytes: bytes as u64,
        rss_bytes: ratios.map(|sum| (bytes * sum / count) as u64),
    }
}

impl Server {
    fn look(&self) -> Live {
        let tables = self.store.iter().map(|shard| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.entries.capacity() * size_of::<(Block, usize)>()
        });
        let tables = tables.sum::<usize>() as u64;
        Live::look(self.live_bytes.load(Ordering::Relaxed) + tables)
    }

    /// Runs a session, from its first request to its last.
    fn session(&self, seed: u64, run: Duration) {
        let mut random = Random::new(seed);
        let requests = (MEDIAN_REQUESTS * random.normal().exp()).ceil() as usize;
        for _ in 0..requests {
            if self.start.elapsed() >= run {
                return;
            }
            let phase = self.start.elapsed().as_secs() / PHASE.as_secs();
            self.request(PHASES[phase as usize % PHASES.len()], &mut random);
            let pause = random.within(PAUSE_US.0, PAUSE_US.1);
            thread::sleep(Duration::from_micros(pause as u64));
        }
    }

    fn request(&self, (median, room): (f64, usize), random: &mut Random) {
        let size = |random: &mut Random| {
            let bytes = median * (BYTES_DEVIATION * random.normal()).exp();
            bytes.clamp(8.0, MAX_BYTES) as usize
        };
        let mut tally = Tally::default();
        let mut own: Vec<Block> = Vec::with_capacity(BLOCKS + 1);
        for _ in 0..BLOCKS {
            own.push(block(size(random), random, &mut tally));
        }
        if random.below(BUFFER_EVERY) == 0 {
            let bytes = random.log_within(BUFFER.0, BUFFER.1);
            own.push(block(bytes, random, &mut tally));
        }
        let mut put_bytes = 0;
        while put_bytes < ENTRIES_BYTES {
            let bytes = size(random);
            put_bytes += bytes;
            let entry = block(bytes, random, &mut tally);
            self.put(entry, bytes, STORE_BYTES / SHARDS * room / 8, random);
        }
        for block in own {
            tally.read(block.finish());
        }
        // The session that frees an entry also reads its stamp.
        self.shard(random).tally.join(&tally);
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    fn shard(&self, random: &mut Random) -> std::sync::MutexGuard<'_, Shard> {
        let shard = &self.store[random.below(SHARDS)];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an entry into a shard with `room_bytes` bytes of room. At most `LEAVING` entries are removed for it, and
    /// are freed without the lock.
    fn put(&self, entry: Block, bytes: usize, room_bytes: usize, random: &mut Random) {
        const LEAVING: usize = 64;
        let mut leaving: [Option<Block>; LEAVING] = [const { None }; LEAVING];
        let mut tally = Tally::default();
        let mut left_bytes = 0;
        let mut shard = self.shard(random);
        shard.entries.push_back((entry, bytes));
        shard.bytes += bytes;
        for place in &mut leaving {
            if shard.bytes <= room_bytes {
                break;
            }
            if random.below(8) == 0 {
                let any = random.below(shard.entries.len());
                shard.entries.swap(0, any);
            }
            if let Some((block, bytes)) = shard.entries.pop_front() {
                shard.bytes -= bytes;
                left_bytes += bytes;
                *place = Some(block);
            }
        }
        self.live_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.live_bytes
            .fetch_sub(left_bytes as u64, Ordering::Relaxed);
        drop(shard);
        for block in leaving.into_iter().flatten() {
            tally.read(block.finish());
        }
        self.shard(random).tally.join(&tally);
    }
}

/// Returns a block whose every page is written.
fn block(bytes: usize, random: &mut Random, tally: &mut Tally) -> Block {
    let mut block = Block::new(bytes, tally.wrote(random.next()));
    block.touch_pages();
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_follow_each_other_for_as_long_as_the_run_is_told() {
        let outcome = server(Scale::CHECK);
        assert!(outcome.seconds >= 0.6);
        assert!(outcome.operations > SESSIONS as u64);
        assert!(outcome.live.unwrap().bytes > 1 << 20);
    }

    #[test]
    fn the_ratio_of_a_mean_is_the_mean_of_the_ratios() {
        let look = |bytes, rss| Live {
            bytes,
            rss_bytes: rss,
        };
        let live = mean(&[look(100, Some(110)), look(300, Some(450))]);
        assert_eq!((live.bytes, live.rss_bytes), (200, Some(260)));
        let blind = mean(&[look(100, Some(110)), look(300, None)]);
        assert_eq!((blind.bytes, blind.rss_bytes), (200, None));
    }
}
