//! The exported functions, one file for each family, with the driver's names. Each checks its arguments
//! and calls the other modules for the work.
//!
//! They are safe functions by their types: only C can make an [`Out`](crate::ffi::Out), an
//! [`In`](crate::ffi::In) or a [`Text`](crate::ffi::Text), and X1 says what C must guarantee.
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
