//! The operators of C++, by the names that the Itanium ABI gives them where a size has 64 bits.
//!
//! An operator that finds no memory calls the program's new handler and tries again, as often as there is
//! one; then it throws `std::bad_alloc`, or gives null if it was asked not to throw. Both are done by the
//! program's C++ library, which is asked for by name: a program without one has nobody to catch.

use std::ffi::CStr;
use std::mem;
use std::ptr;

use libc::{c_void, size_t};

use crate::HEAP;
use crate::c::{alloc_aligned, free};

type Handler = extern "C-unwind" fn();

/// `std::get_new_handler`.
const GET_NEW_HANDLER: [&CStr; 1] = [c"_ZSt15get_new_handlerv"];
/// `std::__throw_bad_alloc` of libstdc++ and of libc++.
const THROW_BAD_ALLOC: [&CStr; 2] = [
    c"_ZSt17__throw_bad_allocv",
    c"_ZNSt3__117__throw_bad_allocEv",
];

/// A function of the program's C++ library, or null.
fn find(names: &[&CStr]) -> *mut c_void {
    let look = |name: &&CStr| {
        // SAFETY: a name that ends with 0.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    };
    names.iter().find_map(look).unwrap_or(ptr::null_mut())
}

/// Tries again as long as the program has a handler. May throw what the handler throws.
#[cold]
#[inline(never)]
extern "C-unwind" fn try_again(align: size_t, bytes: size_t) -> *mut c_void {
    let get = find(&GET_NEW_HANDLER);
    if get.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: a function of the C++ library with this signature.
    let get: extern "C-unwind" fn() -> Option<Handler> = unsafe { mem::transmute(get) };
    while let Some(handler) = get() {
        handler();
        let block = alloc_aligned(align, bytes);
        if !block.is_null() {
            return block.cast();
        }
    }
    ptr::null_mut()
}

/// For an operator that throws.
#[cold]
#[inline(never)]
extern "C-unwind" fn try_again_or_throw(align: size_t, bytes: size_t) -> *mut c_void {
    let block = try_again(align, bytes);
    if !block.is_null() {
        return block;
    }
    let throw = find(&THROW_BAD_ALLOC);
    if !throw.is_null() {
        // SAFETY: a function of the C++ library with this signature.
        let throw: extern "C-unwind" fn() = unsafe { mem::transmute(throw) };
        throw();
    }
    // SAFETY: the call has no conditions.
    unsafe { libc::abort() }
}

/// `operator new` in its forms: with an alignment or not, throwing or not.
macro_rules! new {
    ($($name:ident($($align:ident)?) $again:ident $($nothrow:ident)?;)*) => {$(
        /// An `operator new`.
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $name(
            bytes: size_t,
            $($align: size_t,)?
            $($nothrow: *const c_void,)?
        ) -> *mut c_void {
            $(let _ = $nothrow;)?
            let block = new!(@alloc bytes $($align)?);
            match block.is_null() {
                true => $again(new!(@align $($align)?), bytes),
                false => block.cast(),
            }
        }
    )*};
    (@alloc $bytes:ident) => { HEAP.malloc($bytes) };
    (@alloc $bytes:ident $align:ident) => { alloc_aligned($align, $bytes) };
    (@align) => { 16 };
    (@align $align:ident) => { $align };
}

new! {
    _Znwm() try_again_or_throw;
    _Znam() try_again_or_throw;
    _ZnwmSt11align_val_t(align) try_again_or_throw;
    _ZnamSt11align_val_t(align) try_again_or_throw;
    _ZnwmRKSt9nothrow_t() try_again nothrow;
    _ZnamRKSt9nothrow_t() try_again nothrow;
    _ZnwmSt11align_val_tRKSt9nothrow_t(align) try_again nothrow;
    _ZnamSt11align_val_tRKSt9nothrow_t(align) try_again nothrow;
}

/// `operator delete` in its forms. Lengths and alignments are not needed.
macro_rules! delete {
    ($($name:ident($($more:ident),*);)*) => {$(
        /// An `operator delete`.
        ///
        /// # Safety
        /// The conditions of `free`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(block: *mut c_void, $($more: size_t),*) {
            $(let _ = $more;)*
            // SAFETY: the caller's promise.
            unsafe { free(block) };
        }
    )*};
}

delete! {
    _ZdlPv();
    _ZdaPv();
    _ZdlPvm(bytes);
    _ZdaPvm(bytes);
    _ZdlPvSt11align_val_t(align);
    _ZdaPvSt11align_val_t(align);
    _ZdlPvmSt11align_val_t(bytes, align);
    _ZdaPvmSt11align_val_t(bytes, align);
    _ZdlPvRKSt9nothrow_t(nothrow);
    _ZdaPvRKSt9nothrow_t(nothrow);
    _ZdlPvSt11align_val_tRKSt9nothrow_t(align, nothrow);
    _ZdaPvSt11align_val_tRKSt9nothrow_t(align, nothrow);
}
