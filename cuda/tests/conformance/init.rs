//! Initialization of the driver, and its texts for errors.

use larder_cuda_abi::Code;

use crate::{
    api::{basic, context, memory},
    child,
    gpu::portable,
    refused::refusals,
};

refusals! {
    /// Rule: the flags of cuInit must be 0; otherwise the call returns CUDA_ERROR_INVALID_VALUE (source: CUDA Driver
    /// API, Initialization, cuInit).
    fn init_refuses_flags() { basic::init(1) } => INVALID_VALUE;

    /// Rule: cuDriverGetVersion returns CUDA_ERROR_INVALID_VALUE if its argument is null (source: CUDA Driver API,
    /// Version Management, cuDriverGetVersion).
    fn the_version_needs_a_place() { basic::driver_version_to_null() } => INVALID_VALUE;

    /// Rule: for a number that is not an error, cuGetErrorName and cuGetErrorString return CUDA_ERROR_INVALID_VALUE
    /// (source: CUDA Driver API, Error Handling).
    fn a_number_that_is_no_error_has_no_name() {
        basic::error_name(99_999), basic::error_name(54_321),
        basic::error_string(99_999), basic::error_string(54_321)
    } => INVALID_VALUE;
}

/// Rule: any driver function that is called before cuInit returns CUDA_ERROR_NOT_INITIALIZED (source: CUDA Driver API,
/// Initialization, cuInit).
#[test]
fn calls_before_init_answer_not_initialized() {
    child::bare(|| {
        let refused = Err(Code::NOT_INITIALIZED);
        assert_eq!(basic::device(0), refused);
        assert_eq!(basic::device_count(), refused);
        assert_eq!(context::retain_primary(0).err(), refused.err());
        assert_eq!(memory::alloc(256).err(), refused.err());
        basic::init(0).expect("a driver");
        assert_eq!(basic::device(0), Ok(0));
    });
}

/// Rule: the version can be queried before cuInit (source: CUDA Driver API, Version Management, cuDriverGetVersion,
/// which lists no error but CUDA_ERROR_INVALID_VALUE).
#[test]
fn the_version_can_be_asked_before_init() {
    child::bare(|| {
        assert!(basic::driver_version().is_ok());
    });
}

/// Rule: cuInit may be called again (source: CUDA Driver API, Initialization, cuInit: no error is documented for it).
#[test]
fn init_may_be_called_again() {
    let _gpu = portable();
    assert_eq!(basic::init(0), Ok(()));
}

/// Rule: the version is 1000 * major + 10 * minor (source: CUDA Driver API, Version Management, cuDriverGetVersion).
#[test]
fn the_version_is_a_thousand_majors_and_ten_minors() {
    let _gpu = portable();
    let version = basic::driver_version().expect("a version");
    assert!(version >= 11_040, "{version}");
    assert_eq!(version % 10, 0, "{version}");
}

/// Rule: cuGetErrorName returns the enumerator's name (source: CUDA Driver API, Error Handling).
#[test]
fn an_error_is_named_as_its_enumerator() {
    let _gpu = portable();
    let known = [
        Code::SUCCESS,
        Code::INVALID_VALUE,
        Code::OUT_OF_MEMORY,
        Code::NOT_INITIALIZED,
        Code::INVALID_CONTEXT,
        Code::INVALID_HANDLE,
        Code::NOT_FOUND,
        Code::NOT_READY,
        Code::ILLEGAL_ADDRESS,
        Code::STREAM_CAPTURE_UNSUPPORTED,
        Code::CAPTURED_EVENT,
    ];
    for code in known {
        let name = basic::error_name(code.0);
        assert_eq!(name.as_deref(), Ok(code.name().expect("a known code")));
    }
}

/// Returns the codes that we declare and that a driver of this version has.
fn codes_of_the_driver() -> impl Iterator<Item = Code> {
    let version = basic::driver_version().expect("a version");
    let since = |code| match code {
        Code::CONTAINED | Code::TENSOR_MEMORY_LEAK => 12_080,
        Code::MPS_CLIENT_TERMINATED => 11_080,
        _ => 0,
    };
    Code::all().filter(move |code| version >= since(*code))
}

/// Rule: every result that this project names has the number and name that the driver gives it (source: CUDA Driver
/// API, Data types, CUresult).
#[test]
fn every_code_of_ours_is_one_of_the_drivers() {
    let _gpu = portable();
    for code in codes_of_the_driver() {
        let name = basic::error_name(code.0);
        assert_eq!(name.ok().as_deref(), code.name(), "{}", code.0);
    }
}

/// Rule: cuGetErrorString describes a known error (source: CUDA Driver API, Error Handling).
#[test]
fn an_error_has_a_description() {
    let _gpu = portable();
    for code in codes_of_the_driver() {
        let text = basic::error_string(code.0).expect("a description");
        assert!(!text.is_empty(), "{code:?}");
    }
}
