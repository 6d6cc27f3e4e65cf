//! Cases as scripts. Each row is played on the real pool and on its model, which must agree on everything observable,
//! and on TensorFlow's allocator where a case says so. The answers that rows state are the promises under test.
//!
//! ```text
//! case a_freed_block_waits_for_its_stream
//! # Why, in a sentence.
//! each event = 5, 7                           plays the case for each value of $event
//! pool fixed 4g full                          4 granules in blocks b0 to b3
//! free b0 s1@$event                           stream 1 uses b0 until the event
//! alloc a 1g s2 nowait -> Pending free=1g     refused, with a number from the error; nothing has changed
//! alloc a 1g s2 -> at +0 wait s1@$event | grow 64K    the answer, and the calls of the sub-allocator
//! ```
//!
//! A row without an answer must succeed, and a grant waits for nothing unless the row says so. A refusal is stated as
//! the name of the error or, if memory is out, of the cause; `refused` stands for any of them. A refusal changes
//! nothing unless `changed` follows it.
//!
//! * pools: `fixed [SIZE] [base= limit= records= regions=AT:SIZE,..] [full]` · `ranged [limit= unit= ahead= records=
//!   apart]`, by default in adjacent units of 64 KiB · `tensorflow [limit= first= collecting adjacent regions=]` ·
//!   `both [limit= at-once regions=]` · `sides` and `upstream-sides` `device= [host= planned= at-once]`
//! * verbs: `alloc NAME SIZE.. [sN nowait by=EVENT align= unplanned]` · `free NAME.. [sN@EVENT]` · `done sN@EVENT` ·
//!   `resize NAME SIZE.. [sN until=EVENT]` · `place NAME AT SIZE [sN]` · `region AT SIZE` · `limit BYTES`
//!   (`-> excess N`: the bytes left above it; for upstream `-> in-force N`: the limit in force) · `set-limit BYTES`
//!   (releases nothing) · `trim [-> N]` · `clear` (the counters) · `safe COUNT` · `source refuse N | keep N | apart |
//!   adjacent | capacity BYTES` (`keep` refuses releases) · `repeat N` to `end`, with the round as $n
//! * facts: `holes FIRST+COUNT..` in granules, with `*` if a stream still uses the hole · `sizes SIZE..` of the holes ·
//!   `regions SIZE..` · `is KEY=N..` · `block NAME KEY=N..` · `device`, `host`, `joint`, `antman` N N N N (sides.txt)
//! * values: `each A B = 1 2, 3 4 5` plays the case with $A = 1 and $B = 2, then with $A = 3 and $B = `4 5`; several
//!   `each` rows play every combination; `;` separates values that contain blanks
//! * numbers: sums of terms with the units K, M, G, g (granules) and u (64 KiB); `2^N`, `max`, `W` (the window of
//!   events) and `R` (the largest region). `+N` and `-N` are addresses relative to the first region.

mod number;
mod play;
mod sides;
mod subject;

use std::iter::repeat;

pub(crate) use play::Player;

/// Defines a test for each named case of a script (docs/CONFORMANCE.md has their ids) and one for all other cases.
macro_rules! script {
    ($file:literal, $others:ident $(, $name:ident)*) => {
        #[test]
        fn $others() {
            crate::script::play_others($file, include_str!($file), &[$(stringify!($name)),*]);
        }
        $(
            #[test]
            fn $name() {
                crate::script::play_case($file, include_str!($file), stringify!($name));
            }
        )*
    };
}
pub(crate) use script;

/// A case, with the line number and the text of each row.
struct Case<'t> {
    name: &'t str,
    rows: Vec<(usize, &'t str)>,
}

fn cases(text: &str) -> Vec<Case<'_>> {
    let mut cases: Vec<Case<'_>> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let row = line.split('#').next().unwrap_or_default().trim();
        match row.strip_prefix("case ") {
            Some(name) => cases.push(Case {
                name,
                rows: Vec::new(),
            }),
            None if row.is_empty() => {}
            None => cases.last_mut().expect("a case").rows.push((number, row)),
        }
    }
    cases
}

pub(crate) fn play_case(file: &str, text: &str, name: &str) {
    let cases = cases(text);
    let case = cases.iter().find(|case| case.name == name);
    report(file, &[case.expect("the script has the case")]);
}

pub(crate) fn play_others(file: &str, text: &str, named: &[&str]) {
    let cases = cases(text);
    let others: Vec<_> = cases
        .iter()
        .filter(|case| !named.contains(&case.name))
        .collect();
    report(file, &others);
}

fn report(file: &str, cases: &[&Case<'_>]) {
    let mut failures = Vec::new();
    for case in cases {
        let mut values = vec![Vec::new()];
        let mut rows = case.rows.as_slice();
        while let Some(((_, row), rest)) = rows.split_first()
            && let Some(each) = row.strip_prefix("each ")
        {
            values = expanded(&values, each);
            rows = rest;
        }
        for values in values {
            if let Err(failure) = play(rows, &values) {
                let with: String = values.iter().map(|(n, v)| format!(" {n}={v}")).collect();
                failures.push(format!("case {}{with}\n{file}:{failure}", case.name));
            }
        }
    }
    let count = failures.len();
    assert!(count == 0, "{count} fail\n\n{}", failures.join("\n\n"));
}

type Values<'t> = Vec<(&'t str, &'t str)>;

/// Combines each of `values` with each choice in `NAME.. = VALUE.., VALUE..`. The last value of a choice may contain
/// blanks; if `;` separates the values, all of them may.
fn expanded<'t>(values: &[Values<'t>], each: &'t str) -> Vec<Values<'t>> {
    let (names, choices) = each.split_once(" = ").expect("each NAME.. = VALUE..");
    let names: Vec<_> = names.split_whitespace().collect();
    let choices = choices.split(", ").map(|choice| {
        let values: Vec<_> = match choice.contains(';') {
            true => choice.split(';').collect(),
            false => choice.splitn(names.len(), ' ').collect(),
        };
        let values = values.into_iter().map(str::trim).chain(repeat(""));
        names.iter().copied().zip(values).collect::<Values<'t>>()
    });
    let with = |choice: Values<'t>| {
        values
            .iter()
            .map(move |values| [values.clone(), choice.clone()].concat())
    };
    choices.flat_map(with).collect()
}

/// Plays the rows with `values`. The rows after a `pool` are played once on each allocator that it names.
fn play(rows: &[(usize, &str)], values: &Values<'_>) -> Result<(), String> {
    let mut texts = Vec::new();
    for (number, row) in rows {
        let mut text = (*row).to_owned();
        for (name, value) in values {
            text = text.replace(&format!("${name}"), value);
        }
        texts.push((*number, text));
    }
    let is_pool = |(_, row): &(usize, String)| row.starts_with("pool ");
    for part in texts.chunk_by(|_, next| !is_pool(next)) {
        let ((number, pool), rows) = part.split_first().expect("a pool");
        for mut player in Player::all(pool).map_err(|what| format!("{number}: {what}"))? {
            player.play(rows)?;
            player.end().map_err(|what| format!("{number}: {what}"))?;
        }
    }
    Ok(())
}
