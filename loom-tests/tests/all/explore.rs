//! How a model is explored unless its test says otherwise.

/// Runs `model` through every interleaving with at most three preemptions.
pub(crate) fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}
