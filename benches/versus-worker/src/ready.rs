//! Touches memory and gives it back, so that the run that follows finds the machine as any other does.
//!
//! A hypervisor may take what a virtual machine has free (Linux calls it free page reporting: whole huge pages, after
//! seconds). Whoever gets such a page next waits for the hypervisor, a hundred times as long as it takes to clear a
//! huge page. So a time would say what ran before, and how long ago, and not what the allocator does.

/// What the worker runs in place of a workload.
pub const NAME: &str = "ready";

/// More than any workload holds whose time counts.
const BYTES: usize = 512 << 20;
const PAGE: usize = 4096;

/// Touches the memory, in huge pages where the system has them. What cannot be had is left.
#[cfg(target_os = "linux")]
pub fn ready_memory() {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping wherever there is room.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return;
    }
    // SAFETY: our own mapping. Without huge pages the touches find small ones.
    unsafe { libc::madvise(start, BYTES, libc::MADV_HUGEPAGE) };
    for at in (0..BYTES).step_by(PAGE) {
        let page = start.cast::<u8>().wrapping_add(at);
        // SAFETY: inside the mapping, which nobody else knows.
        unsafe { page.write_volatile(1) };
    }
    // SAFETY: our own mapping, which nobody uses from here on.
    unsafe { libc::munmap(start, BYTES) };
}

/// Only Linux is known to do so.
#[cfg(not(target_os = "linux"))]
pub fn ready_memory() {}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    #[test]
    fn all_of_the_memory_is_touched() {
        let before = crate::memory::faults().unwrap();
        super::ready_memory();
        // As few as there can be: one for each huge page.
        let least = super::BYTES / (2 << 20);
        assert!(crate::memory::faults().unwrap() - before >= least as u64);
    }
}
