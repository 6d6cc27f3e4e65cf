//! The allocators that TensorFlow's processes share: the registry of allocators, the pool of a tensor
//! program, the driver's own pool.

pub(crate) mod driver_pool;
pub mod runtime;
pub(crate) mod tensor_pool;
