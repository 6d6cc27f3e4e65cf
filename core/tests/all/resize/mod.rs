//! Resizing a block in place: scripts, the cases that no script can state, and several threads.

mod refused;
mod shared;

use crate::script::script;

script!("../scripts/resize.txt", a_block_is_resized_where_it_is);
