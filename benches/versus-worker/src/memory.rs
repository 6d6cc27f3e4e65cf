//! The process's memory, as Linux counts it; unknown elsewhere.
//!
//! Reading allocates nothing, so it does not change the result.

use std::fs::File;
use std::io::Read;

/// Resident bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    pub rss_bytes: u64,
    /// Peak resident bytes.
    pub peak_rss_bytes: u64,
}

/// Maximum bytes to read from the file, which is about 1.5 KiB long.
const BUFFER_BYTES: usize = 4096;

pub fn read() -> Option<Memory> {
    let mut buffer = [0; BUFFER_BYTES];
    let mut file = File::open("/proc/self/status").ok()?;
    let length = file.read(&mut buffer).ok()?;
    parse(std::str::from_utf8(&buffer[..length]).ok()?)
}

/// Returns the process's minor page faults so far: page faults for which the system read nothing
/// from disk.
#[cfg(unix)]
pub fn faults() -> Option<u64> {
    // SAFETY: all bits zero is a valid value of these numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes to `usage`, a local value.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    if failed != 0 {
        return None;
    }
    u64::try_from(usage.ru_minflt).ok()
}

/// Returns `None`, since only Unix systems count faults.
#[cfg(not(unix))]
pub fn faults() -> Option<u64> {
    None
}

fn parse(status: &str) -> Option<Memory> {
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        let kibibytes: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
        kibibytes.checked_mul(1024)
    };
    let rss_bytes = field("VmRSS:")?;
    // The kernel updates peaks with a delay.
    let peak_rss_bytes = field("VmHWM:")?.max(rss_bytes);
    Some(Memory {
        rss_bytes,
        peak_rss_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_process_is_read() {
        let status =
            "Name:\tx\nVmPeak:\t 9 kB\nVmHWM:\t  3260 kB\nVmRSS:\t  2000 kB\nThreads:\t1\n";
        let expected = Memory {
            rss_bytes: 2000 << 10,
            peak_rss_bytes: 3260 << 10,
        };
        assert_eq!(parse(status), Some(expected));
        assert_eq!(parse("Name:\tx\n"), None);
    }

    /// This test runs in a separate process, because other tests free memory at the same time.
    #[test]
    #[cfg(target_os = "linux")]
    fn memory_that_is_touched_is_counted() {
        const ALONE: &str = "LARDER_VERSUS_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let test = std::process::Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "memory::tests::memory_that_is_touched_is_counted",
                ])
                .env(ALONE, "1")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&test.stdout);
            assert!(test.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let before = read().unwrap();
        let faults_before = faults().unwrap();
        let block = std::hint::black_box(vec![1_u8; 64 << 20]);
        let after = read().unwrap();
        assert!(after.rss_bytes > before.rss_bytes + (60 << 20));
        assert!(after.peak_rss_bytes >= after.rss_bytes);
        assert!(faults().unwrap() > faults_before);
        drop(block);
    }
}
