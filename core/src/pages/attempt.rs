//! One allocation as a state machine: each step returns the block, or the next plan of calls for it.

use super::plan::{NoPlan, PagePlan, Purpose, Spot};
use super::{AddressReservation, PagePool};
use crate::best_fit::Progress;
use crate::block::{ChunkHandle, Request};
use crate::engine::{Chunk, LOOKS_BEFORE_GROWTH, Need, Reservation, ReservedPlace};
use crate::error::{AllocError, Cause};
use crate::stream::StreamId;
use crate::units::{Addr, AddrRange};

/// The requested place.
#[derive(Clone, Copy, Debug)]
struct WantedPlace {
    start: Addr,
    /// A chunk close to the place.
    near: Option<ChunkHandle>,
    /// Whether queued work of the request's stream may still use the place.
    on_stream: bool,
    /// The reservation of which the place is a part.
    reserved: Option<Reservation>,
}

/// The state of one allocation. It belongs to the thread that allocates.
#[derive(Clone, Copy, Debug)]
pub struct PageAttempt {
    request: Request,
    /// The place of the block, if it is given.
    place: Option<WantedPlace>,
    /// Number of plans of this attempt that were refused.
    refusals: u8,
    /// Whether cached mappings were already unmapped for this attempt.
    forgot: bool,
}

impl From<Request> for PageAttempt {
    fn from(request: Request) -> Self {
        Self::new(request)
    }
}

impl PageAttempt {
    /// Starts an allocation.
    pub const fn new(request: Request) -> Self {
        Self {
            request,
            place: None,
            refusals: 0,
            forgot: false,
        }
    }

    /// Starts an allocation at exactly this place, which maps and moves pages if needed; see
    /// [`BestFit::alloc_at`](crate::BestFit::alloc_at). The allocation fails with [`AllocError::PlaceTaken`] if a part
    /// of the place cannot be used.
    pub const fn at(range: AddrRange, near: Option<ChunkHandle>, stream: Option<StreamId>) -> Self {
        let request = Request::new(range.bytes());
        let mut attempt = Self::new(match stream {
            Some(stream) => request.on(stream),
            None => request,
        });
        attempt.place = Some(WantedPlace {
            start: range.start(),
            near,
            on_stream: stream.is_some(),
            reserved: None,
        });
        attempt
    }

    /// Starts to commit whole pages of reserved addresses: an allocation at exactly this place. The block may have to
    /// wait for another stream. It fails with [`AllocError::PlaceTaken`] if these are no whole pages of the reservation
    /// or one of them is committed, and with [`Cause::Pending`] while the work of two streams still uses them.
    ///
    /// The place is found in O(committed blocks + decommitted pieces of this reservation), however many others there
    /// are, and in O(1) right behind the pool's last commit.
    pub const fn commit(
        reservation: &AddressReservation,
        pages: AddrRange,
        stream: StreamId,
    ) -> Self {
        let mut attempt = Self::new(Request::new(pages.bytes()).on(stream));
        attempt.place = Some(WantedPlace {
            start: pages.start(),
            near: None,
            on_stream: true,
            reserved: Some(reservation.0),
        });
        attempt
    }

    /// Returns the request.
    pub const fn request(&self) -> &Request {
        &self.request
    }

    /// Notes that a plan of this attempt failed. The second plan moves as much as it can; there is no third plan.
    pub const fn plan_failed(&mut self) {
        self.refusals = self.refusals.saturating_add(1);
    }
}

impl PagePool<'_> {
    /// Continues an allocation.
    pub(super) fn advance_attempt(&mut self, attempt: &mut PageAttempt) -> Progress<PagePlan> {
        let request = attempt.request;
        let need = match self.chunks.need_of(&request) {
            Ok(need) => need,
            Err(error) => return Progress::Failed(error),
        };
        if attempt.refusals > 1 || self.chunks.exceeds_limit(need) {
            // The driver refused the memory, unless a limit was lowered in the meantime.
            let cause = if self.room_bytes() == 0 {
                Cause::Limit
            } else {
                Cause::SubAllocator
            };
            return self.failed(need, &request, NoPlan::Memory(cause));
        }
        let squeeze = attempt.refusals > 0;
        if squeeze {
            self.refused_bytes = self.chunks.taken_bytes();
        }
        let progress = match attempt.place {
            Some(at) => self.advance_at(need, &request, at, squeeze),
            None => self.advance_anywhere(need, &request, squeeze),
        };
        match progress {
            Ok(progress) => progress,
            // Reserved addresses cannot be replaced by others. If no plan holds what is mapped there, queued work does.
            Err(NoPlan::Busy)
                if attempt.place.is_some_and(|at| at.reserved.is_some()) && self.plans == 0 =>
            {
                self.failed(need, &request, NoPlan::Memory(Cause::Pending))
            }
            Err(NoPlan::Busy) if attempt.place.is_some() => {
                Progress::Failed(AllocError::PlaceTaken)
            }
            // Cached mappings take up the records. Unmapping some of them makes room for this attempt.
            Err(NoPlan::Pages) if !attempt.forgot => {
                attempt.forgot = true;
                match self.plan_forgetting() {
                    Some(plan) => Progress::Plan(plan),
                    None => self.failed(need, &request, NoPlan::Pages),
                }
            }
            Err(bar) => self.failed(need, &request, bar),
        }
    }

    /// Serves the request from the best place, whether or not that has memory. If memory is short, a place that already
    /// has memory comes first.
    fn advance_anywhere(
        &mut self,
        need: Need,
        request: &Request,
        squeeze: bool,
    ) -> Result<Progress<PagePlan>, NoPlan> {
        let pages = need.size.div_ceil(self.page);
        let short = squeeze || pages > self.room_pages();
        if short && self.chunks.may_clear_points() {
            self.chunks.sweep();
        }
        let looks = if short { u32::MAX } else { LOOKS_BEFORE_GROWTH };
        let (found, ahead) = match self.search_fully(need, request, looks) {
            Some(found) => (found, 0),
            None => self.grow_range(need, request, false).or_else(|bar| {
                let found = self.search_fully(need, request, u32::MAX);
                found.map(|found| (found, 0)).ok_or(bar)
            })?,
        };
        let place = Spot {
            found,
            need,
            request,
            user: Some(request),
            ahead,
            squeeze,
            reserved: false,
        };
        if short && let Some(progress) = self.advance_backed(place) {
            return progress;
        }
        match self.serve(place) {
            Err(NoPlan::Busy) => self.advance_elsewhere(place),
            Err(NoPlan::Memory(cause)) => {
                let (pages, page) = (&self.pages, self.page);
                let has_memory = |chunk: &Chunk| {
                    !chunk.is_hollow() || pages.is_backed_between(chunk.start, chunk.end(), page)
                };
                let found = self.chunks.join_for(need, request, u32::MAX, has_memory);
                let found = found.ok_or(NoPlan::Memory(cause))?;
                self.serve(Spot {
                    found,
                    ahead: 0,
                    ..place
                })
            }
            served => served,
        }
    }

    /// Serves the request from a place that has memory.
    fn advance_backed(&mut self, place: Spot<'_>) -> Option<Result<Progress<PagePlan>, NoPlan>> {
        let found = self.search_backed(place.need, place.request)?;
        Some(self.serve(Spot {
            found,
            ahead: 0,
            ..place
        }))
    }

    /// Serves the request from a place that has memory; if there is none, from new addresses at the end of the range,
    /// without the free chunk that may lie there.
    fn advance_elsewhere(&mut self, place: Spot<'_>) -> Result<Progress<PagePlan>, NoPlan> {
        if let Some(progress) = self.advance_backed(place) {
            return progress;
        }
        let (found, ahead) = self
            .grow_range(place.need, place.request, true)
            .map_err(|_| NoPlan::Busy)?;
        self.serve(Spot {
            found,
            ahead,
            ..place
        })
    }

    /// Serves the request at the given place.
    fn advance_at(
        &mut self,
        need: Need,
        request: &Request,
        at: WantedPlace,
        squeeze: bool,
    ) -> Result<Progress<PagePlan>, NoPlan> {
        let range = AddrRange::of_chunk(at.start, request.bytes);
        if let Some(reservation) = at.reserved {
            let found = match self.find_reserved(&reservation, range, request.stream) {
                ReservedPlace::Free(found) => found,
                ReservedPlace::InUse => return Err(NoPlan::Memory(Cause::Pending)),
                ReservedPlace::NotReserved => {
                    return Ok(Progress::Failed(AllocError::PlaceTaken));
                }
            };
            return self.serve(Spot {
                found,
                need,
                request,
                user: Some(request),
                ahead: 0,
                squeeze,
                reserved: true,
            });
        }
        if !self.config.addresses.contains(range) {
            return Err(NoPlan::Busy);
        }
        let (_, end) = self.granules_of(range);
        self.grow_range_to(end).ok_or(NoPlan::Table)?;
        let stream = at.on_stream.then_some(request.stream);
        if stream.is_none() {
            self.chunks.sweep();
        }
        let found = self.chunks.find_place(range, need.size, at.near, stream);
        self.serve(Spot {
            found: found.ok_or(NoPlan::Busy)?,
            need,
            request,
            user: at.on_stream.then_some(request),
            ahead: 0,
            squeeze,
            reserved: false,
        })
    }

    /// Returns the block, or the plan for it.
    fn serve(&mut self, place: Spot<'_>) -> Result<Progress<PagePlan>, NoPlan> {
        let chunk = self.chunks.chunk(place.found.link);
        let start = chunk.start + place.found.padding;
        if !place.reserved
            && (!chunk.is_hollow() || self.is_backed_between(start, start + place.need.size))
        {
            // Once the whole range has memory, the mark is no longer needed.
            let range_bytes = self.chunks.granule().bytes_of(self.end());
            let hollow = self.plans > 0 || self.chunks.reserved_bytes() < range_bytes;
            self.chunks.set_hollow(place.found.link, hollow);
            let taken = self.chunks.take(place.found, place.need, place.request);
            return taken.map(Progress::Ready).map_err(|_| NoPlan::Table);
        }
        let mut plan = self.build(place, (0, 0), Purpose::Block(*place.request))?;
        if self.next_call(&mut plan).is_some() {
            return Ok(Progress::Plan(plan));
        }
        let cause = NoPlan::Memory(Cause::Limit);
        self.finish(plan).map(Progress::Ready).ok_or(cause)
    }

    fn failed(&mut self, need: Need, request: &Request, bar: NoPlan) -> Progress<PagePlan> {
        Progress::Failed(match bar {
            NoPlan::Table => self.chunks.table_full(),
            NoPlan::Pages => AllocError::PagesFull {
                handles: self.pages.handles.capacity(),
                mappings: self.pages.mappings.capacity(),
            },
            NoPlan::Busy => self.out_of_memory(need, request, Cause::Pending),
            NoPlan::Memory(cause) => self.out_of_memory(need, request, cause),
        })
    }
}
