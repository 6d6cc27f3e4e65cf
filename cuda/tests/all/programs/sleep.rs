//! Programs whose allocator sleeps between their acts have the same results as without: their bytes are
//! compared as usual, and each block in full after each sleep.

use larder_cuda::driver::Rule;
use larder_cuda::{DeviceAllocError, SleepError};

use crate::common::{number, ran_in_child};
use crate::programs::program::{Program, SLOTS, While};
use crate::programs::run::{Outcome, Runner};
use crate::programs::{Schedule, apart_with_kernels, shrink, wrong};

/// Programs of the ordinary run.
const PROGRAMS: u64 = 50;

impl Runner {
    /// Sleeps and wakes; what is refused once succeeds then, and changed nothing.
    pub(crate) fn sleep(&mut self, frees: usize, refused: Option<(While, u64)>) -> Outcome {
        let falling = self.refusing(refused, While::FallingAsleep, |runner| {
            runner.memory.sleep().map(drop)
        });
        if let Err(error) = falling {
            self.check_refusal(error, refused)?;
            if !self.memory.is_asleep() {
                self.compare_all()?;
            }
            self.memory.sleep()?;
        }
        self.check_asleep()?;
        self.free_asleep(frees)?;
        let woken = self.refusing(refused, While::Waking, |runner| {
            runner.memory.wake().map(drop)
        });
        if let Err(error) = woken {
            self.check_refusal(error, refused)?;
            if !self.memory.is_asleep() {
                return Err("awake after an error".into());
            }
            self.memory.sleep()?;
            self.check_asleep()?;
            self.memory.wake()?;
        }
        if self.memory.is_asleep() {
            return Err("asleep after it woke".into());
        }
        self.compare_all()?;
        self.check_live()
    }

    fn refusing<R>(
        &mut self,
        refused: Option<(While, u64)>,
        now: While,
        act: impl FnOnce(&Self) -> R,
    ) -> R {
        let (Some(control), Some((_, skip))) =
            (self.control, refused.filter(|(when, _)| *when == now))
        else {
            return act(self);
        };
        self.refused = true;
        control
            .fail(Rule::any().after(skip))
            .expect("a rule for all functions");
        let answer = act(self);
        control.clear_failures();
        answer
    }

    fn check_refusal(&self, error: SleepError, refused: Option<(While, u64)>) -> Outcome {
        let driver = matches!(error, SleepError::Driver(_) | SleepError::Host { .. });
        if self.control.is_none() || refused.is_none() || !driver {
            return Err(error.into());
        }
        Ok(())
    }

    fn check_asleep(&self) -> Outcome {
        // What was refused and is tried again.
        self.context.settle();
        let used = self.control.map_or(0, |control| control.used(0));
        if used != 0 {
            return Err(format!("asleep, {used} bytes are held").into());
        }
        match self.memory.alloc(&self.order.streams[0], 100) {
            Err(DeviceAllocError::Asleep) => Ok(()),
            other => Err(format!("asleep, an allocation gave {other:?}").into()),
        }
    }

    fn free_asleep(&mut self, frees: usize) -> Outcome {
        for slot in 0..SLOTS {
            if frees >> slot & 1 == 0 {
                continue;
            }
            let Some(held) = self.slots[slot].take() else {
                continue;
            };
            self.order.after(held.last, &held.used)?;
            self.memory
                .free(&self.order.streams[held.last], held.block)?;
        }
        Ok(())
    }

    fn compare_all(&mut self) -> Outcome {
        for slot in 0..SLOTS {
            if let Some(held) = &self.slots[slot] {
                let last = held.last;
                self.read_pageable(slot, last)?;
            }
        }
        Ok(())
    }
}

#[test]
fn programs_that_sleep_give_what_they_give_awake() {
    if ran_in_child() {
        return;
    }
    let (_turn, control) = apart_with_kernels();
    let orders = Schedule::all(control);
    let first = number("LARDER_PROGRAM_SEED", 0);
    for seed in first..first + number("LARDER_PROGRAMS", PROGRAMS) {
        let program = Program::draw(seed).with_sleeps();
        let at = orders[(seed % orders.len() as u64) as usize];
        if let Some(why) = wrong(control, &program, at) {
            let short = shrink::shrink(&program, |part| wrong(control, part, at).is_some());
            let still = wrong(control, &short, at);
            panic!("seed {seed}, {at:?}: {why}\nshortened ({still:?}) to {short}");
        }
    }
}
