//! A backend over host memory that logs its calls and refuses on demand.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use larder_cuda::synced::{Backend, SyncedPair};

/// Size of a buffer in bytes.
pub(crate) const BYTES: usize = 16;

/// The calls made, and the refusal to come.
#[derive(Default)]
pub(crate) struct Log {
    calls: RefCell<Vec<&'static str>>,
    /// Number of calls before the one that is refused.
    refuse_in: Cell<Option<usize>>,
    /// Value of each byte of new memory.
    pub(crate) garbage: Cell<u8>,
}

impl Log {
    /// Returns the calls since the last `take`.
    pub(crate) fn take(&self) -> Vec<&'static str> {
        self.calls.take()
    }

    /// Refuses one call after `skip` others.
    pub(crate) fn refuse(&self, skip: usize) {
        self.refuse_in.set(Some(skip));
    }

    /// Cancels the refusal. Returns whether it has happened.
    pub(crate) fn refused(&self) -> bool {
        self.refuse_in.take().is_none()
    }

    fn call(&self, name: &'static str) -> Result<(), Refused> {
        match self.refuse_in.get() {
            Some(0) => {
                self.refuse_in.set(None);
                return Err(Refused(name));
            }
            Some(skip) => self.refuse_in.set(Some(skip - 1)),
            None => {}
        }
        self.calls.borrow_mut().push(name);
        Ok(())
    }
}

/// The name of the refused call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refused(pub(crate) &'static str);

pub(crate) struct Mock(pub(crate) Rc<Log>);

/// A buffer that logs its free.
pub(crate) struct Buffer {
    pub(crate) bytes: [u8; BYTES],
    pub(crate) id: u32,
    freed: Option<(Rc<Log>, &'static str)>,
}

impl Buffer {
    /// Returns a buffer whose memory belongs to others, so its free is not logged.
    pub(crate) fn foreign(id: u32, value: u8) -> Self {
        Self {
            bytes: [value; BYTES],
            id,
            freed: None,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some((log, name)) = self.freed.take() {
            log.calls.borrow_mut().push(name);
        }
    }
}

impl Mock {
    fn new_buffer(&self, freed: &'static str) -> Buffer {
        Buffer {
            bytes: [self.0.garbage.get(); BYTES],
            id: 0,
            freed: Some((self.0.clone(), freed)),
        }
    }
}

impl Backend for Mock {
    type Host = Buffer;
    type Device = Buffer;
    type Stream = str;
    type Error = Refused;

    fn alloc_host(&self) -> Result<Buffer, Refused> {
        self.0.call("alloc host")?;
        Ok(self.new_buffer("free host"))
    }

    fn alloc_device(&self) -> Result<Buffer, Refused> {
        self.0.call("alloc device")?;
        Ok(self.new_buffer("free device"))
    }

    fn zero_host(&self, host: &mut Buffer) -> Result<(), Refused> {
        self.0.call("zero host")?;
        host.bytes = [0; BYTES];
        Ok(())
    }

    fn zero_device(&self, device: &mut Buffer) -> Result<(), Refused> {
        self.0.call("zero device")?;
        device.bytes = [0; BYTES];
        Ok(())
    }

    fn copy_to_device(&self, from: &Buffer, to: &mut Buffer) -> Result<(), Refused> {
        self.0.call("copy to device")?;
        to.bytes = from.bytes;
        Ok(())
    }

    fn copy_to_host(&self, from: &Buffer, to: &mut Buffer) -> Result<(), Refused> {
        self.0.call("copy to host")?;
        to.bytes = from.bytes;
        Ok(())
    }

    fn push(&self, stream: &str, from: &Buffer, to: &mut Buffer) -> Result<(), Refused> {
        assert_eq!(stream, "stream");
        self.0.call("push")?;
        to.bytes = from.bytes;
        Ok(())
    }

    fn pull(&self, stream: &str, from: &Buffer, to: &mut Buffer) -> Result<(), Refused> {
        assert_eq!(stream, "stream");
        self.0.call("pull")?;
        to.bytes = from.bytes;
        Ok(())
    }

    fn wait(&self, _host: &Buffer) -> Result<(), Refused> {
        self.0.call("wait")
    }
}

pub(crate) fn pair(is_empty: bool) -> (SyncedPair<Mock>, Rc<Log>) {
    let log = Rc::new(Log::default());
    log.garbage.set(0xab);
    (SyncedPair::new(Mock(log.clone()), is_empty), log)
}
