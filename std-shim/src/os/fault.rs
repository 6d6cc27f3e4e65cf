//! A hook for faults, before they end the program.

/// Arranges that the first fault calls `explain` with the addresses of the faulting access and of
/// its instruction, and then restores the program's earlier handler. The access is then tried
/// again. Called once.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn watch(explain: fn(*mut u8, usize)) {
    use core::mem;
    use core::ptr;

    use larder_core::sync::{AtomicPtr, Ordering};

    use super::errno::KeepErrno;

    static EXPLAIN: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
    static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

    extern "C" fn faulted(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        let _keep = KeepErrno::new();
        // SAFETY: the function stored by the call that registered this handler.
        let explain = unsafe {
            mem::transmute::<*mut (), fn(*mut u8, usize)>(EXPLAIN.load(Ordering::Acquire))
        };
        // SAFETY: the system's, for this call.
        let info = unsafe { &*info };
        // SAFETY: the signal is a fault, so it has an address.
        let address = unsafe { info.si_addr() };
        // SAFETY: the system's, for this call.
        let context = unsafe { &*context.cast::<libc::ucontext_t>() };
        explain(address.cast(), instruction(context));
        // SAFETY: the earlier handler, whose record stays in memory.
        unsafe {
            libc::sigaction(
                libc::SIGSEGV,
                BEFORE.load(Ordering::Acquire),
                ptr::null_mut(),
            )
        };
    }

    let _keep = KeepErrno::new();
    let Some(before) = super::Os::map(&super::Native, size_of::<libc::sigaction>(), 1) else {
        return;
    };
    let before = before.cast::<libc::sigaction>().as_ptr();
    // SAFETY: memory of ours, page-aligned, that long.
    unsafe { libc::sigaction(libc::SIGSEGV, ptr::null(), before) };
    EXPLAIN.store(explain as *mut (), Ordering::Release);
    BEFORE.store(before, Ordering::Release);
    // SAFETY: zeros are no flags and no signals.
    let mut now: libc::sigaction = unsafe { mem::zeroed() };
    now.sa_sigaction = faulted as *const () as usize;
    now.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: a function of this library, which is never unloaded while its heap is in use.
    unsafe { libc::sigaction(libc::SIGSEGV, &raw const now, ptr::null_mut()) };
}

/// Returns the interrupted instruction; 0 on machines whose registers are not listed here.
#[cfg(all(target_os = "linux", not(miri)))]
fn instruction(context: &libc::ucontext_t) -> usize {
    #[cfg(target_arch = "x86_64")]
    return context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
    #[cfg(target_arch = "aarch64")]
    return context.uc_mcontext.pc as usize;
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return 0;
}

/// Does nothing: faults are not reported here.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn watch(_explain: fn(*mut u8, usize)) {}
