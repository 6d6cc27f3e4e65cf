//! The driver's functions by name and version.

use larder_cuda_abi::Code;

use crate::{
    api::{basic, lookup},
    gpu::portable,
};

// CUdriverProcAddressQueryResult.
const FOUND: u32 = 0;
const NOT_FOUND: u32 = 1;
const VERSION_NOT_SUFFICIENT: u32 = 2;

/// Rule: cuGetProcAddress returns the function with a base name, and this function can be called (source: CUDA Driver
/// API, Driver Entry Point Access, cuGetProcAddress).
#[test]
fn a_function_is_found_by_its_base_name() {
    let _gpu = portable();
    let version = basic::driver_version().expect("a version");
    let (found, status) = lookup::address(c"cuDriverGetVersion", version, 0).expect("an answer");
    assert_eq!(status, FOUND);
    assert_eq!(lookup::version_by(found), version);
}

/// Rule: cuGetProcAddress returns the version of a function that belongs to the given version of CUDA (source: CUDA
/// Driver API, Driver Entry Point Access, cuGetProcAddress: "the function pointer to the corresponding versioned
/// function"). The documentation does not say that this is the function exported under the versioned name (uncertain).
#[test]
fn a_function_is_that_of_the_version_asked_for() {
    let _gpu = portable();
    let ask = |version| lookup::address(c"cuCtxCreate", version, 0).expect("an answer");
    let (old, new) = (ask(11_030), ask(11_040));
    assert_eq!((old.1, new.1), (FOUND, FOUND));
    assert_ne!(old.0, new.0);
    assert_ne!(lookup::exported("cuCtxCreate_v3"), old.0);
}

/// Rule: if cuGetProcAddress does not find a function, it returns null and the reason, and the call succeeds (source:
/// CUDA Driver API, Driver Entry Point Access, cuGetProcAddress, symbolStatus).
#[test]
fn what_is_not_found_is_null_and_says_why() {
    let _gpu = portable();
    let null = core::ptr::null();
    let answer = lookup::address(c"cuMakeCoffee", 11_040, 0);
    assert_eq!(answer, Ok((null, NOT_FOUND)));
    let answer = lookup::address(c"cuMemAllocAsync", 11_010, 0);
    assert_eq!(answer, Ok((null, VERSION_NOT_SUFFICIENT)));
}

/// Rule: for a version above the driver's, cuGetProcAddress returns CUDA_ERROR_INVALID_VALUE (source: CUDA Driver API
/// 13.4, Driver Entry Point Access, cuGetProcAddress). Older documentation does not say so, and driver 535 returns its
/// newest function (uncertain).
#[test]
fn a_version_above_the_drivers_is_refused_or_answered_with_the_newest() {
    let _gpu = portable();
    let version = basic::driver_version().expect("a version");
    let newest = lookup::address(c"cuInit", version, 0);
    let answer = lookup::address(c"cuInit", version + 1000, 0);
    let known = [Err(Code::INVALID_VALUE), newest];
    assert!(known.contains(&answer), "{answer:?}");
}
