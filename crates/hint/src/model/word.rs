// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mutex in one word.

use super::tools::{Protected, caught, check, check_sleepers, check_spinners};
use crate::lock::word::Word;
use crate::platform::end::End;
use crate::wait::HELD;
use loom::sync::Arc;
use loom::thread;

struct Mutex {
    word: Word,
    value: Protected,
}

impl Mutex {
    fn section(&self, me: u32, end: Option<End>) -> bool {
        let taken = self.word.lock(me | HELD, end);
        if taken {
            self.value.write();
            // SAFETY: it lives.
            unsafe { Word::unlock(&self.word) };
        }
        taken
    }
}

/// `others` threads with one section each, and one section in this one; one more thread has no
/// time.
fn threads(others: u32, hasty: bool) {
    let mutex = Arc::new(Mutex { word: Word::new(), value: Protected::new() });
    let spawn = |me, end| {
        let mutex = mutex.clone();
        thread::spawn(move || u32::from(mutex.section(me, end)))
    };
    let mut handles: Vec<_> = (2..2 + others).map(|me| spawn(me, None)).collect();
    if hasty {
        handles.push(spawn(9, Some(End::Monotonic(1))));
    }
    mutex.section(1, None);
    let taken: u32 = handles.into_iter().map(|handle| handle.join().unwrap()).sum();
    assert!(taken >= others);
    assert_eq!(mutex.value.read(), taken + 1);
}

#[test]
fn two_threads() {
    check(3, || threads(1, false));
}

#[test]
fn three_threads() {
    check_sleepers(2, || threads(2, false));
}

#[test]
fn one_gives_up() {
    check_sleepers(2, || threads(1, true));
}

/// The holder does not release the lock before the other thread has given up.
#[test]
fn a_spinner_gives_up() {
    check_spinners(2, || {
        let word = Arc::new(Word::new());
        assert!(word.lock(1 | HELD, None));
        let other = word.clone();
        assert!(
            !thread::spawn(move || other.lock(2 | HELD, Some(End::Monotonic(1)))).join().unwrap()
        );
    });
}

caught! {
    broken_woken_forgets_others: WokenForgetsOthers, check(3), threads(2, false);
}
