//! TensorFlow's [`AllocatorAttributes`]: requirements on an allocator's memory, such as host memory, or device memory
//! that a network card can reach. The attributes that TensorFlow passes with one call are fields of a
//! [`Request`](crate::Request).

use core::fmt;

/// Requirements on memory, in one word as TensorFlow lays it out: bit 0 for host memory, bit 1 for network cards, bit 2
/// for GPUs, bits 24 to 31 for requirements specific to the device; and a scope, 0 for none.
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
/// The first of the eight device-specific bits, which are the highest of the word.
const DEVICE_SHIFT: u32 = 24;
const DEVICE_BITS: u32 = 0xff << DEVICE_SHIFT;
const KNOWN: u32 = ON_HOST | NIC_COMPATIBLE | GPU_COMPATIBLE | DEVICE_BITS;

impl AllocatorAttributes {
    /// No requirement: any memory will do.
    pub const NONE: Self = Self {
        value: 0,
        scope_id: 0,
    };

    /// Returns the attributes of this word and scope, or `None` if an unknown bit is set.
    pub const fn from_value(value: u32, scope_id: i32) -> Option<Self> {
        if value & !KNOWN == 0 {
            Some(Self { value, scope_id })
        } else {
            None
        }
    }

    /// Returns the word.
    pub const fn value(self) -> u32 {
        self.value
    }

    /// Returns whether host memory is required.
    pub const fn on_host(self) -> bool {
        self.value & ON_HOST != 0
    }

    /// Returns whether a network card must reach the memory.
    pub const fn nic_compatible(self) -> bool {
        self.value & NIC_COMPATIBLE != 0
    }

    /// Returns whether a GPU must reach the memory.
    pub const fn gpu_compatible(self) -> bool {
        self.value & GPU_COMPATIBLE != 0
    }

    /// Returns the device-specific bits.
    pub const fn device_bits(self) -> u8 {
        (self.value >> DEVICE_SHIFT) as u8
    }

    /// Returns the scope; 0 for none.
    pub const fn scope_id(self) -> i32 {
        self.scope_id
    }

    /// Sets whether host memory is required.
    pub const fn set_on_host(&mut self, on: bool) {
        self.set(ON_HOST, on);
    }

    /// Sets whether a network card must reach the memory.
    pub const fn set_nic_compatible(&mut self, on: bool) {
        self.set(NIC_COMPATIBLE, on);
    }

    /// Sets whether a GPU must reach the memory.
    pub const fn set_gpu_compatible(&mut self, on: bool) {
        self.set(GPU_COMPATIBLE, on);
    }

    /// Sets the device-specific bits, all eight.
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

    /// Adds the requirements of `other`, and its scope if `self` has none.
    ///
    /// # Errors
    /// [`ScopesDiffer`] if both have scopes and these differ. Nothing has changed then.
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

    /// Returns whether memory that meets `other` also meets `self`: every requirement of `self` is one of `other`.
    /// Scopes are not compared.
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

/// Attributes of two different scopes cannot be merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScopesDiffer {
    /// The scope of the attributes to change.
    pub own: i32,
    /// The scope of the attributes to merge into them.
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
