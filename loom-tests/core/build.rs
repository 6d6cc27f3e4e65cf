//! Selects loom's atomics and locks. In the published package, no flag can do this.

fn main() {
    println!("cargo::rustc-cfg=larder_loom");
}
