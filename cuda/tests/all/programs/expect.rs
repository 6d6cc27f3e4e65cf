//! The acts with which a script checks numbers of the allocators and the driver, and controls the stand-in.

use larder_core::limits::LimitEventKind;
use larder_core::steps::StepStats;
use larder_core::{Placement, Stats};
use larder_cuda::StreamStats;
use larder_cuda::driver::abi::{Code, constants};
use larder_cuda::driver::{Rule, StandIn};

use crate::common::DEVICE_BYTES;
use crate::programs::player::Player;
use crate::programs::things::Thing;
use crate::programs::words::{Missing, Outcome, Words, number, stream};

impl Player {
    /// `is NUMBER NUMBER`, `most` and `least` compare two numbers. `note NAME NUMBER` names a number.
    /// `ever NUMBER` requires the number to be above 0 in at least one order. `mapped ADDRESS yes|no` checks whether an
    /// address is mapped. `pass` does nothing.
    pub(crate) fn expect(&mut self, verb: &str, words: &mut Words<'_>) -> Outcome {
        let holds: fn(u64, u64) -> bool = match verb {
            "is" => |found, wanted| found == wanted,
            "most" => |found, wanted| found <= wanted,
            "least" => |found, wanted| found >= wanted,
            "note" => {
                let name = words.next()?.to_owned();
                let number = self.number_of(words.next()?)?;
                self.numbers.insert(name, number);
                return Ok(());
            }
            "ever" => {
                let name = words.next()?;
                let is = self.number_of(name)? > 0;
                *self.ever.entry(name.to_owned()).or_default() |= is;
                return Ok(());
            }
            "mapped" => {
                let address = self.number_of(words.next()?)?;
                let access = self.world.context.driver().access(address, 0);
                let is_mapped = access == Ok(u64::from(constants::MEM_ACCESS_READ_WRITE));
                return match is_mapped == (words.next()? == "yes") {
                    true => Ok(()),
                    false => Err(format!("mapped: {is_mapped}").into()),
                };
            }
            "pass" => return Ok(()),
            verb => return self.control_driver(verb, words),
        };
        let (found, wanted) = (words.next()?, words.next()?);
        let found = self.number_of(found)?;
        match holds(found, self.number_of(wanted)?) {
            true => Ok(()),
            false => Err(format!("it is {found}").into()),
        }
    }

    /// `count-calls` resets the counts of calls. `defer SEED` and `eager` choose the order of queued work.
    /// `deny FUNCTION [TIMES] [CODE]` refuses calls until `allow`. `device BYTES` and `pinnable BYTES` set the device's
    /// memory and the memory that can be pinned. `lack virtual-memory` disables virtual memory management, and
    /// `lack addresses` leaves too few addresses for an allocator.
    fn control_driver(&self, verb: &str, words: &mut Words<'_>) -> Outcome {
        let control = self.control()?;
        match verb {
            "count-calls" => control.reset_calls(),
            "defer" => control.schedule_deferred(words.number()?),
            "eager" => control.schedule_eagerly(),
            "deny" => {
                let rule = Rule::of(words.next()?).times(words.number_or(u64::MAX)?);
                let code = words.number_or(u64::from(Code::UNKNOWN.0))?;
                control.fail(rule.with(Code(code as u32)))?;
            }
            "allow" => control.clear_failures(),
            "device" => {
                // Filling this much memory with a pattern would take long.
                control.poison(false);
                control.set_memory(0, words.number()?)?;
            }
            "pinnable" => control.set_pinned(self.number_of(words.next()?)?),
            "lack" => match words.next()? {
                "virtual-memory" => control.virtual_memory(false),
                // An allocator needs at least 1.25 times the device's memory.
                _ => control.set_addresses(DEVICE_BYTES),
            },
            other => return Err(format!("no such act: {other}").into()),
        }
        Ok(())
    }

    fn control(&self) -> Outcome<&'static StandIn> {
        Ok(self
            .world
            .control
            .ok_or(Missing("the stand-in's control"))?)
    }

    /// Returns the value of an expression: a number, or a sum or difference of several.
    pub(crate) fn number_of(&self, words: &str) -> Outcome<u64> {
        let place = words.rfind(['+', '-']).filter(|place| *place > 0);
        let Some(place) = place.filter(|_| !self.numbers.contains_key(words)) else {
            return self.single(words);
        };
        let (left, right) = (
            self.number_of(&words[..place])?,
            self.single(&words[place + 1..])?,
        );
        Ok(match words.as_bytes()[place] {
            b'+' => left + right,
            _ => left.saturating_sub(right),
        })
    }

    fn single(&self, word: &str) -> Outcome<u64> {
        if word.starts_with(|first: char| first.is_ascii_digit()) || word == "all" {
            return number(word);
        }
        if let Some(noted) = self.numbers.get(word) {
            return Ok(*noted);
        }
        match word.split_once(':') {
            Some((what, of)) => self.number_by_name(what, of),
            None => self.plain_number(word),
        }
    }

    fn plain_number(&self, word: &str) -> Outcome<u64> {
        let stats = || -> Outcome<Stats> { Ok(self.memory()?.front.stats()) };
        let sum = |of: fn(&StreamStats) -> u64| -> Outcome<u64> {
            Ok(self.device()?.streams().iter().map(of).sum())
        };
        Ok(match word {
            "used" => self.control()?.used(0),
            "calls" => self.control()?.calls(None),
            "live" => stats()?.live_bytes,
            "reserved" => stats()?.reserved_bytes,
            "pool" => self.device()?.pool_stats().pool_bytes,
            "stable_bytes" => self.device()?.pool_stats().stable_bytes,
            "limit_bytes" => self.device()?.limit_bytes(),
            "pinned_live" => self.pinned_memory()?.stats().live_bytes,
            "pinned_reserved" => self.pinned_memory()?.stats().reserved_bytes,
            "host_live" => self.vmem()?.vmem_stats().host.live_bytes,
            "host_reserved" => self.vmem()?.vmem_stats().host.reserved_bytes,
            "host_pool" => self.vmem()?.host_pool_stats().pool_bytes,
            "host_stable" => self.vmem()?.host_pool_stats().stable_bytes,
            "device_live" => self.vmem()?.vmem_stats().device.live_bytes,
            "both_peaks" => self.vmem()?.vmem_stats().antman().peak_live_bytes,
            "planned_bytes" => self.vmem()?.planned_bytes(),
            "pinned_stable" => self.pinned_memory()?.pool_stats().stable_bytes,
            "joint_live" => self.vmem()?.vmem_stats().joint_live_bytes,
            "joint_peak" => self.vmem()?.vmem_stats().joint_peak_bytes,
            "arenas" => sum(|stats| stats.arena_bytes)?,
            "allocations" => sum(|stats| stats.allocations)?,
            "allocated" => sum(|stats| stats.allocated_bytes)?,
            "frees" => sum(|stats| stats.frees)?,
            "freed" => sum(|stats| stats.freed_bytes)?,
            "asleep" => u64::from(self.device()?.is_asleep()),
            "owed" => self.world.context.settle() as u64,
            "refused" => self.world.context.refused_frees() as u64,
            "soft_crossed" => self.events(LimitEventKind::SoftCrossed),
            "shrinks_done" => self.events(LimitEventKind::ShrinkDone),
            other => return Err(format!("no such number: {other}").into()),
        })
    }

    fn number_by_name(&self, what: &str, of: &str) -> Outcome<u64> {
        let alive = |kind: &str| -> Outcome<(u64, u64)> {
            let alive = self.control()?.alive();
            let found = alive.iter().find(|alive| alive.kind == kind);
            Ok(found.map_or((0, 0), |alive| (alive.count, alive.bytes)))
        };
        let window = || match self.things.get(of) {
            Some(Thing::Window(window)) => Ok(window),
            _ => Err(Missing("the window")),
        };
        let steps = || -> Outcome<StepStats> {
            let queue = &self.order.streams[stream(of)?];
            Ok(self.device()?.step_stats(queue).ok_or(Missing("steps"))?)
        };
        Ok(match what {
            "calls" => self.control()?.calls(Some(of)),
            "calls_of" => {
                let calls = self.control()?.call_table().into_iter();
                calls
                    .filter(|(name, _)| name.starts_with(of))
                    .map(|(_, calls)| calls)
                    .sum()
            }
            "count" => alive(of)?.0,
            "bytes_of" => alive(of)?.1,
            "addr" => self.held(of)?.at(),
            "bytes" => self.held(of)?.block.bytes(),
            "requested" => {
                let info = self.memory()?.front.info(&self.held(of)?.block);
                info.ok_or(Missing("the block"))?.requested_bytes
            }
            "events" => {
                let handle = self.queue(stream(of)?).addr();
                let streams = self.device()?.streams();
                let mut of_it = streams.iter().filter(|stats| stats.stream == handle);
                of_it.next().ok_or(Missing("the stream"))?.events
            }
            "rejected" => steps()?.rejected,
            "on_host" => {
                let placement = self.vmem()?.placement(&self.held(of)?.block);
                u64::from(placement == Placement::Host)
            }
            "is_done" => {
                let queue = &self.order.streams[stream(of)?];
                u64::from(self.world.context.is_done(queue)?)
            }
            "captures" => u64::from(self.is_capturing(stream(of)?)?),
            "window" => window()?.bytes(),
            "peak" => window()?.peak_bytes(),
            "held" => self.budget_of(of)?.usage().used_bytes,
            "above" => self.budget_of(of)?.usage().excess_bytes,
            "steps" => steps()?.steps,
            "known" => steps()?.known_steps,
            "hits" => steps()?.hits,
            "misses" => steps()?.misses,
            "layouts" => steps()?.layouts,
            "fixed" => match self.things.get(of) {
                Some(Thing::Fixed(fixed)) => fixed.range().bytes(),
                _ => return Err(Missing("the fixed block").into()),
            },
            other => return Err(format!("no such number: {other}:{of}").into()),
        })
    }

    fn budget_of(&self, name: &str) -> Outcome<&larder_cuda::Budget> {
        Ok(self.budgets.get(name).ok_or(Missing("the budget"))?)
    }

    fn vmem(&self) -> Outcome<&larder_cuda::VmemAllocator> {
        Ok(self.memory()?.vmem.as_ref().ok_or(Missing("a host side"))?)
    }

    fn pinned_memory(&self) -> Outcome<&larder_cuda::PinnedAllocator> {
        let pinned = self.memory()?.pinned.as_ref();
        Ok(pinned.ok_or(Missing("pinned memory"))?)
    }

    fn events(&self, kind: LimitEventKind) -> u64 {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|seen| **seen == kind).count() as u64
    }
}
