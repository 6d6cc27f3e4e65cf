//! Gives the shared object the name of the driver's, so that a program that has loaded it and then opens "libcuda.so"
//! gets it again.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
