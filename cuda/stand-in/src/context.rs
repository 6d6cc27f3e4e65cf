//! Devices and contexts.

use std::collections::BTreeMap;

use larder_cuda_abi::Code;

use crate::clock::VectorClock;
use crate::driver::{Session, SimDriver};
use crate::queue::SimStream;
use crate::thread;

/// One device.
#[derive(Debug)]
pub(crate) struct SimDevice {
    pub(crate) ordinal: usize,
    /// Handle of the primary context, from its first use on. It never changes.
    pub(crate) primary: Option<usize>,
    /// Number of holders of the primary context.
    pub(crate) retained: u32,
}

/// One context.
#[derive(Debug)]
pub(crate) struct SimContext {
    pub(crate) device: usize,
    pub(crate) primary: bool,
    /// The error that every call returns once work of the context has failed.
    pub(crate) failed: Option<Code>,
    /// Its legacy default stream.
    pub(crate) legacy: usize,
    /// The default stream of each thread that used one.
    pub(crate) per_thread: BTreeMap<usize, usize>,
    /// Clock of everything ordered before the end of the context's destroyed streams.
    pub(crate) ended: VectorClock,
    /// Clock of everything ordered before the end of the context's destroyed blocking streams.
    pub(crate) ended_blocking: VectorClock,
    pub(crate) limits: BTreeMap<u32, usize>,
    pub(crate) cache_config: u32,
}

impl SimDevice {
    pub(crate) fn new(ordinal: usize) -> Self {
        Self {
            ordinal,
            primary: None,
            retained: 0,
        }
    }
}

impl SimDriver {
    /// Returns the device with this number.
    pub(crate) fn device(&self, ordinal: i32) -> Result<&SimDevice, Code> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|ordinal| self.devices.get(ordinal))
            .ok_or(Code::INVALID_DEVICE)
    }

    pub(crate) fn device_mut(&mut self, ordinal: i32) -> Result<&mut SimDevice, Code> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|ordinal| self.devices.get_mut(ordinal))
            .ok_or(Code::INVALID_DEVICE)
    }

    /// Creates a context of a device, under `handle` if that is given.
    pub(crate) fn new_context(&mut self, device: usize, handle: Option<usize>) -> usize {
        let handle = handle.unwrap_or_else(|| self.handles.next());
        let legacy = self.handles.next();
        self.streams.insert(legacy, SimStream::legacy(handle));
        let context = SimContext {
            device,
            primary: false,
            failed: None,
            legacy,
            per_thread: BTreeMap::new(),
            ended: VectorClock::default(),
            ended_blocking: VectorClock::default(),
            limits: BTreeMap::new(),
            cache_config: 0,
        };
        self.contexts.insert(handle, context);
        handle
    }

    /// Creates the primary context of a device, under the `handle` of the device's earlier one, if
    /// any.
    pub(crate) fn new_primary(
        &mut self,
        device: usize,
        handle: Option<usize>,
    ) -> Result<usize, Code> {
        let handle = self.new_context(device, handle);
        self.contexts.get_mut(handle)?.primary = true;
        Ok(handle)
    }

    /// Returns the current context of the calling thread, failed or not.
    pub(crate) fn current_even_failed(&self) -> Result<usize, Code> {
        let context = thread::current().ok_or(Code::INVALID_CONTEXT)?;
        match self.contexts.get(context) {
            Ok(_) => Ok(context),
            Err(_) => Err(Code::CONTEXT_IS_DESTROYED),
        }
    }

    /// Returns the current context of the calling thread.
    ///
    /// # Errors
    /// If there is no current context, or its work has failed: then with the error of that failure.
    pub(crate) fn current(&self) -> Result<usize, Code> {
        let context = self.current_even_failed()?;
        self.alive(context)?;
        Ok(context)
    }

    /// Returns the current context of the calling thread, and its device.
    pub(crate) fn current_device(&self) -> Result<(usize, usize), Code> {
        let context = self.current()?;
        Ok((context, self.contexts.get(context)?.device))
    }

    /// Returns an error if work of the context has failed.
    pub(crate) fn alive(&self, context: usize) -> Result<(), Code> {
        self.contexts.get(context)?.failed.map_or(Ok(()), Err)
    }

    /// Marks the context as failed, so that no more of its work runs.
    pub(crate) fn fail_context(&mut self, context: usize, code: Code) {
        if let Ok(context) = self.contexts.get_mut(context) {
            context.failed.get_or_insert(code);
        }
    }
}

impl Session {
    /// Destroys a context and everything in it, after its queued work.
    pub(crate) fn destroy_context(&mut self, handle: usize) -> Result<(), Code> {
        self.contexts.get(handle)?;
        // An error is ignored, since failed work is dropped with its context. Other threads may
        // submit more work while this one waits.
        loop {
            let _ = self.sync_context(handle);
            let mut queued = self.queue.ops.values();
            if !queued.any(|op| op.context == handle) {
                break;
            }
        }
        if self.contexts.get(handle).is_err() {
            // Another thread has destroyed the context.
            return Ok(());
        }
        self.remove_modules_of(handle)?;
        self.free_memory_of(handle);
        for stream in self.streams_of(handle) {
            self.end_captures_from(stream);
            self.remove_stream(stream);
        }
        for event in self.events.all(|event| event.context == handle) {
            self.event_names.forget(event);
            self.events.remove(event)?;
        }
        self.contexts.remove(handle)?;
        Ok(())
    }
}
