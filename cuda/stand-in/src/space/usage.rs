//! Accounting of each device's used memory, by this process alone or together with others, and of
//! the host's pinned memory.

use std::cell::RefCell;
use std::io;

use larder_cuda_abi::Code;

use super::shared::{DEVICES, SharedFile};
use crate::config::StandInConfig;

/// The used memory of all devices.
#[derive(Debug)]
pub(crate) struct MemoryUsage {
    devices: Vec<UsageCount>,
    /// Whether freed memory becomes available only at the next request.
    is_late: bool,
    /// The file, while memory is counted together with other processes. Dropped at the first error.
    shared: RefCell<Option<SharedFile>>,
}

/// The host's pinned memory, in bytes of whole pages.
#[derive(Debug)]
pub(crate) struct PinnedUsage {
    pub(crate) limit: u64,
    used: u64,
}

impl PinnedUsage {
    pub(crate) const fn new(limit: u64) -> Self {
        Self { limit, used: 0 }
    }

    /// Counts memory as pinned.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), Code> {
        if bytes > self.limit.saturating_sub(self.used) {
            return Err(Code::OUT_OF_MEMORY);
        }
        self.used += bytes;
        Ok(())
    }

    /// Counts memory as no longer pinned.
    pub(crate) fn give(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }
}

#[derive(Clone, Debug)]
struct UsageCount {
    bytes: u64,
    used: u64,
    /// Freed bytes that `used` still includes, until the next request.
    given: u64,
}

impl MemoryUsage {
    pub(crate) fn new(config: &StandInConfig) -> Self {
        let account = UsageCount {
            bytes: config.bytes,
            used: 0,
            given: 0,
        };
        let mut usage = Self {
            is_late: config.late_memory,
            devices: vec![account; config.devices],
            shared: RefCell::new(None),
        };
        if let Some(path) = &config.shared {
            // `share` has reported the error on standard error; the driver then counts alone.
            let _ = usage.share(path);
        }
        usage
    }

    /// From now on, counts in this file, together with other processes. If the file already has the
    /// size of a device's memory, that size is used.
    ///
    /// # Errors
    /// If the file cannot be used, which is also reported on standard error. Nothing has changed
    /// then.
    pub(crate) fn share(&mut self, path: &str) -> Result<(), Code> {
        let totals: Vec<u64> = self.devices.iter().map(|account| account.bytes).collect();
        let used: Vec<u64> = self.devices.iter().map(|account| account.used).collect();
        match SharedFile::join(path, &totals, &used) {
            Ok(shared) => {
                if let Some(old) = self.shared.replace(Some(shared)) {
                    old.leave();
                }
                Ok(())
            }
            Err(error) => {
                eprintln!("stand-in driver: {path} cannot count memory: {error}");
                Err(Code::INVALID_VALUE)
            }
        }
    }

    /// Calls `act` with the file, if this device is counted in one.
    fn ask<R>(&self, device: usize, act: impl FnOnce(&SharedFile) -> io::Result<R>) -> Option<R> {
        if device >= DEVICES {
            return None;
        }
        let mut shared = self.shared.borrow_mut();
        match act(shared.as_ref()?) {
            Ok(answer) => Some(answer),
            Err(error) => {
                eprintln!("stand-in driver: memory is no longer counted together: {error}");
                *shared = None;
                None
            }
        }
    }

    /// Returns the memory of a device, used or not.
    pub(crate) fn total(&self, device: usize) -> u64 {
        match self.ask(device, |shared| shared.look(device)) {
            Some((total, _)) => total,
            None => self.devices.get(device).map_or(0, |account| account.bytes),
        }
    }

    /// Sets how much memory a device has.
    pub(crate) fn set_total(&mut self, device: usize, bytes: u64) {
        if let Some(account) = self.devices.get_mut(device) {
            account.bytes = bytes;
        }
        self.ask(device, |shared| shared.set_total(device, bytes));
    }

    /// Returns the bytes of a device that this process uses.
    pub(crate) fn used(&self, device: usize) -> u64 {
        self.devices.get(device).map_or(0, |account| account.used)
    }

    /// Returns the bytes of a device that no process uses.
    pub(crate) fn free(&self, device: usize) -> u64 {
        match self.ask(device, |shared| shared.look(device)) {
            Some((_, free)) => free,
            None => self.total(device).saturating_sub(self.used(device)),
        }
    }

    #[cfg(test)]
    pub(crate) const fn is_late(&self) -> bool {
        self.is_late
    }

    /// Counts memory as used (SPACE2).
    pub(crate) fn take(&mut self, device: usize, bytes: u64) -> Result<(), Code> {
        if let Some(account) = self.devices.get_mut(device) {
            let given = std::mem::take(&mut account.given);
            self.give_now(device, given);
        }
        let shared = self.ask(device, |shared| shared.take(device, bytes));
        match shared {
            Some(outcome) => outcome?,
            None if bytes > self.free(device) => return Err(Code::OUT_OF_MEMORY),
            None => {}
        }
        let account = self.devices.get_mut(device).ok_or(Code::INVALID_DEVICE)?;
        account.used += bytes;
        Ok(())
    }

    /// Counts memory as free again, now or at the next request.
    pub(crate) fn give(&mut self, device: usize, bytes: u64) {
        match self.devices.get_mut(device).filter(|_| self.is_late) {
            Some(account) => account.given += bytes,
            None => self.give_now(device, bytes),
        }
    }

    fn give_now(&mut self, device: usize, bytes: u64) {
        if let Some(account) = self.devices.get_mut(device) {
            account.used = account.used.saturating_sub(bytes);
            self.ask(device, |shared| shared.give(device, bytes));
        }
    }

    /// Sets all use to 0 and stops counting together with other processes.
    pub(crate) fn close(&mut self) {
        for account in &mut self.devices {
            account.used = 0;
            account.given = 0;
        }
        if let Some(shared) = self.shared.take() {
            shared.leave();
        }
    }
}
