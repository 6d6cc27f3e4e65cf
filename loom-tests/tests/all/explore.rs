//! The default exploration of a model.

/// Explores every interleaving of `model` with at most three preemptions.
pub(crate) fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}
