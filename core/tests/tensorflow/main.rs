//! Conformance of `BfcConfig::tensorflow` with CONFORMANCE 8: the cases of 8.9, then 8.3 to 8.7 rule by
//! rule, then random sequences against the obvious version.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod collect;
mod extend;
mod free;
mod random;
mod take;
mod timestamps;
mod upstream_cases;
