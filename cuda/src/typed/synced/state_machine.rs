//! [`SyncedPair`]: two sides, the state that says which of them holds the newest values, and the transition
//! before each use.
//!
//! This is the state machine of [`SyncedMemory`](crate::SyncedMemory), over anything that allocates, fills
//! and copies ([`Backend`]). In the table, `alloc` means that a buffer is allocated if the side has none yet.
//!
//! | | `Uninitialized` | `Host` | `Device` | `Synced` |
//! |---|---|---|---|---|
//! | `host` | alloc, zero: `Host` | | alloc, copy: `Synced` | |
//! | `host_mut` | alloc, zero: `Host` | | alloc, copy: `Host` | `Host` |
//! | `device` | alloc, zero: `Device` | alloc, copy: `Synced` | | |
//! | `device_mut` | alloc, zero: `Device` | alloc, copy: `Device` | | `Device` |
//! | `set_host` | `Host` | `Host` | `Host` | `Host` |
//! | `set_device` | `Device` | `Device` | `Device` | `Device` |
//! | `push` | refused | alloc, copy: `Synced` | refused | refused |
//! | `pull` | refused | refused | alloc, copy: `Synced` | refused |
//! | `host_overwrite` | alloc | alloc: `Uninitialized` | alloc | alloc: `Device` |
//! | `device_overwrite` | alloc | alloc | alloc: `Uninitialized` | alloc: `Host` |
//!
//! PAIR1 the side that `head` names has a buffer, unless there are no bytes.
//! PAIR2 after an error, the head and the buffers are unchanged, except that a side without the newest values
//! may hold part of the copy.
//! PAIR3 `flight` is set from a `push` or `pull` until its copy has been waited for or a side has been
//! replaced; the next access waits.

/// The side that holds the newest values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Head {
    /// Neither side, since nothing has been written yet.
    Uninitialized,
    /// The host.
    Host,
    /// The device.
    Device,
    /// Both, with the same values.
    Synced,
}

/// Provides the memory and the copies of a [`SyncedPair`]. A dropped buffer frees its memory after its uses.
pub trait Backend {
    /// The type of host buffers.
    type Host;
    /// The type of device buffers.
    type Device;
    /// The queue of copies that are not waited for immediately.
    type Stream: ?Sized;
    /// The type of errors.
    type Error;

    /// Allocates a host buffer with undefined contents.
    ///
    /// # Errors
    /// If there is no memory.
    fn alloc_host(&self) -> Result<Self::Host, Self::Error>;

    /// Allocates a device buffer with undefined contents.
    ///
    /// # Errors
    /// If there is no memory.
    fn alloc_device(&self) -> Result<Self::Device, Self::Error>;

    /// Writes zeros, which are visible to the host on return.
    ///
    /// # Errors
    /// If the zeros could not be written.
    fn zero_host(&self, host: &mut Self::Host) -> Result<(), Self::Error>;

    /// Writes zeros, which are visible to later work of the device.
    ///
    /// # Errors
    /// If the zeros could not be written.
    fn zero_device(&self, device: &mut Self::Device) -> Result<(), Self::Error>;

    /// Copies to the device, whose later work sees the copied values. The host may access `from` again on
    /// return.
    ///
    /// # Errors
    /// If the copy is refused.
    fn copy_to_device(&self, from: &Self::Host, to: &mut Self::Device) -> Result<(), Self::Error>;

    /// Copies to the host, which sees the copied values on return.
    ///
    /// # Errors
    /// If the copy is refused.
    fn copy_to_host(&self, from: &Self::Device, to: &mut Self::Host) -> Result<(), Self::Error>;

    /// Queues a copy to the device, which need not be done on return.
    ///
    /// # Errors
    /// If the copy is refused.
    fn push(
        &self,
        stream: &Self::Stream,
        from: &Self::Host,
        to: &mut Self::Device,
    ) -> Result<(), Self::Error>;

    /// Queues a copy to the host, which need not be done on return.
    ///
    /// # Errors
    /// If the copy is refused.
    fn pull(
        &self,
        stream: &Self::Stream,
        from: &Self::Device,
        to: &mut Self::Host,
    ) -> Result<(), Self::Error>;

    /// Waits for the queued copies from and to this buffer.
    ///
    /// # Errors
    /// If the wait is refused, or the copy failed.
    fn wait(&self, host: &Self::Host) -> Result<(), Self::Error>;
}

/// The reason why a copy was not queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError<E> {
    /// The side to copy from is not the only one that holds the newest values.
    #[error("the newest values are at {0:?}: push from Host, pull from Device")]
    Head(Head),
    /// The backend refused.
    #[error("{0}")]
    Backend(E),
}

/// A host buffer and a device buffer for the same values.
///
/// The returned buffers borrow the pair, so no write is missed. For a pair of no bytes, they are `None`, and
/// the backend is never called.
#[derive(Debug)]
pub struct SyncedPair<B: Backend> {
    backend: B,
    is_empty: bool,
    head: Head,
    /// Whether a copy is under way (PAIR3).
    flight: bool,
    host: Option<B::Host>,
    pub(super) device: Option<B::Device>,
}

impl<B: Backend> SyncedPair<B> {
    /// Makes a pair without buffers; `is_empty` says that there are no bytes.
    pub const fn new(backend: B, is_empty: bool) -> Self {
        Self {
            backend,
            is_empty,
            head: Head::Uninitialized,
            flight: false,
            host: None,
            device: None,
        }
    }

    /// Returns the side that holds the newest values. A copy under way counts as done.
    pub const fn head(&self) -> Head {
        if self.flight { Head::Synced } else { self.head }
    }

    /// Returns the backend.
    pub const fn backend(&self) -> &B {
        &self.backend
    }

    /// Returns the host's buffer in its present state, if there is one.
    pub const fn host_buffer(&self) -> Option<&B::Host> {
        self.host.as_ref()
    }

    /// Returns the device's buffer in its present state, if there is one.
    pub const fn device_buffer(&self) -> Option<&B::Device> {
        self.device.as_ref()
    }

    /// Returns the values, for the host to read.
    ///
    /// # Errors
    /// The backend's errors; nothing changes, except as invariant PAIR2 allows.
    pub fn host(&mut self) -> Result<Option<&mut B::Host>, B::Error> {
        self.settle()?;
        match self.head {
            Head::Uninitialized => {
                self.fill_host(|backend, host, _| backend.zero_host(host))?;
                self.head = Head::Host;
            }
            Head::Device => {
                self.fill_host(|backend, host, device| match device {
                    Some(device) => backend.copy_to_host(device, host),
                    None => Ok(()),
                })?;
                self.head = Head::Synced;
            }
            Head::Host | Head::Synced => {}
        }
        Ok(self.host.as_mut())
    }

    /// Returns the values, for the host to change.
    ///
    /// # Errors
    /// The backend's errors; nothing changes, except as invariant PAIR2 allows.
    pub fn host_mut(&mut self) -> Result<Option<&mut B::Host>, B::Error> {
        self.host()?;
        self.head = Head::Host;
        Ok(self.host.as_mut())
    }

    /// Returns the values, for the device to read.
    ///
    /// # Errors
    /// The backend's errors; nothing changes, except as invariant PAIR2 allows.
    pub fn device(&mut self) -> Result<Option<&mut B::Device>, B::Error> {
        self.settle()?;
        match self.head {
            Head::Uninitialized => {
                self.fill_device(|backend, device, _| backend.zero_device(device))?;
                self.head = Head::Device;
            }
            Head::Host => {
                self.fill_device(|backend, device, host| match host {
                    Some(host) => backend.copy_to_device(host, device),
                    None => Ok(()),
                })?;
                self.head = Head::Synced;
            }
            Head::Device | Head::Synced => {}
        }
        Ok(self.device.as_mut())
    }

    /// Returns the values, for the device to change.
    ///
    /// # Errors
    /// The backend's errors; nothing changes, except as invariant PAIR2 allows.
    pub fn device_mut(&mut self) -> Result<Option<&mut B::Device>, B::Error> {
        self.device()?;
        self.head = Head::Device;
        Ok(self.device.as_mut())
    }

    /// Returns the host's buffer to be overwritten; its contents are invalid until
    /// [`host_written`](Self::host_written). Values that only the host had are lost.
    ///
    /// # Errors
    /// The backend's errors; nothing changes, except as invariant PAIR2 allows.
    pub fn host_overwrite(&mut self) -> Result<Option<&mut B::Host>, B::Error> {
        self.settle()?;
        self.fill_host(|_, _, _| Ok(()))?;
        self.head = match self.head {
            Head::Host | Head::Uninitialized => Head::Uninitialized,
            Head::Device | Head::Synced => Head::Device,
        };
        Ok(self.host.as_mut())
    }

    /// Marks the host's buffer, now written, as the newest.
    pub const fn host_written(&mut self) {
        self.head = Head::Host;
    }

    /// Returns the device's buffer to be overwritten; its contents are invalid until
    /// [`device_written`](Self::device_written). Values that only the device had are lost.
    ///
    /// # Errors
    /// The backend's errors; nothing changes, except as invariant PAIR2 allows.
    pub fn device_overwrite(&mut self) -> Result<Option<&mut B::Device>, B::Error> {
        self.settle()?;
        self.fill_device(|_, _, _| Ok(()))?;
        self.head = match self.head {
            Head::Device | Head::Uninitialized => Head::Uninitialized,
            Head::Host | Head::Synced => Head::Host,
        };
        Ok(self.device.as_mut())
    }

    /// Marks the device's buffer, now written, as the newest.
    pub const fn device_written(&mut self) {
        self.head = Head::Device;
    }

    /// Replaces the host's buffer with one that holds the newest values. The device keeps its buffer. Drops
    /// the former buffer of the host and returns the side that held the newest values.
    pub fn set_host(&mut self, host: B::Host) -> Head {
        let before = self.head();
        self.host = Some(host);
        self.head = Head::Host;
        // The memory of a dropped buffer stays until a copy under way is done.
        self.flight = false;
        before
    }

    /// Replaces the device's buffer with one that holds the newest values. The host keeps its buffer. Drops
    /// the former buffer of the device and returns the side that held the newest values.
    pub fn set_device(&mut self, device: B::Device) -> Head {
        let before = self.head();
        self.device = Some(device);
        self.head = Head::Device;
        self.flight = false;
        before
    }

    /// Queues a copy to the device. [`settle`](Self::settle) or the next use waits for it.
    ///
    /// # Errors
    /// [`CopyError::Head`] unless only the host holds the newest values, and the backend's errors (PAIR2).
    pub fn push(&mut self, stream: &B::Stream) -> Result<(), CopyError<B::Error>> {
        self.may_copy(Head::Host)?;
        self.fill_device(|backend, device, host| match host {
            Some(host) => backend.push(stream, host, device),
            None => Ok(()),
        })
        .map_err(CopyError::Backend)?;
        self.flight = true;
        Ok(())
    }

    /// Queues a copy to the host. [`settle`](Self::settle) or the next use waits for it.
    ///
    /// # Errors
    /// [`CopyError::Head`] unless only the device holds the newest values, and the backend's errors (PAIR2).
    pub fn pull(&mut self, stream: &B::Stream) -> Result<(), CopyError<B::Error>> {
        self.may_copy(Head::Device)?;
        self.fill_host(|backend, host, device| match device {
            Some(device) => backend.pull(stream, device, host),
            None => Ok(()),
        })
        .map_err(CopyError::Backend)?;
        self.flight = true;
        Ok(())
    }

    /// Waits for a copy under way.
    ///
    /// # Errors
    /// The backend's errors; the copy still counts as under way.
    pub fn settle(&mut self) -> Result<(), B::Error> {
        if !self.flight {
            return Ok(());
        }
        if let Some(host) = &self.host {
            self.backend.wait(host)?;
        }
        self.flight = false;
        self.head = Head::Synced;
        Ok(())
    }

    fn may_copy(&mut self, from: Head) -> Result<(), CopyError<B::Error>> {
        if self.head() == from {
            Ok(())
        } else {
            Err(CopyError::Head(self.head()))
        }
    }

    /// Fills the host's buffer, which is allocated if there is none. A new buffer that could not be filled is
    /// dropped (PAIR2).
    fn fill_host(
        &mut self,
        fill: impl FnOnce(&B, &mut B::Host, Option<&B::Device>) -> Result<(), B::Error>,
    ) -> Result<(), B::Error> {
        if self.is_empty {
            return Ok(());
        }
        if let Some(host) = &mut self.host {
            return fill(&self.backend, host, self.device.as_ref());
        }
        let mut host = self.backend.alloc_host()?;
        fill(&self.backend, &mut host, self.device.as_ref())?;
        self.host = Some(host);
        Ok(())
    }

    fn fill_device(
        &mut self,
        fill: impl FnOnce(&B, &mut B::Device, Option<&B::Host>) -> Result<(), B::Error>,
    ) -> Result<(), B::Error> {
        if self.is_empty {
            return Ok(());
        }
        if let Some(device) = &mut self.device {
            return fill(&self.backend, device, self.host.as_ref());
        }
        let mut device = self.backend.alloc_device()?;
        fill(&self.backend, &mut device, self.host.as_ref())?;
        self.device = Some(device);
        Ok(())
    }
}
