//! Functions by name: `dlsym` and the driver's `cuGetProcAddress`, by which frameworks get theirs, give the
//! functions of this library where the driver has one of that name.
//!
//! INTERSYM whatever is not the driver's goes on to the C library's `dlsym` with the caller's return address, by
//! which that tells who asks: it is jumped to, and not called.

use core::arch::naked_asm;
use core::ptr::{self, NonNull};
use larder_cuda::driver::Code;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::driver::Driver;
use super::{Library, acts, in_front_of, launch, memory, pages, pools};

/// The version of the C library's interface that has its first `dlsym`.
#[cfg(target_arch = "x86_64")]
const FIRST_VERSION: &CStr = c"GLIBC_2.2.5";
#[cfg(target_arch = "aarch64")]
const FIRST_VERSION: &CStr = c"GLIBC_2.17";

/// `dlsym` of the C library, once it was asked for.
static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

unsafe extern "C" {
    fn dlvsym(library: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// The C library's `dlsym`. Nothing here may allocate: whoever asks may be an allocator that begins.
fn real_dlsym() -> *mut c_void {
    // Relaxed, both: every thread finds the same.
    let known = DLSYM.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let name = c"dlsym".as_ptr();
    // SAFETY: texts that end in a zero byte.
    let found = unsafe { dlvsym(libc::RTLD_NEXT, name, FIRST_VERSION.as_ptr()) };
    DLSYM.store(found, Ordering::Relaxed);
    found
}

/// A name in a library, by the C library.
pub(super) fn symbol(library: *mut c_void, name: &CStr) -> Option<NonNull<c_void>> {
    let real = NonNull::new(real_dlsym())?;
    type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    // SAFETY: it is `dlsym`, whose type this is.
    let real: Dlsym = unsafe { core::mem::transmute(real.as_ptr()) };
    // SAFETY: a library that is open, or a pseudo handle; a text that ends in a zero byte.
    NonNull::new(unsafe { real(library, name.as_ptr()) })
}

/// What `dlsym` gives instead of the C library's answer, or null.
///
/// # Safety
/// What `dlsym` wants of its arguments; `caller` is who called it.
unsafe extern "C" fn instead(
    library: *mut c_void,
    name: *const c_char,
    caller: *const c_void,
) -> *const c_void {
    real_dlsym();
    // The next one of a name is another's than ours, whoever asks.
    if name.is_null() || library == libc::RTLD_NEXT || !acts() {
        return ptr::null();
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    let Some(own) = by_name(name.to_bytes()) else {
        return ptr::null();
    };
    // INTER4.
    let is_own = |address| {
        let (of, own) = (Library::of(address), Library::own());
        of.zip(own).is_some_and(|(of, own)| of.base == own.base)
    };
    if is_own(caller) {
        return ptr::null();
    }
    match symbol(library, name) {
        Some(found) if Driver::has(found.as_ptr()) => own,
        _ => ptr::null(),
    }
}

/// `dlsym` for the whole process.
///
/// # Safety
/// The conditions of `dlsym`.
// SAFETY: a preloaded library is there to take the C library's place.
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
// SAFETY: a preloaded library is there to take the C library's place.
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

/// The function here that stands in front of the driver's of that name.
#[rustfmt::skip]
fn by_name(name: &[u8]) -> Option<*const c_void> {
    if !name.starts_with(b"cu") {
        return None;
    }
    let function = match name {
        b"cuGetProcAddress" => cuGetProcAddress as *const (),
        b"cuGetProcAddress_v2" => cuGetProcAddress_v2 as *const (),
        b"cuMemAlloc_v2" => memory::cuMemAlloc_v2 as *const (),
        b"cuMemAllocPitch_v2" => memory::cuMemAllocPitch_v2 as *const (),
        b"cuMemAllocManaged" => memory::cuMemAllocManaged as *const (),
        b"cuMemFree_v2" => memory::cuMemFree_v2 as *const (),
        b"cuMemGetInfo_v2" => memory::cuMemGetInfo_v2 as *const (),
        b"cuDeviceTotalMem_v2" => memory::cuDeviceTotalMem_v2 as *const (),
        b"cuCtxDestroy" => memory::cuCtxDestroy as *const (),
        b"cuCtxDestroy_v2" => memory::cuCtxDestroy_v2 as *const (),
        b"cuDevicePrimaryCtxRetain" => memory::cuDevicePrimaryCtxRetain as *const (),
        b"cuDevicePrimaryCtxRelease" => memory::cuDevicePrimaryCtxRelease as *const (),
        b"cuDevicePrimaryCtxRelease_v2" => memory::cuDevicePrimaryCtxRelease_v2 as *const (),
        b"cuDevicePrimaryCtxReset" => memory::cuDevicePrimaryCtxReset as *const (),
        b"cuDevicePrimaryCtxReset_v2" => memory::cuDevicePrimaryCtxReset_v2 as *const (),
        b"cuMemAllocAsync" => pools::cuMemAllocAsync as *const (),
        b"cuMemAllocAsync_ptsz" => pools::cuMemAllocAsync_ptsz as *const (),
        b"cuMemAllocFromPoolAsync" => pools::cuMemAllocFromPoolAsync as *const (),
        b"cuMemAllocFromPoolAsync_ptsz" => pools::cuMemAllocFromPoolAsync_ptsz as *const (),
        b"cuMemFreeAsync" => pools::cuMemFreeAsync as *const (),
        b"cuMemFreeAsync_ptsz" => pools::cuMemFreeAsync_ptsz as *const (),
        b"cuMemPoolCreate" => pools::cuMemPoolCreate as *const (),
        b"cuMemPoolDestroy" => pools::cuMemPoolDestroy as *const (),
        b"cuMemPoolTrimTo" => pools::cuMemPoolTrimTo as *const (),
        b"cuMemCreate" => pages::cuMemCreate as *const (),
        b"cuMemRelease" => pages::cuMemRelease as *const (),
        b"cuMemRetainAllocationHandle" => pages::cuMemRetainAllocationHandle as *const (),
        b"cuMemMap" => pages::cuMemMap as *const (),
        b"cuMemUnmap" => pages::cuMemUnmap as *const (),
        b"cuLaunchKernel" => launch::cuLaunchKernel as *const (),
        b"cuLaunchKernel_ptsz" => launch::cuLaunchKernel_ptsz as *const (),
        b"cuLaunchKernelEx" => launch::cuLaunchKernelEx as *const (),
        b"cuLaunchKernelEx_ptsz" => launch::cuLaunchKernelEx_ptsz as *const (),
        b"cuLaunchCooperativeKernel" => launch::cuLaunchCooperativeKernel as *const (),
        b"cuLaunchCooperativeKernel_ptsz" => launch::cuLaunchCooperativeKernel_ptsz as *const (),
        b"cuGraphLaunch" => launch::cuGraphLaunch as *const (),
        b"cuGraphLaunch_ptsz" => launch::cuGraphLaunch_ptsz as *const (),
        b"cuStreamDestroy" => launch::cuStreamDestroy as *const (),
        b"cuStreamDestroy_v2" => launch::cuStreamDestroy_v2 as *const (),
        _ => return None,
    };
    Some(function.cast())
}

/// The newest version of CUDA whose functions are known here.
const KNOWN_VERSION: c_int = 13_040;

/// Asks for the function of each thread's own default stream.
const PER_THREAD: u64 = 2;

/// Names without a version that mean more than one function: since when each, the newest first.
#[rustfmt::skip]
const VERSIONED: [(&[u8], c_int, &[u8]); 15] = [
    (b"cuGetProcAddress", 12_000, b"cuGetProcAddress_v2"),
    (b"cuGetProcAddress", 11_030, b"cuGetProcAddress"),
    (b"cuMemAlloc", 3_020, b"cuMemAlloc_v2"),
    (b"cuMemAllocPitch", 3_020, b"cuMemAllocPitch_v2"),
    (b"cuMemFree", 3_020, b"cuMemFree_v2"),
    (b"cuMemGetInfo", 3_020, b"cuMemGetInfo_v2"),
    (b"cuDeviceTotalMem", 3_020, b"cuDeviceTotalMem_v2"),
    (b"cuCtxDestroy", 4_000, b"cuCtxDestroy_v2"),
    (b"cuCtxDestroy", 2_000, b"cuCtxDestroy"),
    (b"cuStreamDestroy", 4_000, b"cuStreamDestroy_v2"),
    (b"cuStreamDestroy", 2_000, b"cuStreamDestroy"),
    (b"cuDevicePrimaryCtxRelease", 11_000, b"cuDevicePrimaryCtxRelease_v2"),
    (b"cuDevicePrimaryCtxRelease", 7_000, b"cuDevicePrimaryCtxRelease"),
    (b"cuDevicePrimaryCtxReset", 11_000, b"cuDevicePrimaryCtxReset_v2"),
    (b"cuDevicePrimaryCtxReset", 7_000, b"cuDevicePrimaryCtxReset"),
];

/// The function here for a name without a version.
fn by_base(base: &[u8], version: c_int, flags: u64) -> Option<*const c_void> {
    let of_base = |(own, ..): &&(&[u8], c_int, &[u8])| *own == base;
    if VERSIONED.iter().any(|row| of_base(&row)) {
        let mut of_base = VERSIONED.iter().filter(of_base);
        let (_, _, name) = of_base.find(|(_, since, _)| *since <= version)?;
        return by_name(name);
    }
    if base.last().is_some_and(u8::is_ascii_digit) {
        // It has a version.
        return None;
    }
    let per_thread = || by_name(&[base, b"_ptsz"].concat());
    let wanted = (flags & PER_THREAD != 0).then(per_thread).flatten();
    wanted.or_else(|| by_name(base))
}

/// Has the driver look a name up, by `ask`, and gives the function here in place of what it found.
fn replaced(
    name: *const c_char,
    place: *mut *const c_void,
    (version, flags): (c_int, u64),
    ask: impl Fn(*mut *const c_void, c_int) -> Code,
) -> Code {
    let code = ask(place, version);
    if code != Code::SUCCESS || place.is_null() || !acts() {
        return code;
    }
    // SAFETY: the driver has written it.
    let found = unsafe { *place };
    if found.is_null() {
        return code;
    }
    // SAFETY: the driver has read the text.
    let base = unsafe { CStr::from_ptr(name) }.to_bytes();
    let Some(own) = by_base(base, version, flags) else {
        return code;
    };
    // A function that was made anew since what is known here is called in another way.
    let mut known = found;
    if version > KNOWN_VERSION && ask(&raw mut known, KNOWN_VERSION) != Code::SUCCESS {
        return code;
    }
    if known == found {
        // SAFETY: the driver has written there.
        unsafe { *place = own };
    }
    code
}

/// Looks a function of the driver up, as until CUDA 11.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGetProcAddress(
    name: *const c_char,
    function: *mut *const c_void,
    version: c_int,
    flags: u64,
) -> Code {
    in_front_of(
        |driver| driver.get_proc_address,
        |_, real| {
            // SAFETY: the caller's promise; `replaced` asks with places of its own.
            let ask = |place, version| unsafe { real(name, place, version, flags) };
            replaced(name, function, (version, flags), ask)
        },
    )
}

/// Looks a function of the driver up.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    function: *mut *const c_void,
    version: c_int,
    flags: u64,
    status: *mut u32,
) -> Code {
    in_front_of(
        |driver| driver.get_proc_address_v2,
        |_, real| {
            // SAFETY: the caller's promise; `replaced` asks with places of its own.
            let ask = |place, version| unsafe { real(name, place, version, flags, status) };
            replaced(name, function, (version, flags), ask)
        },
    )
}
