//! Chooses loom's atomics and locks, as nobody's flags can in the package that users have.

fn main() {
    println!("cargo::rustc-cfg=larder_loom");
}
