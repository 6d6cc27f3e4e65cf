//! Memory of all kinds, as a C program sees it: virtual memory, host memory, what is known about
//! addresses, and memory counted by several processes.

mod gpu;
mod host;
mod managed;
mod pointer;
mod processes;
mod vmm;
