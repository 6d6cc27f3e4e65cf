//! Growth, and the last resorts of an allocation.

use larder_core::{AddrRange, Cause, GrowRequest, Growth, MAX_REGIONS, Request, SubAllocator};

use super::search::Found;
use super::{ModelBfc, ModelError, ModelGrant, Piece, Place, Region, SCAN, State};

/// The size of a growth, and the smallest size that helps.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) bytes: u64,
    least: u64,
}

/// The reason why nothing was grown.
enum Grown {
    TooLarge,
    No(Cause),
    TableFull,
}

impl ModelBfc {
    /// Allocates after the first search has found nothing.
    pub(crate) fn alloc_growing(
        &mut self,
        need: u64,
        request: &Request,
    ) -> Result<ModelGrant, ModelError> {
        let mut asked = false;
        let mut cause = match self.search_and_grow(need, request, &mut asked) {
            Ok(found) => return self.take(found, need, request),
            Err(Grown::TableFull) => return Err(self.table_full()),
            Err(Grown::TooLarge) => return Err(ModelError::TooLarge(request.bytes)),
            Err(Grown::No(cause)) => cause,
        };
        if self.config.collect_regions && self.collection_helps(need, request, asked) {
            while let Some(place) = self.free_regions().first().copied() {
                self.give_back(place);
            }
            cause = match self.search_and_grow(need, request, &mut asked) {
                Ok(found) => return self.take(found, need, request),
                Err(Grown::TableFull) => return Err(self.table_full()),
                Err(Grown::TooLarge) => return Err(ModelError::TooLarge(request.bytes)),
                Err(Grown::No(cause)) => cause,
            };
        }
        Err(self.out_of_memory(need, request, cause))
    }

    /// Searches in every way, and grows until a piece serves or growth is refused. Only the first growth relies on the
    /// free end of the newest region.
    fn search_and_grow(
        &mut self,
        need: u64,
        request: &Request,
        asked: &mut bool,
    ) -> Result<Found, Grown> {
        loop {
            if let Some(found) = self.search(need, request, SCAN) {
                return Ok(found);
            }
            if self.any_with_point() && self.advanced > 0 {
                self.sweep();
                if let Some(found) = self.search(need, request, SCAN) {
                    return Ok(found);
                }
            }
            if let Some(found) = self.search(need, request, usize::MAX) {
                return Ok(found);
            }
            if self.join_for(need, request)
                && let Some(found) = self.search(need, request, usize::MAX)
            {
                return Ok(found);
            }
            self.grow(need, request, asked)?;
        }
    }

    fn grow(&mut self, need: u64, request: &Request, asked: &mut bool) -> Result<(), Grown> {
        if self.records_left() == 0 {
            return Err(Grown::TableFull);
        }
        if self.regions.len() == MAX_REGIONS {
            return Err(Grown::No(Cause::Regions));
        }
        if let Growth::Fixed = self.config.growth {
            return Err(Grown::No(Cause::Fixed));
        }
        let end = if *asked {
            None
        } else {
            self.usable_end(request)
        };
        let least = self.least(need, request, end);
        if least > u64::from(u32::MAX) * self.config.granule_bytes {
            return Err(Grown::TooLarge);
        }
        let room = self.room(0);
        if least > room {
            return Err(Grown::No(Cause::Limit));
        }
        *asked = true;
        let plan = self.plan(least, room);
        let Some(range) = self.ask(plan) else {
            return Err(Grown::No(Cause::SubAllocator));
        };
        self.add(range, end.is_some());
        Ok(())
    }

    /// Returns the bytes, in whole granules, that the limit leaves once `given_back` bytes are released.
    pub(super) fn room(&self, given_back: u64) -> u64 {
        let left = self.limit.saturating_sub(self.reserved() - given_back);
        left / self.config.granule_bytes * self.config.granule_bytes
    }

    /// Returns the smallest growth that serves the request together with `end`.
    fn least(&self, need: u64, request: &Request, end: Option<Piece>) -> u64 {
        let granule = self.config.granule_bytes;
        let aligning = request.align.bytes().max(granule) - granule;
        let missing = match end {
            Some(end) => {
                let start = end.start.next_multiple_of(request.align.bytes());
                (start + need).saturating_sub(end.start + end.bytes)
            }
            None => need + aligning,
        };
        match self.config.growth {
            Growth::Range { unit_bytes, .. } => missing.max(1).next_multiple_of(unit_bytes),
            Growth::Fixed => need + aligning,
        }
    }

    pub(super) fn plan(&self, least: u64, room: u64) -> Plan {
        let bytes = match self.config.growth {
            Growth::Fixed => least,
            Growth::Range {
                unit_bytes,
                ahead_divisor,
            } => {
                let mut ahead = ahead_divisor.map_or(0, |d| self.reserved() / u64::from(d.get()));
                if self.regions.len() > 8 {
                    ahead = ahead.max(self.reserved() / 8);
                }
                least
                    .max(ahead.next_multiple_of(unit_bytes))
                    .min(room / unit_bytes * unit_bytes)
            }
        };
        Plan { bytes, least }
    }

    /// Returns the free end of the newest region if the request could use it together with memory added behind it.
    fn usable_end(&self, request: &Request) -> Option<Piece> {
        let region = self.region_at(self.newest?)?;
        let end = *self.regions[region].pieces.last()?;
        if !end.is_free() {
            return None;
        }
        let usable = match self.pending(end.point()) {
            None => true,
            Some((stream, _)) if stream == request.stream.number() => request.freed_by.is_none(),
            Some(_) => request.may_wait,
        };
        usable.then_some(end)
    }

    /// Requests memory from the sub-allocator; after a refusal, requests the smallest size that helps.
    pub(super) fn ask(&self, plan: Plan) -> Option<AddrRange> {
        let granule = self.config.granule_bytes;
        let align = larder_core::Align::new(granule).expect("a valid configuration");
        let at = None;
        let ask = |bytes| self.source.grow(GrowRequest { bytes, align, at }).ok();
        let again = || (plan.least < plan.bytes).then(|| ask(plan.least)).flatten();
        ask(plan.bytes).or_else(again)
    }

    pub(super) fn add(&mut self, range: AddrRange, with_end: bool) {
        let (start, bytes) = (range.start().get(), range.bytes());
        let rank = self.next_rank();
        let piece = Piece {
            start,
            bytes,
            state: State::Free { point: None, rank },
        };
        if let Some(region) = self.in_front_of(start, bytes) {
            self.enlarge(region, piece, with_end);
        } else {
            let at = self.regions.partition_point(|region| region.base < start);
            let pieces = vec![piece];
            self.regions.insert(
                at,
                Region {
                    base: start,
                    pieces,
                    refused: false,
                },
            );
            self.set_newest(start);
        }
        self.peak_reserved = self.peak_reserved.max(self.reserved());
    }

    /// Enlarges a region. Its former wilderness enters a list. If a stream still uses the free end, the new memory
    /// stays separate from it, unless it was requested together with the end.
    fn enlarge(&mut self, region: usize, piece: Piece, with_end: bool) {
        self.set_newest(self.regions[region].base);
        if let Some(wilderness) = self.wilderness() {
            self.refresh_rank(wilderness);
        }
        let end = self.regions[region].pieces.len() - 1;
        let in_use = self.pending(self.at((region, end)).point()).is_some();
        self.regions[region].pieces.push(piece);
        if with_end && in_use {
            if let Some(point) = self.forced_point((region, end)) {
                self.merge_anew((region, end), point);
            }
        } else if !in_use {
            let no_wilderness = None;
            self.join_with_neighbours((region, end + 1), no_wilderness);
        } else {
            self.apart = true;
        }
    }

    pub(super) fn refresh_rank(&mut self, (region, piece): Place) {
        let fresh = self.next_rank();
        if let State::Free { rank, .. } = &mut self.regions[region].pieces[piece].state {
            *rank = fresh;
        }
    }

    fn set_newest(&mut self, base: u64) {
        if self.newest != Some(base)
            && let Some(wilderness) = self.wilderness()
        {
            self.refresh_rank(wilderness);
        }
        self.newest = Some(base);
    }

    /// Joins the first adjacent pieces that together serve the request. At most one stream may still use them, and the
    /// request must be allowed to use that stream's memory.
    fn join_for(&mut self, need: u64, request: &Request) -> bool {
        if self.exceeds_limit(need) {
            return false;
        }
        let Some(((region, piece), count)) = self
            .places()
            .find_map(|place| Some((place, self.pieces_to_serve(place, need, request)?)))
        else {
            return false;
        };
        for _ in 1..count {
            self.join_by_force((region, piece));
        }
        true
    }

    /// Returns the number of pieces, beginning with this one, that together serve the request; `None` if no number of
    /// them does.
    fn pieces_to_serve(
        &self,
        (region, first): Place,
        need: u64,
        request: &Request,
    ) -> Option<usize> {
        let pieces = &self.regions[region].pieces[first..];
        let free = &pieces[..pieces.iter().take_while(|piece| piece.is_free()).count()];
        let start = free.first()?.start;
        let wanted = start.next_multiple_of(request.align.bytes()) - start + need;
        let serves = |count: &usize| {
            let bytes: u64 = free[..*count].iter().map(|piece| piece.bytes).sum();
            let mut points = free[..*count]
                .iter()
                .filter_map(|piece| self.pending(piece.point()));
            let stream = points.clone().next().map(|(stream, _)| stream);
            let usable = points.all(|(of, event)| {
                Some(of) == stream
                    && if of == request.stream.number() {
                        request.freed_by.is_none_or(|by| event <= by.number())
                    } else {
                        request.may_wait
                    }
            });
            bytes >= wanted && usable
        };
        (1..=free.len()).find(serves)
    }

    /// Returns the regions that consist of one free piece without a point.
    pub(super) fn free_regions(&self) -> Vec<usize> {
        let whole = |region: &Region| {
            !region.refused
                && region.pieces.len() == 1
                && region.pieces[0].is_free()
                && region.pieces[0].point().is_none()
        };
        (0..self.regions.len())
            .filter(|region| whole(&self.regions[*region]))
            .collect()
    }

    fn collection_helps(&mut self, need: u64, request: &Request, asked: bool) -> bool {
        if let Growth::Fixed = self.config.growth {
            return false;
        }
        self.sweep();
        self.forget_refusals();
        let free_regions = self.free_regions();
        let free: u64 = free_regions
            .iter()
            .map(|region| self.regions[*region].bytes())
            .sum();
        let newest = self.newest.and_then(|base| self.region_at(base));
        let newest_goes = newest.is_some_and(|newest| free_regions.contains(&newest));
        let counts_end = !asked && !newest_goes;
        let end = counts_end.then(|| self.usable_end(request)).flatten();
        free > 0 && self.least(need, request, end) <= self.room(free)
    }

    /// Returns whether adjacent free pieces, some of them pending, would serve if all of them were settled.
    fn would_serve_settled(&self, need: u64, request: &Request) -> bool {
        let runs = self
            .regions
            .iter()
            .flat_map(|region| region.pieces.split(|piece| !piece.is_free()))
            .filter(|free| {
                free.iter()
                    .any(|piece| self.pending(piece.point()).is_some())
            });
        runs.into_iter().any(|free| {
            let bytes: u64 = free.iter().map(|piece| piece.bytes).sum();
            let start = free[0].start;
            start.next_multiple_of(request.align.bytes()) + need <= start + bytes
        })
    }

    pub(crate) fn out_of_memory(&self, need: u64, request: &Request, cause: Cause) -> ModelError {
        let sum = |f: &dyn Fn(&Piece) -> bool| self.sum(|p| if f(p) { p.bytes } else { 0 });
        let free = sum(&|piece| piece.is_free());
        let pending = sum(&|piece| self.pending(piece.point()).is_some());
        let largest = self
            .pieces()
            .filter(|piece| piece.is_free())
            .map(|piece| piece.bytes)
            .max()
            .unwrap_or(0);
        let cause = if self.exceeds_limit(need) {
            Cause::Limit
        } else if self.would_serve_settled(need, request) {
            Cause::Pending
        } else if free.saturating_sub(self.reserved().saturating_sub(self.limit)) >= need {
            Cause::Fragmentation
        } else {
            cause
        };
        ModelError::OutOfMemory {
            cause,
            numbers: [
                request.bytes,
                need,
                self.limit,
                self.reserved(),
                self.live(),
                free,
                largest,
                pending,
            ],
        }
    }
}
