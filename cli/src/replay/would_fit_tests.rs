//! The sentences on refused requests, for invented figures, and the search behind them.

use std::path::Path;

use larder_trace::{Trace, read};

use super::report::ReplayReport;
use super::report_tests::outcome;
use super::{
    CONTENDERS, ContenderSpec, Options, Outcome, RefusedRequests, ReplayScript, record, replay,
};
use crate::report::Shown;

const MIB: u64 = 1 << 20;

/// A program that was refused 60 MiB after event 8, with 30 MiB live on a device of 100 MiB.
pub(super) const REFUSED: RefusedRequests = RefusedRequests {
    requests: 1,
    served: 0,
    after_event: 8,
    live_bytes: 30 * MIB,
    bytes: 60 * MIB,
    blocks_after: 2,
    fits: false,
    largest_bytes: 0,
    tried_on_bytes: 100 * MIB,
    recorded_device_bytes: Some(100 * MIB),
};

fn outcome_of(refused: RefusedRequests, settings: Option<&str>) -> Outcome {
    Outcome {
        refused_requests: Some(refused),
        pytorch_settings: settings.map(str::to_owned),
        ..outcome(MIB, MIB, true)
    }
}

/// Returns the sentences on allocators, with the MiB of the largest request that each serves.
fn sentences(
    largest: &[(&'static str, u64)],
    refused: RefusedRequests,
    settings: Option<&str>,
) -> String {
    let mut report = ReplayReport::new(Options::new(None));
    for (allocator, largest) in largest {
        let fits = *largest * MIB >= refused.bytes;
        let refused = RefusedRequests {
            served: usize::from(fits),
            fits,
            largest_bytes: largest * MIB,
            ..refused
        };
        report.add("run", allocator, outcome_of(refused, settings));
    }
    let text = report.text(&Shown::all()).unwrap();
    let (sentences, _) = text.split_once("\n\n").unwrap();
    assert!(report.page().unwrap().contains(sentences), "{text}");
    sentences.to_owned()
}

const START: &str = "run: the program was refused 60 MiB after event 8, with 30 MiB live of the 100 MiB that it could use.";

#[test]
fn a_report_on_a_program_out_of_memory_begins_with_whether_it_fits() {
    let default = [("pytorch", 52), ("pytorch-expandable", 64), ("larder", 70)];
    let said = sentences(&default, REFUSED, None);
    assert_eq!(
        said,
        format!(
            "{START} It fits with PyTorch with expandable segments (up to 64 MiB), Larder (up to 70 MiB). It does not fit with PyTorch (8 MiB too large). Expandable segments are enough: set PYTORCH_ALLOC_CONF=expandable_segments:True."
        )
    );
    // Who has them gets no advice.
    let set = sentences(
        &[("pytorch-expandable", 52), ("larder", 60)],
        REFUSED,
        Some("a:1,expandable_segments:True"),
    );
    assert_eq!(
        set,
        format!(
            "{START} It fits with Larder (up to 60 MiB). It does not fit with PyTorch with expandable segments (8 MiB too large)."
        )
    );
    let last = RefusedRequests {
        blocks_after: 0,
        ..REFUSED
    };
    let said = sentences(&[("larder", 60), ("xla", 0)], last, None);
    assert_eq!(
        said,
        format!(
            "{START} It fits with Larder (up to 60 MiB). It does not fit with xla (which does not serve the blocks before it). What the program would have asked for next is not recorded."
        )
    );
}

#[test]
fn a_request_that_is_larger_than_what_is_free_fits_with_no_allocator() {
    let refused = RefusedRequests {
        bytes: 75 * MIB,
        ..REFUSED
    };
    let said = sentences(&[("pytorch", 60), ("larder", 70)], refused, None);
    assert!(
        said.ends_with("It fits with no allocator: 5 MiB are missing."),
        "{said}"
    );
    let said = sentences(
        &[("larder", 70)],
        RefusedRequests {
            bytes: 70 * MIB,
            ..REFUSED
        },
        None,
    );
    assert!(said.contains("It fits with Larder"), "{said}");
}

#[test]
fn a_request_that_the_programs_own_allocator_serves_here_is_said_to_be() {
    let unknown = "The program's own allocator serves it here as well";
    for (settings, own) in [
        (None, "pytorch"),
        (Some("expandable_segments:True"), "pytorch-expandable"),
    ] {
        assert!(
            sentences(&[(own, 60)], REFUSED, settings).contains(unknown),
            "{own}"
        );
        assert!(
            !sentences(&[(own, 58)], REFUSED, settings).contains(unknown),
            "{own}"
        );
        assert!(!sentences(&[("larder", 60)], REFUSED, settings).contains(unknown));
    }
}

#[test]
fn a_device_that_is_named_is_not_the_one_that_the_program_could_use() {
    let on = |mib: u64| RefusedRequests {
        tried_on_bytes: mib * MIB,
        ..REFUSED
    };
    // The larger device is why the program's own allocator serves the request.
    assert_eq!(
        sentences(&[("pytorch", 160), ("larder", 170)], on(200), None),
        format!(
            "{START} On a device of 200 MiB it fits with PyTorch (up to 160 MiB), Larder (up to 170 MiB)."
        )
    );
    assert_eq!(
        sentences(&[("pytorch", 50)], on(95), None),
        format!("{START} On a device of 95 MiB it does not fit with PyTorch (10 MiB too large).")
    );
    assert_eq!(
        sentences(&[("pytorch", 40)], on(80), None),
        format!("{START} On a device of 80 MiB it fits with no allocator: 10 MiB are missing.")
    );
    // A smaller device says as little about what filled the program's.
    let smaller = sentences(&[("pytorch", 60)], on(95), None);
    assert!(
        smaller.contains("The program's own allocator serves it here as well"),
        "{smaller}"
    );
}

fn spec(name: &str) -> &'static ContenderSpec {
    CONTENDERS.iter().find(|spec| spec.name == name).unwrap()
}

fn options(device_bytes: u64) -> Options {
    Options::new(Some(device_bytes))
}

/// Returns the snapshot of a program on `allocator` until the device refuses a block.
fn out_of_memory(program: &Trace, allocator: &str, device_bytes: u64) -> Trace {
    let one = Options::new(None);
    let mut script = ReplayScript::of(program, one.passes, one.repeat);
    let snapshot = record(spec(allocator), &mut script, &options(device_bytes)).unwrap();
    let mut bytes = Vec::new();
    snapshot.write("run", allocator, &mut bytes).unwrap();
    read(Path::new("run.pickle"), bytes.as_slice()).unwrap()
}

/// Returns the lines of a program that allocates blocks of many sizes, and frees every third.
fn lines(seed: u32) -> Vec<String> {
    let mut sizes = crate::random::Random::new(seed.into());
    let mut lines = Vec::new();
    for id in 0..400 {
        lines.push(format!("a {id} {}", 512 * (1 + sizes.below(1 << 14))));
        if id % 3 == 2 {
            lines.push(format!("f {}", id - 1));
        }
    }
    lines
}

fn trace(lines: &[String]) -> Trace {
    let text = format!("# alloc-trace v1\n{}\n", lines.join("\n"));
    read(Path::new("run.trace"), text.as_bytes()).unwrap()
}

#[test]
fn what_fits_at_the_refusal_is_what_a_program_gets_that_asks_for_it_there() {
    for seed in 0..5 {
        let lines = lines(seed);
        let device_bytes = 700 * MIB;
        let recorded = out_of_memory(&trace(&lines), "pytorch", device_bytes);
        let [refusal] = recorded.refusals() else {
            panic!("seed {seed}: {:?}", recorded.refusals());
        };
        assert_eq!(refusal.device_bytes, Some(device_bytes));
        let before = refusal.events_before as usize;
        let mut largest_of = Vec::new();
        for name in ["pytorch", "pytorch-expandable", "larder", "xla"] {
            let outcome = replay(spec(name), &recorded, &Options::new(None)).unwrap();
            let refused = outcome.refused_requests.unwrap();
            let completes = |bytes: u64| {
                let mut asks = lines[..before].to_vec();
                let id = asks.iter().filter(|line| line.starts_with('a')).count();
                asks.push(format!("a {id} {bytes}"));
                let outcome = replay(spec(name), &trace(&asks), &options(device_bytes));
                outcome.unwrap().completed
            };
            assert_eq!(
                refused.fits,
                completes(refused.bytes),
                "seed {seed}, {name}"
            );
            let largest = refused.largest_bytes;
            assert!(largest == 0 || completes(largest), "seed {seed}, {name}");
            let page = largest.next_multiple_of(2 * MIB) + 2 * MIB;
            assert!(!completes(page), "seed {seed}, {name}: {largest}");
            largest_of.push(largest);
        }
        let [pytorch, _, larder, _] = largest_of[..] else {
            panic!("{largest_of:?}");
        };
        assert!(
            pytorch < refusal.bytes && pytorch < larder,
            "seed {seed}: {largest_of:?}"
        );
    }
}

#[test]
fn a_larger_device_that_is_named_is_the_one_tried() {
    let recorded = out_of_memory(&trace(&lines(1)), "pytorch", 700 * MIB);
    for (device_bytes, fits) in [(600 * MIB, false), (1 << 40, true)] {
        let outcome = replay(spec("pytorch"), &recorded, &options(device_bytes)).unwrap();
        let refused = outcome.refused_requests.unwrap();
        assert_eq!((refused.tried_on_bytes, refused.fits), (device_bytes, fits));
    }
}

#[test]
fn a_page_has_the_device_and_the_refused_requests() {
    let recorded = out_of_memory(&trace(&lines(1)), "pytorch", 700 * MIB);
    let [refusal] = recorded.refusals() else {
        panic!("{:?}", recorded.refusals());
    };
    let drawn = format!(
        "\"refusals\":[[{},{}]]",
        refusal.events_before, refusal.bytes
    );
    for (device_bytes, shown) in [(None, 700 * MIB), (Some(800 * MIB), 800 * MIB)] {
        let options = Options {
            history: true,
            ..Options::new(device_bytes)
        };
        let mut report = ReplayReport::new(options);
        let outcome = replay(spec("larder"), &recorded, &options).unwrap();
        report.add("run", "larder", outcome);
        let page = report.page().unwrap();
        let device = format!("\"device\":{shown},");
        assert!(
            page.contains(&device) && page.contains(&drawn),
            "{device} {drawn}"
        );
    }
}
