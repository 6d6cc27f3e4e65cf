//! The table of results: medians over the days, with the worst day in parentheses.

use crate::Kind;
use crate::day::Traffic;
use crate::report::Report;

/// A column: its title, and its number in a report.
type Column = (&'static str, fn(&Report) -> u64, Best);

/// Which numbers are better.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Best {
    Most,
    Least,
}

const COLUMNS: [Column; 11] = [
    ("served", |day| day.served, Best::Most),
    ("refused", |day| day.refused, Best::Least),
    ("halves served", |day| day.lost, Best::Least),
    ("halves earlier", |day| day.later, Best::Least),
    ("preempted", |day| day.preempted, Best::Least),
    ("tokens served", |day| day.tokens, Best::Most),
    (
        "before a refusal",
        |day| day.tokens_before_refusal.unwrap_or(day.tokens),
        Best::Most,
    ),
    ("computed again", |day| day.wasted_tokens, Best::Least),
    ("blocks moved", |day| day.moved, Best::Least),
    ("peak MiB", |day| day.peak_bytes >> 20, Best::Least),
    ("driver calls", |day| day.driver_calls, Best::Least),
];

/// Prints the days of one kind of traffic, a line for each kind of memory.
pub(crate) fn print(traffic: Traffic, days: &[Vec<Report>; 4]) {
    let requests = days[0].iter().map(|day| day.outcomes.len() as u64);
    let (median, _) = median_and_worst(requests.collect(), Best::Most);
    println!("{traffic:?}: {median} requests a day; medians, and worst days");
    print!("{:<20}", "");
    for (title, ..) in COLUMNS {
        print!(" {title:>16}");
    }
    println!();
    for (kind, days) in Kind::ALL.iter().zip(days) {
        print!("{:<20}", kind.name());
        for (_, number, best) in COLUMNS {
            let (median, worst) = median_and_worst(days.iter().map(number).collect(), best);
            print!(" {:>16}", format!("{median} ({worst})"));
        }
        println!();
    }
    println!();
}

fn median_and_worst(mut numbers: Vec<u64>, best: Best) -> (u64, u64) {
    numbers.sort_unstable();
    let worst = match best {
        Best::Most => numbers.first(),
        Best::Least => numbers.last(),
    };
    (numbers[numbers.len() / 2], worst.copied().unwrap_or(0))
}
