//! What is known about addresses.

use larder_cuda_abi::Code;
use larder_cuda_abi::constants as c;

use super::gpu::*;

/// Context, memory type, device pointer, host pointer, managed, ordinal, start, length, mapped,
/// access.
const ALL: [u32; 10] = [1, 2, 3, 4, 8, 9, 11, 12, 13, 16];

fn all(at: u64) -> [Option<u64>; 10] {
    ALL.map(|attribute| ask(attribute, at).ok())
}

#[test]
fn each_kind_of_memory_says_what_it_is() {
    let gpu = gpu();
    let context = gpu.contexts[0] as u64;
    let plain = made(|at| cuMemAlloc_v2(at, 1000));
    let pinned = made(|at| cuMemHostAlloc(at, 1000, 0)) as u64;
    let managed = made(|at| cuMemAllocManaged(at, 1000, 1));
    let reserved = reserve(2 * GRANULARITY);
    map(reserved, GRANULARITY, create(GRANULARITY));
    let inside = plain + 10;
    let known = |values: [u64; 10]| values.map(Some);
    let mut expected = known([context, 2, inside, 0, 0, 0, plain, 1000, 1, 3]);
    expected[3] = None;
    assert_eq!(all(inside), expected);
    let inside = pinned + 10;
    let expected = known([context, 1, inside, inside, 0, 0, pinned, 1000, 1, 3]);
    assert_eq!(all(inside), expected);
    let inside = managed + 10;
    let expected = known([context, 2, inside, inside, 1, 0, managed, 1000, 1, 3]);
    assert_eq!(all(inside), expected);
    let inside = reserved + 10;
    let whole = 2 * GRANULARITY as u64;
    let mut expected = known([0, 2, inside, 0, 0, 0, reserved, whole, 1, 3]);
    expected[3] = None;
    assert_eq!(all(inside), expected);
    // Reserved, but nothing is mapped there.
    let behind = reserved + GRANULARITY as u64;
    let mut expected = [None; 10];
    expected[6..9].copy_from_slice(&[Some(reserved), Some(whole), Some(0)]);
    assert_eq!(all(behind), expected);
    assert_eq!(all(1), [None; 10]);
    assert_ne!(ask(7, plain), ask(7, pinned));
    assert_eq!(ask(99, plain), Err(Code::INVALID_VALUE));
}

#[test]
fn access_is_that_of_the_current_device() {
    let gpu = gpu();
    let plain = made(|at| cuMemAlloc_v2(at, 1000));
    let at = reserve(GRANULARITY);
    map(at, GRANULARITY, create(GRANULARITY));
    ok(allow(at, GRANULARITY, 1, c::MEM_ACCESS_READ));
    ok(cuCtxSetCurrent(gpu.contexts[1]));
    assert_eq!(ask(c::POINTER_ACCESS_FLAGS, plain), Ok(0));
    assert_eq!(ask(c::POINTER_ACCESS_FLAGS, at), Ok(1));
}
