//! Conformance of `BfcConfig::tensorflow` with CONFORMANCE 8: the cases of 8.9, then 8.3 to 8.7 rule by
//! rule, then random sequences against the obvious version.

mod collect;
mod extend;
mod free;
mod random;
mod take;
mod timestamps;
mod upstream_cases;
