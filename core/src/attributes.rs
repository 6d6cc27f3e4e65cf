//! What an allocator must be, and how one allocation is meant: TensorFlow's two kinds of attributes.
//!
//! [`AllocatorAttributes`] choose an allocator (memory of the host or of a device, good for a network
//! card); [`AllocAttributes`] belong to one call and become part of its [`Request`].

use core::fmt;

use crate::block::Request;
use crate::lane::Epoch;

/// What memory must be good for, in one word as TensorFlow lays it out: bit 0 is the host's, bit 1 is
/// good for network cards, bit 2 for GPUs, bits 24 to 31 are a device's own; and a scope, 0 for none.
///
/// ```
/// use larder_core::AllocatorAttributes;
/// let mut attributes = AllocatorAttributes::NONE;
/// attributes.set_on_host(true);
/// attributes.set_gpu_compatible(true);
/// assert_eq!(
///     attributes.to_string(),
///     "AllocatorAttributes(on_host=1 nic_compatible=0 gpu_compatible=1)"
/// );
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct AllocatorAttributes {
    value: u32,
    scope_id: i32,
}

const ON_HOST: u32 = 1 << 0;
const NIC_COMPATIBLE: u32 = 1 << 1;
const GPU_COMPATIBLE: u32 = 1 << 2;
/// Where the device's own bits begin; there are eight, up to the end of the word.
const DEVICE_SHIFT: u32 = 24;
const DEVICE_BITS: u32 = 0xff << DEVICE_SHIFT;
const KNOWN: u32 = ON_HOST | NIC_COMPATIBLE | GPU_COMPATIBLE | DEVICE_BITS;

impl AllocatorAttributes {
    /// Any memory will do.
    pub const NONE: Self = Self {
        value: 0,
        scope_id: 0,
    };

    /// The attributes of this word and scope; `None` if a bit is set that means nothing.
    pub const fn from_value(value: u32, scope_id: i32) -> Option<Self> {
        if value & !KNOWN == 0 {
            Some(Self { value, scope_id })
        } else {
            None
        }
    }

    /// The word.
    pub const fn value(self) -> u32 {
        self.value
    }

    /// Whether the memory is the host's.
    pub const fn on_host(self) -> bool {
        self.value & ON_HOST != 0
    }

    /// Whether a network card must reach it.
    pub const fn nic_compatible(self) -> bool {
        self.value & NIC_COMPATIBLE != 0
    }

    /// Whether a GPU must reach it.
    pub const fn gpu_compatible(self) -> bool {
        self.value & GPU_COMPATIBLE != 0
    }

    /// The device's own bits.
    pub const fn device_bits(self) -> u8 {
        (self.value >> DEVICE_SHIFT) as u8
    }

    /// The scope; 0 for none.
    pub const fn scope_id(self) -> i32 {
        self.scope_id
    }

    /// Sets or clears that the memory is the host's.
    pub const fn set_on_host(&mut self, on: bool) {
        self.set(ON_HOST, on);
    }

    /// Sets or clears that a network card must reach it.
    pub const fn set_nic_compatible(&mut self, on: bool) {
        self.set(NIC_COMPATIBLE, on);
    }

    /// Sets or clears that a GPU must reach it.
    pub const fn set_gpu_compatible(&mut self, on: bool) {
        self.set(GPU_COMPATIBLE, on);
    }

    /// Sets the device's own bits, all eight.
    pub const fn set_device_bits(&mut self, bits: u8) {
        self.value = (self.value & !DEVICE_BITS) | ((bits as u32) << DEVICE_SHIFT);
    }

    /// Sets the scope; 0 for none.
    pub const fn set_scope_id(&mut self, scope_id: i32) {
        self.scope_id = scope_id;
    }

    const fn set(&mut self, bit: u32, on: bool) {
        if on {
            self.value |= bit;
        } else {
            self.value &= !bit;
        }
    }

    /// Asks for all that `other` asks for too, of whichever scope is set.
    ///
    /// # Errors
    /// If both have scopes and these differ. Nothing has changed then.
    pub const fn merge(&mut self, other: Self) -> Result<(), ScopesDiffer> {
        if self.scope_id != 0 && other.scope_id != 0 && self.scope_id != other.scope_id {
            return Err(ScopesDiffer {
                own: self.scope_id,
                other: other.scope_id,
            });
        }
        self.value |= other.value;
        if self.scope_id == 0 {
            self.scope_id = other.scope_id;
        }
        Ok(())
    }

    /// Whether memory that is good for `other` is good for this: all that is asked for here is asked for
    /// there. Scopes are not compared.
    pub const fn is_equal_or_less_restrictive(self, other: Self) -> bool {
        self.value & !other.value == 0
    }
}

impl fmt::Display for AllocatorAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "AllocatorAttributes(on_host={} nic_compatible={} gpu_compatible={})",
            u8::from(self.on_host()),
            u8::from(self.nic_compatible()),
            u8::from(self.gpu_compatible())
        )
    }
}

/// Attributes of two scopes cannot be merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScopesDiffer {
    /// The scope of what was to be changed.
    pub own: i32,
    /// The scope of what was to be merged into it.
    pub other: i32,
}

impl fmt::Display for ScopesDiffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "attributes of the scopes {} and {} were merged: use one scope, or 0 for one of them",
            self.own, self.other
        )
    }
}

impl core::error::Error for ScopesDiffer {}

/// How one allocation is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct AllocAttributes {
    /// Fail at once: no wait of any kind.
    pub no_retry: bool,
    /// The caller writes the allocation down by itself; who records allocations leaves it out.
    pub logged: bool,
    /// If set, only memory freed on the request's lane at or before that epoch.
    pub freed_by: Option<Epoch>,
}

impl AllocAttributes {
    /// The request with these attributes. What they do not say stays as it is. `logged` is none of an
    /// allocator's business.
    pub const fn apply(self, mut request: Request) -> Request {
        if self.no_retry {
            request.may_wait = false;
        }
        if self.freed_by.is_some() {
            request.freed_by = self.freed_by;
        }
        request
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

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
        // Scopes say nothing here.
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
        let epoch = Epoch::new(7);
        let all = AllocAttributes {
            no_retry: true,
            logged: true,
            freed_by: Some(epoch),
        };
        assert_eq!(all.apply(plain), plain.without_wait().freed_by(epoch));
        let kept = plain.without_wait().freed_by(epoch);
        assert_eq!(AllocAttributes::default().apply(kept), kept);
    }
}
