//! The global allocator of this build, chosen by exactly one feature.

#[cfg(not(any(
    feature = "system",
    feature = "larder",
    feature = "larder-speed",
    feature = "larder-memory",
    feature = "mimalloc",
    feature = "jemalloc",
)))]
compile_error!("build the server with an allocator, such as `--features system`");

// With several features the static below exists several times, which the compiler refuses.

#[cfg(feature = "larder")]
#[global_allocator]
static GLOBAL: larder::Larder = larder::Larder::new();

#[cfg(feature = "larder-speed")]
#[global_allocator]
static GLOBAL: larder::Larder = larder::Larder::speed();

#[cfg(feature = "larder-memory")]
#[global_allocator]
static GLOBAL: larder::Larder = larder::Larder::memory();

#[cfg(feature = "mimalloc")]
#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[cfg(feature = "jemalloc")]
#[global_allocator]
static GLOBAL: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
