//! C++ exceptions for callers that do not check for null, thrown with functions of the C++ library.
//!
//! No library is linked: a program that can catch an exception has loaded it. If the library is not
//! loaded, nothing is thrown, and the caller gets null.

use std::ffi::{CStr, c_char, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr::{self, NonNull};

use crate::outcome::larder_cuda_last_error;

/// The C++ library of Linux, which GCC and Clang use by default.
const CPP: &CStr = c"libstdc++.so.6";

/// `std::__throw_runtime_error(char const*)`.
const RUNTIME_ERROR: &CStr = c"_ZSt21__throw_runtime_errorPKc";

/// `std::__throw_bad_alloc()`.
const BAD_ALLOC: &CStr = c"_ZSt17__throw_bad_allocv";

/// The library of PyTorch that throws `c10::OutOfMemoryError`. A look-up in it also finds the names of the
/// libraries that it needs: libc10.so and the C++ library.
const PYTORCH: &CStr = c"libc10_cuda.so";

/// The names that throwing PyTorch's exception takes: the virtual table of `c10::OutOfMemoryError`,
/// `c10::Error::Error(std::string, std::shared_ptr<c10::LazyValue<std::string> const>, void const*)`,
/// `std::string::string(char const*, std::allocator<char> const&)`, `std::string::~string()`,
/// `__cxa_allocate_exception` and `__cxa_throw`.
const OUT_OF_MEMORY: [&CStr; 6] = [
    c"_ZTVN3c1016OutOfMemoryErrorE",
    c"_ZN3c105ErrorC1ENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESt10shared_ptrIKNS_9LazyValueIS6_EEEPKv",
    c"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEC1EPKcRKS3_",
    c"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEED1Ev",
    c"__cxa_allocate_exception",
    c"__cxa_throw",
];

/// Bytes for a `c10::OutOfMemoryError`, which has 128 in PyTorch 2.11 and may have more in a later one.
const EXCEPTION_BYTES: usize = 4096;

/// Room for a `std::string` of the C++ library.
#[repr(C, align(8))]
struct CppString(MaybeUninit<[u8; 32]>);

/// Finds names of a library and of the libraries that it needs, if all are loaded.
fn names<const COUNT: usize>(
    library: &CStr,
    names: [&CStr; COUNT],
) -> Option<[NonNull<c_void>; COUNT]> {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: the name is a NUL-terminated string; the flag keeps the call from loading anything.
    let library = NonNull::new(unsafe { libc::dlopen(library.as_ptr(), flags) })?;
    let mut found = [library; COUNT];
    for (place, name) in found.iter_mut().zip(names) {
        // The library stays open because the names lie in it.
        // SAFETY: the library is open and the name is NUL-terminated.
        *place = NonNull::new(unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) })?;
    }
    Some(found)
}

/// Throws `c10::OutOfMemoryError` with the text of the thread's last refusal, if PyTorch for CUDA is loaded.
/// Python receives it as `torch.OutOfMemoryError`.
pub(crate) fn out_of_memory() {
    let Some([table, error, string, end_string, allocate, throw]) = names(PYTORCH, OUT_OF_MEMORY)
    else {
        return;
    };
    let mut text = CppString(MaybeUninit::uninit());
    let text = ptr::from_mut(&mut text).cast::<c_void>();
    let mut backtrace = [0_usize; 2];
    // SAFETY: these are the functions' types by the Itanium C++ ABI, which GCC and Clang follow on Linux. The
    // names contain the types of the arguments: of the C++ library alone, whose layout is part of its own ABI.
    // `this`, a `std::string`, which has 32 bytes, and a `std::shared_ptr`, which has two pointers and is empty
    // if they are null, are passed by address and moved from.
    // The exception is large enough, because the allocated size need not be the size of the type: the C++
    // library neither copies nor measures an exception. `c10::OutOfMemoryError` adds no field to `c10::Error`,
    // so its virtual table is all that makes it one. A table begins with an offset and the type's description;
    // the virtual functions follow, first the destructor, because `std::exception` declares it first.
    // The last error lives until the thread's next refusal, and is copied. Nothing is left to drop (CAPI1).
    unsafe {
        let table = table.as_ptr().cast::<*mut c_void>();
        let error: unsafe extern "C-unwind" fn(
            *mut c_void,
            *mut c_void,
            *mut [usize; 2],
            *const c_void,
        ) = mem::transmute(error.as_ptr());
        let string: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, *const u8) =
            mem::transmute(string.as_ptr());
        let end_string: unsafe extern "C-unwind" fn(*mut c_void) =
            mem::transmute(end_string.as_ptr());
        let allocate: unsafe extern "C" fn(usize) -> *mut c_void =
            mem::transmute(allocate.as_ptr());
        let throw: unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, *mut c_void) =
            mem::transmute(throw.as_ptr());
        string(text, larder_cuda_last_error(), &0);
        let exception = allocate(EXCEPTION_BYTES);
        error(exception, text, &raw mut backtrace, ptr::null());
        end_string(text);
        let (description, functions) = (*table.add(1), table.add(2));
        exception.cast::<*mut *mut c_void>().write(functions);
        throw(exception, description, *functions);
    }
}

/// Throws `std::runtime_error` with the text of the thread's last refusal.
pub(crate) fn runtime_error() {
    let Some([function]) = names(CPP, [RUNTIME_ERROR]) else {
        return;
    };
    let text = larder_cuda_last_error();
    // SAFETY: this is the function's type in the C++ library. The text lives until the thread's next
    // refusal, and the exception copies it. Nothing is left to drop (CAPI1).
    unsafe {
        let throw: unsafe extern "C-unwind" fn(*const c_char) = mem::transmute(function.as_ptr());
        throw(text);
    }
}

/// Throws `std::bad_alloc`.
pub(crate) fn bad_alloc() {
    let Some([function]) = names(CPP, [BAD_ALLOC]) else {
        return;
    };
    // SAFETY: this is the function's type in the C++ library; it takes no arguments. Nothing is left to drop
    // (CAPI1).
    unsafe {
        let throw: unsafe extern "C-unwind" fn() = mem::transmute(function.as_ptr());
        throw();
    }
}
