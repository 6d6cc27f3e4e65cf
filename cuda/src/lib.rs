//! GPU memory for programs on cudarc.
