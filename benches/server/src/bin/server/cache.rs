//! [`Cache`]: documents that expire.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use larder_server_bench::{Document, StatsAnswer};

const SHARDS: u64 = 16;
/// Maximum bytes of text kept. The oldest documents are evicted first.
const MAX_BYTES: usize = 64 << 20;
/// A document is also evicted after this time without a request.
const IDLE: Duration = Duration::from_secs(1);
/// One key in this many stays while there is room, so that the remaining documents lie between
/// evicted ones.
const STAYS_ONE_OF: u64 = 16;

#[derive(Default)]
pub struct Cache {
    shards: [Mutex<CacheShard>; SHARDS as usize],
}

#[derive(Default)]
struct CacheShard {
    documents: HashMap<u64, CachedEntry>,
    /// Keys in the order of their insertion.
    order: VecDeque<u64>,
    text_bytes: usize,
}

struct CachedEntry {
    document: Arc<Document>,
    text_bytes: usize,
    asked: Instant,
}

impl Cache {
    /// Returns the document of a key, and makes it if it is missing.
    pub fn get(&self, key: u64) -> Arc<Document> {
        if let Some(kept) = self.shard(key).documents.get_mut(&key) {
            kept.asked = Instant::now();
            return Arc::clone(&kept.document);
        }
        // Made outside the lock. If two threads make a document at the same time, the later one
        // stays.
        let document = Arc::new(Document::of(key));
        self.put(key, Arc::clone(&document));
        document
    }

    pub fn put(&self, key: u64, document: Arc<Document>) {
        let text_bytes = document.text_bytes();
        let kept = CachedEntry {
            document,
            text_bytes,
            asked: Instant::now(),
        };
        let shard = &mut *self.shard(key);
        shard.text_bytes += text_bytes;
        match shard.documents.insert(key, kept) {
            Some(before) => shard.text_bytes -= before.text_bytes,
            None => shard.order.push_back(key),
        }
        while shard.text_bytes > MAX_BYTES / SHARDS as usize
            && let Some(oldest) = shard.order.pop_front()
        {
            shard.remove(oldest);
        }
    }

    /// Evicts the documents that no request has named for `IDLE`.
    pub fn sweep(&self) {
        for shard in &self.shards {
            let shard = &mut *lock(shard);
            let order = std::mem::take(&mut shard.order);
            let (gone, stay) = order.into_iter().partition(|key| shard.is_old(*key));
            shard.order = stay;
            let gone: VecDeque<u64> = gone;
            gone.into_iter().for_each(|key| shard.remove(key));
        }
    }

    pub fn stats(&self) -> StatsAnswer {
        let mut stats = StatsAnswer {
            documents: 0,
            text_bytes: 0,
        };
        for shard in &self.shards {
            let shard = lock(shard);
            stats.documents += shard.documents.len();
            stats.text_bytes += shard.text_bytes;
        }
        stats
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, CacheShard> {
        // Not selected by `key` alone, since the documents that stay would then share a shard.
        let at = (key / STAYS_ONE_OF) % SHARDS;
        lock(&self.shards[at as usize])
    }
}

impl CacheShard {
    fn is_old(&self, key: u64) -> bool {
        let kept = self.documents.get(&key);
        !key.is_multiple_of(STAYS_ONE_OF) && kept.is_some_and(|kept| kept.asked.elapsed() > IDLE)
    }

    fn remove(&mut self, key: u64) {
        if let Some(kept) = self.documents.remove(&key) {
            self.text_bytes -= kept.text_bytes;
        }
    }
}

fn lock(shard: &Mutex<CacheShard>) -> MutexGuard<'_, CacheShard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
