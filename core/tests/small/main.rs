//! The heap without an OS, used as a program would, with every byte checked.

mod heap;
