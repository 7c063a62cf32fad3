// SPDX-License-Identifier: MIT OR Apache-2.0
//! Few operations, for `make test-miri`: Miri looks for uses of freed memory, data races and
//! references that alias. (It refuses the words that maps and lists read as integers.)

use reprieve::Domain;
use reprieve::structures::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

fn text(n: u32) -> String {
    n.to_string()
}

#[test]
fn sections_and_protection_beside_a_writer() {
    let domain = Domain::builder().build().unwrap();
    let cell = Cell::new_in(text(0), &domain);
    let read = |_| {
        assert!(cell.load(&domain.read_lock()).parse::<u32>().unwrap() < 3);
        assert_eq!(cell.protect().detach().len(), 1);
    };
    thread::scope(|scope| {
        scope.spawn(|| (0..3).for_each(read));
        (1..3).for_each(|n| cell.store(text(n)));
    });
    domain.barrier().unwrap();
    assert_eq!(domain.stats().waiting, 0);
}

#[test]
fn callbacks_and_cookies() {
    let domain = Domain::builder().build().unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let count = ran.clone();
    domain.defer(move || _ = count.fetch_add(1, Relaxed));
    let cookie = domain.cookie();
    // SAFETY: nobody else has found the value.
    unsafe { domain.retire_box(Box::new(text(1))) };
    domain.cond_synchronize(cookie);
    assert!(domain.poll(cookie));
    domain.barrier().unwrap();
    assert_eq!(ran.load(Relaxed), 1);
}
