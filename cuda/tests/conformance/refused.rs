//! Rules about calls that a driver refuses, as a table.

use larder_cuda_abi::Code;

use crate::{api::Answer, gpu};

/// The table of refused calls. Each rule has the test's name, the objects that the calls use, the calls, and the
/// accepted codes. The stand-in must answer with the first code, a real driver with any code in the list; `_` accepts
/// any error. A rule may also name a value that the calls must leave unchanged.
macro_rules! refusals {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($thing:ident = $made:expr),*) { $($call:expr),+ $(,)? }
            => $first:ident $(| $other:tt)* $(, leaving $left:expr, $unchanged:expr)?;
    )*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            let _gpu = $crate::gpu::portable();
            $(let $thing = $made;)*
            let known = &[Some(larder_cuda_abi::Code::$first) $(, $crate::refused::code!($other))*];
            $($crate::refused::assert_refused(stringify!($call), $call, known);)+
            $(assert_eq!($left, $unchanged, "the refused calls change nothing");)?
        }
    )*};
}
pub(crate) use refusals;

/// A code of the list, or `None` for any code.
macro_rules! code {
    (_) => {
        None
    };
    ($code:ident) => {
        Some(larder_cuda_abi::Code::$code)
    };
}
pub(crate) use code;

#[track_caller]
pub(crate) fn assert_refused<T>(call: &str, answer: Answer<T>, known: &[Option<Code>]) {
    let Err(found) = answer else {
        panic!("{call} is not refused");
    };
    let known = match gpu::stand_in() {
        Some(_) => &known[..1],
        None => known,
    };
    let is_known = known.contains(&None) || known.contains(&Some(found));
    assert!(is_known, "{call} answers {found:?}, not {known:?}");
}
