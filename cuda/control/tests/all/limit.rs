//! A GPU's limit and its ceiling, divided among allocators (7.5). `cuda/tests/all/jobs/limits.rs`
//! tests how a job sets them.

use larder_control::{Ceiling, divide_limit};
use larder_model::Random;
use larder_model::antman::{LimitedDevice, adjust};

const GPU: &str = "00:1e.0";

/// Returns a device as AntMan describes it.
fn antmans(limit_bytes: u64, held_bytes: u64) -> LimitedDevice {
    LimitedDevice {
        gpu: GPU.to_owned(),
        first_bytes: limit_bytes,
        limit_bytes,
        held_bytes,
    }
}

#[test]
fn s7_5_a_ceiling_is_the_first_limits_sum_or_what_the_program_says() {
    for (ceiling, first_limits, bytes) in [
        (Ceiling::Initial, &[1000][..], 1000),
        (Ceiling::Initial, &[300, 100], 400),
        (Ceiling::Initial, &[u64::MAX, 1], u64::MAX),
        (Ceiling::Bytes(1500), &[1000], 1500),
        (Ceiling::Bytes(500), &[1000], 500),
        (Ceiling::None, &[1000], u64::MAX),
    ] {
        assert_eq!(ceiling.bytes(first_limits), bytes, "{ceiling:?}");
    }
}

#[test]
fn s7_5_all_devices_of_a_gpu_share_its_limit_and_antman_knows_the_first_only() {
    for (bytes, expected) in [
        (200, [150, 50]),
        (3, [2, 0]),
        (400, [300, 100]),
        (0, [0, 0]),
    ] {
        assert_eq!(divide_limit(bytes, &[300, 100]), expected, "{bytes}");
    }
    assert_eq!(divide_limit(7, &[0, 0]), [3, 3]);
    assert!(divide_limit(7, &[]).is_empty());
    let mut devices = [antmans(300, 0), antmans(100, 0)];
    assert!(adjust(&mut devices, GPU, 200));
    assert_eq!(devices.map(|device| device.limit_bytes), [200, 100]);
}

#[test]
fn s7_5_shares_never_add_up_to_more_than_was_asked() {
    for seed in 0..5000 {
        let mut random = Random::new(seed);
        let mut number = || random.next_u64() >> (random.next_u64() % 64);
        let first_limits: Vec<u64> = (0..1 + number() % 4).map(|_| number()).collect();
        let total = number().min(Ceiling::Initial.bytes(&first_limits));
        let parts = divide_limit(total, &first_limits);
        let sum: u128 = parts.iter().copied().map(u128::from).sum();
        let (total, count) = (u128::from(total), parts.len() as u128);
        assert!(
            sum <= total && total - sum < count,
            "seed {seed}: {sum} of {total}"
        );
    }
}

#[test]
fn s7_5_one_device_that_holds_less_has_upstreams_limit() {
    for seed in 0..1000 {
        let mut random = Random::new(seed);
        let mut number = || random.next_u64() >> (random.next_u64() % 64);
        let (first, bytes) = (number(), number());
        let mut devices = [antmans(first, 0)];
        assert!(adjust(&mut devices, GPU, bytes));
        let total = bytes.min(Ceiling::Initial.bytes(&[first]));
        assert_eq!(divide_limit(total, &[first]), [devices[0].limit_bytes]);
    }
}

#[test]
fn s7_5_antman_raises_a_limit_it_cannot_meet_and_forgets_it() {
    let mut devices = [antmans(1000, 600)];
    assert!(adjust(&mut devices, GPU, 400));
    assert_eq!(devices[0].limit_bytes, 600);
    devices[0].held_bytes = 0;
    assert_eq!(devices[0].limit_bytes, 600, "nothing asks again");
    // The next file with the same number does.
    assert!(adjust(&mut devices, GPU, 400));
    assert_eq!(devices[0].limit_bytes, 400);
    assert!(
        !adjust(&mut devices, "0000:00:1e.0", 400),
        "letter for letter"
    );
}
