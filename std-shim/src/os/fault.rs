//! A hook for faults, before they end the program.
//!
//! The handler moves to a large stack that was mapped beforehand: a thread of a Rust program runs
//! handlers on a stack of some 8 KiB, which a report would overflow. The unwinder walks from there
//! to the interrupted function.

/// Arranges that the first fault calls `explain` with the addresses of the faulting access and of
/// its instruction, and then restores the program's earlier handler. The access is then tried
/// again. Called for each block whose access can fault; does nothing once the handler is installed.
///
/// A Rust program's runtime installs a handler for overflowing stacks before `main`, unless the
/// program has another handler by then. So the first calls wait for that one.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn watch(explain: fn(*mut u8, usize)) {
    linux::watch(explain);
}

/// Does nothing: faults are not reported here.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn watch(_explain: fn(*mut u8, usize)) {}

#[cfg(all(target_os = "linux", not(miri)))]
mod linux {
    use core::{mem, ptr};

    use larder_core::sync::{AtomicPtr, AtomicU32, Ordering};

    use super::super::background::sleep_ns;
    use super::super::errno::KeepErrno;
    use super::super::{Native, Os};

    /// Bytes of the stack for a report: ten times the need of a build without optimisation that
    /// looks up names. They take no memory before they are used.
    const STACK_BYTES: usize = 1 << 20;
    /// Number of calls that wait for the handler of Rust's runtime. The runtime makes fewer
    /// allocations before it, and a program without the runtime, which has no such handler, few
    /// more.
    const MAX_EARLY_CALLS: u32 = if cfg!(feature = "std") { 16 } else { 0 };
    /// How long a thread waits for another thread's report: 100 times 100 ms. A report that a hook
    /// or a fork has stopped does not keep the process.
    const WAITS: u32 = 100;
    const WAIT_NS: u64 = 100_000_000;

    /// Data for the handler. It lies above the stack for the report, and stays mapped.
    #[repr(C, align(64))]
    struct FaultWatch {
        explain: fn(*mut u8, usize),
        /// The program's earlier handler.
        before: libc::sigaction,
    }

    /// A fault, for the function that runs on the large stack.
    struct Fault {
        watch: *const FaultWatch,
        info: *const libc::siginfo_t,
        context: *const libc::ucontext_t,
    }

    /// Null until the handler is being installed.
    static WATCH: AtomicPtr<FaultWatch> = AtomicPtr::new(ptr::null_mut());
    static EARLY_CALLS: AtomicU32 = AtomicU32::new(0);
    /// Whether a thread is explaining a fault, or has explained one. Only the first thread that
    /// faults uses the large stack.
    static STATE: AtomicU32 = AtomicU32::new(NO_FAULT);
    const NO_FAULT: u32 = 0;
    const EXPLAINING: u32 = 1;
    const EXPLAINED: u32 = 2;

    pub(super) fn watch(explain: fn(*mut u8, usize)) {
        // Relaxed: nothing is read behind the pointer here.
        if !WATCH.load(Ordering::Relaxed).is_null() {
            return;
        }
        let _keep = KeepErrno::new();
        // SAFETY: zeros are no flags and no signals.
        let mut before: libc::sigaction = unsafe { mem::zeroed() };
        // SAFETY: a variable of ours.
        unsafe { libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut before) };
        if before.sa_sigaction == libc::SIG_DFL
            && EARLY_CALLS.fetch_add(1, Ordering::Relaxed) < MAX_EARLY_CALLS
        {
            return;
        }
        let Some(watch) = map() else {
            return;
        };
        // SAFETY: memory of ours, aligned to a page, that long.
        unsafe { watch.write(FaultWatch { explain, before }) };
        // Release: the handler reads the data. A thread that loses leaves its memory.
        let others =
            WATCH.compare_exchange(ptr::null_mut(), watch, Ordering::Release, Ordering::Relaxed);
        if others.is_err() {
            return;
        }
        // SAFETY: zeros are no flags and no signals.
        let mut now: libc::sigaction = unsafe { mem::zeroed() };
        now.sa_sigaction = faulted as *const () as usize;
        now.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // Another handler would start on the stack that this one has left.
        // SAFETY: a variable of ours.
        unsafe { libc::sigfillset(&raw mut now.sa_mask) };
        // SAFETY: a function of this library, which is never unloaded while its heap is in use.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const now, ptr::null_mut()) };
    }

    /// Maps the stack, above an inaccessible page. Returns the address of its upper end, where
    /// there is room for a `FaultWatch`.
    fn map() -> Option<*mut FaultWatch> {
        let page = Native.page_bytes();
        let bytes = STACK_BYTES.next_multiple_of(page) + page;
        let start = Native.reserve(page + bytes, page)?.as_ptr();
        // SAFETY: in the range reserved just now.
        if !unsafe { Native.commit(start.wrapping_add(page), bytes) } {
            return None;
        }
        Some(start.wrapping_add(bytes).cast())
    }

    extern "C" fn faulted(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        let watch = WATCH.load(Ordering::Acquire);
        let mut fault = Fault {
            watch,
            info,
            context: context.cast(),
        };
        // Acquire: the thread that reads `EXPLAINED` tries its access again with the earlier
        // handler.
        let first =
            STATE.compare_exchange(NO_FAULT, EXPLAINING, Ordering::Acquire, Ordering::Acquire);
        if first.is_ok() {
            // SAFETY: the stack lies below `watch`, and this thread has it alone.
            unsafe { call_on_stack(&raw mut fault, watch.cast(), explain) };
            STATE.store(EXPLAINED, Ordering::Release);
            return;
        }
        for _ in 0..WAITS {
            if STATE.load(Ordering::Acquire) == EXPLAINED {
                return;
            }
            sleep_ns(WAIT_NS);
        }
        // SAFETY: `watch` stays mapped.
        unsafe { restore(watch) };
    }

    extern "C" fn explain(fault: *mut Fault) {
        let _keep = KeepErrno::new();
        // SAFETY: a variable of the caller, which waits; what it points to stays valid as long.
        let (watch, info, context) =
            unsafe { (&*(*fault).watch, &*(*fault).info, &*(*fault).context) };
        let is_fault = info.si_code > 0;
        if is_fault {
            // SAFETY: the signal is a fault, so it has an address.
            let address = unsafe { info.si_addr() };
            (watch.explain)(address.cast(), instruction(context));
        }
        // SAFETY: `watch` stays mapped.
        unsafe { restore(watch) };
        if !is_fault {
            // A process sent the signal, so no access will fault again.
            // SAFETY: the signal is blocked until the handler returns.
            unsafe { libc::raise(libc::SIGSEGV) };
        }
    }

    /// Restores the program's earlier handler.
    ///
    /// # Safety
    /// `watch` was written by [`watch`].
    unsafe fn restore(watch: *const FaultWatch) {
        // SAFETY: a handler of the program, as it was.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const (*watch).before, ptr::null_mut()) };
    }

    /// Calls a function on the stack that ends at `top`, and returns to this stack. The directives
    /// let the unwinder do the same.
    ///
    /// # Safety
    /// No code uses the stack, which is long enough and ends at a multiple of 16.
    #[cfg(target_arch = "x86_64")]
    #[unsafe(naked)]
    unsafe extern "C" fn call_on_stack(
        fault: *mut Fault,
        top: *mut u8,
        call: extern "C" fn(*mut Fault),
    ) {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "push rbp",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset rbp, -16",
            "mov rbp, rsp",
            ".cfi_def_cfa_register rbp",
            "mov rsp, rsi",
            "call rdx",
            "mov rsp, rbp",
            "pop rbp",
            ".cfi_def_cfa rsp, 8",
            "ret",
            ".cfi_endproc",
        )
    }

    /// Calls a function on the stack that ends at `top`, and returns to this stack. The directives
    /// let the unwinder find the caller from there.
    #[cfg(target_arch = "aarch64")]
    #[unsafe(naked)]
    unsafe extern "C" fn call_on_stack(
        fault: *mut Fault,
        top: *mut u8,
        call: extern "C" fn(*mut Fault),
    ) {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "stp x29, x30, [sp, #-16]!",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset w29, -16",
            ".cfi_offset w30, -8",
            "mov x29, sp",
            ".cfi_def_cfa w29, 16",
            "mov sp, x1",
            "blr x2",
            "mov sp, x29",
            "ldp x29, x30, [sp], #16",
            ".cfi_def_cfa wsp, 0",
            ".cfi_restore w30",
            ".cfi_restore w29",
            "ret",
            ".cfi_endproc",
        )
    }

    /// Calls the function on the handler's own stack, which may be too short.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    unsafe fn call_on_stack(fault: *mut Fault, _: *mut u8, call: extern "C" fn(*mut Fault)) {
        call(fault);
    }

    /// Returns the interrupted instruction; 0 on machines whose registers are not listed here.
    fn instruction(context: &libc::ucontext_t) -> usize {
        #[cfg(target_arch = "x86_64")]
        return context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
        #[cfg(target_arch = "aarch64")]
        return context.uc_mcontext.pc as usize;
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        return 0;
    }
}
