//! Stream order in the default configuration.

use crate::script::script;

script!(
    "scripts/streams.txt",
    memory_waits_for_the_streams_that_use_it
);
