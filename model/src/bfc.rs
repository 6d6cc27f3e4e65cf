//! A slow, obvious best fit with coalescing that predicts the answers of [`RegionPool`](larder_core::RegionPool).
//!
//! A region is a vector of pieces. A free piece has a *rank*, which orders the pieces of a class by the moment at which
//! they entered their list: "newest first" means "highest rank first". Nothing is cached or linked; every question is
//! answered by a scan. The documentation of `larder-core`'s engine defines the policies (the search FIT1 to FIT3,
//! joining, growth, release), and the model follows it word for word.

mod grow;
mod join;
mod place;
mod release;
mod resize;
mod search;

use larder_core::{
    Addr, AddrRange, AllocError, Cause, ChunkState, EventNumber, FreeError, RegionConfig, Request,
    Stats, SubAllocator,
};

use crate::Source;
use crate::pair::SeenChunk;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Used { requested: u64, id: u64 },
    Free { point: Option<(u8, u64)>, rank: u64 },
}

/// A part of a region, wholly used or wholly free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) state: State,
}

impl Piece {
    fn is_free(&self) -> bool {
        matches!(self.state, State::Free { .. })
    }

    fn point(&self) -> Option<(u8, u64)> {
        match self.state {
            State::Free { point, .. } => point,
            State::Used { .. } => None,
        }
    }

    fn rank(&self) -> u64 {
        match self.state {
            State::Free { rank, .. } => rank,
            State::Used { .. } => 0,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) base: u64,
    pub(crate) pieces: Vec<Piece>,
    /// Whether the sub-allocator refused to release the region in the current pass.
    pub(crate) refused: bool,
}

impl Region {
    fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }
}

/// The position of a piece: the index of its region, and its index there. Valid until anything changes.
pub(crate) type Place = (usize, usize);

/// The model of a `RegionPool`.
#[derive(Clone, Debug)]
pub struct ModelBfc {
    config: RegionConfig,
    limit: u64,
    capacity: usize,
    /// In address order.
    regions: Vec<Region>,
    /// Number of allocations before the counters were restarted.
    cleared: u64,
    /// Base of the region that was last added or enlarged.
    newest: Option<u64>,
    completed: [u64; 256],
    /// Number of events by which the completed points of all streams have advanced since the last sweep.
    advanced: u64,
    /// Whether, since the last sweep, new memory was kept separate from a free end that a stream still uses.
    apart: bool,
    /// The first stream that was named, and whether another one was named later.
    first_stream: Option<u8>,
    many_streams: bool,
    ranks: u64,
    last_id: u64,
    peak_live: u64,
    peak_reserved: u64,
    largest: u64,
    source: Source,
}

/// An error of the model, with every number of the real error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ModelError {
    /// The request has zero bytes.
    ZeroSize,
    /// A request of this size is too large.
    TooLarge(u64),
    /// All records are in use. The value is their number.
    TableFull(usize),
    /// The place is not free.
    PlaceTaken,
    /// There is no memory.
    OutOfMemory {
        /// The cause.
        cause: Cause,
        /// The requested, rounded, limit, reserved, live, free, largest free and pending bytes.
        numbers: [u64; 8],
    },
    /// An error that the model does not know.
    Unknown(String),
}

impl From<AllocError> for ModelError {
    fn from(error: AllocError) -> Self {
        match error {
            AllocError::ZeroSize => Self::ZeroSize,
            AllocError::TooLarge { requested_bytes } => Self::TooLarge(requested_bytes),
            AllocError::TableFull { records } => Self::TableFull(records as usize),
            AllocError::PlaceTaken => Self::PlaceTaken,
            AllocError::OutOfMemory(out) => Self::OutOfMemory {
                cause: out.cause,
                numbers: [
                    out.requested_bytes,
                    out.rounded_bytes,
                    out.limit_bytes,
                    out.reserved_bytes,
                    out.live_bytes,
                    out.free_bytes,
                    out.largest_free_bytes,
                    out.pending_bytes,
                ],
            },
            other => Self::Unknown(format!("{other:?}")),
        }
    }
}

/// Number of pieces examined in each class.
const SCAN: usize = 4;

/// A grant of the model: address, size, and the stream and event to wait for.
pub(crate) type ModelGrant = (u64, u64, Option<(u8, u64)>);

impl ModelBfc {
    /// Creates a model of an allocator with these policies and a table of `records` records.
    pub fn new(config: RegionConfig, records: usize, source: Source) -> Self {
        Self {
            limit: config.limit_bytes,
            capacity: records - 1,
            regions: Vec::new(),
            cleared: 0,
            newest: None,
            completed: [0; 256],
            advanced: 0,
            apart: false,
            first_stream: None,
            many_streams: false,
            ranks: 0,
            last_id: 0,
            peak_live: 0,
            peak_reserved: 0,
            largest: 0,
            source,
            config,
        }
    }

    /// Returns the model's sub-allocator, which must be given the same instructions as the real allocator's.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Returns the address of the first region, if there is one.
    pub fn first_base(&self) -> Option<u64> {
        self.regions.first().map(|region| region.base)
    }

    /// Returns the expected counters.
    pub fn stats(&self) -> Stats {
        Stats {
            allocations: self.last_id - self.cleared,
            live_bytes: self.live(),
            peak_live_bytes: self.peak_live,
            largest_bytes: self.largest,
            requested_bytes: self.sum(|piece| match piece.state {
                State::Used { requested, .. } => requested,
                State::Free { .. } => 0,
            }),
            reserved_bytes: self.reserved(),
            peak_reserved_bytes: self.peak_reserved,
            limit_bytes: self.limit,
        }
    }

    pub(crate) fn clear_stats(&mut self) {
        self.cleared = self.last_id;
        self.largest = 0;
        self.peak_live = self.live();
        self.peak_reserved = self.reserved();
    }

    /// Returns the expected chunks in address order.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = SeenChunk> + '_ {
        self.pieces().map(|piece| {
            let state = match piece.state {
                State::Used { requested, id } => ChunkState::Used {
                    requested_bytes: requested,
                    id,
                },
                State::Free { point, .. } => ChunkState::Free {
                    pending: self.pending(point).is_some(),
                },
            };
            (range(piece.start, piece.bytes), state)
        })
    }

    /// Returns the expected regions in address order.
    pub(crate) fn regions(&self) -> impl Iterator<Item = AddrRange> + '_ {
        let regions = self.regions.iter();
        regions.map(|region| range(region.base, region.bytes()))
    }

    fn pieces(&self) -> impl Iterator<Item = &Piece> + '_ {
        self.regions.iter().flat_map(|region| &region.pieces)
    }

    fn sum(&self, f: impl Fn(&Piece) -> u64) -> u64 {
        self.pieces().map(f).sum()
    }

    fn live(&self) -> u64 {
        self.sum(|piece| if piece.is_free() { 0 } else { piece.bytes })
    }

    fn reserved(&self) -> u64 {
        self.sum(|piece| piece.bytes)
    }

    fn records_left(&self) -> usize {
        self.capacity - self.pieces().count()
    }

    fn at(&self, (region, piece): Place) -> Piece {
        self.regions[region].pieces[piece]
    }

    fn next_rank(&mut self) -> u64 {
        self.ranks += 1;
        self.ranks
    }

    /// Returns the wilderness, the free piece at the end of the newest region. It is used last.
    fn wilderness(&self) -> Option<Place> {
        let region = self.region_at(self.newest?)?;
        let last = self.regions[region].pieces.len() - 1;
        self.at((region, last)).is_free().then_some((region, last))
    }

    fn region_at(&self, base: u64) -> Option<usize> {
        self.regions.iter().position(|region| region.base == base)
    }

    /// Returns the point unless its event is completed.
    fn pending(&self, point: Option<(u8, u64)>) -> Option<(u8, u64)> {
        point.filter(|(stream, event)| *event > self.completed[usize::from(*stream)])
    }

    fn meet(&mut self, stream: u8) {
        let first = *self.first_stream.get_or_insert(stream);
        self.many_streams |= first != stream;
    }

    /// Returns whether the limit is below the bytes held and a block of `need` bytes would exceed it.
    fn exceeds_limit(&self, need: u64) -> bool {
        self.reserved() > self.limit && self.live() + need > self.limit
    }

    fn any_with_point(&self) -> bool {
        self.pieces().any(|piece| piece.point().is_some())
    }

    /// Marks the events of `stream` up to `event` as completed.
    pub fn complete(&mut self, stream: u8, event: u64) {
        let completed = &mut self.completed[usize::from(stream)];
        let before = *completed;
        *completed = before.max(event);
        self.advanced = self.advanced.saturating_add(*completed - before);
        // Stored points must not fall too far behind the completed ones, so a large advance clears them at once.
        if self.advanced >= EventNumber::WINDOW {
            self.sweep();
        }
    }

    /// Returns the completed point of a stream.
    pub fn completed(&self, stream: u8) -> u64 {
        self.completed[usize::from(stream)]
    }

    /// Allocates a block by best fit.
    ///
    /// # Errors
    /// Exactly the errors of the real allocator.
    pub fn alloc(&mut self, request: &Request) -> Result<ModelGrant, ModelError> {
        let need = self.round(request)?;
        self.meet(request.stream.number());
        if let Some(found) = self.search(need, request, SCAN) {
            return self.take(found, need, request);
        }
        self.alloc_growing(need, request)
    }

    fn take(
        &mut self,
        found: search::Found,
        need: u64,
        request: &Request,
    ) -> Result<ModelGrant, ModelError> {
        let whole = self.at(found.place).bytes;
        let rest = whole - found.padding - need;
        if self.records_left() < usize::from(rest > 0) + usize::from(found.padding > 0) {
            return Err(self.table_full());
        }
        let start = self.carve(found.place, found.padding, need, request.bytes);
        Ok((start, need, found.wait))
    }

    fn table_full(&self) -> ModelError {
        ModelError::TableFull(self.capacity)
    }

    /// Carves a used piece out of a free one, after `padding` bytes. Returns the address of the used piece.
    fn carve(&mut self, place: Place, padding: u64, bytes: u64, requested: u64) -> u64 {
        let old = self.at(place);
        let was_wilderness = self.wilderness() == Some(place);
        let rest = old.bytes - padding - bytes;
        let mut pieces = Vec::new();
        let free = |start, bytes, rank| Piece {
            start,
            bytes,
            state: State::Free {
                point: old.point(),
                rank,
            },
        };
        if padding > 0 {
            let rank = self.next_rank();
            pieces.push(free(old.start, padding, rank));
        }
        self.last_id += 1;
        pieces.push(Piece {
            start: old.start + padding,
            bytes,
            state: State::Used {
                requested,
                id: self.last_id,
            },
        });
        if rest > 0 {
            // The rest keeps the old piece's place in the list if it stays in the same class.
            let keeps =
                padding == 0 && !was_wilderness && self.class(rest) == self.class(old.bytes);
            let rank = if keeps { old.rank() } else { self.next_rank() };
            pieces.push(free(old.start + padding + bytes, rest, rank));
        }
        self.regions[place.0]
            .pieces
            .splice(place.1..=place.1, pieces);
        self.peak_live = self.peak_live.max(self.live());
        self.largest = self.largest.max(bytes);
        old.start + padding
    }

    fn places(&self) -> impl Iterator<Item = Place> + use<> {
        let counts: Vec<usize> = self
            .regions
            .iter()
            .map(|region| region.pieces.len())
            .collect();
        counts
            .into_iter()
            .enumerate()
            .flat_map(|(region, count)| (0..count).map(move |piece| (region, piece)))
    }

    /// Returns the last event of `stream` that a free may name.
    fn window_end(&self, stream: u8) -> u64 {
        self.completed(stream).saturating_add(EventNumber::WINDOW)
    }

    /// Frees the block at `addr`, which the stream of `point` uses until its event.
    ///
    /// # Errors
    /// Exactly the errors of the real allocator.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn free(&mut self, addr: u64, point: Option<(u8, u64)>) -> Result<(), FreeError> {
        if point.is_some_and(|(stream, event)| event > self.window_end(stream)) {
            return Err(FreeError::EventTooFar);
        }
        let place = self
            .places()
            .find(|place| self.at(*place).start == addr)
            .expect("the runner frees live blocks only");
        let point = self.pending(point);
        if let Some((stream, _)) = point {
            self.meet(stream);
        }
        let wilderness = self.wilderness_start();
        let rank = self.next_rank();
        self.regions[place.0].pieces[place.1].state = State::Free { point, rank };
        self.join_with_neighbours(place, wilderness);
        Ok(())
    }

    /// Returns the start of the wilderness. The start before an operation shows later whether a piece was in a list.
    fn wilderness_start(&self) -> Option<u64> {
        self.wilderness().map(|place| self.at(place).start)
    }

    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        self.forget_refusals();
    }

    /// Sets the limit and releases memory above it.
    pub(crate) fn adjust(&mut self, limit: u64) {
        self.set_limit(limit);
        while self.reserved() > self.limit && self.release_one(self.reserved() - self.limit) {}
    }

    /// Releases all free memory. Returns the bytes released.
    pub fn trim(&mut self) -> u64 {
        let before = self.reserved();
        self.forget_refusals();
        while self.release_one(u64::MAX) {}
        before - self.reserved()
    }

    fn release(&mut self, range: AddrRange) -> bool {
        self.source.release(range).is_ok()
    }
}

fn range(start: u64, bytes: u64) -> AddrRange {
    AddrRange::new(Addr::new(start), bytes).expect("a piece")
}
