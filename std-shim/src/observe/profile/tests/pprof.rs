//! Profiles in pprof's format, decoded.

use std::collections::BTreeMap;

use flate2::read::GzDecoder;
use prost::Message;

use super::super::pprof::{Profile, write};
use super::super::symbols::{NamedCall, Symbol};
use super::super::{LiveSamples, Sample, SampleEvent, SampleTotals};

fn decoded(mut zipped: &[u8]) -> Profile {
    let mut bytes = Vec::new();
    std::io::copy(&mut GzDecoder::new(&mut zipped), &mut bytes).unwrap();
    Profile::decode(&*bytes).unwrap()
}

fn text(profile: &Profile, index: i64) -> &str {
    &profile.string_table[index as usize]
}

/// Returns the frames of a sample, the outermost first, as `function file:line`, or as `address
/// file`.
fn stack_of(profile: &Profile, sample: usize) -> Vec<String> {
    let by_id = |id: &u64| profile.location.iter().find(|at| at.id == *id).unwrap();
    let ids = profile.sample[sample].location_id.iter().rev();
    ids.map(by_id)
        .map(|location| {
            let Some(line) = location.line.first() else {
                let mapping = location.mapping_id;
                let mapping = profile.mapping.iter().find(|at| at.id == mapping).unwrap();
                assert_eq!(mapping.memory_limit, u64::MAX);
                let file = text(profile, mapping.filename);
                return format!("{:#x} {file}", location.address);
            };
            let functions = &mut profile.function.iter();
            let function = functions.find(|at| at.id == line.function_id).unwrap();
            let name = text(profile, function.name);
            let file = text(profile, function.filename);
            format!("{name} {file}:{}", line.line)
        })
        .collect()
}

fn symbol(function: &str, line: u32) -> Symbol {
    Symbol::Call(NamedCall {
        name: function.to_owned(),
        file: Some("app.rs".into()),
        line: Some(line),
    })
}

#[test]
fn a_profile_for_pprof_has_the_files_and_lines_of_stacks_and_the_addresses_of_unknown_functions() {
    let (main, one, other) = (symbol("main", 3), symbol("load", 7), symbol("load", 9));
    let address = stack_of as *const () as usize;
    let unknown = Symbol::Address(address + 1);
    let totals = |blocks, bytes| SampleTotals {
        samples: 1,
        blocks,
        bytes,
    };
    let stacks = [
        (vec![&one, &main], totals(2.6, 100.4)),
        (vec![&other, &main], totals(1.0, 8.0)),
        (vec![&unknown, &main], totals(1.0, 16.0)),
    ];
    let mut zipped = Vec::new();
    write(stacks.into_iter(), &mut zipped).unwrap();
    let profile = decoded(&zipped);

    let types = profile.sample_type.iter();
    let types: Vec<_> = types
        .map(|of| (text(&profile, of.kind), text(&profile, of.unit)))
        .collect();
    assert_eq!(
        types,
        [("inuse_objects", "count"), ("inuse_space", "bytes")]
    );
    let values: Vec<_> = profile.sample.iter().map(|of| of.value.clone()).collect();
    assert_eq!(values, [[3, 100], [1, 8], [1, 16]]);
    assert_eq!(stack_of(&profile, 0), ["main app.rs:3", "load app.rs:7"]);
    assert_eq!(stack_of(&profile, 1), ["main app.rs:3", "load app.rs:9"]);
    assert_eq!(profile.string_table[0], "");
    // Two functions, on three lines.
    assert_eq!((profile.function.len(), profile.location.len()), (2, 4));
    assert!(profile.time_nanos > 0);
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        let offset = crate::os::stack::place_of(address).unwrap().offset;
        let stack = stack_of(&profile, 2);
        let (at, file) = stack[1].split_once(' ').unwrap();
        assert_eq!(at, format!("{offset:#x}"));
        assert!(file.contains("larder"), "{file}");
    }
}

#[test]
fn a_profile_for_pprof_has_the_stacks_and_bytes_of_the_folded_one() {
    let live = LiveSamples::new();
    let note = |id, bytes| {
        live.note(&Sample {
            event: SampleEvent::Allocated,
            id,
            address: 1,
            bytes,
            weight: 3.0,
        });
    };
    note(1, 100);
    std::thread::scope(|threads| {
        threads.spawn(|| note(2, 30));
    });
    let (mut folded, mut zipped) = (Vec::new(), Vec::new());
    live.write_folded(&mut folded).unwrap();
    live.write_pprof(&mut zipped).unwrap();
    let profile = decoded(&zipped);
    let mut lines = BTreeMap::new();
    for (place, sample) in profile.sample.iter().enumerate() {
        assert_eq!(sample.value[0], 3);
        let stack = stack_of(&profile, place);
        let names: Vec<String> = stack
            .iter()
            .map(|frame| frame.rsplit_once(' ').unwrap().0.replace(';', ":"))
            .collect();
        *lines.entry(names.join(";")).or_insert(0) += sample.value[1];
    }
    let lines: Vec<String> = lines
        .iter()
        .map(|(stack, bytes)| format!("{stack} {bytes}\n"))
        .collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines.concat(), String::from_utf8(folded).unwrap());
}
