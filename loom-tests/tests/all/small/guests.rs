//! H4, H5: guests that use the set of a home, together with its owner and with each other.

use loom::thread;

use crate::small::owner::Owner;
use crate::small::world::{SLOT_BYTES, World, model_with_guests};

/// Two blocks at a time, which are nobody else's.
fn use_two(owner: &mut Owner) {
    let [first, second] = owner.alloc_all();
    assert!(first != second, "a block was given twice");
    owner.free(first);
    owner.free(second);
}

fn live_as_guest(world: &'static World) {
    if let Some(mut guest) = world.adopt_guest() {
        use_two(&mut guest);
        guest.park();
    }
}

#[test]
fn a_home_and_its_guest_never_have_one_block() {
    model_with_guests(1, 1, SLOT_BYTES, 2, |world| {
        let mut home = world.owner(0);
        let mut guest = world.new_guest(1);
        let other = thread::spawn(move || {
            use_two(&mut guest);
            guest.flush();
            guest.park();
        });
        use_two(&mut home);
        other.join().unwrap();
        home.flush();
    });
}

#[test]
fn blocks_that_a_guest_was_given_come_home_from_any_thread() {
    model_with_guests(1, 1, SLOT_BYTES, 2, |world| {
        let home = world.owner(0);
        let mut guest = world.new_guest(1);
        let [mine, theirs] = guest.alloc_all();
        let other = thread::spawn(move || world.free_singly([theirs]));
        let receiving = thread::spawn(move || home.receive());
        guest.free(mine);
        guest.flush();
        guest.park();
        other.join().unwrap();
        receiving.join().unwrap();
    });
}

#[test]
fn a_parked_guest_that_is_emptied_while_it_is_taken_keeps_or_hands_over_its_bins() {
    model_with_guests(1, 1, SLOT_BYTES, 2, |world| {
        let _home = world.owner(0);
        let mut guest = world.new_guest(1);
        use_two(&mut guest);
        guest.park();
        let ticking = thread::spawn(move || world.flush_idle(world.heap(1)));
        live_as_guest(world);
        ticking.join().unwrap();
    });
}

#[test]
fn a_guest_that_changes_homes_takes_the_blocks_in_its_bins_along() {
    model_with_guests(2, 1, SLOT_BYTES, 2, |world| {
        let first = world.owner(0);
        let mut guest = world.new_guest(2);
        use_two(&mut guest);
        guest.park();
        // The newer home has fewer threads at once.
        let _second = world.owner(1);
        let other = thread::spawn(move || live_as_guest(world));
        first.receive();
        other.join().unwrap();
    });
}

/// The broken twin of H5: somebody asks for a guest's home who neither owns it nor has its lock.
#[test]
#[should_panic(expected = "Causality violation")]
fn broken_twin_a_home_read_without_the_lock_is_found() {
    model_with_guests(1, 1, SLOT_BYTES, 2, |world| {
        let _home = world.owner(0);
        world.new_guest(1).park();
        let other = thread::spawn(move || live_as_guest(world));
        // SAFETY: none: that is what is to be found.
        unsafe { world.heap(1).with_home(|_, _| ()) };
        other.join().unwrap();
    });
}
