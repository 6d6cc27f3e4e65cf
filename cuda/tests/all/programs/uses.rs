//! A program's uses of blocks, on the device and on the host.

use cudarc::driver::result;

use crate::programs::buffer::Bytes;
use crate::programs::kernels::{Kernel, Launch};
use crate::programs::player::Player;
use crate::programs::transfers::{WINDOW, compare, pattern};
use crate::programs::words::{Missing, Outcome, Part, Words};

struct Place {
    at: u64,
    from: u64,
    bytes: u64,
    contents: Bytes,
}

impl Player {
    /// Prepares a use of a block that is queued next on a stream.
    pub(crate) fn use_block(&mut self, name: &str, stream: usize, writes: bool) -> Outcome {
        if self.sleeps(name) {
            return Err(Missing("memory that is awake").into());
        }
        if self.use_in_graph(name, stream)? {
            return Ok(());
        }
        let held = self.blocks.get_mut(name).ok_or(Missing("the block"))?;
        let (wrote, used) = (&mut held.wrote, &mut held.used);
        self.order.use_block(stream, writes, wrote, used)?;
        held.last = stream;
        Ok(())
    }

    /// Returns a part of a written block, of at most `max` bytes.
    fn place(&self, name: &str, part: Part, max: u64) -> Outcome<Place> {
        let held = self.written(name)?;
        let (from, bytes) = part.of(held.block.bytes(), max);
        Ok(Place {
            at: held.at() + from,
            from,
            bytes,
            contents: held.contents.clone(),
        })
    }

    /// `set BLOCK STREAM VALUE [PART]`: fills a part, or the whole block if it has not been written yet.
    pub(crate) fn set(&mut self, words: &mut Words<'_>) -> Outcome {
        let (name, stream) = (words.next()?, words.stream()?);
        let (value, part) = (words.number()? as u8, words.part()?);
        let max = match self.held(name)?.ready {
            true => WINDOW,
            false => u64::MAX,
        };
        self.fill(name, stream, value, part, max)
    }

    /// `busy BLOCK STREAM [TIMES]`: fills the whole block many times, which keeps the stream busy for long.
    pub(crate) fn busy(&mut self, words: &mut Words<'_>) -> Outcome {
        let (name, stream) = (words.next()?, words.stream()?);
        let times = words.number_or(40)?;
        (0..times).try_for_each(|value| self.fill(name, stream, value as u8, Part::Head, u64::MAX))
    }

    fn fill(&mut self, name: &str, stream: usize, value: u8, part: Part, max: u64) -> Outcome {
        self.use_block(name, stream, true)?;
        let held = self.held_mut(name)?;
        let all = held.block.bytes();
        let (from, bytes) = part.of(all, max);
        let (at, contents) = (held.at() + from, held.contents.clone());
        held.ready = true;
        // SAFETY: the program holds the block, and orders its uses.
        unsafe { result::memset_d8_async(at, value, bytes as usize, self.queue(stream)) }?;
        self.effect(stream, move || {
            contents.with(|contents| {
                Bytes::resize(contents, all as usize);
                contents[from as usize..][..bytes as usize].fill(value);
            });
        });
        Ok(())
    }

    /// `upload BLOCK STREAM FROM [PART]`: copies a part from pinned memory.
    pub(crate) fn upload(&mut self, words: &mut Words<'_>) -> Outcome {
        let (name, stream) = (words.next()?, words.stream()?);
        let (from, part) = (words.number()? as usize, words.part()?);
        self.uncaptured(stream)?;
        let place = self.place(name, part, WINDOW)?;
        self.use_block(name, stream, true)?;
        let source = self.transfers.source(from, place.bytes as usize);
        // SAFETY: as for `fill`; the source is pinned, and is never written.
        unsafe { result::memcpy_htod_async(place.at, source, self.queue(stream)) }?;
        let start = place.from as usize;
        place
            .contents
            .with(|contents| contents[start..][..source.len()].copy_from_slice(source));
        Ok(())
    }

    /// `upload-all BLOCK STREAM FROM`: copies the whole block from pageable memory.
    pub(crate) fn upload_all(&mut self, words: &mut Words<'_>) -> Outcome {
        let (name, stream) = (words.next()?, words.stream()?);
        let from = words.number()? as usize;
        self.uncaptured(stream)?;
        self.use_block(name, stream, true)?;
        let queue = self.queue(stream);
        let held = self.held_mut(name)?;
        let source = &pattern()[from..from + held.block.bytes() as usize];
        held.ready = true;
        // SAFETY: as for `fill`; the source is never written.
        unsafe { result::memcpy_htod_async(held.at(), source, queue) }?;
        held.contents.with(|contents| {
            contents.clear();
            contents.extend_from_slice(source);
        });
        Ok(())
    }

    /// `read BLOCK STREAM [PART]`: copies a part to pinned memory, to be compared once the work is done.
    pub(crate) fn read(&mut self, words: &mut Words<'_>) -> Outcome {
        let (name, stream) = (words.next()?, words.stream()?);
        let part = words.part()?;
        self.read_part(name, stream, part)
    }

    pub(crate) fn read_part(&mut self, name: &str, stream: usize, part: Part) -> Outcome {
        self.uncaptured(stream)?;
        let place = self.place(name, part, WINDOW)?;
        if !self.transfers.has_room(WINDOW as usize) {
            self.finish_reads()?;
        }
        self.use_block(name, stream, false)?;
        let expected = place.contents.part(place.from, place.bytes);
        let what = format!("{part:?} of {name} on stream {stream}");
        let queue = &self.order.streams[stream];
        Ok(self.transfers.read(queue, place.at, &expected, what)?)
    }

    /// Waits for all streams that are not being captured, and compares what was read.
    pub(crate) fn finish_reads(&mut self) -> Outcome {
        for stream in 0..self.order.streams.len() {
            if !self.captures(stream) {
                self.order.sync_stream(stream)?;
            }
        }
        Ok(self.transfers.check()?)
    }

    /// `read-all BLOCK STREAM`: copies the whole block to pageable memory, and compares it at once.
    pub(crate) fn read_all(&mut self, words: &mut Words<'_>) -> Outcome {
        let (name, stream) = (words.next()?, words.stream()?);
        self.compare_whole(name, stream)
    }

    pub(crate) fn compare_whole(&mut self, name: &str, stream: usize) -> Outcome {
        self.uncaptured(stream)?;
        let place = self.place(name, Part::Head, u64::MAX)?;
        self.use_block(name, stream, false)?;
        let found = Bytes::new();
        let queue = self.queue(stream);
        found.with(|found| {
            Bytes::resize(found, place.bytes as usize);
            // SAFETY: as for `fill`; the buffer outlives the copy, for which the host waits below.
            unsafe { result::memcpy_dtoh_async(found.as_mut_slice(), place.at, queue) }
        })?;
        // The copy may still be in progress.
        self.order.sync_stream(stream)?;
        let what = format!("all of {name} on stream {stream}");
        let compared =
            found.with(|found| place.contents.with(|bytes| compare(found, bytes, &what)));
        Ok(compared?)
    }

    /// `copy TO FROM STREAM`: copies as many bytes as both blocks have.
    pub(crate) fn copy(&mut self, words: &mut Words<'_>) -> Outcome {
        let (to, from, stream) = (words.next()?, words.next()?, words.stream()?);
        let source = self.place(from, Part::Head, u64::MAX)?;
        let target = self.held(to)?;
        let bytes = target.block.bytes().min(source.bytes);
        if to == from || !(target.ready || bytes == target.block.bytes()) {
            return Err(Missing("two blocks, the first written or no longer").into());
        }
        self.use_block(from, stream, false)?;
        self.use_block(to, stream, true)?;
        let target = self.held_mut(to)?;
        target.ready = true;
        let (at, whole, contents) = (target.at(), target.block.bytes(), target.contents.clone());
        // SAFETY: as for `fill`, for both blocks.
        unsafe { result::memcpy_dtod_async(at, source.at, bytes as usize, self.queue(stream)) }?;
        self.effect(stream, move || {
            let source = source.contents.part(0, bytes);
            contents.with(|contents| {
                Bytes::resize(contents, whole as usize);
                contents[..bytes as usize].copy_from_slice(&source);
            });
        });
        Ok(())
    }

    /// `KERNEL TO LEFT RIGHT STREAM VALUE [PART]`: launches a kernel on the same part of up to three blocks, of which
    /// it writes the first.
    pub(crate) fn launch(&mut self, kernel: Kernel, words: &mut Words<'_>) -> Outcome {
        let names = [words.next()?, words.next()?, words.next()?];
        let (stream, value) = (words.stream()?, words.number()? as u32);
        let part = words.part()?;
        let mut max = WINDOW;
        for name in names {
            max = max.min(self.written(name)?.block.bytes());
        }
        for name in names {
            self.use_block(name, stream, false)?;
        }
        self.use_block(names[0], stream, true)?;
        let place = |name| self.place(name, part, max);
        let [out, left, right] = [place(names[0])?, place(names[1])?, place(names[2])?];
        let launch = Launch {
            out: out.at,
            left: left.at,
            right: right.at,
            words: (out.bytes / 4) as u32,
            value,
        };
        let queue = &self.order.streams[stream];
        self.kernels.launch(queue, kernel, launch)?;
        self.effect(stream, move || {
            let part = |place: &Place| place.contents.part(place.from, place.bytes);
            let (left, right, mut result) = (part(&left), part(&right), part(&out));
            let left = if kernel == Kernel::Twist {
                result.clone()
            } else {
                left
            };
            kernel.on_host(&left, &right, &mut result, value);
            let start = out.from as usize;
            out.contents
                .with(|contents| contents[start..][..result.len()].copy_from_slice(&result));
        });
        Ok(())
    }
}
