//! Says where the stand-in's shared object lies, which cargo links before it compiles this package.

use std::env;
use std::fs::File;
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let file = match env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("windows") => "larder_cuda_stand_in.dll",
        Ok("macos") => "liblarder_cuda_stand_in.dylib",
        _ => "liblarder_cuda_stand_in.so",
    };
    // This script's own folder is PROFILE/build/NAME/out.
    let out = env::var("OUT_DIR").unwrap_or_default();
    let profile = Path::new(&out).ancestors().nth(3);
    let path = profile.unwrap_or(Path::new(&out)).join("deps").join(file);
    // Where nothing is linked (`cargo check`) an empty file stands in its place, until somebody links it.
    let _ = File::create_new(&path);
    println!("cargo:rustc-env=LARDER_STAND_IN={}", path.display());
}
