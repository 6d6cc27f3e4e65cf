//! Listeners with a thread: woken by the system or by polling, and how they end.

use crate::common;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use common::Folder;
use larder_control::{
    Durability, Listener, ListenerConfig, Registration, WatchMode, replace_whole,
};
use larder_model::Random;

/// A deadline that is long enough for a busy machine. A wait that works ends long before.
const PATIENCE: Duration = Duration::from_secs(60);
const NEVER: Duration = Duration::from_secs(100_000);

fn listener(watch_mode: WatchMode, interval: Duration) -> Listener {
    let mut config = ListenerConfig::default();
    config.watch_mode = watch_mode;
    config.interval = interval;
    Listener::new(config)
}

fn put(path: &Path, text: &str) {
    replace_whole(path, text.as_bytes(), Durability::Seen).unwrap();
}

/// Registers a handler that sends on what it receives.
fn listen(listener: &Listener, path: &Path) -> (Registration, mpsc::Receiver<Vec<u8>>) {
    let (sender, receiver) = mpsc::channel();
    let handler = move |text: &[u8]| drop(sender.send(text.to_vec()));
    (listener.register(path, handler).unwrap(), receiver)
}

fn next(told: &mpsc::Receiver<Vec<u8>>) -> String {
    String::from_utf8(told.recv_timeout(PATIENCE).unwrap()).unwrap()
}

/// Returns whether this system does not watch folders, and says so.
fn is_unwatched(listener: &Listener) -> bool {
    let unwatched = listener.stats().watched == 0;
    if unwatched {
        println!("skipped: this system does not watch folders");
    }
    unwatched
}

/// Waits until another thread has made a condition true.
fn eventually(what: &str, happened: impl Fn() -> bool) {
    let until = std::time::Instant::now() + PATIENCE;
    while !happened() {
        assert!(std::time::Instant::now() < until, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_thread_delivers_what_is_there_and_each_change_and_ends_with_the_last_handle() {
    let folder = Folder::new("thread");
    let path = folder.file("control");
    put(&path, "a");
    for looking in [WatchMode::Poll, WatchMode::Watch] {
        let listener = listener(looking, Duration::from_millis(1));
        let (handle, told) = listen(&listener, &path);
        assert_eq!(next(&told), fs::read_to_string(&path).unwrap());
        for number in 0..20 {
            let text = format!("{looking:?} {number}");
            put(&path, &text);
            assert_eq!(next(&told), text);
        }
        assert_eq!(listener.stats().threads, 1);
        drop(handle);
        eventually("the thread ends", || listener.stats().threads == 0);
        assert_eq!(listener.stats().watched, 0);
    }
}

#[test]
fn the_system_reports_a_change_long_before_the_interval() {
    let folder = Folder::new("watch");
    let path = folder.file("control");
    let listener = listener(WatchMode::Watch, NEVER);
    // The file does not exist yet, but its folder does.
    let (_handle, told) = listen(&listener, &path);
    eventually("a first look", || listener.stats().polls > 0);
    if is_unwatched(&listener) {
        return;
    }
    for number in 0..20 {
        put(&path, &number.to_string());
        assert_eq!(next(&told), number.to_string());
    }
    // The listener's own polls do not cause further polls.
    let polls = listener.stats().polls;
    assert!(polls < 500, "{polls} looks for 20 changes");
}

/// Gives the name of the watched folder to another folder, in which the system must report changes too.
#[cfg(unix)]
fn after_the_folder_was_replaced(name: &str, replace: impl Fn(&Folder, &Path)) {
    let folder = Folder::new(name);
    let link = folder.file("conf");
    fs::create_dir(folder.file("a")).unwrap();
    std::os::unix::fs::symlink(folder.file("a"), &link).unwrap();
    let path = link.join("control");
    put(&path, "1");
    let listener = listener(WatchMode::Watch, NEVER);
    let (_handle, told) = listen(&listener, &path);
    assert_eq!(next(&told), "1");
    if is_unwatched(&listener) {
        return;
    }
    replace(&folder, &link);
    // Whatever was reported of the replacement, a registration makes the listener look.
    let _other = listener.register(link.join("other"), |_| ()).unwrap();
    assert_eq!(next(&told), "2");
    for number in 3..6 {
        put(&path, &number.to_string());
        assert_eq!(next(&told), number.to_string());
    }
}

#[cfg(unix)]
#[test]
fn a_folder_that_a_link_leads_to_anew_is_watched() {
    after_the_folder_was_replaced("link", |folder, link| {
        let (b, new) = (folder.file("b"), folder.file("new"));
        fs::create_dir(&b).unwrap();
        put(&b.join("control"), "2");
        std::os::unix::fs::symlink(&b, &new).unwrap();
        fs::rename(&new, link).unwrap();
    });
}

#[cfg(unix)]
#[test]
fn a_folder_that_is_removed_and_made_again_is_watched() {
    after_the_folder_was_replaced("again", |folder, link| {
        let a = folder.file("a");
        fs::remove_dir_all(&a).unwrap();
        fs::create_dir(&a).unwrap();
        put(&link.join("control"), "2");
    });
}

#[test]
fn a_second_registration_is_served_at_once_by_the_same_thread() {
    let folder = Folder::new("at-once");
    let path = folder.file("control");
    put(&path, "a");
    let listener = listener(WatchMode::Poll, NEVER);
    let handles = [(); 3].map(|()| {
        let (handle, told) = listen(&listener, &path);
        assert_eq!(next(&told), "a");
        handle
    });
    assert_eq!(listener.stats().threads, 1);
    drop(handles);
}

#[test]
fn the_last_handle_may_be_dropped_on_the_thread_itself() {
    let folder = Folder::new("self");
    let path = folder.file("control");
    let listener = listener(WatchMode::Poll, Duration::from_millis(1));
    for round in 0..50 {
        let place: Arc<Mutex<Option<Registration>>> = Arc::default();
        let (inside, (sender, receiver)) = (place.clone(), mpsc::channel());
        let mut slot = place.lock().unwrap();
        let handle = listener
            .register(&path, move |_| {
                drop(inside.lock().unwrap().take());
                let _ = sender.send(());
            })
            .unwrap();
        *slot = Some(handle);
        drop(slot);
        put(&path, &round.to_string());
        receiver.recv_timeout(PATIENCE).unwrap();
        assert!(place.lock().unwrap().is_none());
    }
    eventually("the threads end", || listener.stats().threads == 0);
}

/// Threads register and drop handles while others write and poll. A handler that runs after its drop has returned is
/// caught. A test next to the registry walks every order of the steps.
#[test]
fn l8_no_handler_runs_after_its_drop_returned() {
    let folder = Folder::new("stress");
    let path = folder.file("control");
    let listener = listener(WatchMode::Watch, Duration::from_millis(1));
    let (late, calls, stop) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
        AtomicBool::new(false),
    );
    std::thread::scope(|scope| {
        let droppers: Vec<_> = (0..3u64)
            .map(|seed| {
                let (listener, path, late, calls) = (&listener, &path, &late, &calls);
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    for _ in 0..400 {
                        let gone = Arc::new(AtomicBool::new(false));
                        let (seen, late, counted) = (gone.clone(), late.clone(), calls.clone());
                        let handle = listener
                            .register(path, move |_| {
                                counted.fetch_add(1, Ordering::Relaxed);
                                late.fetch_add(
                                    usize::from(seen.load(Ordering::SeqCst)),
                                    Ordering::Relaxed,
                                );
                                std::thread::yield_now();
                                late.fetch_add(
                                    usize::from(seen.load(Ordering::SeqCst)),
                                    Ordering::Relaxed,
                                );
                            })
                            .unwrap();
                        for _ in 0..random.index(20) {
                            std::thread::yield_now();
                        }
                        drop(handle);
                        gone.store(true, Ordering::SeqCst);
                        assert_eq!(Arc::strong_count(&gone), 1, "the callback is gone too");
                    }
                })
            })
            .collect();
        let (stopping, looking, file) = (&stop, &listener, &path);
        let writer = scope.spawn(move || {
            let mut number = 0u64;
            while !stopping.load(Ordering::Relaxed) {
                number += 1;
                put(file, &number.to_string());
                looking.poll_now();
            }
        });
        let outcomes: Vec<_> = droppers.into_iter().map(|dropper| dropper.join()).collect();
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        assert!(outcomes.iter().all(Result::is_ok));
    });
    println!("{} calls", calls.load(Ordering::Relaxed));
    assert_eq!(late.load(Ordering::Relaxed), 0);
    assert!(calls.load(Ordering::Relaxed) > 0);
    eventually("the threads end", || listener.stats().threads == 0);
}
