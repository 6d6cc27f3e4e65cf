//! Touches memory and frees it, so that the next run finds the machine in the same state as any other run.
//!
//! A hypervisor may reclaim a virtual machine's free memory: whole huge pages, after a few seconds (Linux calls this
//! free page reporting). The next user of such a page waits for the hypervisor a hundred times as long as it takes to
//! clear a huge page. A time would then depend on the previous runs and on how long ago they ended, not on the
//! allocator.

/// Argument that selects this module in place of a workload.
pub const NAME: &str = "ready";

/// Bytes to touch, more than any timed workload holds.
const BYTES: usize = 512 << 20;
const PAGE: usize = 4096;

/// Touches the memory, in huge pages if the system has them. Does nothing if the system refuses the memory.
#[cfg(target_os = "linux")]
pub fn ready_memory() {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: this is a new mapping, at an address that the system chooses.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return;
    }
    // SAFETY: the mapping is ours. Without huge pages, small pages are touched.
    unsafe { libc::madvise(start, BYTES, libc::MADV_HUGEPAGE) };
    for at in (0..BYTES).step_by(PAGE) {
        let page = start.cast::<u8>().wrapping_add(at);
        // SAFETY: the byte is inside the mapping, which nothing else uses.
        unsafe { page.write_volatile(1) };
    }
    // SAFETY: the mapping is ours, and nothing uses it any more.
    unsafe { libc::munmap(start, BYTES) };
}

/// Does nothing, since only Linux is known to report free pages.
#[cfg(not(target_os = "linux"))]
pub fn ready_memory() {}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    #[test]
    fn all_of_the_memory_is_touched() {
        let before = crate::memory::faults().unwrap();
        super::ready_memory();
        // There is at least one fault for each huge page.
        let least = super::BYTES / (2 << 20);
        assert!(crate::memory::faults().unwrap() - before >= least as u64);
    }
}
