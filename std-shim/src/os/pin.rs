//! Pinning the library in memory while the system holds pointers to its functions.

/// Keeps the library into which this heap is linked from being unloaded, because the system calls
/// functions of that library when a thread ends or the process forks. Does nothing for a program.
///
/// Needed only with glibc; musl never unloads libraries. Called without a lock of the heap,
/// because the loader may allocate.
#[cfg(all(
    target_os = "linux",
    target_env = "gnu",
    target_pointer_width = "64",
    not(target_feature = "crt-static"),
    not(miri),
))]
pub(crate) fn pin_library() {
    let _keep = super::errno::KeepErrno::new();
    let here: fn() = pin_library;
    let here = here as usize;
    if is_in_program(here) {
        return;
    }
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let place = core::ptr::without_provenance::<libc::c_void>(here);
    // SAFETY: fills a variable of ours about a function of this library.
    if unsafe { libc::dladdr(place, info.as_mut_ptr()) } == 0 {
        return;
    }
    // SAFETY: filled just now.
    let path = unsafe { info.assume_init() }.dli_fname;
    if !path.is_null() {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: a path from the loader itself. The library is already loaded, so no code of it
        // runs. Its handle is kept.
        unsafe { libc::dlopen(path, flags) };
    }
}

/// Returns whether an address lies in the program itself. Reads the program headers, so it takes
/// no lock of the loader.
#[cfg(all(
    target_os = "linux",
    target_env = "gnu",
    target_pointer_width = "64",
    not(target_feature = "crt-static"),
    not(miri),
))]
fn is_in_program(address: usize) -> bool {
    // SAFETY: reads a number of the process.
    let headers = unsafe { libc::getauxval(libc::AT_PHDR) } as usize;
    // SAFETY: reads a number of the process.
    let count = unsafe { libc::getauxval(libc::AT_PHNUM) } as usize;
    let first = core::ptr::with_exposed_provenance::<libc::Elf64_Phdr>(headers);
    if first.is_null() || !first.is_aligned() {
        return true;
    }
    // SAFETY: the kernel reports the place and number of the headers, which stay mapped.
    let headers_of_program = unsafe { core::slice::from_raw_parts(first, count) };
    let own = headers_of_program
        .iter()
        .find(|header| header.p_type == libc::PT_PHDR);
    let base = own.map_or(0, |own| headers.wrapping_sub(own.p_vaddr as usize));
    headers_of_program
        .iter()
        .filter(|header| header.p_type == libc::PT_LOAD)
        .any(|header| {
            let start = base.wrapping_add(header.p_vaddr as usize);
            address.wrapping_sub(start) < header.p_memsz as usize
        })
}

/// Does nothing: the library is never unloaded.
#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    target_pointer_width = "64",
    not(target_feature = "crt-static"),
    not(miri),
)))]
pub(crate) fn pin_library() {}
