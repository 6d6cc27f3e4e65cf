//! Exports of the memory of a [`VirtualMemory`] to other processes.

use std::os::fd::OwnedFd;
use std::sync::PoisonError;

use larder_core::AddrRange;
use larder_cuda_abi::MemoryHandle;

use super::{Mapped, MappingOwner, VirtualMemory};
use crate::DriverError;
use crate::driver::locked;

/// The pieces of memory of one export.
#[derive(Debug)]
pub(crate) struct Exported {
    /// Start of the first piece.
    pub(crate) start: u64,
    /// The bytes of each piece, in the order of addresses.
    pub(crate) pieces: Vec<u64>,
    /// The descriptor of each piece.
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl VirtualMemory {
    /// Returns whether the memory can be exported.
    pub(crate) const fn is_shareable(&self) -> bool {
        self.memory_use.shareable
    }

    /// Exports each piece of memory that a range touches, as a whole. The mappings stay until
    /// [`end_export`](Self::end_export) (VIRT4). O(log mappings) and one driver call for each piece. After a
    /// refusal nothing is exported.
    pub(crate) fn export(&self, range: AddrRange) -> Result<Exported, DriverError> {
        let (start, pieces) = self.begin_export(range)?;
        let export = |(_, memory): &(u64, MemoryHandle)| {
            self.context.try_current(|driver| {
                // SAFETY: VIRT3: the memory exists, and its mapping is exported, so it stays (VIRT4).
                unsafe { driver.export_memory(*memory) }
            })
        };
        let outcome: Result<Vec<_>, _> = pieces.iter().map(export).collect();
        let pieces = pieces.into_iter().map(|(bytes, _)| bytes).collect();
        match self.remember(outcome) {
            Ok(descriptors) => Ok(Exported {
                start,
                pieces,
                descriptors,
            }),
            Err(error) => {
                self.end_export(range);
                Err(error)
            }
        }
    }

    /// Counts an export of each mapping under a range. Returns the start of the first mapping, and the bytes
    /// and memory of each.
    fn begin_export(
        &self,
        range: AddrRange,
    ) -> Result<(u64, Vec<(u64, MemoryHandle)>), DriverError> {
        // A thread that falls asleep takes this lock exclusively, and then checks for exports.
        let asleep = self.asleep.read();
        if *asleep.unwrap_or_else(PoisonError::into_inner) {
            return Err(DriverError::Asleep);
        }
        let table = &mut *locked(&self.table);
        let address = range.start().get();
        let not_ours = DriverError::NotOurs { address };
        let mut under = table.mappings.range(..=address);
        let (start, _) = under.next_back().ok_or(not_ours)?;
        let (start, end) = (*start, range.end().get());
        let (mut at, mut pieces) = (start, Vec::new());
        for (place, mapped) in table.mappings.range(start..end) {
            let memory = match mapped.owner {
                MappingOwner::Handle(handle) => {
                    table.handles.get(&handle).and_then(|held| held.memory)
                }
                MappingOwner::Range(memory) => Some(memory),
                MappingOwner::Leaving(_) => None,
            };
            if *place != at {
                return Err(not_ours);
            }
            at += mapped.bytes;
            pieces.push((mapped.bytes, memory.ok_or(not_ours)?));
        }
        if at < end {
            return Err(not_ours);
        }
        for (_, mapped) in table.mappings.range_mut(start..end) {
            mapped.exports += 1;
        }
        Ok((start, pieces))
    }

    /// Ends one [export](Self::export) of this range.
    pub(crate) fn end_export(&self, range: AddrRange) {
        let table = &mut *locked(&self.table);
        let (start, end) = (range.start().get(), range.end().get());
        let first = table.mappings.range(..=start).next_back();
        let first = first.map_or(start, |(place, _)| *place);
        let mappings = table.mappings.range_mut(first..end);
        mappings.for_each(|(_, mapped): (_, &mut Mapped)| {
            mapped.exports = mapped.exports.saturating_sub(1);
        });
    }
}

#[cfg(test)]
mod tests {
    use larder_core::{Align, GrowRequest, SubAllocator};

    use super::*;
    use crate::driver::{Choice, load};
    use crate::{Context, VirtualConfig};

    #[test]
    fn an_exported_mapping_is_not_undone() {
        load(Choice::StandIn).unwrap();
        let context = Context::new(0).unwrap();
        let config = VirtualConfig {
            shareable: true,
            ..VirtualConfig::new(64 << 20)
        };
        let memory = VirtualMemory::with_config(&context, &config).unwrap();
        let page = memory.page_bytes();
        let request = GrowRequest {
            bytes: 2 * page,
            align: Align::new(256).unwrap(),
            at: None,
        };
        let range = memory.grow(request).unwrap();
        let address = range.start().get();
        let part = AddrRange::new(range.start(), 1).unwrap();
        let exported = memory.export(part).unwrap();
        assert_eq!((exported.start, exported.pieces), (address, vec![page]));
        assert_eq!(exported.descriptors.len(), 1);
        assert!(memory.release(range).is_err());
        let refused = DriverError::Exported { address };
        assert_eq!(memory.last_error(), Some(refused));
        memory.end_export(part);
        memory.release(range).unwrap();
        assert_eq!(memory.held_bytes(), 0);
        let not_ours = DriverError::NotOurs { address };
        assert_eq!(memory.export(part).err(), Some(not_ours));
    }
}
