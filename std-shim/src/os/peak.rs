//! The peak memory of the process.

use super::errno::KeepErrno;

/// Returns the peak of the resident bytes of the process; `None` if the system does not report it.
/// Unlike `getrusage` it excludes the program that started this one.
pub(crate) fn peak_resident_bytes() -> Option<u64> {
    let _keep = KeepErrno::new();
    let mut status = [0; 4096];
    let status = super::proc::read(c"/proc/self/status", &mut status)?;
    let mut lines = status.split(|&byte| byte == b'\n');
    let peak = lines.find_map(|line| line.strip_prefix(b"VmHWM:"))?;
    let kib = str::from_utf8(peak).ok()?.trim().strip_suffix(" kB")?;
    kib.parse::<u64>().ok()?.checked_mul(1 << 10)
}
