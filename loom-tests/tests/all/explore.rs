//! The default exploration of a model, and tables of models.

use loom::model::Builder;
use loom::thread;

/// Returns a builder of explorations with at most three preemptions.
pub(crate) fn bounded() -> Builder {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder
}

/// Explores every interleaving of `model` with at most three preemptions.
pub(crate) fn explore(model: impl Fn() + Sync + Send + 'static) {
    bounded().check(model);
}

/// Spawns a thread whose stack has room for a few copies of an allocator.
pub(crate) fn spawn<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let builder = thread::Builder::new().stack_size(1 << 17);
    builder.spawn(run).unwrap()
}

/// Explores every interleaving of a model that needs a stack like that of [`spawn`].
pub(crate) fn model(run: fn()) {
    loom::model(move || spawn(run).join().unwrap());
}

/// Makes a test of each row of a table of models. A row has the test's name, its model, and, for a broken twin, the
/// words with which it is rejected.
macro_rules! models {
    ($($(#[$doc:meta])* $name:ident $(rejected $words:literal)? => $model:expr;)*) => {$(
        $(#[$doc])*
        #[test]
        $(#[should_panic(expected = $words)])?
        fn $name() {
            $model;
        }
    )*};
}
