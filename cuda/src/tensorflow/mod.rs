//! TensorFlow's allocators: the registry that a process shares, the pool planned from a program's
//! steps, and the driver's own pool.

pub(crate) mod driver_pool;
pub mod runtime;
pub(crate) mod tensor_pool;
