//! cuMemAddressReserve and cuMemAddressFree.

use std::time::Instant;

use super::{Mapped, Physical, Reserved, granule};
use crate::{
    api::{basic, memory, virtual_memory as vmm},
    gpu::{answer, portable},
    own::read,
    refused::refusals,
};

refusals! {
    /// Rule: the alignment is 0 or a power of two (source: CUDA Driver API, Virtual Memory Management,
    /// cuMemAddressReserve; of the listed errors, CUDA_ERROR_INVALID_VALUE fits best).
    fn an_odd_alignment_is_refused() {
        vmm::reserve(granule(), 3 * granule(), 0, 0)
    } => INVALID_VALUE;

    /// Rule: a reservation of 0 bytes is refused (source: CUDA Driver API, Virtual Memory Management,
    /// cuMemAddressReserve; of the listed errors, CUDA_ERROR_INVALID_VALUE fits best).
    fn nothing_is_not_reserved() { vmm::reserve(0, 0, 0, 0) } => INVALID_VALUE;

    /// Rule: sizes are multiples of the host's page (source: CUDA Driver API, Virtual Memory Management,
    /// cuMemAddressReserve: "the size and address parameters must be a multiple of the host page size").
    fn reservations_are_whole_pages() { vmm::reserve(granule() + 1, 0, 0, 0) } => INVALID_VALUE;

    /// Rule: the flags must be zero (source: CUDA Driver API, Virtual Memory Management, cuMemAddressReserve; of the
    /// listed errors, CUDA_ERROR_INVALID_VALUE fits best).
    fn a_reservation_takes_no_flags() { vmm::reserve(granule(), 0, 0, 1 << 40) } => INVALID_VALUE;
}

/// Rule: reserved ranges do not overlap (source: CUDA Driver API, Virtual Memory Management, cuMemAddressReserve).
#[test]
fn reservations_do_not_overlap() {
    let _gpu = portable();
    let bytes = 4 * granule();
    let all: Vec<_> = (0..8).map(|_| Reserved::new(bytes)).collect();
    let mut starts: Vec<_> = all.iter().map(|range| range.at).collect();
    starts.sort_unstable();
    for pair in starts.windows(2) {
        assert!(pair[0] + bytes as u64 <= pair[1], "{starts:x?}");
    }
}

/// Rule: a reservation has the requested alignment (source: CUDA Driver API, Virtual Memory Management,
/// cuMemAddressReserve, `alignment`).
#[test]
fn a_reservation_is_aligned_as_asked() {
    let _gpu = portable();
    let granule = granule();
    for alignment in [granule, 4 * granule, 64 * granule] {
        let at = vmm::reserve(granule, alignment, 0, 0).expect("addresses");
        vmm::free_address(at, granule).expect("addresses");
        assert_eq!(at % alignment as u64, 0, "{at:#x} for {alignment:#x}");
    }
}

/// Rule: if no alignment is requested, a reservation can be mapped at its start (source: CUDA Driver API, Virtual
/// Memory Management, cuMemAddressReserve, cuMemMap).
#[test]
fn a_reservation_is_aligned_for_mapping() {
    let _gpu = portable();
    let granule = granule();
    let range = Reserved::new(granule);
    assert_eq!(range.at % granule as u64, 0, "{:#x}", range.at);
}

/// Rule: eight times as many addresses as the device has bytes can be reserved in one piece; so can 640 GiB (source:
/// observed on an H200 with driver 580; the documentation does not mention it).
#[test]
fn eight_times_the_device_is_reserved_in_one_piece() {
    let _gpu = portable();
    let total = basic::device_bytes(0).expect("a size");
    let mut all_are = true;
    for (bytes, what) in [(640 << 30, "640 GiB"), (8 * total, "8 x the device")] {
        let bytes = bytes.next_multiple_of(granule());
        let began = Instant::now();
        let reserved = vmm::reserve(bytes, 0, 0, 0);
        let took = format!("{:.2} us", began.elapsed().as_secs_f64() * 1e6);
        all_are &= answer(
            &format!("reserving {what}"),
            &reserved.map_or_else(
                |code| format!("refused ({code:?})"),
                |_| "reserved".to_owned(),
            ),
            &took,
            "8 x the device can be reserved in one piece",
            reserved.is_ok(),
        );
        if let Ok(at) = reserved {
            vmm::free_address(at, bytes).expect("addresses");
        }
    }
    assert!(all_are, "refused: see the answers");
}

/// Rule: the requested address is a hint; the driver may choose another address (source: CUDA Driver API, Virtual
/// Memory Management, cuMemAddressReserve: `addr` is a "hint").
///
/// Uncertain: whether a requested range that is free is returned. The test asserts only that some range is.
#[test]
fn a_wished_address_is_a_hint() {
    let _gpu = portable();
    let bytes = 8 * granule();
    let wish = vmm::reserve(bytes, 0, 0, 0).expect("addresses");
    let other = vmm::reserve(bytes, 0, wish, 0).expect("a range, though the wish is taken");
    assert!(other + bytes as u64 <= wish || wish + bytes as u64 <= other);
    vmm::free_address(other, bytes).expect("addresses");
    vmm::free_address(wish, bytes).expect("addresses");
    let again = vmm::reserve(bytes, 0, wish, 0).expect("addresses");
    vmm::free_address(again, bytes).expect("addresses");
}

/// Rule: the address and the size of a free are those of the reservation (source: CUDA Driver API, Virtual Memory
/// Management, cuMemAddressFree).
#[test]
fn a_reservation_is_freed_whole() {
    let _gpu = portable();
    let granule = granule();
    let range = Reserved::new(4 * granule);
    assert!(vmm::free_address(range.at, granule).is_err());
    assert!(vmm::free_address(range.plus(granule), 3 * granule).is_err());
    let physical = Physical::new(4 * granule);
    drop(Mapped::new(range.at, &physical));
}

/// Rule: addresses can be freed only once (source: CUDA Driver API, Virtual Memory Management, cuMemAddressFree, list
/// of errors).
#[test]
fn a_reservation_is_freed_once() {
    let _gpu = portable();
    let bytes = granule();
    let at = vmm::reserve(bytes, 0, 0, 0).expect("addresses");
    assert_eq!(vmm::free_address(at, bytes), Ok(()));
    assert!(vmm::free_address(at, bytes).is_err());
}

/// Rule: addresses with a mapping cannot be freed (source: CUDA Programming Guide, Virtual Memory Management, Freeing:
/// unmap first).
#[test]
fn mapped_addresses_are_not_freed() {
    let _gpu = portable();
    let (physical, range) = (Physical::new(granule()), Reserved::new(granule()));
    let _mapped = Mapped::new(range.at, &physical);
    crate::api::copy::fill8(range.at, 5, 64).expect("a fill");
    assert!(vmm::free_address(range.at, range.bytes).is_err());
    assert_eq!(read(range.at, 64), [5; 64]);
}

/// Rule: reserved addresses use no device memory (source: CUDA Driver API, Virtual Memory Management,
/// cuMemAddressReserve, cuMemCreate).
#[test]
fn reservations_take_no_memory() {
    let _gpu = portable();
    let (before, total) = memory::info().expect("sizes");
    let range = Reserved::new((total * 2).next_multiple_of(granule()));
    let (after, _) = memory::info().expect("sizes");
    // A driver may keep tables for the range.
    assert!(
        before - after.min(before) < 256 << 20,
        "{before} then {after}"
    );
    assert!(range.at != 0);
}
