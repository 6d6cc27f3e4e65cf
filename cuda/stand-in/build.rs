//! Names the shared object as the driver's is named, so that a program that has loaded it and then opens
//! "libcuda.so" gets it again.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
