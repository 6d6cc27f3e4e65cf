//! A Vulkan device that does not exist, just enough for `gpu-allocator` to be
//! built on one.
//!
//! It answers four functions: the properties of the physical device (all zero
//! but the granularity), its memory (one heap, one type, local to the device and
//! not visible to the host), the allocation of memory (a fresh number, nothing
//! behind it) and its release (forgotten). Every other function is absent, and
//! ash then puts one there that panics.
//!
//! No Vulkan loader, no driver and no memory are involved, so no time of theirs is
//! measured; in a steady state `gpu-allocator` calls none of them anyway.
//!
//! Unsafe here is the C interface alone. Invariants:
//! * VULKAN1 every function has the type that ash declares for its name: the coercion
//!   to that type in `answer` makes the compiler check it.
//! * VULKAN2 no handle is ever followed: handles are numbers to this device.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use ash::vk::{self, Handle};

/// Far more than any block asked for.
const HEAP_BYTES: u64 = 1 << 40;

/// The number of the next piece of device memory; 0 is Vulkan's null. Publishes nothing.
static NEXT_MEMORY: AtomicU64 = AtomicU64::new(1);

/// An instance with the functions above.
pub(crate) fn instance() -> ash::Instance {
    // SAFETY: VULKAN1; a null instance is a number like any other (VULKAN2).
    unsafe { ash::Instance::load_with(answer, vk::Instance::null()) }
}

/// A device with the functions above.
pub(crate) fn device() -> ash::Device {
    // SAFETY: VULKAN1; a null device is a number like any other (VULKAN2).
    unsafe { ash::Device::load_with(answer, vk::Device::null()) }
}

/// The only physical device, which must not be null.
pub(crate) fn physical_device() -> vk::PhysicalDevice {
    vk::PhysicalDevice::from_raw(1)
}

/// The function of that name, or null.
fn answer(name: &CStr) -> *const c_void {
    match name.to_bytes() {
        b"vkGetPhysicalDeviceProperties" => {
            let function: vk::PFN_vkGetPhysicalDeviceProperties = properties;
            function as *const c_void
        }
        b"vkGetPhysicalDeviceMemoryProperties" => {
            let function: vk::PFN_vkGetPhysicalDeviceMemoryProperties = memory_properties;
            function as *const c_void
        }
        b"vkAllocateMemory" => {
            let function: vk::PFN_vkAllocateMemory = allocate_memory;
            function as *const c_void
        }
        b"vkFreeMemory" => {
            let function: vk::PFN_vkFreeMemory = free_memory;
            function as *const c_void
        }
        _ => std::ptr::null(),
    }
}

/// # Safety
/// 1. `out` is valid for a write.
unsafe extern "system" fn properties(
    _device: vk::PhysicalDevice,
    out: *mut vk::PhysicalDeviceProperties,
) {
    let mut properties = vk::PhysicalDeviceProperties::default();
    properties.limits.buffer_image_granularity = 1;
    // SAFETY: `out` is valid for a write, which the caller promises (1).
    unsafe { out.write(properties) }
}

/// # Safety
/// 1. `out` is valid for a write.
unsafe extern "system" fn memory_properties(
    _device: vk::PhysicalDevice,
    out: *mut vk::PhysicalDeviceMemoryProperties,
) {
    let mut properties = vk::PhysicalDeviceMemoryProperties {
        memory_type_count: 1,
        memory_heap_count: 1,
        ..vk::PhysicalDeviceMemoryProperties::default()
    };
    properties.memory_types[0].property_flags = vk::MemoryPropertyFlags::DEVICE_LOCAL;
    properties.memory_heaps[0].size = HEAP_BYTES;
    // SAFETY: `out` is valid for a write, which the caller promises (1).
    unsafe { out.write(properties) }
}

/// # Safety
/// 1. `out` is valid for a write.
unsafe extern "system" fn allocate_memory(
    _device: vk::Device,
    _info: *const vk::MemoryAllocateInfo<'_>,
    _callbacks: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::DeviceMemory,
) -> vk::Result {
    // Only the number's being fresh counts, which one counter gives in any order.
    let number = NEXT_MEMORY.fetch_add(1, Ordering::Relaxed);
    // SAFETY: `out` is valid for a write, which the caller promises (1).
    unsafe { out.write(vk::DeviceMemory::from_raw(number)) }
    vk::Result::SUCCESS
}

/// # Safety
/// Nothing is promised and nothing needed: VULKAN2.
unsafe extern "system" fn free_memory(
    _device: vk::Device,
    _memory: vk::DeviceMemory,
    _callbacks: *const vk::AllocationCallbacks<'_>,
) {
}
