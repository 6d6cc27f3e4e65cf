//! Sets the folder in which cargo puts linked files: the stand-in's shared object is there before
//! this package is compiled.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // This script's own folder is PROFILE/build/NAME/out.
    let out = env::var("OUT_DIR").unwrap_or_default();
    let profile = Path::new(&out).ancestors().nth(3);
    let linked = profile.unwrap_or(Path::new(&out)).join("deps");
    println!("cargo:rustc-env=LARDER_LINKED={}", linked.display());
}
