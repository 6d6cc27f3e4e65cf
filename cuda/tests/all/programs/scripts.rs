//! Scripts: the cases of a text file. Each is a program with its checks.
//!
//! A case begins with `= NAME`, and each line until the next case is an act. `#` begins a comment. These lines set
//! how the case is played:
//!
//! * `seeds N`: in N deferred orders, besides the eager one;
//! * `streams N`: on N streams instead of two;
//! * `each NAME VALUE…`: with each value in place of `$NAME` (`_` stands for a space);
//! * `anywhere`: on any device too, because it needs no control of a stand-in.
//!
//! The lines between `repeat N` and `again` are played N times, with the number of the round in place of `$n`.

use std::collections::BTreeMap;

use larder_cuda::driver::StandIn;

use crate::common::{DEVICE_BYTES, alone, assert_clean, ran_in_child};
use crate::programs::player::{Player, World, streams};
use crate::programs::words::{Outcome, number};
use crate::programs::{apart_with_kernels, kernels};

/// A line, and its number in the file.
type Line = (usize, String);

struct Case {
    name: String,
    seeds: u64,
    streams: usize,
    is_anywhere: bool,
    /// The values for each `$NAME`.
    each: Vec<(String, Vec<String>)>,
    lines: Vec<Line>,
}

fn cases(text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(name) = line.strip_prefix("= ") {
            cases.push(Case {
                name: name.to_owned(),
                seeds: 0,
                streams: 2,
                is_anywhere: false,
                each: Vec::new(),
                lines: Vec::new(),
            });
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(case) = cases.last_mut() else {
            continue;
        };
        match words[..] {
            [] | ["=", ..] => {}
            ["seeds", count] => case.seeds = count.parse().expect("a number of seeds"),
            ["streams", count] => case.streams = count.parse().expect("a number of streams"),
            ["anywhere"] => case.is_anywhere = true,
            ["each", name, ..] => {
                let values = words[2..]
                    .iter()
                    .map(|word| word.replace('_', " "))
                    .collect();
                case.each.push((format!("${name}"), values));
            }
            _ => case.lines.push((number + 1, line.to_owned())),
        }
    }
    cases
}

/// Expands repeated lines.
fn unrolled(lines: &[Line]) -> Vec<Line> {
    let mut out = Vec::new();
    let mut at = 0;
    while let Some((number_of_line, line)) = lines.get(at) {
        at += 1;
        let Some(count) = line.strip_prefix("repeat ") else {
            out.push((*number_of_line, line.clone()));
            continue;
        };
        let end = lines[at..].iter().position(|(_, line)| line == "again");
        let end = at + end.expect("an end of what is repeated");
        for round in 0..number(count).expect("a number of rounds") {
            let rounds = lines[at..end].iter();
            out.extend(
                rounds.map(|(number, line)| (*number, line.replace("$n", &round.to_string()))),
            );
        }
        at = end + 1;
    }
    out
}

/// Returns the lines for each combination of values, with the values in place of the names.
fn filled(lines: Vec<Line>, each: &[(String, Vec<String>)]) -> Vec<Vec<Line>> {
    let Some(((name, values), rest)) = each.split_first() else {
        return vec![unrolled(&lines)];
    };
    let with = |value: &String| {
        let lines = lines.iter();
        lines
            .map(|(number, line)| (*number, line.replace(name, value)))
            .collect()
    };
    values
        .iter()
        .flat_map(|value| filled(with(value), rest))
        .collect()
}

/// Plays a case once. An error has the number of the line that failed, and the reason.
fn play(
    control: Option<&'static StandIn>,
    case: &Case,
    lines: &[Line],
    seed: u64,
    ever: &mut BTreeMap<String, bool>,
) -> Result<(), String> {
    let mut play = || -> Outcome {
        let world = World::new(control, 1)?;
        let mut player = Player::new(&world, streams(&world.context, case.streams)?)?;
        if let (Some(control), Some(seed)) = (control, seed.checked_sub(1)) {
            control.schedule_deferred(seed);
        }
        for (number, line) in lines {
            player
                .act(line)
                .map_err(|error| format!("line {number}: {error}"))?;
        }
        for (number, is) in &player.ever {
            *ever.entry(number.clone()).or_default() |= is;
        }
        player.end(false)
    };
    let outcome = play().map_err(|error| error.to_string());
    let Some(control) = control else {
        return outcome;
    };
    control.clear_failures();
    control.schedule_eagerly();
    outcome?;
    match control.findings().first() {
        Some(first) => Err(first.clone()),
        None => Ok(()),
    }
}

#[track_caller]
pub(crate) fn play_case(text: &str, name: &str) {
    let cases = cases(text).into_iter();
    play_all(cases.filter(|case| case.name == name).collect());
}

/// Plays all cases of a text but the named ones.
#[track_caller]
pub(crate) fn play_others(text: &str, named: &[&str]) {
    let cases = cases(text).into_iter();
    play_all(cases.filter(|case| !named.contains(&&*case.name)).collect());
}

#[track_caller]
pub(crate) fn play_anywhere(text: &str) {
    let (_turn, _) = apart_with_kernels();
    for case in cases(text).iter().filter(|case| case.is_anywhere) {
        for lines in filled(case.lines.clone(), &case.each) {
            let outcome = play(None, case, &lines, 0, &mut BTreeMap::new());
            outcome.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        }
    }
}

#[track_caller]
fn play_all(cases: Vec<Case>) {
    assert!(!cases.is_empty(), "no such case");
    if ran_in_child() {
        return;
    }
    let Some((control, _turn)) = alone() else {
        return;
    };
    kernels::register(control);
    for case in cases {
        let mut ever = BTreeMap::new();
        for lines in filled(case.lines.clone(), &case.each) {
            for seed in 0..=case.seeds {
                control.reset(2, DEVICE_BYTES);
                control.clear_findings();
                control.poison(true);
                let outcome = play(Some(control), &case, &lines, seed, &mut ever);
                control.poison(false);
                if let Err(error) = outcome {
                    let lines: Vec<_> = lines.iter().map(|(_, line)| &**line).collect();
                    panic!("{}, seed {seed}: {error}\n{}", case.name, lines.join("\n"));
                }
                assert_clean(control);
            }
        }
        let never = ever.iter().find(|(_, is)| !**is);
        assert_eq!(never, None, "{}: in no order", case.name);
    }
}
