//! The calling thread's stack, walked with the unwinder of exceptions, because programs are built
//! without frame pointers. The unwinder allocates nothing, unless a program registers frames of
//! code generated at run time. On x86-64 `quick` walks with the same tables (`rule`), caches their
//! rules, and falls back on the unwinder.

#[cfg(target_arch = "x86_64")]
mod quick;
#[cfg(target_arch = "x86_64")]
mod rule;
#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests;

use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;
use core::{mem, ptr, slice};

#[cfg(feature = "std")]
use linked as unwinder;
#[cfg(not(feature = "std"))]
use loaded as unwinder;

/// The unwinder's state of a frame.
type Context = *mut c_void;
type UnwindStep = extern "C" fn(Context, *mut c_void) -> c_int;
/// Return codes: continue, and stop.
const NEXT: c_int = 0;
const END: c_int = 5;

/// The unwinder's functions.
#[derive(Clone, Copy)]
#[repr(C)]
struct Unwinder {
    backtrace: unsafe extern "C" fn(UnwindStep, *mut c_void) -> c_int,
    ip: unsafe extern "C" fn(Context) -> usize,
    /// Returns the end of the stack at the moment when the frame called the next inner one.
    cfa: unsafe extern "C" fn(Context) -> usize,
    #[cfg(target_arch = "x86_64")]
    find_entry: quick::FindEntry,
}

/// The return addresses that a walk has found so far.
struct ArenaWalk<'a> {
    unwinder: Unwinder,
    /// Frames that end below this address are left out.
    below: usize,
    frames: &'a mut [usize],
    count: usize,
}

/// Writes the return addresses of the calling thread's stack, the innermost first, beginning with
/// the return address of the function that has a variable at the address `inner`. Returns how many
/// there are; 0 without an unwinder.
///
/// Inlined, because each additional frame costs time.
#[inline(always)]
pub(crate) fn walk(inner: usize, frames: &mut [usize]) -> usize {
    let Some(unwinder) = unwinder::get().filter(|_| !frames.is_empty()) else {
        return 0;
    };
    #[cfg(target_arch = "x86_64")]
    if let Some(count) = quick::walk(inner, frames, unwinder.find_entry) {
        return count;
    }
    walk_by(unwinder, inner, frames)
}

/// Does the work of [`walk`] with the unwinder.
fn walk_by(unwinder: Unwinder, inner: usize, frames: &mut [usize]) -> usize {
    let mut walk = ArenaWalk {
        unwinder,
        below: inner,
        frames,
        count: 0,
    };
    // SAFETY: the unwinder calls `step` with the walk, which lives until it returns.
    unsafe { (unwinder.backtrace)(step, (&raw mut walk).cast()) };
    walk.count
}

extern "C" fn step(context: Context, walk: *mut c_void) -> c_int {
    // SAFETY: the walk of the function above, which waits for this call.
    let walk = unsafe { &mut *walk.cast::<ArenaWalk>() };
    // SAFETY: the unwinder's own context.
    if unsafe { (walk.unwinder.cfa)(context) } <= walk.below {
        return NEXT;
    }
    let Some(frame) = walk.frames.get_mut(walk.count) else {
        return END;
    };
    // SAFETY: the unwinder's own context.
    *frame = unsafe { (walk.unwinder.ip)(context) };
    walk.count += usize::from(*frame != 0);
    match walk.count < walk.frames.len() {
        true => NEXT,
        false => END,
    }
}

/// Returns the calling thread's number in the system.
pub(crate) fn thread_number() -> u32 {
    // SAFETY: the call has no conditions.
    let number = unsafe { libc::syscall(libc::SYS_gettid) };
    u32::try_from(number).unwrap_or(0)
}

/// The location of an address of code: the file, the offset in it, and the name of the function if
/// the file exports it.
pub(crate) struct CodeLocation {
    pub(crate) file: &'static CStr,
    pub(crate) offset: usize,
    pub(crate) function: Option<&'static CStr>,
}

/// Returns the location of an address of code; `None` if it lies in no file.
pub(crate) fn place_of(address: usize) -> Option<CodeLocation> {
    // SAFETY: null pointers and a number.
    let mut info: libc::Dl_info = unsafe { mem::zeroed() };
    let address_of = ptr::without_provenance::<c_void>(address);
    // SAFETY: writes to a variable of ours. The call accepts any address.
    if unsafe { libc::dladdr(address_of, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    let text = |text: *const libc::c_char| {
        // SAFETY: a string of the loader, which stays valid while the file is loaded. It is read
        // before the program goes on.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
    };
    let base = match is_at_fixed_addresses(info.dli_fbase) {
        true => 0,
        false => info.dli_fbase.addr(),
    };
    Some(CodeLocation {
        file: text(info.dli_fname)?,
        offset: address.wrapping_sub(base),
        function: text(info.dli_sname),
    })
}

/// The addresses of the program's file and of the file that contains the heap, which may be the
/// same.
#[derive(Default)]
pub(crate) struct LoadedFiles {
    pub(crate) program: Range<usize>,
    pub(crate) heap: Range<usize>,
}

impl LoadedFiles {
    /// Finds the files. Takes a lock of the loader, which may be held by a thread that allocates.
    pub(crate) fn find() -> Self {
        let mut files = Self::default();
        // SAFETY: the loader calls `visit` with the variable, and then returns.
        unsafe { libc::dl_iterate_phdr(Some(Self::visit), (&raw mut files).cast()) };
        files
    }

    /// Notes a loaded file. The program comes first.
    unsafe extern "C" fn visit(
        file: *mut libc::dl_phdr_info,
        _: usize,
        files: *mut c_void,
    ) -> c_int {
        // SAFETY: the variable of `find`, which waits for this call.
        let files = unsafe { &mut *files.cast::<Self>() };
        // SAFETY: a record of the loader, valid during this call.
        let file = unsafe { &*file };
        let count = usize::from(file.dlpi_phnum);
        // SAFETY: the headers of the file, that many; they are loaded with it.
        let headers = unsafe { slice::from_raw_parts(file.dlpi_phdr, count) };
        let parts = headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD)
            .map(|header| {
                let start = (file.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
                start..start + header.p_memsz as usize
            });
        let all = parts.reduce(|first, next| first.start..next.end);
        let all = all.unwrap_or_default();
        if files.program.is_empty() {
            files.program = all.clone();
        }
        if all.contains(&(Self::find as *const ()).addr()) {
            files.heap = all;
        }
        0
    }
}

/// Returns whether a loaded file has the addresses for which it was linked.
fn is_at_fixed_addresses(base: *const c_void) -> bool {
    const ET_EXEC: u16 = 2;
    // The type follows the 16 bytes of the identification.
    // SAFETY: the header of a loaded file, which is the first part of the file.
    unsafe { base.cast::<u16>().wrapping_add(8).read() == ET_EXEC }
}

/// The unwinder that Rust's standard library links.
#[cfg(feature = "std")]
mod linked {
    use super::{Context, UnwindStep, Unwinder};
    use core::ffi::{c_int, c_void};

    unsafe extern "C" {
        fn _Unwind_Backtrace(step: UnwindStep, argument: *mut c_void) -> c_int;
        fn _Unwind_GetIP(context: Context) -> usize;
        fn _Unwind_GetCFA(context: Context) -> usize;
        #[cfg(target_arch = "x86_64")]
        fn _Unwind_Find_FDE(
            place: *const c_void,
            found: *mut super::quick::QuickFacts,
        ) -> *const u8;
    }

    #[expect(clippy::unnecessary_wraps, reason = "there may be none elsewhere")]
    pub(super) fn get() -> Option<Unwinder> {
        Some(Unwinder {
            backtrace: _Unwind_Backtrace,
            ip: _Unwind_GetIP,
            cfa: _Unwind_GetCFA,
            #[cfg(target_arch = "x86_64")]
            find_entry: _Unwind_Find_FDE,
        })
    }
}

/// The unwinder of a program that may have none. It is looked up when the library is loaded,
/// before the program can be inside the loader, and only for a heap that needs it.
#[cfg(not(feature = "std"))]
mod loaded {
    use super::Unwinder;
    use core::ffi::{CStr, c_void};
    use core::{mem, ptr};

    use larder_core::sync::{AtomicPtr, Ordering};

    use crate::os::environment::variable;

    const LIBRARY: &CStr = c"libgcc_s.so.1";
    const COUNT: usize = size_of::<Unwinder>() / size_of::<*mut c_void>();
    const NAMES: [&CStr; COUNT] = [
        c"_Unwind_Backtrace",
        c"_Unwind_GetIP",
        c"_Unwind_GetCFA",
        #[cfg(target_arch = "x86_64")]
        c"_Unwind_Find_FDE",
    ];
    static FOUND: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(ptr::null_mut()) }; COUNT];

    #[used]
    #[unsafe(link_section = ".init_array")]
    static BEGIN: extern "C" fn() = find;

    extern "C" fn find() {
        let wanted = variable("LARDER_MODE").flatten() == Some(b"checking")
            || variable("LARDER_GUARD").flatten().is_some();
        // SAFETY: reads a number of the process: the loader's address. A program without a loader
        // can load nothing.
        if !wanted || unsafe { libc::getauxval(libc::AT_BASE) } == 0 {
            return;
        }
        // SAFETY: a NUL-terminated name. The heap may allocate during the call, and finds no
        // unwinder yet.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return;
        }
        for (found, name) in FOUND.iter().zip(NAMES).rev() {
            // SAFETY: an open library, and a NUL-terminated name.
            let function = unsafe { libc::dlsym(library, name.as_ptr()) };
            // Release, with the first function last: a thread that sees it sees all of them.
            found.store(function, Ordering::Release);
        }
    }

    pub(super) fn get() -> Option<Unwinder> {
        // Acquire: see `find`. The first function is read first.
        let functions = FOUND.each_ref().map(|found| found.load(Ordering::Acquire));
        if functions
            .first()
            .is_none_or(|backtrace| backtrace.is_null())
        {
            return None;
        }
        // SAFETY: functions of these signatures, as the ABI of exceptions has them.
        Some(unsafe { mem::transmute::<[*mut c_void; COUNT], Unwinder>(functions) })
    }
}
