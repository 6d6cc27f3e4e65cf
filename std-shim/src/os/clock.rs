//! The coarse clock. On Linux it is read with the code that the kernel maps into each process (the
//! vDSO), not through the C library: slow paths read the clock, and a program may replace
//! `clock_gettime` with a function that calls the loader, takes locks and allocates.

use core::mem::MaybeUninit;
use core::ptr;

use larder_core::sync::{AtomicPtr, Ordering};

use super::errno::KeepErrno;

/// The type of the kernel's `clock_gettime`.
type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC_COARSE;

/// The kernel's `clock_gettime`, or null before the first use.
static FOUND: AtomicPtr<libc::c_void> = AtomicPtr::new(ptr::null_mut());

/// Returns the time of a clock that is read in a few nanoseconds, exact to a few milliseconds.
pub(crate) fn coarse_ms() -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // Relaxed: the function exists from the program's start.
    let mut found = FOUND.load(Ordering::Relaxed);
    if found.is_null() {
        found = find();
        FOUND.store(found, Ordering::Relaxed);
    }
    // SAFETY: a function of this type, which `find` returned.
    let ask = unsafe { core::mem::transmute::<*mut libc::c_void, ClockGettime>(found) };
    // SAFETY: a variable of ours.
    unsafe { ask(CLOCK, time.as_mut_ptr()) };
    // SAFETY: zeros are a value of these numbers.
    let time = unsafe { time.assume_init() };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Calls `clock_gettime` as a system call.
unsafe extern "C" fn call(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    let _keep = KeepErrno::new();
    // SAFETY: the caller's variable.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as libc::c_int }
}

/// Returns the vDSO's `clock_gettime`, or the system call where there is none, as under valgrind.
#[cold]
fn find() -> *mut libc::c_void {
    // SAFETY: reads a number of the process.
    let image = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    let image = ptr::with_exposed_provenance::<u8>(image);
    let found = match image.is_null() {
        true => None,
        // SAFETY: the image that the kernel mapped, which stays mapped.
        false => unsafe { find_in(image) },
    };
    let call: ClockGettime = call;
    found.unwrap_or(call as *mut libc::c_void)
}

#[cfg(target_arch = "aarch64")]
const NAME: &[u8] = b"__kernel_clock_gettime\0";
#[cfg(not(target_arch = "aarch64"))]
const NAME: &[u8] = b"__vdso_clock_gettime\0";

const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
/// Maximum numbers of entries and symbols read: more than any vDSO has.
const MOST: usize = 256;

/// Finds a function of the vDSO by its name.
///
/// # Safety
/// `image` is the start of an ELF image that is mapped whole and stays mapped.
unsafe fn find_in(image: *const u8) -> Option<*mut libc::c_void> {
    // SAFETY: the header of the image.
    let head = unsafe { &*image.cast::<libc::Elf64_Ehdr>() };
    let headers = image.wrapping_add(head.e_phoff as usize);
    // SAFETY: the header has the place and the number of the program headers.
    let headers = unsafe {
        core::slice::from_raw_parts(headers.cast::<libc::Elf64_Phdr>(), head.e_phnum.into())
    };
    let of_type = |kind| headers.iter().find(|header| header.p_type == kind);
    let (loaded, dynamic) = (of_type(libc::PT_LOAD)?, of_type(libc::PT_DYNAMIC)?);
    // Addresses in the image are those for which it was linked.
    let at = |address: u64| {
        let offset = address.wrapping_sub(loaded.p_vaddr.wrapping_sub(loaded.p_offset));
        image.wrapping_add(offset as usize)
    };
    let entries = image
        .wrapping_add(dynamic.p_offset as usize)
        .cast::<[u64; 2]>();
    let entry = |tag| {
        (0..MOST)
            // SAFETY: the table ends with a null entry, and nothing is read behind that.
            .map(|index| unsafe { *entries.wrapping_add(index) })
            .take_while(|[kind, _]| *kind != DT_NULL)
            .find_map(|[kind, value]| (kind == tag).then_some(value))
    };
    let (symbols, names) = (at(entry(DT_SYMTAB)?), at(entry(DT_STRTAB)?));
    let names_bytes = entry(DT_STRSZ)? as usize;
    // The names follow the symbols.
    let count = names.addr().checked_sub(symbols.addr())? / size_of::<libc::Elf64_Sym>();
    let symbols = symbols.cast::<libc::Elf64_Sym>();
    // SAFETY: the image's table, that long.
    let symbols = unsafe { core::slice::from_raw_parts(symbols, count.min(MOST)) };
    // SAFETY: the image's table, that long.
    let names = unsafe { core::slice::from_raw_parts(names, names_bytes) };
    let is_named = |symbol: &&libc::Elf64_Sym| {
        let name = names.get(symbol.st_name as usize..);
        symbol.st_value != 0 && name.is_some_and(|name| name.starts_with(NAME))
    };
    let function = symbols.iter().find(is_named)?;
    Some(at(function.st_value).cast_mut().cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_code_is_found_and_gives_the_kernels_time() {
        let call: ClockGettime = call;
        let system_call = call as *mut libc::c_void;
        // SAFETY: reads a number of the process.
        if unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } != 0 {
            assert_ne!(find(), system_call);
        }
        let by_call = || {
            let mut time = MaybeUninit::<libc::timespec>::zeroed();
            // SAFETY: a variable of ours.
            unsafe { call(CLOCK, time.as_mut_ptr()) };
            // SAFETY: zeros are a value of these numbers.
            let time = unsafe { time.assume_init() };
            time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
        };
        let (before, now, after) = (by_call(), coarse_ms(), by_call());
        assert!(before > 0 && (before..=after).contains(&now));
    }
}
