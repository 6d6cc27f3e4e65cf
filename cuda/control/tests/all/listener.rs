//! Handlers receive the contents of files (am_8). The listener is polled by hand, so no time
//! passes.

use crate::common;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use common::Folder;
use larder_control::{
    Durability, FileAct, FileError, Listener, ListenerConfig, Registration, WatchMode,
    replace_whole,
};
use larder_model::antman::Handlers;

fn by_hand() -> Listener {
    let mut config = ListenerConfig::default();
    config.watch_mode = WatchMode::Manual;
    Listener::new(config)
}

fn put(path: &Path, text: &str) {
    replace_whole(path, text.as_bytes(), Durability::Seen).unwrap();
}

/// A file whose listener is polled by hand.
struct Watched {
    folder: Folder,
    path: PathBuf,
    listener: Listener,
}

impl Watched {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let path = folder.file("control");
        let listener = by_hand();
        Self {
            folder,
            path,
            listener,
        }
    }

    /// Registers a handler that records what it receives.
    fn receive(&self) -> (Received, Registration) {
        let received = Received::default();
        let handle = self.listener.register(&self.path, received.handler());
        (received, handle.unwrap())
    }

    fn put(&self, text: &str) {
        put(&self.path, text);
        self.listener.poll_now();
    }
}

#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<String>>>);

impl Received {
    fn handler(&self) -> impl FnMut(&[u8]) + Send + 'static {
        let received = self.clone();
        move |text| {
            received
                .0
                .lock()
                .unwrap()
                .push(String::from_utf8(text.to_vec()).unwrap());
        }
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Returns a handler that adds the file's number to a counter `times` times.
fn adding(counter: &Arc<AtomicU64>, times: u64) -> impl FnMut(&[u8]) + Send + 'static {
    let counter = Arc::clone(counter);
    move |text| {
        let number: u64 = str::from_utf8(text).unwrap().parse().unwrap();
        counter.fetch_add(times * number, Ordering::Relaxed);
    }
}

/// Upstream's own test: numbers are written to two files while handlers come and go.
///
/// A handler that joins gets the current content at the next poll. Here that is already the next
/// number, so the results are upstream's: a content that is replaced before the poll is never
/// delivered.
#[test]
fn am_8_upstreams_scenario_with_its_numbers() {
    let expected = [100, 700, 1600, 6, 2400, 3900, 3900, 5100, 6500, 15];
    let folder = Folder::new("upstream");
    let (one, two) = (folder.file("one"), folder.file("two"));
    let listener = by_hand();
    let (first, second) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut seen = Vec::new();
    let write = |path: &Path, number: u64| {
        put(path, &number.to_string());
        listener.poll_now();
    };
    let register =
        |path: &Path, counter, times| listener.register(path, adding(counter, times)).unwrap();

    let plain = register(&one, &first, 1);
    write(&one, 100);
    seen.push(first.load(Ordering::Relaxed));
    let double = register(&one, &first, 2);
    write(&one, 200);
    seen.push(first.load(Ordering::Relaxed));
    write(&one, 300);
    seen.push(first.load(Ordering::Relaxed));
    let others = [register(&two, &second, 1), register(&two, &second, 2)];
    write(&two, 2);
    seen.push(second.load(Ordering::Relaxed));
    drop(plain);
    write(&one, 400);
    seen.push(first.load(Ordering::Relaxed));
    let plain = register(&one, &first, 1);
    write(&one, 500);
    seen.push(first.load(Ordering::Relaxed));
    drop((plain, double));
    write(&one, 600);
    seen.push(first.load(Ordering::Relaxed));
    let double = register(&one, &first, 2);
    listener.poll_now();
    seen.push(first.load(Ordering::Relaxed));
    write(&one, 700);
    seen.push(first.load(Ordering::Relaxed));
    write(&two, 3);
    seen.push(second.load(Ordering::Relaxed));
    drop((double, others));
    assert_eq!(seen, expected);
    assert_eq!((listener.stats().files, listener.stats().handlers), (0, 0));
}

#[test]
fn am_8_a_second_handler_gets_the_current_content_and_antmans_does_not() {
    let folder = Folder::new("second");
    let path = folder.file("control");
    let listener = by_hand();
    let mut antman = Handlers::new();
    let received = [Received::default(), Received::default()];
    let mut handles = Vec::new();
    let mut told = [0; 2];
    for (text, joins, ours, upstreams) in [
        ("a", true, [1, 0], vec![1]),
        ("a", true, [0, 1], vec![]),
        ("b", false, [1, 1], vec![1, 2]),
    ] {
        put(&path, text);
        if joins {
            let handler = received[handles.len()].handler();
            handles.push(listener.register(&path, handler).unwrap());
            antman.register();
        }
        listener.poll_now();
        assert_eq!(antman.look(text), upstreams, "{text}");
        for (told, received) in told.iter_mut().zip(&received) {
            let texts = received.take();
            assert!(texts.iter().all(|received| received == text));
            *told = texts.len();
        }
        assert_eq!(told, ours, "{text}");
    }
}

#[test]
fn am_8_handlers_run_in_the_order_of_their_registration() {
    let watched = Watched::new("order");
    let order = Arc::new(Mutex::new(Vec::new()));
    let register = |number| {
        let order = order.clone();
        let note = move |_: &[u8]| order.lock().unwrap().push(number);
        watched.listener.register(&watched.path, note).unwrap()
    };
    let handles: Vec<Registration> = (0..5).map(register).collect();
    watched.put("a");
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
    drop(handles);
}

#[test]
fn am_8_a_file_renamed_over_another_with_an_older_time_and_the_same_size_is_a_change() {
    let watched = Watched::new("older");
    let (received, _handle) = watched.receive();
    let make_old = |path: &Path| {
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    };
    fs::write(&watched.path, "one").unwrap();
    watched.listener.poll_now();
    let other = watched.folder.file("other");
    fs::write(&other, "two").unwrap();
    make_old(&other);
    fs::rename(&other, &watched.path).unwrap();
    watched.listener.poll_now();
    // The file is written in place, with the same size and the old time.
    fs::write(&watched.path, "six").unwrap();
    make_old(&watched.path);
    watched.listener.poll_now();
    // The same content in a renamed file with a new time is no change.
    watched.put("six");
    watched.listener.poll_now();
    assert_eq!(received.take(), ["one", "two", "six"]);
    assert_eq!(watched.listener.stats().changes, 3);
}

#[test]
fn am_8_a_file_that_goes_is_silent_and_its_return_is_a_change() {
    let watched = Watched::new("returns");
    let (received, _handle) = watched.receive();
    watched.listener.poll_now();
    assert_eq!(received.take(), [""; 0]);
    watched.put("");
    assert_eq!(received.take(), [""]);
    watched.put("a");
    fs::remove_file(&watched.path).unwrap();
    watched.listener.poll_now();
    watched.listener.poll_now();
    assert_eq!(received.take(), ["a"]);
    watched.put("a");
    watched.listener.poll_now();
    assert_eq!(received.take(), ["a"]);
}

#[test]
fn am_8_what_cannot_be_read_is_tried_again() {
    let watched = Watched::new("unreadable");
    let (received, _handle) = watched.receive();
    watched.put("a");
    // The path exists but cannot be read: the file is too large, and then it is a folder.
    fs::write(&watched.path, vec![b'x'; (1 << 20) + 1]).unwrap();
    watched.listener.poll_now();
    fs::remove_file(&watched.path).unwrap();
    fs::create_dir(&watched.path).unwrap();
    watched.listener.poll_now();
    assert_eq!(received.take(), ["a"]);
    assert_eq!(watched.listener.stats().unreadable, 2);
    fs::remove_dir(&watched.path).unwrap();
    watched.put("b");
    assert_eq!(received.take(), ["b"]);
}

#[test]
fn am_8_a_callback_may_drop_its_own_handle_and_others_and_register_new_ones() {
    let folder = Folder::new("inside");
    let path = folder.file("control");
    let listener = by_hand();
    let handles: Arc<Mutex<Vec<Option<Registration>>>> = Arc::default();
    let (own, other, new) = (
        Received::default(),
        Received::default(),
        Received::default(),
    );
    let mut deliver = own.handler();
    let (inside, mine, fresh, at) = (listener.clone(), handles.clone(), new.clone(), path.clone());
    let first = listener
        .register(&path, move |text| {
            deliver(text);
            let mut handles = mine.lock().unwrap();
            // The handler's own handle, and that of a handler that has not run yet.
            let gone = (handles[0].take(), handles[1].take());
            handles.push(Some(inside.register(&at, fresh.handler()).unwrap()));
            drop(handles);
            drop(gone);
            inside.poll_now(); // has no effect inside a handler
        })
        .unwrap();
    let second = listener.register(&path, other.handler()).unwrap();
    handles.lock().unwrap().extend([Some(first), Some(second)]);
    put(&path, "a");
    listener.poll_now();
    assert_eq!(
        (own.take(), other.take(), new.take()),
        (vec!["a".to_owned()], vec![], vec![])
    );
    listener.poll_now();
    assert_eq!(new.take(), ["a"]);
    assert_eq!((listener.stats().handlers, listener.stats().polls), (1, 2));
    handles.lock().unwrap().clear();
    assert_eq!(listener.stats().files, 0);
}

#[test]
fn a_panic_of_a_callback_is_counted_and_the_others_run() {
    let watched = Watched::new("panics");
    let bad = watched
        .listener
        .register(&watched.path, |_| panic!("on purpose"));
    let (received, _good) = watched.receive();
    for (number, text) in (1..).zip(["a", "b"]) {
        watched.put(text);
        assert_eq!(received.take(), [text]);
        assert_eq!(watched.listener.stats().panics, number);
    }
    drop(bad);
}

#[test]
fn an_empty_path_is_an_error_value_and_a_relative_one_is_made_whole() {
    let listener = by_hand();
    assert!(matches!(
        listener.register("", |_| ()),
        Err(FileError {
            act: FileAct::Listen,
            ..
        })
    ));
    let handle = listener.register("some-file", |_| ()).unwrap();
    assert!(format!("{handle:?}").contains(std::env::current_dir().unwrap().to_str().unwrap()));
}
