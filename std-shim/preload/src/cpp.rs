//! The operators of C++, under their names in the Itanium ABI with 64-bit sizes.
//!
//! A program may replace each of them, and the standard defines which others then use it: `new[]`
//! calls `new`, and all forms of `delete` call the one without a length. So only four operators
//! touch the heap. The others call those four through their symbols, which may be the program's.
//! The forms that do not throw are the C++ library's own; they catch the exceptions of the
//! operators here.
//!
//! An operator that finds no memory calls the operator with the same name in the C++ library, which
//! calls the program's new handler, tries again, and throws `std::bad_alloc`. That call, like a
//! call of one of the program's operators, is the last in its function, so nothing is thrown
//! through Rust. The compiler turns these calls into jumps, except in debug builds: there, such an
//! exception ends the process. (`C-unwind` does not help: where panics abort, it makes each
//! exception end the process.)

use core::ffi::CStr;
use core::mem;
use core::ptr;

use libc::{c_void, size_t};

use crate::HEAP_OF_NEW;
use crate::c::{alloc_aligned, free};

/// The C++ libraries, for programs in other languages: a library that such a program loads later
/// may bring a C++ library that is not visible globally.
const LIBRARIES: [&CStr; 2] = [c"libstdc++.so.6", c"libc++.so.1"];

type New = extern "C" fn(size_t) -> *mut c_void;
type NewAligned = extern "C" fn(size_t, size_t) -> *mut c_void;
type Delete = unsafe extern "C" fn(*mut c_void);
type DeleteAligned = unsafe extern "C" fn(*mut c_void, size_t);

/// An operator by its symbol. The loader writes its address here; a volatile read hides it from the
/// compiler.
struct Symbol<F>(F);

impl<F: Copy> Symbol<F> {
    #[inline(always)]
    fn get(&'static self) -> F {
        // SAFETY: reads an initialized value.
        unsafe { ptr::read_volatile(&raw const self.0) }
    }
}

static NEW: Symbol<New> = Symbol(_Znwm);
static NEW_ALIGNED: Symbol<NewAligned> = Symbol(_ZnwmSt11align_val_t);
static DELETE: Symbol<Delete> = Symbol(_ZdlPv);
static DELETE_ARRAY: Symbol<Delete> = Symbol(_ZdaPv);
static DELETE_ALIGNED: Symbol<DeleteAligned> = Symbol(_ZdlPvSt11align_val_t);
static DELETE_ARRAY_ALIGNED: Symbol<DeleteAligned> = Symbol(_ZdaPvSt11align_val_t);

/// Returns the C++ library's operator of this name. Ends a program that has none, because no code
/// in it could catch the exception.
#[cold]
fn of_library(name: &CStr) -> *mut c_void {
    let in_library = |library: &CStr| {
        // SAFETY: a NUL-terminated name. The flag loads nothing new.
        let library =
            unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if library.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: an open library, and a NUL-terminated name.
        unsafe { libc::dlsym(library, name.as_ptr()) }
    };
    // SAFETY: a NUL-terminated name.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    let others = LIBRARIES.into_iter().map(in_library);
    match [next].into_iter().chain(others).find(|at| !at.is_null()) {
        Some(operator) => operator,
        // SAFETY: the call has no conditions.
        None => unsafe { libc::abort() },
    }
}

/// Calls the C++ library's `new`. May throw `std::bad_alloc`, or an exception of the program's new
/// handler.
#[cold]
#[inline(never)]
extern "C" fn new_again(bytes: size_t) -> *mut c_void {
    let operator = of_library(c"_Znwm");
    // SAFETY: an operator of this name has this signature.
    let operator: New = unsafe { mem::transmute(operator) };
    operator(bytes)
}

/// Calls the C++ library's aligned `new`. May throw `std::bad_alloc`, or an exception of the
/// program's new handler.
#[cold]
#[inline(never)]
extern "C" fn new_aligned_again(bytes: size_t, align: size_t) -> *mut c_void {
    let operator = of_library(c"_ZnwmSt11align_val_t");
    // SAFETY: an operator of this name has this signature.
    let operator: NewAligned = unsafe { mem::transmute(operator) };
    operator(bytes, align)
}

/// Allocates as C++'s `new` does.
#[unsafe(no_mangle)]
pub extern "C" fn _Znwm(bytes: size_t) -> *mut c_void {
    let block = HEAP_OF_NEW.malloc(bytes);
    match block.is_null() {
        true => new_again(bytes),
        false => block.cast(),
    }
}

/// Allocates as C++'s `new` does, at a multiple of `align`.
#[unsafe(no_mangle)]
pub extern "C" fn _ZnwmSt11align_val_t(bytes: size_t, align: size_t) -> *mut c_void {
    let block = alloc_aligned(&HEAP_OF_NEW, align, bytes);
    match block.is_null() {
        true => new_aligned_again(bytes, align),
        false => block.cast(),
    }
}

/// Allocates as C++'s `new[]` does.
#[unsafe(no_mangle)]
pub extern "C" fn _Znam(bytes: size_t) -> *mut c_void {
    NEW.get()(bytes)
}

/// Allocates as C++'s `new[]` does, at a multiple of `align`.
#[unsafe(no_mangle)]
pub extern "C" fn _ZnamSt11align_val_t(bytes: size_t, align: size_t) -> *mut c_void {
    NEW_ALIGNED.get()(bytes, align)
}

/// Defines each `operator delete` with the operator that it calls and, if they are known, the
/// length and alignment.
macro_rules! delete {
    ($($name:ident($($more:ident),*) $other:expr, ($($same:ident),*) $(, $bytes:ident, $align:expr)?;)*) => {$(
        /// Frees as an `operator delete`.
        ///
        /// # Safety
        /// The conditions of `free`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(block: *mut c_void, $($more: size_t),*) {
            $(let _ = $more;)*
            $(HEAP_OF_NEW.check_layout(block.cast(), $bytes, $align);)?
            // SAFETY: null, or the caller's block, which the caller gives up.
            unsafe { ($other)(block, $($same),*) };
        }
    )*};
}

delete! {
    _ZdlPv() free, ();
    _ZdlPvSt11align_val_t(align) free, ();
    _ZdlPvm(bytes) DELETE.get(), (), bytes, 16;
    _ZdaPv() DELETE.get(), ();
    _ZdaPvm(bytes) DELETE_ARRAY.get(), (), bytes, 16;
    _ZdlPvmSt11align_val_t(bytes, align) DELETE_ALIGNED.get(), (align), bytes, align;
    _ZdaPvSt11align_val_t(align) DELETE_ALIGNED.get(), (align);
    _ZdaPvmSt11align_val_t(bytes, align) DELETE_ARRAY_ALIGNED.get(), (align), bytes, align;
}
