//! Directed cases: the scripts of `scripts.txt`, which explains their words.

use std::sync::Arc;
use std::time::Duration;

use larder_control::{Clock, PacerReport, Pause, Waited};

use super::{PLAIN, World, perf, us};

struct Script {
    world: World,
    /// The report when counting began.
    before: PacerReport,
    /// The answer to the last launch that asked.
    asked: Pause,
}

fn number(text: &str) -> u64 {
    text.parse()
        .unwrap_or_else(|_| panic!("{text:?} is no number"))
}

fn micros(times: &[Duration]) -> String {
    let times = times.iter().map(|time| time.as_micros().to_string());
    times.collect::<Vec<_>>().join(" ")
}

impl Script {
    /// Begins a script from its first words, such as `50 % carry 500`.
    fn new(words: &str) -> Self {
        let words: Vec<&str> = words.split(' ').collect();
        let mut config = PLAIN;
        match words[2..] {
            ["carry", bound] => config.carry_bound = us(number(bound)),
            ["least", pause] => config.min_pause = us(number(pause)),
            _ => {}
        }
        let world = World::new(number(words[0]), config);
        let before = world.pacer.report();
        let asked = Pause::None;
        Self {
            world,
            before,
            asked,
        }
    }

    fn pause(&self, pause: Pause) -> String {
        match pause {
            Pause::None => "none".to_owned(),
            Pause::Suspended => "suspended".to_owned(),
            Pause::Until(until) => micros(&[until - self.world.clock.now()]),
        }
    }

    /// Plays a step. Returns its outcome, or nothing if it has none.
    fn step(&mut self, step: &str) -> String {
        let world = &self.world;
        let words: Vec<&str> = step.split(' ').collect();
        let report = world.pacer.report();
        match words[..] {
            ["begin"] => world.pacer.begin(),
            ["count"] => self.before = report,
            ["work", time] => world.clock.advance(us(number(time))),
            ["now", percent, "%"] => world.duty_cycle.set(perf(number(percent))),
            ["other", "asks"] => drop(world.pacer.launch()),
            ["step", work] => {
                let (launches, busy) = work.split_once('x').unwrap();
                return micros(&world.step(number(launches), us(number(busy))));
            }
            ["launch", busy] => return micros(&[world.launch(us(number(busy)))]),
            ["end"] => return micros(&[world.end()]),
            ["asks"] => {
                self.asked = world.pacer.launch();
                return self.pause(self.asked);
            }
            ["still"] => return self.pause(world.pacer.waited(self.asked)),
            ["cancelled", time] => {
                let end = world.clock.now() + us(number(time));
                assert_eq!(world.pacer.launch_wait(), Waited::Cancelled);
                assert_eq!(world.pacer.end_wait(), Waited::Cancelled);
                assert_eq!(world.clock.now(), end);
            }
            [figure, value] => {
                let found = match figure {
                    "due" => report.due.as_micros() as u64,
                    "ahead" => report.ahead.as_micros() as u64,
                    "busy" => (report.busy - self.before.busy).as_micros() as u64,
                    "inserted" => (report.inserted - self.before.inserted).as_micros() as u64,
                    "steps" => report.steps - self.before.steps,
                    "launches" => report.launches - self.before.launches,
                    _ => panic!("no step {step}"),
                };
                assert_eq!(found, number(value), "{step}");
            }
            _ => panic!("no step {step}"),
        }
        String::new()
    }

    /// Plays a line such as `after 1400: 80 %`, or a step and compares its outcome.
    fn play(&mut self, step: &str) -> Result<(), String> {
        let (step, expected) = step.split_once(": ").unwrap_or((step, ""));
        if let Some(time) = step.strip_prefix("after ") {
            let end = self.world.clock.now() + us(number(time));
            match expected.split_once(' ') {
                Some((percent, _)) => self.world.turn_at(end, number(percent)),
                None => {
                    let duty_cycle = Arc::clone(&self.world.duty_cycle);
                    self.world.clock.at(end, move || duty_cycle.cancel());
                }
            }
            return Ok(());
        }
        match self.step(step) {
            found if expected.is_empty() || found == expected => Ok(()),
            found => Err(format!("{step}: {found}, not {expected}")),
        }
    }
}

#[test]
fn pauses_are_those_of_the_scripts() {
    let text = include_str!("scripts.txt").replace("\n    ", " / ");
    let (mut title, mut wrong, mut played) = ("", Vec::new(), 0);
    for line in text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let Some((start, steps)) = line
            .split_once(": ")
            .filter(|(start, _)| start.contains('%'))
        else {
            title = line;
            continue;
        };
        let mut script = Script::new(start);
        println!("{line}");
        if let Err(why) = steps.split(" / ").try_for_each(|step| script.play(step)) {
            wrong.push(format!("{title}\n  {line}\n  {why}"));
        }
        played += 1;
    }
    assert!(
        wrong.is_empty() && played > 20,
        "{played} scripts\n{}",
        wrong.join("\n")
    );
}
