//! Has the linker put the functions that most programs never run apart from the others.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=seldom.ld");
    let is_linux = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux");
    if let (true, Ok(folder)) = (is_linux, env::var("CARGO_MANIFEST_DIR")) {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-T,{folder}/seldom.ld");
    }
}
