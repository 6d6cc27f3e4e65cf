//! The operators of C++, by the names that the Itanium ABI gives them where a size has 64 bits.
//!
//! An operator that finds no memory leaves the rest to the one of the program's C++ library, which it stands
//! in front of: that one asks again, calls the program's new handler, and throws or gives null. It is asked as
//! the last thing a function does, so nothing is thrown through Rust. A program without such a library, as
//! one that is linked with all of it, ends instead.

use core::ffi::CStr;
use core::mem;

use libc::{c_void, size_t};

use crate::HEAP;
use crate::c::{alloc_aligned, free};

/// The operator of the program's C++ library.
#[cold]
fn next(name: &CStr) -> *mut c_void {
    // SAFETY: a name that ends with 0.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if next.is_null() {
        // SAFETY: the call has no conditions.
        unsafe { libc::abort() };
    }
    next
}

/// `operator new` in its forms: each with the function that finds no memory, and what both take.
macro_rules! new {
    ($($name:ident, $again:ident, $text:literal, ($bytes:ident $(, $align:ident)? $(; $nothrow:ident)?);)*) => {$(
        #[cold]
        #[inline(never)]
        extern "C" fn $again(
            $bytes: size_t,
            $($align: size_t,)?
            $($nothrow: *const c_void,)?
        ) -> *mut c_void {
            type Operator = extern "C" fn(
                size_t,
                $(new!(@type $align size_t),)?
                $(new!(@type $nothrow *const c_void),)?
            ) -> *mut c_void;
            let next = next($text);
            // SAFETY: the operator of this name, which takes what this one took.
            let next = unsafe { mem::transmute::<*mut c_void, Operator>(next) };
            next($bytes, $($align,)? $($nothrow,)?)
        }

        /// An `operator new`.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(
            $bytes: size_t,
            $($align: size_t,)?
            $($nothrow: *const c_void,)?
        ) -> *mut c_void {
            let block = new!(@alloc $bytes $($align)?);
            match block.is_null() {
                true => $again($bytes, $($align,)? $($nothrow,)?),
                false => block.cast(),
            }
        }
    )*};
    (@type $argument:ident $type:ty) => { $type };
    (@alloc $bytes:ident) => { HEAP.malloc($bytes) };
    (@alloc $bytes:ident $align:ident) => { alloc_aligned($align, $bytes) };
}

new! {
    _Znwm, new_again, c"_Znwm", (bytes);
    _Znam, new_array_again, c"_Znam", (bytes);
    _ZnwmSt11align_val_t, new_aligned_again, c"_ZnwmSt11align_val_t", (bytes, align);
    _ZnamSt11align_val_t, new_array_aligned_again, c"_ZnamSt11align_val_t", (bytes, align);
    _ZnwmRKSt9nothrow_t, new_nothrow_again, c"_ZnwmRKSt9nothrow_t", (bytes; nothrow);
    _ZnamRKSt9nothrow_t, new_array_nothrow_again, c"_ZnamRKSt9nothrow_t", (bytes; nothrow);
    _ZnwmSt11align_val_tRKSt9nothrow_t, new_aligned_nothrow_again,
        c"_ZnwmSt11align_val_tRKSt9nothrow_t", (bytes, align; nothrow);
    _ZnamSt11align_val_tRKSt9nothrow_t, new_array_aligned_nothrow_again,
        c"_ZnamSt11align_val_tRKSt9nothrow_t", (bytes, align; nothrow);
}

/// `operator delete` in its forms. Lengths and alignments are not needed.
macro_rules! delete {
    ($($name:ident($($more:ident),*);)*) => {$(
        /// An `operator delete`.
        ///
        /// # Safety
        /// The conditions of `free`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(block: *mut c_void, $($more: size_t),*) {
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
