//! Segments that can grow: address ranges larger than the device's memory, into which pages are
//! mapped where memory is needed.
//!
//! Only whole pages are mapped and unmapped, so unmapped chunks begin and end at page boundaries.

use super::chunks::{BlockState, PoolKind, TorchBlock};
use super::{Pytorch, Request};

/// Bytes of a page for small requests, and for large ones.
const SMALL_PAGE_BYTES: u64 = 2 << 20;
const LARGE_PAGE_BYTES: u64 = 20 << 20;

/// Memory of a device without a limit, from which the size of its segments is computed: 16 TiB,
/// more than any device has.
const MOST_DEVICE_BYTES: u64 = 1 << 44;

const fn page_bytes(pool: PoolKind) -> u64 {
    match pool {
        PoolKind::Small => SMALL_PAGE_BYTES,
        PoolKind::Large => LARGE_PAGE_BYTES,
    }
}

impl Pytorch {
    /// Returns the bytes of a chunk and of the unmapped chunk right after it, if there is one.
    pub(super) fn reach(&self, record: u32) -> u64 {
        let chunk = self.chunks.get(record);
        let next = chunk.next.map(|next| self.chunks.get(next));
        let unmapped = next.filter(|next| next.state == BlockState::Unmapped);
        chunk.bytes + unmapped.map_or(0, |next| next.bytes)
    }

    /// Maps pages for the request at the lowest addresses that have room, and returns the free
    /// chunk that they make, together with a free chunk right below them. Returns `None` if the
    /// device has no room for the pages; pages mapped until then stay mapped.
    pub(super) fn map_for(&mut self, request: Request) -> Option<u32> {
        let mut record = self.room_for(request)?;
        let chunk = self.chunks.get(record);
        if chunk.state == BlockState::Unmapped {
            record = self.map(record, request.bytes.min(chunk.bytes))?;
        }
        loop {
            let chunk = self.chunks.get(record);
            if chunk.bytes >= request.bytes {
                return Some(record);
            }
            let next = chunk.next?;
            let missing = request.bytes - chunk.bytes;
            record = self.map(next, missing.min(self.chunks.get(next).bytes))?;
        }
    }

    /// Returns the first of adjacent free and unmapped chunks that together have room for the
    /// request. If there are none, adds a segment and returns its chunk.
    fn room_for(&mut self, request: Request) -> Option<u32> {
        let found = self.chunks.unmapped(request.lane).find_map(|record| {
            let prev = self.chunks.get(record).prev;
            let prev = prev.filter(|&prev| self.chunks.get(prev).state == BlockState::Free);
            let first = prev.unwrap_or(record);
            self.has_room(first, request.bytes).then_some(first)
        });
        if found.is_some() {
            return found;
        }
        let device_bytes = self.device_bytes.unwrap_or(MOST_DEVICE_BYTES);
        let device_bytes = device_bytes.min(MOST_DEVICE_BYTES);
        // The size is a multiple of both page sizes, so that every segment begins at a page
        // boundary.
        let bytes = (device_bytes + device_bytes / 8).next_multiple_of(LARGE_PAGE_BYTES);
        if request.bytes > bytes {
            return None;
        }
        let address = self.next_address;
        self.next_address = address.checked_add(bytes)?;
        let segment = TorchBlock::segment(request.lane, address, bytes, BlockState::Unmapped);
        self.chunks.add(segment)
    }

    fn has_room(&self, first: u32, bytes: u64) -> bool {
        let mut room = 0;
        let mut next = Some(first);
        while let Some(record) = next
            && room < bytes
        {
            let chunk = self.chunks.get(record);
            if chunk.state == BlockState::Used {
                break;
            }
            room += chunk.bytes;
            next = chunk.next;
        }
        room >= bytes
    }

    /// Maps pages for the first `bytes` of an unmapped chunk, all of them or none. Returns the free
    /// chunk that holds them.
    fn map(&mut self, record: u32, bytes: u64) -> Option<u32> {
        let chunk = self.chunks.get(record);
        let page_bytes = page_bytes(chunk.lane.pool);
        let pages = bytes.div_ceil(page_bytes);
        for created in 0..pages {
            if self.device.allocate(page_bytes).is_none() {
                (0..created).for_each(|_| self.device.release(page_bytes));
                return None;
            }
        }
        self.calls.map += pages;
        self.calls.set_access += 1;
        if pages * page_bytes < chunk.bytes {
            self.chunks.split(record, pages * page_bytes)?;
        }
        Some(self.chunks.give(record, BlockState::Free))
    }

    /// Unmaps the pages that lie entirely in a free chunk, and releases them to the device.
    pub(super) fn unmap(&mut self, record: u32) {
        let chunk = self.chunks.get(record);
        let page_bytes = page_bytes(chunk.lane.pool);
        let start = chunk.address.next_multiple_of(page_bytes);
        let end = chunk.end() - chunk.end() % page_bytes;
        if start >= end {
            return;
        }
        let mut middle = Some(record);
        if start > chunk.address {
            middle = self.chunks.split(record, start - chunk.address);
        }
        let Some(middle) = middle else { return };
        if end < chunk.end() {
            self.chunks.split(middle, end - start);
        }
        for _ in 0..(end - start) / page_bytes {
            self.device.release(page_bytes);
            self.calls.unmap += 1;
        }
        self.chunks.give(middle, BlockState::Unmapped);
    }
}
