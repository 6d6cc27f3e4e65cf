//! Tests of the models' rules, one by one: the cases of `rules.txt`.

use std::collections::HashMap;

use super::{
    OrderedSet, PowerOfTwo, PytorchConfig, RegionPolicy, SimulatedDevice, SplitRule, XLA_SPLIT,
};
use crate::peers::pytorch::Pytorch;
use crate::replay::{Contender, ContenderBlock};

/// Reads a sum or difference of sizes such as `10M-512`.
fn size(text: &str) -> u64 {
    let (first, rest) = text.split_at(text.find(['+', '-']).unwrap_or(text.len()));
    let (digits, unit) = match first.as_bytes().last() {
        Some(b'K') => (&first[..first.len() - 1], 1 << 10),
        Some(b'M') => (&first[..first.len() - 1], 1 << 20),
        _ => (first, 1),
    };
    let first = digits.parse::<u64>().unwrap() * unit;
    match rest.split_at_checked(1) {
        Some(("+", more)) => first + size(more),
        Some(("-", less)) => first - size(less),
        _ => first,
    }
}

/// Builds the allocator that a case names.
fn build(name: &str) -> Box<dyn Contender> {
    let (name, device) = name.split_once(" on ").unwrap_or((name, ""));
    let device = (!device.is_empty()).then(|| size(device));
    let (name, limit) = name.split_once(" of ").unwrap_or((name, ""));
    let limit = (!limit.is_empty()).then(|| size(limit));
    let words: Vec<&str> = name.split(' ').collect();
    match words[..] {
        ["pytorch"] => Box::new(Pytorch::new(PytorchConfig::DEFAULT, device)),
        ["pytorch", settings] => Box::new(Pytorch::new(
            PytorchConfig::parse(settings).unwrap(),
            device,
        )),
        ["power-of-two"] => Box::new(PowerOfTwo::new(SimulatedDevice::new(device))),
        ["best-fit", split, ref regions @ ..] => {
            let split = if split == "always" {
                SplitRule::Always
            } else {
                XLA_SPLIT
            };
            let regions = match *regions {
                ["doubling", first] => RegionPolicy::Doubling {
                    first_bytes: size(first),
                },
                _ => RegionPolicy::One,
            };
            Box::new(OrderedSet::new(
                split,
                regions,
                limit,
                SimulatedDevice::new(device),
            ))
        }
        _ => panic!("no allocator {name}"),
    }
}

/// The state of a case that is being played.
struct Play {
    allocator: Box<dyn Contender>,
    blocks: HashMap<String, ContenderBlock>,
}

impl Play {
    /// Returns the sum of a number or a block's address, and the offset written after it.
    fn address(&self, text: &str) -> u64 {
        let name = &text[..1];
        match self.blocks.get(name) {
            Some(block) if text.len() == 1 => block.address,
            Some(block) => size(&format!("{}{}", block.address, &text[1..])),
            None => size(text),
        }
    }

    fn step(&mut self, step: &str) -> Result<(), String> {
        let words: Vec<&str> = step.split(' ').collect();
        let is = |found: u64, expected: u64| match found == expected {
            true => Ok(()),
            false => Err(format!("{step}: {found}")),
        };
        let calls = self.allocator.driver_calls().unwrap_or_default();
        match words[..] {
            ["aged"] => {
                let mut steps = ["a 30M", "y 32M", "b 4M", "d 1K", "free d a"].to_vec();
                steps.extend(["x 2M", "free x"].repeat(10));
                steps.push("free y");
                steps.into_iter().try_for_each(|step| self.step(step))
            }
            ["free", ref names @ ..] => {
                for name in names {
                    self.allocator.free(self.blocks[*name]);
                }
                Ok(())
            }
            ["holds", bytes] => is(self.allocator.reserved_bytes(), size(bytes)),
            ["took", count] => is(self.allocator.driver_allocations(), size(count)),
            ["gave", count] => is(self.allocator.driver_frees(), size(count)),
            ["create", count] => is(calls.create, size(count)),
            ["map", count] => is(calls.map, size(count)),
            ["unmap", count] => is(calls.unmap, size(count)),
            ["release", count] => is(calls.release, size(count)),
            ["set_access", count] => is(calls.set_access, size(count)),
            [bytes, "refused"] => match self.allocator.alloc(size(bytes)) {
                Some(block) => Err(format!("{step}: {block:?}")),
                None => Ok(()),
            },
            [stream, name, bytes, ref place @ ..]
                if stream.starts_with('s') && stream.len() == 2 =>
            {
                self.alloc(step, size(&stream[1..]) as u8, (name, bytes), place)
            }
            [name, bytes, ref place @ ..] => self.alloc(step, 0, (name, bytes), place),
            _ => panic!("no step {step}"),
        }
    }

    fn alloc(
        &mut self,
        step: &str,
        stream: u8,
        (name, bytes): (&str, &str),
        place: &[&str],
    ) -> Result<(), String> {
        let block = self.allocator.alloc_on(stream, size(bytes));
        let block = block.ok_or_else(|| format!("{step}: refused"))?;
        let is_there = match *place {
            ["at", place] => block.address == self.address(place),
            ["not", "at", place] => block.address != self.address(place),
            _ => true,
        };
        self.blocks.insert(name.to_owned(), block);
        match is_there {
            true => Ok(()),
            false => Err(format!("{step}: {}", block.address)),
        }
    }
}

#[test]
fn each_rule_holds() {
    let text = include_str!("rules.txt").replace("\n    ", " / ");
    let (mut rule, mut wrong) = ("", Vec::new());
    for line in text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let Some((name, steps)) = line.split_once(": ") else {
            rule = line;
            continue;
        };
        let (allocator, blocks) = (build(name), HashMap::new());
        let mut play = Play { allocator, blocks };
        if let Err(why) = steps.split(" / ").try_for_each(|step| play.step(step)) {
            wrong.push(format!("{rule}\n  {line}\n  {why}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
