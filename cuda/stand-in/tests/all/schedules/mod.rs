//! The deferred schedule: a program that orders its work is right under every seed, one that forgets
//! a wait is wrong under some, and the race is found under all.

mod gpu;
mod planted;
mod random;
