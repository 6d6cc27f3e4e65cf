use std::time::Duration;

use larder_core::Align;
use larder_core::pack::Lifetime;

use super::csv::{CsvDefect, read};
use super::{Effort, Problem, solve, steps};
use larder_trace as trace;

fn lifetimes(text: &str) -> Vec<Lifetime> {
    read(text.as_bytes()).expect("a good file")
}

fn defect(text: &str) -> (Option<u64>, CsvDefect) {
    read(text.as_bytes()).expect_err("a damaged file")
}

#[test]
fn columns_may_stand_in_any_order_and_some_may_be_missing() {
    let plain = lifetimes("id,lower,upper,size\n0,1,5,64\n");
    assert_eq!(plain, [Lifetime::new(1, 5, 64)]);
    let full =
        lifetimes("size,id,hint,upper,lower,offset,alignment\n64,a,-1,5,1,128,16\n64,b,,5,1,,\n");
    let mut pinned = Lifetime::new(1, 5, 64);
    pinned.pinned = Some(128);
    pinned.align = Align::new(16).expect("a power of two");
    assert_eq!(full, [pinned, Lifetime::new(1, 5, 64)]);
}

#[test]
fn a_bad_line_is_named() {
    let header = "id,lower,upper,size,alignment\n0,0,1,8,\n";
    for (line, expected) in [
        (
            "1,0,x,8,",
            "upper is `x`; it must be a whole number from 0 to 4294967295",
        ),
        (
            "1,-1,2,8,",
            "lower is `-1`; it must be a whole number from 0 to 4294967295",
        ),
        (
            "1,5,2,8,",
            "upper is 2, before lower at 5; it is the first tick after the lifetime",
        ),
        ("1,0,2,8,12", "alignment is 12; it must be a power of two"),
    ] {
        let (at, defect) = defect(&format!("{header}{line}\n"));
        assert_eq!((at, defect.to_string().as_str()), (Some(3), expected));
    }
    let (at, short) = defect(&format!("{header}1,2\n"));
    assert!(matches!((at, short), (Some(3), CsvDefect::Unreadable(_))));
}

#[test]
fn a_header_must_name_the_columns() {
    assert!(matches!(
        defect("id,lower,upper\n").1,
        CsvDefect::ColumnMissing("size")
    ));
    assert!(matches!(
        defect("id,id,lower,upper,size\n").1,
        CsvDefect::ColumnTwice("id")
    ));
    assert!(matches!(
        defect("id,lower,upper,size,gaps\n").1,
        CsvDefect::ColumnUnknown(_)
    ));
    assert!(matches!(defect("").1, CsvDefect::ColumnMissing("id")));
}

#[test]
fn a_step_holds_what_it_allocates_until_its_end() {
    let text = "a 0 8\ns 0\na 1 16\nf 0\na 2 32\nf 1\ns 1\nf 2\ns 2\na 3 4\ns 3\n";
    let trace = trace::read("t.trace".as_ref(), text.as_bytes()).expect("a good trace");
    let problems = steps::problems(&trace);
    let names: Vec<_> = problems
        .iter()
        .map(|problem| problem.name.as_str())
        .collect();
    assert_eq!(names, ["t step 0", "t step 2"]);
    let first = [Lifetime::new(0, 3, 16), Lifetime::new(2, 4, 32)];
    assert_eq!(problems[0].lifetimes, first);
    assert_eq!(problems[1].lifetimes, [Lifetime::new(0, 1, 4)]);
}

#[test]
fn what_stands_between_steps_is_none() {
    let remark = "# between steps\n";
    let text =
        format!("s 0\na 0 8\ns 1\n{remark}a 1 16\nf 0\ns 2\na 2 32\ns 3\n{remark}a 3 64\ns 4\n");
    let trace = trace::read("t.trace".as_ref(), text.as_bytes()).expect("a good trace");
    let problems = steps::problems(&trace);
    let found: Vec<_> = problems
        .iter()
        .map(|problem| (problem.name.as_str(), problem.lifetimes[0].bytes))
        .collect();
    assert_eq!(found, [("t step 0", 8), ("t step 2", 32)]);
    assert!(problems.iter().all(|problem| problem.lifetimes.len() == 1));
}

#[test]
fn a_row_says_what_was_found() {
    let problem = Problem {
        name: "p".to_owned(),
        lifetimes: vec![
            Lifetime::new(0, 2, 8),
            Lifetime::new(1, 3, 8),
            Lifetime::new(2, 4, 8),
        ],
    };
    let effort = Effort {
        time: Duration::from_secs(10),
        steps: u64::MAX,
        stop_at: 0,
    };
    let row = solve(&problem, &effort).expect("a packing");
    assert_eq!((row.buffers, row.max_live, row.height), (3, 16, 16));
    assert!(row.proven && row.valid);
}
