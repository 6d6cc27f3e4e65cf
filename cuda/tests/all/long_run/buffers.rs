//! Typed memory of a player: on the device, which orders its own uses, and pinned.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_cuda::{DeviceBuffer, PinnedBuffer};

use super::player::{Outcome, Player, is_short};

/// Values of a buffer.
const LEN: usize = 3000;

/// Buffers of each kind at most.
const BUFFERS: usize = 3;

/// A player's typed memory, with the fill of each.
#[derive(Default)]
pub(super) struct Buffers {
    device: Vec<(DeviceBuffer<u64>, u64)>,
    pinned: Vec<(PinnedBuffer<u64>, u64)>,
}

impl Buffers {
    /// Orders the stream behind all uses of each, and later uses behind the stream.
    pub(super) fn leave(&mut self, stream: &Arc<CudaStream>) -> Outcome {
        for (buffer, value) in &mut self.device {
            buffer.allocator().add_stream(stream)?;
            stream.memset_zeros(buffer)?;
            *value = 0;
        }
        Ok(())
    }

    pub(super) fn check_all(&self) -> Outcome {
        self.pinned.iter().try_for_each(check)
    }
}

fn check((buffer, value): &(PinnedBuffer<u64>, u64)) -> Outcome {
    let odd = buffer.as_slice()?.iter().find(|found| *found != value);
    match odd {
        Some(odd) => Err(format!("a pinned buffer holds {odd:#x}, and not {value:#x}").into()),
        None => Ok(()),
    }
}

impl Player {
    pub(super) fn use_buffers(&mut self) -> Outcome {
        let stream = self.stream();
        let stream = self.order.streams[stream].clone();
        // For work of a stream that is not known cudarc waits on the host, which spoils captures.
        self.world.memory.add_stream(&stream)?;
        let value = self.next_value();
        let Buffers { device, pinned } = &mut self.buffers;
        let (count, pins) = (device.len(), pinned.len());
        let at = self.random.index(count.max(1));
        let pin = self.random.index(pins.max(1));
        match self.random.index(10) {
            0 | 1 if count < BUFFERS => match self.world.memory.zeros(&stream, LEN) {
                Ok(buffer) => device.push((buffer, 0)),
                Err(error) if is_short(&error) => {}
                Err(error) => return Err(format!("a buffer: {error}").into()),
            },
            2 | 3 if pins < BUFFERS => match self.world.pinned.copy_of(&[value; LEN]) {
                Ok(buffer) => pinned.push((buffer, value)),
                Err(error) if is_short(&error) => {}
                Err(error) => return Err(format!("a pinned buffer: {error}").into()),
            },
            4 if count > 0 => drop(device.swap_remove(at)),
            5 if pins > 0 => drop(pinned.swap_remove(pin)),
            6 if count > 0 && pins > 0 => {
                pinned[pin].0.copy_to(&stream, &mut device[at].0)?;
                device[at].1 = pinned[pin].1;
            }
            7 if count > 0 && pins > 0 => {
                pinned[pin].0.copy_from(&stream, &device[at].0)?;
                pinned[pin].1 = device[at].1;
            }
            8 if count > 1 => {
                let [from, to] = [at, (at + 1) % count];
                let Ok([from, to]) = device.get_disjoint_mut([from, to]) else {
                    return Ok(());
                };
                stream.memcpy_dtod(&from.0, &mut to.0)?;
                to.1 = from.1;
            }
            9 if pins > 0 => {
                check(&pinned[pin])?;
                if self.random.index(2) == 0 {
                    pinned[pin].0.as_mut_slice()?.fill(value);
                    pinned[pin].1 = value;
                }
            }
            _ => {}
        }
        Ok(())
    }
}
