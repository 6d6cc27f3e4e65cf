//! A CUDA driver over host memory.
