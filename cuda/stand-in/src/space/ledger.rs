//! How much of each device's memory is in use.

use larder_cuda_abi::Code;

use crate::config::Config;

/// Use of all devices' memory.
#[derive(Debug)]
pub(crate) struct Ledger {
    devices: Vec<Account>,
}

#[derive(Clone, Debug)]
struct Account {
    bytes: u64,
    used: u64,
}

impl Ledger {
    pub(crate) fn new(config: &Config) -> Self {
        let account = Account {
            bytes: config.bytes,
            used: 0,
        };
        Self {
            devices: vec![account; config.devices],
        }
    }

    /// Memory of a device, used or not.
    pub(crate) fn total(&self, device: usize) -> u64 {
        self.devices.get(device).map_or(0, |account| account.bytes)
    }

    /// Sets how much there is.
    pub(crate) fn set_total(&mut self, device: usize, bytes: u64) {
        if let Some(account) = self.devices.get_mut(device) {
            account.bytes = bytes;
        }
    }

    /// What this process uses.
    pub(crate) fn used(&self, device: usize) -> u64 {
        self.devices.get(device).map_or(0, |account| account.used)
    }

    /// What nobody uses.
    pub(crate) fn free(&self, device: usize) -> u64 {
        self.total(device).saturating_sub(self.used(device))
    }

    /// Counts memory as used (M2).
    pub(crate) fn take(&mut self, device: usize, bytes: u64) -> Result<(), Code> {
        if bytes > self.free(device) {
            return Err(Code::OUT_OF_MEMORY);
        }
        let account = self.devices.get_mut(device).ok_or(Code::INVALID_DEVICE)?;
        account.used += bytes;
        Ok(())
    }

    /// Counts it as free again.
    pub(crate) fn give(&mut self, device: usize, bytes: u64) {
        if let Some(account) = self.devices.get_mut(device) {
            account.used = account.used.saturating_sub(bytes);
        }
    }

    /// Nothing is used any more.
    pub(crate) fn close(&mut self) {
        for account in &mut self.devices {
            account.used = 0;
        }
    }
}
