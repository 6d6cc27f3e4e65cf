//! TensorFlow 1.15's best fit, CONFORMANCE s8: the cases of 8.9, then 8.3 to 8.7 rule by rule, on
//! `larder_model::tensorflow::Bfc`; those that also hold for ours, on both; on ours alone where upstream has no
//! answer.

mod collect;
mod extend;
mod free;
mod random;
mod take;
mod timestamps;
mod upstream_cases;
