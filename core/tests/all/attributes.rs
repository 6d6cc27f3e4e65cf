//! Requirements on memory, and attributes of one allocation.

use larder_core::{AllocatorAttributes, EventNumber, Request, ScopesDiffer};
use larder_model::tensorflow::AllocAttributes;

fn attributes(on_host: bool, nic: bool, gpu: bool) -> AllocatorAttributes {
    let mut attributes = AllocatorAttributes::NONE;
    attributes.set_on_host(on_host);
    attributes.set_nic_compatible(nic);
    attributes.set_gpu_compatible(gpu);
    attributes
}

fn of_scope(scope_id: i32) -> AllocatorAttributes {
    let mut attributes = AllocatorAttributes::NONE;
    attributes.set_scope_id(scope_id);
    attributes
}

#[test]
fn s3_8_all_eight_combinations_of_the_flags_come_back() {
    for bits in 0..8u32 {
        let [host, nic, gpu] = [0, 1, 2].map(|bit| bits >> bit & 1 == 1);
        let some = attributes(host, nic, gpu);
        assert_eq!(
            (some.on_host(), some.nic_compatible(), some.gpu_compatible()),
            (host, nic, gpu)
        );
        assert_eq!(some.value(), bits);
        assert_eq!(AllocatorAttributes::from_value(bits, 0), Some(some));
    }
    assert_eq!(AllocatorAttributes::from_value(1 << 3, 0), None);
    assert_eq!(AllocatorAttributes::from_value(1 << 23, 0), None);
}

#[test]
fn s3_8_less_restrictive_is_a_subset_of_the_flags() {
    let none = AllocatorAttributes::NONE;
    let nic = attributes(false, true, false);
    let gpu = attributes(false, false, true);
    let both = attributes(false, true, true);
    assert!(none.is_equal_or_less_restrictive(none));
    assert!(none.is_equal_or_less_restrictive(gpu));
    assert!(!gpu.is_equal_or_less_restrictive(none));
    assert!(!nic.is_equal_or_less_restrictive(gpu));
    assert!(!gpu.is_equal_or_less_restrictive(nic));
    assert!(gpu.is_equal_or_less_restrictive(both));
    assert!(!both.is_equal_or_less_restrictive(gpu));
    // Scopes are not compared.
    assert!(of_scope(3).is_equal_or_less_restrictive(of_scope(4)));
}

#[test]
fn s3_8_merging_asks_for_what_either_asks_for_and_keeps_the_other_as_it_was() {
    let (mut a, b) = (AllocatorAttributes::NONE, attributes(false, true, false));
    assert_eq!(a.merge(b), Ok(()));
    assert!(a.nic_compatible() && b.nic_compatible());
    assert!(!a.on_host() && !b.on_host());
}

#[test]
fn s3_8_a_scope_wins_over_none_and_two_scopes_are_an_error_that_changes_nothing() {
    for (own, other, merged) in [(1, 0, 1), (0, 1, 1), (2, 2, 2)] {
        let mut own = of_scope(own);
        assert_eq!(own.merge(of_scope(other)), Ok(()));
        assert_eq!(own.scope_id(), merged);
    }
    let (mut own, mut other) = (of_scope(3), of_scope(4));
    other.set_on_host(true);
    let differ = ScopesDiffer { own: 3, other: 4 };
    assert_eq!(own.merge(other), Err(differ));
    assert_eq!(own, of_scope(3));
    assert!(differ.to_string().contains("3 and 4"));
}

#[test]
fn s3_8_the_devices_bits_can_be_set_and_are_absent_at_first() {
    let mut some = attributes(true, false, true);
    assert_eq!(some.device_bits(), 0);
    some.set_device_bits(0x81);
    assert_eq!(some.value(), 0x8100_0005);
    assert_eq!(some.device_bits(), 0x81);
    some.set_device_bits(1);
    assert_eq!(some.value(), 1 << 24 | 5);
}

#[test]
fn s3_11_what_was_set_can_be_cleared() {
    let mut some = attributes(true, true, true);
    some.set_nic_compatible(false);
    assert_eq!(some, attributes(true, false, true));
    some.set_on_host(false);
    some.set_gpu_compatible(false);
    assert_eq!(some, AllocatorAttributes::NONE);
}

#[test]
fn s3_2_attributes_of_a_call_become_part_of_its_request() {
    let plain = Request::new(100);
    assert_eq!(AllocAttributes::default().apply(plain), plain);
    let event = EventNumber::new(7);
    let all = AllocAttributes {
        no_retry: true,
        logged: true,
        freed_by: Some(event),
    };
    assert_eq!(all.apply(plain), plain.without_wait().freed_by(event));
    let kept = plain.without_wait().freed_by(event);
    assert_eq!(AllocAttributes::default().apply(kept), kept);
}
