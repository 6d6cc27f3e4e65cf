//! The operators of C++, under their names in the Itanium ABI with 64-bit sizes.
//!
//! A program may replace each of them, and the standard defines which others then use it: `new[]`
//! calls `new`, and all forms of `delete` call the one without a length. So only four operators
//! touch the heap. The others call those four through their symbols, which may be the program's.
//! The forms that do not throw are the C++ library's own; they catch the exceptions of the
//! operators here.
//!
//! An operator that finds no memory calls the operator with the same name in the C++ library, which
//! calls the program's new handler, tries again, and throws `std::bad_alloc`. In a program with a
//! static C++ library, which does not contain that operator, [`larder_new_handled`] does the same.
//! Such a call, like a call of one of the program's operators, is the last in its function, so
//! nothing is thrown through Rust. The compiler turns these calls into jumps, except in debug
//! builds: there, such an exception ends the process. (`C-unwind` does not help: where panics
//! abort, it makes each exception end the process.)

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

// `std::get_new_handler()` and GNU's `std::__throw_bad_alloc()`, each 0 in a program without it. The
// linker exports both from a program that contains a C++ library and is linked with `liblarder.so`.
// The function calls the handler, if there is one, and then jumps to `new`, or to the function that
// throws. An exception of the handler passes through it by the `.cfi` lines.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".weak _ZSt15get_new_handlerv",
    ".weak _ZSt17__throw_bad_allocv",
    ".pushsection .data.rel.ro.larder_in_program, \"aw\", @progbits",
    ".p2align 3",
    ".hidden larder_in_program",
    ".globl larder_in_program",
    "larder_in_program:",
    ".quad _ZSt15get_new_handlerv, _ZSt17__throw_bad_allocv",
    ".popsection",
    ".pushsection .text.larder_new_handled, \"ax\", @progbits",
    ".hidden larder_new_handled",
    ".globl larder_new_handled",
    "larder_new_handled:",
    ".cfi_startproc",
    "test rdx, rdx",
    "jz 2f",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rsi",
    ".cfi_adjust_cfa_offset 8",
    "push rcx",
    ".cfi_adjust_cfa_offset 8",
    "call rdx",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    "pop rsi",
    ".cfi_adjust_cfa_offset -8",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "jmp rcx",
    "2:",
    "jmp r8",
    ".cfi_endproc",
    ".popsection",
);

type GetHandler = extern "C" fn() -> *mut c_void;
type Throw = extern "C" fn() -> !;

/// Functions of a C++ library that the program contains.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
#[repr(C)]
struct InProgram {
    get_handler: Option<GetHandler>,
    throw: Option<Throw>,
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    static larder_in_program: InProgram;

    fn larder_new_handled(
        bytes: size_t,
        align: size_t,
        handler: *mut c_void,
        new: NewAligned,
        throw: Throw,
    ) -> *mut c_void;
}

/// Calls the new handler of a program that contains its C++ library, and then `new`; throws
/// `std::bad_alloc` if there is no handler. `new` may have no use for the second argument.
#[cold]
fn new_in_program(bytes: size_t, align: size_t, new: NewAligned) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the linker has written the addresses.
        let found = unsafe { ptr::read_volatile(&raw const larder_in_program) };
        if let Some(throw) = found.throw {
            let handler = found.get_handler.map_or(ptr::null_mut(), |get| get());
            // SAFETY: `new` takes these arguments, and the other functions take none.
            return unsafe { larder_new_handled(bytes, align, handler, new, throw) };
        }
    }
    let text = "larder: no memory for C++'s new, and the program contains no std::bad_alloc\n";
    // SAFETY: the bytes of a string. The result does not matter: the process ends.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    // SAFETY: the call has no conditions.
    unsafe { libc::abort() }
}

/// Returns the operator of this name in a shared C++ library, or null if there is none.
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
    let mut all = [next].into_iter().chain(others);
    all.find(|at| !at.is_null()).unwrap_or(ptr::null_mut())
}

/// Calls the C++ library's `new`. May throw `std::bad_alloc`, or an exception of the program's new
/// handler.
#[cold]
#[inline(never)]
extern "C" fn new_again(bytes: size_t) -> *mut c_void {
    // SAFETY: an operator of this name has this signature. Null is `None`.
    let operator: Option<New> = unsafe { mem::transmute(of_library(c"_Znwm")) };
    match operator {
        Some(operator) => operator(bytes),
        // SAFETY: the second argument is in a register, which `new` does not read.
        None => new_in_program(bytes, 0, unsafe {
            mem::transmute::<New, NewAligned>(_Znwm)
        }),
    }
}

/// Calls the C++ library's aligned `new`. May throw `std::bad_alloc`, or an exception of the
/// program's new handler.
#[cold]
#[inline(never)]
extern "C" fn new_aligned_again(bytes: size_t, align: size_t) -> *mut c_void {
    let name = c"_ZnwmSt11align_val_t";
    // SAFETY: an operator of this name has this signature. Null is `None`.
    let operator: Option<NewAligned> = unsafe { mem::transmute(of_library(name)) };
    match operator {
        Some(operator) => operator(bytes, align),
        None => new_in_program(bytes, align, _ZnwmSt11align_val_t),
    }
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
