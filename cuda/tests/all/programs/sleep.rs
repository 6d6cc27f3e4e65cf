//! The acts with which an allocator sleeps and wakes.

use larder_cuda::{DeviceAllocError, DeviceAllocator, SleepError};

use crate::programs::player::Player;
use crate::programs::things::Thing;
use crate::programs::words::{Missing, Outcome, Words};

impl Player {
    /// `sleep`: releases all of the device's memory. If the driver refuses a call, the blocks must keep their contents,
    /// and a second try must succeed.
    pub(crate) fn fall_asleep(&mut self) -> Outcome {
        let device = self.device()?;
        let captures = self.capture.is_some() || self.foreign.is_some();
        if self.is_drawn && (self.is_asleep() || captures || self.is_pinned_down()) {
            return Err(Missing("memory that may sleep").into());
        }
        let (mut slept, refusing) = self.with_refusals(|_| device.sleep());
        if let Err(error) = slept
            && self.is_drawn
        {
            check_refusal(error, refusing)?;
            if !device.is_asleep() {
                self.check_all()?;
            }
            slept = device.sleep();
        }
        let slept = slept?;
        self.asleep.insert(self.current.clone());
        for (name, bytes) in [
            ("copied", slept.copied_bytes),
            ("pageable", slept.pageable_bytes),
            ("dropped", slept.dropped_bytes),
            ("slept", slept.released_bytes),
        ] {
            self.numbers.insert(name.to_owned(), bytes);
        }
        self.forget_remakable();
        self.check_asleep(&device)
    }

    /// Forgets the contents of remakable blocks, which a sleep need not keep.
    pub(crate) fn forget_remakable(&mut self) {
        for held in self.blocks.values_mut().filter(|held| held.remakable) {
            held.ready = false;
            held.contents.with(Vec::clear);
        }
    }

    /// Returns whether an export or a fixed block keeps memory in its place.
    fn is_pinned_down(&self) -> bool {
        let pins = |thing: &Thing| matches!(thing, Thing::Export(_) | Thing::Fixed(_));
        self.things.values().any(pins)
    }

    fn check_asleep(&self, device: &DeviceAllocator) -> Outcome {
        // Tries refused frees again.
        self.world.context.settle();
        let used = self.world.control.map_or(0, |control| control.used(0));
        if self.memories.len() == 1 && used != 0 {
            return Err(format!("asleep, {used} bytes are held").into());
        }
        if device.pool_stats().pool_bytes != 0 || !device.is_asleep() {
            return Err("asleep, it counts bytes".into());
        }
        for stream in &self.order.streams {
            match device.alloc(stream, 100) {
                Err(DeviceAllocError::Asleep) => {}
                other => return Err(format!("asleep, an allocation gave {other:?}").into()),
            }
        }
        Ok(())
    }

    /// `wake`: restores the memory. Every block must have its contents.
    pub(crate) fn wake_up(&mut self) -> Outcome {
        let device = self.device()?;
        if self.is_drawn && !self.is_asleep() {
            return Err(Missing("memory that sleeps").into());
        }
        let (mut woken, refusing) = self.with_refusals(|_| device.wake());
        if let Err(error) = woken
            && self.is_drawn
        {
            match error {
                SleepError::Budget(_) => self.raise_limits()?,
                error => check_refusal(error, refusing)?,
            }
            if !device.is_asleep() {
                return Err("awake after an error".into());
            }
            device.sleep()?;
            self.check_asleep(&device)?;
            woken = device.wake();
        }
        self.numbers.insert("woken".to_owned(), woken?);
        self.asleep.remove(&self.current);
        self.check_all()?;
        self.check_live()
    }

    /// `remakable BLOCK yes|no`
    pub(crate) fn remakable(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        let remakable = words.maybe() != Some("no");
        let device = self.device()?;
        let held = self.held_mut(name)?;
        device.set_remakable(&held.block, remakable)?;
        // A sleep copies remakable blocks of arenas and windows, too, but their bytes are not compared any more.
        held.remakable = remakable;
        Ok(())
    }
}

fn check_refusal(error: SleepError, refusing: bool) -> Outcome {
    match error {
        SleepError::Driver(_) | SleepError::Host { .. } if refusing => Ok(()),
        error => Err(error.into()),
    }
}
