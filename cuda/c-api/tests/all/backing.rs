//! The choice of when pages move, made by the environment or by the program: `tests/programs/backing.c`.

use crate::common::{compiled, on_stand_in, words};

/// Returns what the program holds at its end in MiB and whether it was given more, or the reason for a refusal.
#[track_caller]
fn held(variables: &[(&str, &str)], arguments: &[&str]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "backing.c")?;
    let mut command = on_stand_in(program);
    command.args(arguments).envs(variables.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Variables, arguments, and the expected output.
type Case = (
    &'static [(&'static str, &'static str)],
    &'static [&'static str],
    &'static str,
);

const IN_PLACE: &str = "LARDER_CUDA_IN_PLACE";
const BUDGET: &str = "LARDER_CUDA_BUDGET";

#[test]
fn pages_move_as_the_environment_or_the_program_says() {
    // The idle pages are scattered, and a block needs as many in one piece. New pages are made, some of them ahead of
    // need; under a budget, the idle ones move.
    let made = "52 and more";
    let cases: [Case; 9] = [
        (&[], &[], made),
        (&[(IN_PLACE, "0"), (BUDGET, "")], &[], made),
        (&[(IN_PLACE, "1")], &[], made),
        (&[(BUDGET, "1GiB")], &[], made),
        (&[(BUDGET, "32MiB")], &[], "32 and no more"),
        (&[(IN_PLACE, "0"), (BUDGET, "32MiB")], &[], "32 and no more"),
        (&[], &["in-place"], made),
        (&[], &["budget", "33554432"], "32 and no more"),
        // What the program sets for a device takes precedence.
        (&[(BUDGET, "32MiB")], &["in-place"], made),
    ];
    for (variables, arguments, wanted) in cases {
        let Some(said) = held(variables, arguments) else {
            return;
        };
        assert_eq!(said.trim(), wanted, "{variables:?} {arguments:?}");
    }
}

#[test]
fn a_choice_that_makes_no_sense_is_refused_with_what_is_allowed() {
    let cases: [Case; 5] = [
        (
            &[(IN_PLACE, "yes")],
            &[],
            r#"LARDER_CUDA_IN_PLACE is "yes": set it to 1 for"#,
        ),
        (
            &[(BUDGET, "4")],
            &[],
            r#"LARDER_CUDA_BUDGET is "4": set it to a size of at least 2 MiB, such as 1.5GiB"#,
        ),
        (
            &[(BUDGET, "much")],
            &[],
            r#"LARDER_CUDA_BUDGET is "much": set it to a size"#,
        ),
        (
            &[(IN_PLACE, "1"), (BUDGET, "1GiB")],
            &[],
            "are both set: set one of them",
        ),
        (
            &[],
            &["budget", "4"],
            "a budget of 4 bytes is less than a page: give 2 MiB",
        ),
    ];
    for (variables, arguments, wanted) in cases {
        let Some(said) = held(variables, arguments) else {
            return;
        };
        assert!(said.contains(wanted), "{variables:?} {arguments:?}: {said}");
    }
}
