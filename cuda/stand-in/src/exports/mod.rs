//! The exported functions, one file a family, named as the driver names them. Each checks its
//! arguments and leaves the work to the rest.
//!
//! They are safe functions by their types: only C can make an [`Out`](crate::ffi::Out), an
//! [`In`](crate::ffi::In) or a [`Text`](crate::ffi::Text), and X1 says what it owes.
#![allow(non_snake_case)]

mod capture;
mod context;
mod control;
mod copy;
mod device;
mod event;
mod graph;
mod host;
mod init;
mod launch;
mod managed;
mod memory;
mod module;
mod names;
mod occupancy;
mod pointer;
mod pool;
mod stream;
mod vmm;

pub(crate) use names::NAMES;
