//! [`CpuMemory`]: regions of host memory, on a NUMA node if one is named.
//!
//! Without a node a region comes from the program's global allocator. With a node it is a mapping of its own,
//! and the kernel is asked to prefer that node for its pages (`mbind`). If the node is full, the kernel takes
//! the pages from other nodes; under the strict policy it would end the process instead.
//!
//! * CPUMEM1 a piece in the table was allocated by the global allocator or the kernel, is whole, and has not
//!   been freed; only one thread removes it.
//! * CPUMEM2 the region in a piece ends before the piece does, so two regions never touch and each is freed
//!   whole.

use core::fmt;
use std::alloc::Layout;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_core::{Addr, AddrRange, GrowRequest, SubAllocError, SubAllocator};

use super::topology::Node;
use crate::driver::locked;

/// Unused bytes at the end of a piece.
const GAP_BYTES: usize = 64;

/// Whether regions are bound to their NUMA node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Binding {
    /// No node was named.
    None,
    /// All regions so far are bound to their node.
    Bound,
    /// Some regions could not be bound and lie where the kernel puts them, because it does not support NUMA,
    /// has no such node, or forbids binding.
    Refused {
        /// Number of regions.
        regions: u64,
    },
}

/// Regions of host memory.
///
/// Each is freed whole. Dropping this frees everything, so no block may be in use then. Any thread may call
/// it. A region costs one call of the global allocator, or two system calls.
pub struct CpuMemory {
    node: Option<Node>,
    pieces: Mutex<BTreeMap<u64, CpuPiece>>,
    refused: AtomicU64,
}

/// One piece, keyed by the start of its region.
struct CpuPiece {
    /// Start of the piece.
    base: *mut u8,
    /// Bytes of the region.
    bytes: u64,
    from: From,
}

// SAFETY: the memory belongs to no thread, and a piece is reached only under the table's lock.
unsafe impl Send for CpuPiece {}

enum From {
    /// The global allocator.
    Heap(Layout),
    /// A mapping of this length.
    #[cfg(target_os = "linux")]
    Mapping(usize),
}

impl CpuMemory {
    /// Makes a source that holds nothing yet. Its regions will lie on `node`, or anywhere if it is `None`.
    pub fn new(node: Option<Node>) -> Self {
        Self {
            node,
            pieces: Mutex::default(),
            refused: AtomicU64::new(0),
        }
    }

    /// Returns the node of its regions.
    pub const fn node(&self) -> Option<Node> {
        self.node
    }

    /// Returns whether its regions are bound to the node.
    pub fn binding(&self) -> Binding {
        match (self.node, self.refused.load(Ordering::Relaxed)) {
            (None, _) => Binding::None,
            (Some(_), 0) => Binding::Bound,
            (Some(_), regions) => Binding::Refused { regions },
        }
    }

    /// Returns the bytes of all regions.
    pub fn held_bytes(&self) -> u64 {
        locked(&self.pieces).values().map(|piece| piece.bytes).sum()
    }

    /// Allocates a piece that has `bytes` bytes at a multiple of `align`. Returns the address of these bytes,
    /// and the piece.
    fn piece(&self, bytes: u64, align: usize) -> Option<(u64, CpuPiece)> {
        let size = usize::try_from(bytes).ok().filter(|size| *size > 0)?;
        #[cfg(target_os = "linux")]
        if let Some(node) = self.node {
            return self.mapped(node, bytes, size, align);
        }
        #[cfg(not(target_os = "linux"))]
        if self.node.is_some() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        let layout = Layout::from_size_align(size.checked_add(GAP_BYTES)?, align).ok()?;
        // SAFETY: the layout's size is not 0.
        let base = unsafe { std::alloc::alloc(layout) };
        if base.is_null() {
            return None;
        }
        let piece = CpuPiece {
            base,
            bytes,
            from: From::Heap(layout),
        };
        // Exposed because users of the memory make a pointer from the number.
        Some((base.expose_provenance() as u64, piece))
    }

    #[cfg(target_os = "linux")]
    fn mapped(&self, node: Node, bytes: u64, size: usize, align: usize) -> Option<(u64, CpuPiece)> {
        let length = size.checked_add(align)?.checked_add(GAP_BYTES)?;
        let base = linux::map(length)?;
        if !linux::bind(base, length, node) {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        let start = base.wrapping_add(base.align_offset(align));
        let piece = CpuPiece {
            base,
            bytes,
            from: From::Mapping(length),
        };
        Some((start.expose_provenance() as u64, piece))
    }
}

/// Frees a piece that is no longer in the table.
fn give_back(piece: &CpuPiece) {
    match piece.from {
        From::Heap(layout) => {
            // SAFETY: CPUMEM1: the piece was allocated with this layout, and is freed once.
            unsafe { std::alloc::dealloc(piece.base, layout) };
        }
        #[cfg(target_os = "linux")]
        From::Mapping(length) => linux::unmap(piece.base, length),
    }
}

impl SubAllocator for CpuMemory {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let align = usize::try_from(request.align.bytes()).map_err(|_| SubAllocError)?;
        let (start, piece) = self.piece(request.bytes, align).ok_or(SubAllocError)?;
        let Some(range) = AddrRange::new(Addr::new(start), request.bytes) else {
            give_back(&piece);
            return Err(SubAllocError);
        };
        locked(&self.pieces).insert(start, piece);
        Ok(range)
    }

    /// Frees one whole region.
    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        let start = range.start().get();
        let mut pieces = locked(&self.pieces);
        match pieces.get(&start) {
            Some(piece) if piece.bytes == range.bytes() => {}
            _ => return Err(SubAllocError),
        }
        let piece = pieces.remove(&start);
        drop(pieces);
        give_back(&piece.ok_or(SubAllocError)?);
        Ok(())
    }
}

impl Drop for CpuMemory {
    fn drop(&mut self) {
        for piece in core::mem::take(&mut *locked(&self.pieces)).values() {
            give_back(piece);
        }
    }
}

impl fmt::Debug for CpuMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuMemory")
            .field("node", &self.node)
            .field("held_bytes", &self.held_bytes())
            .field("binding", &self.binding())
            .finish_non_exhaustive()
    }
}

/// The system calls.
#[cfg(target_os = "linux")]
mod linux {
    use core::ptr::null_mut;

    use super::super::topology::{Node, Topology};

    /// Prefers the given node, and takes pages from others if it has no memory left (`MPOL_PREFERRED`).
    pub(super) const PREFERRED: libc::c_int = 1;

    /// Number of words with one bit for each node.
    pub(super) const WORDS: usize = Topology::MAX_NODES as usize / WORD_BITS;
    const WORD_BITS: usize = libc::c_ulong::BITS as usize;

    /// Number of bits passed to the kernel, which reads one fewer.
    pub(super) const BITS: libc::c_ulong = (WORDS * WORD_BITS + 1) as libc::c_ulong;

    /// Maps new, untouched memory in whole pages.
    pub(super) fn map(length: usize) -> Option<*mut u8> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: an anonymous mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { libc::mmap(null_mut(), length, access, flags, -1, 0) };
        (base != libc::MAP_FAILED).then_some(base.cast())
    }

    /// Unmaps one of our mappings. If the kernel refuses, it stays mapped, which does no harm.
    pub(super) fn unmap(base: *mut u8, length: usize) {
        // SAFETY: CPUMEM1: it is a mapping of that length, and is no longer in the table.
        unsafe { libc::munmap(base.cast(), length) };
    }

    /// Returns the bit of a node; `None` if it has none.
    pub(super) fn mask(node: Node) -> Option<[libc::c_ulong; WORDS]> {
        let number = node.number() as usize;
        let mut mask = [0; WORDS];
        *mask.get_mut(number / WORD_BITS)? = 1 << (number % WORD_BITS);
        Some(mask)
    }

    /// Asks the kernel to take the pages of a mapping from a node. Returns whether it accepts.
    pub(super) fn bind(base: *mut u8, length: usize, node: Node) -> bool {
        let Some(mask) = mask(node) else {
            return false;
        };
        // SAFETY: the mapping is ours, and the mask outlives the call.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                base,
                length,
                PREFERRED,
                mask.as_ptr(),
                BITS,
                0_u32,
            )
        };
        answer == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::Align;

    fn request(bytes: u64, align: u64) -> GrowRequest {
        GrowRequest {
            bytes,
            align: Align::new(align).unwrap(),
            at: None,
        }
    }

    #[test]
    fn regions_are_aligned_apart_writable_and_go_back_whole() {
        for node in [None, Some(Node::ZERO)] {
            let memory = CpuMemory::new(node);
            let mut regions = Vec::new();
            for (bytes, align) in [(256, 256), (4096, 4096), (1 << 20, 1 << 21), (300, 1)] {
                let region = memory.grow(request(bytes, align)).unwrap();
                assert_eq!(region.bytes(), bytes);
                assert!(region.start().get().is_multiple_of(align));
                let start =
                    core::ptr::with_exposed_provenance_mut::<u8>(region.start().get() as usize);
                // SAFETY: the test holds the region.
                unsafe { start.write_bytes(0x5a, bytes as usize) };
                regions.push(region);
            }
            for (index, one) in regions.iter().enumerate() {
                for other in &regions[index + 1..] {
                    let touch = one.end() == other.start() || other.end() == one.start();
                    assert!(!one.overlaps(*other) && !touch);
                }
            }
            assert_eq!(memory.held_bytes(), 256 + 4096 + (1 << 20) + 300);
            let last = regions.pop().unwrap();
            let half = AddrRange::new(last.start(), 100).unwrap();
            assert_eq!(memory.release(half), Err(SubAllocError), "not whole");
            assert_eq!(memory.release(last), Ok(()));
            assert_eq!(memory.release(last), Err(SubAllocError), "gone");
            assert_eq!(memory.held_bytes(), 256 + 4096 + (1 << 20));
            // The other regions are freed when `memory` is dropped.
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for node in [None, Some(Node::ZERO)] {
            let memory = CpuMemory::new(node);
            assert_eq!(memory.grow(request(0, 256)), Err(SubAllocError));
            assert_eq!(memory.grow(request(u64::MAX, 256)), Err(SubAllocError));
            assert_eq!(memory.grow(request(u64::MAX / 2, 256)), Err(SubAllocError));
            assert_eq!(memory.grow(request(256, 1 << 63)), Err(SubAllocError));
            assert_eq!(memory.held_bytes(), 0);
        }
    }

    /// Returns the policy of the page at an address, if the kernel reports it.
    #[cfg(target_os = "linux")]
    fn policy_at(address: u64) -> Option<(libc::c_int, [libc::c_ulong; linux::WORDS])> {
        const OF_ADDRESS: libc::c_ulong = 2;
        let (mut mode, mut mask) = (-1, [0; linux::WORDS]);
        // SAFETY: policy and mask outlive the call.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut mode,
                mask.as_mut_ptr(),
                linux::BITS,
                address,
                OF_ADDRESS,
            )
        };
        (answer == 0).then_some((mode, mask))
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_region_of_a_node_has_that_nodes_policy() {
        let memory = CpuMemory::new(Some(Node::ZERO));
        let region = memory.grow(request(1 << 20, 4096)).unwrap();
        if memory.binding() != Binding::Bound {
            println!(
                "skipped: this kernel binds no memory ({:?})",
                memory.binding()
            );
            return;
        }
        for at in [region.start().get(), region.end().get() - 1] {
            let (mode, mask) = policy_at(at).unwrap();
            assert_eq!(mode, linux::PREFERRED);
            assert_eq!(Some(mask), linux::mask(Node::ZERO));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_node_that_is_not_there_leaves_memory_unbound_and_says_so() {
        for number in [Topology::MAX_NODES - 1, Topology::MAX_NODES, u32::MAX] {
            let memory = CpuMemory::new(Some(Node::new(number)));
            memory.grow(request(4096, 4096)).unwrap();
            memory.grow(request(4096, 4096)).unwrap();
            assert_eq!(memory.binding(), Binding::Refused { regions: 2 });
        }
    }

    use super::super::topology::Topology;
}
