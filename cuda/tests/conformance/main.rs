//! Rules from NVIDIA's documentation of the CUDA driver, one per test, checked through the binding that programs use.
//! The stand-in must pass the same tests as NVIDIA's driver. The README in this folder lists the rules.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod api;
mod capturing;
mod child;
mod contexts;
mod copies;
mod default_streams;
mod device;
mod device_memory;
mod events;
mod gpu;
mod hold;
mod host_memory;
mod init;
mod kernels;
mod lookup;
mod managed_memory;
mod modules;
mod own;
mod peers;
mod pointers;
mod pools;
mod refused;
mod streams;
mod table;
mod virtual_memory;
