//! Selects loom's atomics and locks, which no flag can in the published package.

fn main() {
    println!("cargo::rustc-cfg=larder_loom");
}
