//! A library loaded at run time and its program, which both have this heap as their allocator: two
//! heaps, each with its own state in every thread.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::mpsc;
use std::thread;

use larder::Larder;

#[global_allocator]
static HEAP: Larder = Larder::new();

struct Plugin {
    sum: extern "C" fn(u64) -> u64,
    make: extern "C" fn(usize) -> *mut c_void,
    drop: unsafe extern "C" fn(*mut c_void) -> usize,
    live_bytes: extern "C" fn() -> u64,
    heaps: extern "C" fn() -> u64,
}

/// Loads a library from the folder of the examples, which are built with the tests.
fn open(name: &str) -> *mut c_void {
    let path = examples().join(name);
    assert!(path.exists(), "first: cargo build -p larder --examples");
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a NUL-terminated string; the library's initializers are those of Rust.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "{}", reason());
    library
}

fn examples() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let folder = here.parent().unwrap().parent().unwrap();
    folder.join("examples")
}

fn plugin() -> &'static Plugin {
    static PLUGIN: OnceLock<Plugin> = OnceLock::new();
    PLUGIN.get_or_init(|| {
        let library = open("libplugin.so");
        // SAFETY: functions of these types, as the library's source says.
        unsafe {
            Plugin {
                sum: symbol(library, c"plugin_sum"),
                make: symbol(library, c"plugin_make"),
                drop: symbol(library, c"plugin_drop"),
                live_bytes: symbol(library, c"plugin_live_bytes"),
                heaps: symbol(library, c"plugin_heaps"),
            }
        }
    })
}

/// Returns a function of a library.
///
/// # Safety
/// The library is loaded, and the function has this type.
unsafe fn symbol<F: Copy>(library: *mut c_void, name: &CStr) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: a loaded library and a NUL-terminated string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "{}", reason());
    // SAFETY: the caller promises a function of this type, which is as large as a pointer.
    unsafe { std::mem::transmute_copy(&found) }
}

fn reason() -> String {
    // SAFETY: null, or a string that is valid until the next call.
    let words = unsafe { libc::dlerror() };
    if words.is_null() {
        return String::new();
    }
    // SAFETY: a string that is valid until the next call.
    let words = unsafe { CStr::from_ptr(words) };
    words.to_string_lossy().into_owned()
}

#[test]
fn a_library_loaded_at_run_time_has_a_heap_of_its_own_in_every_thread() {
    // A thread that is older than the library also has a heap in it.
    let (go, wait) = mpsc::channel::<()>();
    let early = thread::spawn(move || {
        wait.recv().unwrap();
        (plugin().sum)(500)
    });
    let plugin = plugin();
    let sum = (plugin.sum)(500);
    assert_eq!(sum, (1..500).map(|n| n * (n - 1) / 2).sum::<u64>());
    go.send(()).unwrap();
    assert_eq!(early.join().unwrap(), sum);
    assert_eq!((plugin.heaps)(), 2);

    // Blocks that the library allocated, and that another thread frees through it.
    let before = (plugin.live_bytes)();
    let ours = HEAP.stats().live_bytes;
    let texts: Vec<usize> = [10, 5000, 900_000]
        .map(|bytes| (plugin.make)(bytes).expose_provenance())
        .to_vec();
    assert!((plugin.live_bytes)() >= before + 905_010);
    assert!(HEAP.stats().live_bytes < ours + 900_000, "in our heap");
    let other = thread::spawn(move || {
        let drop = |text: usize| {
            // SAFETY: made above, and not used again.
            unsafe { (plugin.drop)(std::ptr::with_exposed_provenance_mut(text)) }
        };
        texts.into_iter().map(drop).sum::<usize>()
    });
    assert_eq!(other.join().unwrap(), 905_010);
    assert_eq!((plugin.live_bytes)(), before);

    // Threads that end leave their heaps to the next ones.
    for _ in 0..20 {
        thread::spawn(|| (plugin.sum)(100)).join().unwrap();
    }
    assert_eq!((plugin.heaps)(), 2);
}

#[test]
fn a_library_that_is_unloaded_stays_for_its_heap() {
    // A copy, which the loader treats as another library.
    let name = format!("libplugin_copy_{}.so", std::process::id());
    let copy = examples().join(&name);
    std::fs::copy(examples().join("libplugin.so"), &copy).unwrap();
    let library = open(&name);
    // SAFETY: a function of this type, as the library's source says.
    let sum: extern "C" fn(u64) -> u64 = unsafe { symbol(library, c"plugin_sum") };
    let library = library.expose_provenance();
    let (say, hear) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let user = thread::spawn(move || {
        say.send(sum(500)).unwrap();
        wait.recv().unwrap();
        // The thread ends after the library has been closed.
    });
    hear.recv().unwrap();
    // SAFETY: opened above; none of its functions is called again.
    unsafe { libc::dlclose(std::ptr::with_exposed_provenance_mut(library)) };
    go.send(()).unwrap();
    user.join().unwrap();
    // SAFETY: the child ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: has no preconditions.
        unsafe { libc::_exit(7) };
    }
    let mut status = 0;
    // SAFETY: our child, and our variable for the status.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(libc::WEXITSTATUS(status), 7);
    std::fs::remove_file(copy).unwrap();
}
