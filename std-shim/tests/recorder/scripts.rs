//! The scripts in `scripts.txt`: calls of a recorder, and the traces that they must leave.

use std::alloc::{GlobalAlloc, System};
use std::collections::BTreeMap;
use std::mem;
use std::panic;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{LazyLock, Mutex};
use std::thread;

use larder::{Recorder, Step, step, step_keyed};

use crate::blocks::{Block, Bump, Handing, InPlace};
use crate::blocks::{alloc, alloc_zeroed, free, resize, sized, try_alloc, try_resize};
use crate::scene::Scene;

struct Script {
    name: &'static str,
    below: &'static str,
    /// The smallest recorded size, or empty.
    from: &'static str,
    calls: &'static str,
    events: &'static str,
}

/// Reads the scripts; their file explains the format.
fn scripts() -> Vec<Script> {
    let text = include_str!("scripts.txt");
    let lines = text.lines().map(str::trim);
    let lines: Vec<&str> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let script = |lines: &[&'static str]| {
        let (head, calls) = lines[1].strip_prefix("in ")?.split_once(": ")?;
        let (below, from) = head.split_once(" from ").unwrap_or((head, ""));
        let events = lines[2].strip_prefix("leaves: ")?;
        Some(Script {
            name: lines[0],
            below,
            from,
            calls,
            events,
        })
    };
    let script = |lines| script(lines).unwrap_or_else(|| panic!("no script: {lines:?}"));
    lines.chunks(3).map(script).collect()
}

#[test]
fn each_script_leaves_its_trace() {
    for Script {
        name,
        below,
        from,
        events,
        ..
    } in scripts()
    {
        let mut scene = Scene::new(name).with("LARDER_RECORD_FROM", from);
        if below == "named" {
            scene = scene.with("LARDER_RECORD", "other.trace");
        }
        scene.run_well();
        assert_eq!(scene.files(), ["program.trace"], "{name}");
        assert_eq!(scene.events(), events, "{name}");
        assert_eq!(scene.end(), "the program exits", "{name}");
        let from_bytes = match (from, below) {
            ("1KiB", _) => "1024",
            (_, "named") => "100",
            ("", _) => "1",
            (from, _) => from,
        };
        let text = scene.text();
        let header = format!("\n# from_bytes: {from_bytes}\n");
        assert!(text.contains(&header), "{name}: {text}");
        if cfg!(target_os = "linux") {
            assert!(text.contains("\n# name: recorder"), "{name}: {text}");
        }
    }
}

#[test]
fn without_the_variable_no_script_writes_or_says_anything() {
    for script in scripts().iter().filter(|script| script.below != "named") {
        let scene = Scene::new(script.name).with("LARDER_RECORD", "");
        scene.run_well();
        assert_eq!(scene.files(), [""; 0], "{}", script.name);
    }
}

/// Plays the script of this name over its allocator. Returns whether there is one.
pub(crate) fn play(name: &str) -> bool {
    static HANDING: LazyLock<Recorder<Handing>> = LazyLock::new(|| {
        Recorder::new(Handing::new(|| {
            alloc(&*HANDING, 64);
        }))
    });
    let scripts = scripts();
    let Some(Script { below, calls, .. }) = scripts.iter().find(|script| script.name == name)
    else {
        return false;
    };
    match *below {
        "system" => Player::new(&Recorder::new(System)).play(calls),
        "moving" => Player::new(&Recorder::new(Bump::new())).play(calls),
        "inplace" => Player::new(&Recorder::new(InPlace)).play(calls),
        "handing" => Player::new(&*HANDING).play(calls),
        "named" => Player::new(&Recorder::to(System, c"program.trace", 100)).play(calls),
        other => panic!("no allocator is {other}"),
    }
    true
}

/// The blocks of a script by name, shared by its threads.
struct Player<'a, A> {
    heap: &'a Recorder<A>,
    blocks: Mutex<BTreeMap<String, Block>>,
}

/// A thread of a script: the sender of its calls, the receiver of its answers, and its handle.
type Worker<'scope> = (
    Sender<String>,
    Receiver<()>,
    thread::ScopedJoinHandle<'scope, ()>,
);

impl<'a, A: GlobalAlloc + Sync> Player<'a, A> {
    fn new(heap: &'a Recorder<A>) -> Self {
        let blocks = Mutex::default();
        Self { heap, blocks }
    }

    fn play(&self, calls: &str) {
        thread::scope(|scope| {
            let mut workers = BTreeMap::<&str, Worker>::new();
            let mut steps = Vec::new();
            for call in calls.split(", ").map(str::trim) {
                let Some((thread, call)) = call
                    .split_once(' ')
                    .filter(|(first, _)| first.parse::<u32>().is_ok())
                else {
                    self.call(&mut steps, call);
                    continue;
                };
                if call == "ends" {
                    let (calls, _, handle) = workers.remove(thread).unwrap();
                    drop(calls);
                    handle.join().unwrap();
                    continue;
                }
                let (sender, done, _) = workers.entry(thread).or_insert_with(|| {
                    let (sender, calls) = channel::<String>();
                    let (say, done) = channel();
                    let run = move || {
                        let mut steps = Vec::new();
                        for call in calls {
                            self.call(&mut steps, &call);
                            say.send(()).unwrap();
                        }
                        // The thread leaves its steps open.
                        mem::forget(steps);
                    };
                    (sender, done, scope.spawn(run))
                });
                sender.send(call.to_owned()).unwrap();
                done.recv().unwrap();
            }
        });
    }

    fn call(&self, steps: &mut Vec<Step>, call: &str) {
        let words: Vec<&str> = call.split(' ').collect();
        let name = words.get(1).copied().unwrap_or_default();
        let bytes = words.last().and_then(|word| word.parse().ok());
        let bytes = || bytes.unwrap();
        let mut blocks = self.blocks.lock().unwrap();
        let mut take = || blocks.remove(name).unwrap();
        let block = match words[0] {
            "a" => alloc(self.heap, bytes()),
            "z" => alloc_zeroed(self.heap, bytes()),
            "p" => alloc(self.heap.inner(), bytes()),
            "r" => {
                let old = take();
                let layout = sized(64);
                blocks.insert("old".to_owned(), Block { layout, ..old });
                resize(self.heap, old, bytes())
            }
            "f" => return free(self.heap, take()),
            "o" => return free(&Recorder::to(Bump::new(), c"other.trace", 1000), take()),
            "u" => {
                let block = take();
                free(self.heap.inner(), block);
                block
            }
            "a!" => return assert!(try_alloc(self.heap, bytes()).is_none()),
            "r!" => return assert!(try_resize(self.heap, blocks[name], bytes()).is_none()),
            "s" => return self.heap.step(),
            "b" => return steps.push(step()),
            "k" => return steps.push(step_keyed(7)),
            "e" => return drop(steps.pop().unwrap()),
            "panic" => {
                let step = steps.pop().unwrap();
                let unwinds = move || {
                    let _step = step;
                    panic::resume_unwind(Box::new(()));
                };
                return drop(panic::catch_unwind(panic::AssertUnwindSafe(unwinds)).unwrap_err());
            }
            _ => panic!("no call is {call}"),
        };
        blocks.insert(name.to_owned(), block);
    }
}
