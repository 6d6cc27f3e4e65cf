//! A program's uses of blocks, on the device and on the host.

use cudarc::driver::result;

use crate::programs::buffer::Buffer;
use crate::programs::kernels::{Kernel, Launch};
use crate::programs::program::{Act, Part};
use crate::programs::run::{Outcome, Runner};
use crate::programs::transfers::{WINDOW, compare, pattern};

impl Runner {
    /// Does an act that uses blocks.
    pub(crate) fn use_blocks(&mut self, act: Act) -> Outcome {
        match act {
            Act::Memset {
                slot,
                stream,
                part,
                value,
            } => self.memset(slot, stream, part, value),
            Act::Upload {
                slot,
                stream,
                part,
                from,
            } => self.upload(slot, stream, part, from),
            Act::UploadPageable { slot, stream, from } => self.upload_pageable(slot, stream, from),
            Act::Read { slot, stream, part } => self.read(slot, stream, part),
            Act::ReadPageable { slot, stream } => self.read_pageable(slot, stream),
            Act::Copy { to, from, stream } => self.copy(to, from, stream),
            Act::FillWords {
                slot,
                stream,
                part,
                value,
            } => self.launch(Kernel::Fill, [slot; 3], stream, part, value),
            Act::AddWords {
                to,
                left,
                right,
                stream,
                part,
            } => self.launch(Kernel::Add, [to, left, right], stream, part, 0),
            Act::ScaleWords {
                to,
                from,
                stream,
                part,
                factor,
            } => self.launch(Kernel::Scale, [to, from, from], stream, part, factor),
            Act::TwistWords {
                slot,
                stream,
                part,
                key,
            } => self.launch(Kernel::Twist, [slot; 3], stream, part, key),
            other => Err(format!("{other:?} uses no block").into()),
        }
    }

    /// A use of a block on a stream is queued next.
    pub(crate) fn use_block(&mut self, slot: usize, stream: usize, writes: bool) -> Outcome {
        let Some(held) = &mut self.slots[slot] else {
            return Ok(());
        };
        let (wrote, used) = (&mut held.wrote, &mut held.used);
        self.order.use_block(stream, writes, wrote, used)?;
        held.last = stream;
        Ok(())
    }

    pub(crate) fn memset(&mut self, slot: usize, stream: usize, part: Part, value: u8) -> Outcome {
        self.use_block(slot, stream, true)?;
        let Some(held) = &mut self.slots[slot] else {
            return Ok(());
        };
        let all = held.block.bytes();
        let (at, bytes) = if held.ready {
            part.of(all, WINDOW)
        } else {
            held.bytes.resize(all as usize, 0);
            (0, all)
        };
        let queue = self.order.streams[stream].cu_stream();
        // SAFETY: the program holds the block, and orders its uses.
        unsafe { result::memset_d8_async(held.at() + at, value, bytes as usize, queue) }?;
        held.bytes[at as usize..][..bytes as usize].fill(value);
        held.ready = true;
        Ok(())
    }

    pub(crate) fn upload(
        &mut self,
        slot: usize,
        stream: usize,
        part: Part,
        from: usize,
    ) -> Outcome {
        if !self.has(slot) {
            return Ok(());
        }
        self.use_block(slot, stream, true)?;
        let Some(held) = &mut self.slots[slot] else {
            return Ok(());
        };
        let (at, bytes) = part.of(held.block.bytes(), WINDOW);
        let source = self.transfers.source(from, bytes as usize);
        let queue = self.order.streams[stream].cu_stream();
        // SAFETY: as for `memset`; the source is pinned, and stays as it is.
        unsafe { result::memcpy_htod_async(held.at() + at, source, queue) }?;
        held.bytes[at as usize..][..bytes as usize].copy_from_slice(source);
        Ok(())
    }

    pub(crate) fn upload_pageable(&mut self, slot: usize, stream: usize, from: usize) -> Outcome {
        self.use_block(slot, stream, true)?;
        let Some(held) = &mut self.slots[slot] else {
            return Ok(());
        };
        let source = &pattern()[from..from + held.block.bytes() as usize];
        let queue = self.order.streams[stream].cu_stream();
        // SAFETY: as for `memset`; the source is never written.
        unsafe { result::memcpy_htod_async(held.at(), source, queue) }?;
        held.bytes.clear();
        held.bytes.extend_from_slice(source);
        held.ready = true;
        Ok(())
    }

    /// Returns whether a block exists and was written.
    pub(crate) fn has(&self, slot: usize) -> bool {
        self.slots[slot].as_ref().is_some_and(|held| held.ready)
    }

    pub(crate) fn read(&mut self, slot: usize, stream: usize, part: Part) -> Outcome {
        if !self.has(slot) {
            return Ok(());
        }
        if !self.transfers.has_room(WINDOW as usize) {
            self.finish_reads()?;
        }
        self.use_block(slot, stream, false)?;
        let Some(held) = &self.slots[slot] else {
            return Ok(());
        };
        let (at, bytes) = part.of(held.block.bytes(), WINDOW);
        let expected = &held.bytes[at as usize..][..bytes as usize];
        let what = format!("{part:?} of slot {slot} on stream {stream}");
        let queue = &self.order.streams[stream];
        self.transfers.read(queue, held.at() + at, expected, what)?;
        Ok(())
    }

    /// Waits for all work, and compares what was read.
    pub(crate) fn finish_reads(&mut self) -> Outcome {
        for stream in 0..self.order.streams.len() {
            self.order.sync_stream(stream)?;
        }
        Ok(self.transfers.check()?)
    }

    pub(crate) fn read_pageable(&mut self, slot: usize, stream: usize) -> Outcome {
        if !self.has(slot) {
            return Ok(());
        }
        self.use_block(slot, stream, false)?;
        let Some(held) = &self.slots[slot] else {
            return Ok(());
        };
        let mut found = Buffer::new();
        found.resize(held.bytes.len(), 0);
        let queue = self.order.streams[stream].cu_stream();
        // SAFETY: as for `memset`; the buffer outlives the copy, which is done before the host goes
        // on with it.
        unsafe { result::memcpy_dtoh_async(found.as_mut_slice(), held.at(), queue) }?;
        // A driver may still be on its way.
        self.order.sync_stream(stream)?;
        let held = self.slots[slot].as_ref().expect("it is held");
        let what = format!("all of slot {slot} on stream {stream}");
        Ok(compare(&found, &held.bytes, &what)?)
    }

    pub(crate) fn copy(&mut self, to: usize, from: usize, stream: usize) -> Outcome {
        let (Some(target), Some(source)) = (&self.slots[to], &self.slots[from]) else {
            return Ok(());
        };
        let bytes = target.block.bytes().min(source.block.bytes());
        let whole = bytes == target.block.bytes();
        if to == from || !source.ready || !(target.ready || whole) {
            return Ok(());
        }
        self.use_block(from, stream, false)?;
        self.use_block(to, stream, true)?;
        let Ok([Some(target), Some(source)]) = self.slots.get_disjoint_mut([to, from]) else {
            return Ok(());
        };
        let queue = self.order.streams[stream].cu_stream();
        // SAFETY: as for `memset`, of both.
        unsafe { result::memcpy_dtod_async(target.at(), source.at(), bytes as usize, queue) }?;
        if !target.ready {
            target.bytes.resize(bytes as usize, 0);
            target.ready = true;
        }
        target.bytes[..bytes as usize].copy_from_slice(&source.bytes[..bytes as usize]);
        Ok(())
    }

    /// A kernel on the same part of up to three blocks, the first of which it writes.
    pub(crate) fn launch(
        &mut self,
        kernel: Kernel,
        slots: [usize; 3],
        stream: usize,
        part: Part,
        value: u32,
    ) -> Outcome {
        if !slots.iter().all(|slot| self.has(*slot)) {
            return Ok(());
        }
        let bytes_of = |slot: usize| {
            self.slots[slot]
                .as_ref()
                .map_or(0, |held| held.block.bytes())
        };
        let max = slots.map(bytes_of).into_iter().min().unwrap_or(0);
        for slot in slots {
            self.use_block(slot, stream, false)?;
        }
        self.use_block(slots[0], stream, true)?;
        let mut sources = [Vec::new(), Vec::new(), Vec::new()];
        let mut places = [0; 3];
        for ((slot, source), place) in slots.into_iter().zip(&mut sources).zip(&mut places) {
            let held = self.slots[slot].as_ref().expect("it is held");
            let (at, bytes) = part.of(held.block.bytes(), WINDOW.min(max));
            *place = held.at() + at;
            *source = held.bytes[at as usize..][..bytes as usize].to_vec();
        }
        let [mut out, mut left, right] = sources;
        if kernel == Kernel::Twist {
            left.clone_from(&out);
        }
        let launch = Launch {
            out: places[0],
            left: places[1],
            right: places[2],
            words: (out.len() / 4) as u32,
            value,
        };
        let queue = &self.order.streams[stream];
        self.kernels.launch(queue, kernel, launch)?;
        kernel.on_host(&left, &right, &mut out, value);
        let held = self.slots[slots[0]].as_mut().expect("it is held");
        let at = (launch.out - held.at()) as usize;
        held.bytes[at..][..out.len()].copy_from_slice(&out);
        Ok(())
    }
}
