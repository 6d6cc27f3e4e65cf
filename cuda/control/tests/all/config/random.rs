//! The properties over random files, built of likely pieces and then cut, changed and extended.

use crate::config::property;
use larder_model::Random;

/// Pieces that make the corner cases likely.
const KEYS: [&str; 13] = [
    "name",
    "version",
    "gpuConfigInfo",
    "perfControl",
    "maxDeviceMem",
    "00:1e.0",
    "00:1E.0",
    "0000:3b:00.0",
    "controlVersion",
    "life",
    "asleep",
    "mayHold",
    "x",
];
const VALUES: [&str; 19] = [
    "0",
    "1",
    "50",
    "100",
    "150",
    "-5",
    "1.0",
    "1.5",
    "-0",
    "4294967296",
    "18446744073709551615",
    "1e20",
    "0.1",
    "null",
    "true",
    "\"text\"",
    "[]",
    "3000000000",
    "\"4711-8412345-0f8fad5bd9cb469fa16570867728950e\"",
];

fn random_object(random: &mut Random, depth: usize) -> String {
    let fields: Vec<String> = (0..random.index(5))
        .map(|_| {
            let key = *random.pick(&KEYS);
            let value = match random.index(3) {
                0 if depth < 4 => random_object(random, depth + 1),
                _ => (*random.pick(&VALUES)).into(),
            };
            format!("\"{key}\": {value}")
        })
        .collect();
    format!("{{{}}}", fields.join(", "))
}

#[test]
fn am_5_any_bytes_give_no_panic_and_no_half_of_a_file() {
    for seed in 0..20_000 {
        let mut random = Random::new(seed);
        let gpus = random_object(&mut random, 1);
        let rest = random_object(&mut random, 0);
        let mut bytes = match random.index(3) {
            0 => rest.into_bytes(),
            _ => format!("{{\"gpuConfigInfo\": {gpus}, {}", &rest[1..]).into_bytes(),
        };
        for _ in 0..random.index(3) {
            let at = random.index(bytes.len().max(1));
            match random.index(3) {
                0 => bytes.truncate(at),
                1 if at < bytes.len() => bytes[at] = random.next_u64() as u8,
                _ => bytes.insert(at, *random.pick(b"{}[],:\"0-.e ")),
            }
            if bytes.is_empty() {
                break;
            }
        }
        let outcome = std::panic::catch_unwind(|| property::any_bytes(&bytes));
        assert!(
            outcome.is_ok(),
            "seed {seed}: {}",
            String::from_utf8_lossy(&bytes)
        );
    }
}
