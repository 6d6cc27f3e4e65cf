//! Functions by name: `dlsym` and the driver's `cuGetProcAddress`, with which frameworks look functions up,
//! return this library's function in place of the driver's function with that name, if there is one.
//!
//! INTERSYM every other look-up goes on to the C library's `dlsym` with the caller's return address, by which
//! `dlsym` identifies the caller: it is jumped to, not called.

use core::arch::naked_asm;
use core::ptr::{self, NonNull};
use larder_cuda::driver::Code;
use larder_cuda::driver::abi::functions;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::driver::NextDriver;
use super::table::by_name;
use super::{Library, acts};

/// The version of the C library's interface in which `dlsym` first appeared.
#[cfg(target_arch = "x86_64")]
const FIRST_VERSION: &CStr = c"GLIBC_2.2.5";
#[cfg(target_arch = "aarch64")]
const FIRST_VERSION: &CStr = c"GLIBC_2.17";

/// The C library's `dlsym`, once it has been looked up.
static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

unsafe extern "C" {
    fn dlvsym(library: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// Returns the C library's `dlsym`. Must not allocate, since the caller may be an allocator that is starting.
fn real_dlsym() -> *mut c_void {
    // Relaxed, here and below: every thread finds the same address.
    let known = DLSYM.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let name = c"dlsym".as_ptr();
    // SAFETY: both strings are NUL-terminated.
    let found = unsafe { dlvsym(libc::RTLD_NEXT, name, FIRST_VERSION.as_ptr()) };
    DLSYM.store(found, Ordering::Relaxed);
    found
}

/// Looks up a name in a library, with the C library's `dlsym`.
pub(super) fn symbol(library: *mut c_void, name: &CStr) -> Option<NonNull<c_void>> {
    let real = NonNull::new(real_dlsym())?;
    type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    // SAFETY: the address is that of `dlsym`, whose type this is; it gets an open library or a pseudo handle,
    // and a NUL-terminated string.
    NonNull::new(unsafe {
        let real: Dlsym = core::mem::transmute(real.as_ptr());
        real(library, name.as_ptr())
    })
}

/// Returns the function that `dlsym` should return instead of the C library's answer, or null.
///
/// # Safety
/// The conditions of `dlsym`; `caller` is the address of its caller.
unsafe extern "C" fn instead(
    library: *mut c_void,
    name: *const c_char,
    caller: *const c_void,
) -> *const c_void {
    real_dlsym();
    // `RTLD_NEXT` always requests another library's function.
    if name.is_null() || library == libc::RTLD_NEXT || !acts() {
        return ptr::null();
    }
    // SAFETY: a caller of `dlsym` passes a NUL-terminated string, and null was excluded above.
    let name = unsafe { CStr::from_ptr(name) };
    let own = name.to_str().ok().filter(|name| name.starts_with("cu"));
    let Some(own) = own.and_then(by_name) else {
        return ptr::null();
    };
    // INTER4: this library's own look-ups go to the driver.
    let is_own = |address| {
        let (of, own) = (Library::of(address), Library::own());
        of.zip(own).is_some_and(|(of, own)| of.base == own.base)
    };
    if is_own(caller) {
        return ptr::null();
    }
    match symbol(library, name) {
        Some(found) if NextDriver::has(found.as_ptr()) => own,
        _ => ptr::null(),
    }
}

/// `dlsym` for the whole process.
///
/// # Safety
/// The conditions of `dlsym`.
// SAFETY: a preloaded library may take the C library's place.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "mov rdx, [rsp + 16]", // who called
        "sub rsp, 8",          // calls want the stack at a multiple of 16
        "call {instead}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2:",
        "mov rax, [rip + {real}]",
        "jmp rax", // INTERSYM
        instead = sym instead,
        real = sym DLSYM,
    )
}

/// `dlsym` for the whole process.
///
/// # Safety
/// The conditions of `dlsym`.
// SAFETY: a preloaded library may take the C library's place.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void {
    naked_asm!(
        "stp x29, x30, [sp, -32]!",
        "stp x0, x1, [sp, 16]",
        "mov x2, x30", // who called
        "bl {instead}",
        "cbz x0, 2f",
        "ldp x29, x30, [sp], 32",
        "ret",
        "2:",
        "ldp x0, x1, [sp, 16]",
        "ldp x29, x30, [sp], 32",
        "adrp x16, {real}",
        "ldr x16, [x16, :lo12:{real}]",
        "br x16", // INTERSYM
        instead = sym instead,
        real = sym DLSYM,
    )
}

/// The newest version of CUDA whose functions are known here.
const KNOWN_VERSION: c_int = 13_040;

/// The flag that requests the function for per-thread default streams.
const PER_THREAD: u64 = 2;

/// Returns the function here for a name without a version.
fn by_base(base: &str, version: c_int, flags: u64) -> Option<*const c_void> {
    let name = functions::newest(base, u32::try_from(version).ok()?)?;
    let per_thread = || by_name(&format!("{name}_ptsz"));
    let wanted = (flags & PER_THREAD != 0).then(per_thread).flatten();
    wanted.or_else(|| by_name(name))
}

/// Looks a name up in the driver with `ask`, and replaces the function found with the one here.
pub(super) fn replace(
    driver: &NextDriver,
    name: *const c_char,
    place: *mut *const c_void,
    (version, flags): (c_int, u64),
    ask: impl FnOnce() -> Code,
) -> Code {
    let code = ask();
    if code != Code::SUCCESS || place.is_null() || !acts() {
        return code;
    }
    // SAFETY: INTER6: the driver has read the name, and has written to the place that it was given.
    let (base, place) = unsafe { (CStr::from_ptr(name), &mut *place) };
    if place.is_null() {
        return code;
    }
    let own = base.to_str().ok();
    let Some(own) = own.and_then(|base| by_base(base, version, flags)) else {
        return code;
    };
    // A function that changed in a version newer than the known ones has another prototype.
    let is_known =
        version <= KNOWN_VERSION || driver.function(name, KNOWN_VERSION, flags) == Some(*place);
    if is_known {
        *place = own;
    }
    code
}
