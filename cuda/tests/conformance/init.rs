//! Starting the driver, and its texts for errors.

use larder_cuda_abi::Code;

use crate::{
    api::{basic, context, memory},
    child,
    gpu::portable,
};

/// Rule: any driver function called before cuInit answers CUDA_ERROR_NOT_INITIALIZED (source: CUDA
/// Driver API, Initialization, cuInit).
#[test]
fn calls_before_init_answer_not_initialized() {
    child::bare("init::calls_before_init_answer_not_initialized", || {
        let refused = Err(Code::NOT_INITIALIZED);
        assert_eq!(basic::device(0), refused);
        assert_eq!(basic::device_count(), refused);
        assert_eq!(context::retain_primary(0).err(), refused.err());
        assert_eq!(memory::alloc(256).err(), refused.err());
        basic::init(0).expect("a driver");
        assert_eq!(basic::device(0), Ok(0));
    });
}

/// Rule: the version can be asked before cuInit (source: CUDA Driver API, Version Management,
/// cuDriverGetVersion: of its errors only CUDA_ERROR_INVALID_VALUE is listed).
#[test]
fn the_version_can_be_asked_before_init() {
    child::bare("init::the_version_can_be_asked_before_init", || {
        assert!(basic::driver_version().is_ok());
    });
}

/// Rule: the flags of cuInit must be 0, else CUDA_ERROR_INVALID_VALUE (source: CUDA Driver API,
/// Initialization, cuInit).
#[test]
fn init_refuses_flags() {
    let _gpu = portable();
    assert_eq!(basic::init(1), Err(Code::INVALID_VALUE));
}

/// Rule: cuInit may be called again (source: CUDA Driver API, Initialization, cuInit: no error is
/// documented for it).
#[test]
fn init_may_be_called_again() {
    let _gpu = portable();
    assert_eq!(basic::init(0), Ok(()));
}

/// Rule: the version is 1000 * major + 10 * minor (source: CUDA Driver API, Version Management,
/// cuDriverGetVersion).
#[test]
fn the_version_is_a_thousand_majors_and_ten_minors() {
    let _gpu = portable();
    let version = basic::driver_version().expect("a version");
    assert!(version >= 11_040, "{version}");
    assert_eq!(version % 10, 0, "{version}");
}

/// Rule: cuDriverGetVersion answers CUDA_ERROR_INVALID_VALUE if its argument is null (source: CUDA
/// Driver API, Version Management, cuDriverGetVersion).
#[test]
fn the_version_needs_a_place() {
    let _gpu = portable();
    assert_eq!(basic::driver_version_to_null(), Err(Code::INVALID_VALUE));
}

/// Rule: cuGetErrorName gives the enumerator's name (source: CUDA Driver API, Error Handling).
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

/// The codes of ours that a driver of this version has.
fn codes_of_the_driver() -> impl Iterator<Item = Code> {
    let version = basic::driver_version().expect("a version");
    let since = |code| match code {
        Code::CONTAINED | Code::TENSOR_MEMORY_LEAK => 12_080,
        Code::MPS_CLIENT_TERMINATED => 11_080,
        _ => 0,
    };
    Code::all().filter(move |code| version >= since(*code))
}

/// Rule: every result this project names has the number and name that the driver gives it (source:
/// CUDA Driver API, Data types, CUresult).
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

/// Rule: for a number that is no error cuGetErrorName and cuGetErrorString answer
/// CUDA_ERROR_INVALID_VALUE (source: CUDA Driver API, Error Handling).
#[test]
fn a_number_that_is_no_error_has_no_name() {
    let _gpu = portable();
    for number in [99_999, 54_321] {
        assert_eq!(basic::error_name(number), Err(Code::INVALID_VALUE));
        assert_eq!(basic::error_string(number), Err(Code::INVALID_VALUE));
    }
}

/// Rule: each code a driver of this version answers is known to the binding, which would be wrong
/// to take another (source: CUDA Driver API, Data types, CUresult).
#[test]
fn every_code_of_ours_is_one_of_the_bindings() {
    let _gpu = portable();
    for code in Code::all() {
        let number = code.0;
        let found = BINDING.iter().find(|known| **known as u32 == number);
        assert!(found.is_some(), "{code:?}");
        let spelt = format!("{:?}", found.expect("asserted"));
        assert_eq!(Some(spelt.as_str()), code.name());
    }
}

const BINDING: &[cudarc::driver::sys::CUresult] = {
    use cudarc::driver::sys::CUresult::*;
    &[
        CUDA_SUCCESS,
        CUDA_ERROR_INVALID_VALUE,
        CUDA_ERROR_OUT_OF_MEMORY,
        CUDA_ERROR_NOT_INITIALIZED,
        CUDA_ERROR_DEINITIALIZED,
        CUDA_ERROR_PROFILER_DISABLED,
        CUDA_ERROR_STUB_LIBRARY,
        CUDA_ERROR_NO_DEVICE,
        CUDA_ERROR_INVALID_DEVICE,
        CUDA_ERROR_DEVICE_NOT_LICENSED,
        CUDA_ERROR_INVALID_IMAGE,
        CUDA_ERROR_INVALID_CONTEXT,
        CUDA_ERROR_MAP_FAILED,
        CUDA_ERROR_UNMAP_FAILED,
        CUDA_ERROR_ARRAY_IS_MAPPED,
        CUDA_ERROR_ALREADY_MAPPED,
        CUDA_ERROR_NO_BINARY_FOR_GPU,
        CUDA_ERROR_ALREADY_ACQUIRED,
        CUDA_ERROR_NOT_MAPPED,
        CUDA_ERROR_ECC_UNCORRECTABLE,
        CUDA_ERROR_UNSUPPORTED_LIMIT,
        CUDA_ERROR_CONTEXT_ALREADY_IN_USE,
        CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
        CUDA_ERROR_INVALID_PTX,
        CUDA_ERROR_NVLINK_UNCORRECTABLE,
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
        CUDA_ERROR_CONTAINED,
        CUDA_ERROR_INVALID_SOURCE,
        CUDA_ERROR_FILE_NOT_FOUND,
        CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND,
        CUDA_ERROR_SHARED_OBJECT_INIT_FAILED,
        CUDA_ERROR_OPERATING_SYSTEM,
        CUDA_ERROR_INVALID_HANDLE,
        CUDA_ERROR_ILLEGAL_STATE,
        CUDA_ERROR_NOT_FOUND,
        CUDA_ERROR_NOT_READY,
        CUDA_ERROR_ILLEGAL_ADDRESS,
        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        CUDA_ERROR_LAUNCH_TIMEOUT,
        CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
        CUDA_ERROR_PEER_ACCESS_NOT_ENABLED,
        CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE,
        CUDA_ERROR_CONTEXT_IS_DESTROYED,
        CUDA_ERROR_ASSERT,
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
        CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
        CUDA_ERROR_HARDWARE_STACK_ERROR,
        CUDA_ERROR_ILLEGAL_INSTRUCTION,
        CUDA_ERROR_MISALIGNED_ADDRESS,
        CUDA_ERROR_INVALID_ADDRESS_SPACE,
        CUDA_ERROR_INVALID_PC,
        CUDA_ERROR_LAUNCH_FAILED,
        CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
        CUDA_ERROR_TENSOR_MEMORY_LEAK,
        CUDA_ERROR_NOT_PERMITTED,
        CUDA_ERROR_NOT_SUPPORTED,
        CUDA_ERROR_SYSTEM_NOT_READY,
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
        CUDA_ERROR_MPS_CLIENT_TERMINATED,
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        CUDA_ERROR_STREAM_CAPTURE_MERGE,
        CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
        CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
        CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        CUDA_ERROR_CAPTURED_EVENT,
        CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
        CUDA_ERROR_TIMEOUT,
        CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
        CUDA_ERROR_EXTERNAL_DEVICE,
        CUDA_ERROR_UNKNOWN,
    ]
};
