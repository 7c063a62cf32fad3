// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lines of all threads of the process.

use super::{Line, slice};
use crate::platform::sys;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

pub(crate) const LINES: usize = 4096;
/// The index of no thread: of the line that all threads share for which there was none.
pub(crate) const NOBODY: u32 = 0;
const NO_CPU: u32 = u32::MAX;

#[repr(C, align(4096))]
struct Table([Line; LINES]);

static TABLE: Table = Table([const { Line::new() }; LINES]);
/// Lines that have been given out for the first time.
static FRESH: AtomicU32 = AtomicU32::new(1);
/// How many of them have no thread any more.
static FREE: AtomicU32 = AtomicU32::new(0);
/// Where the search for such a one goes on.
static SEARCH: AtomicU32 = AtomicU32::new(1);

/// The line with that index.
#[inline]
pub(crate) fn line(index: u32) -> &'static Line {
    &TABLE.0[index as usize % LINES]
}

impl Line {
    const fn new() -> Line {
        Line {
            non_preemptable: AtomicU32::new(0),
            preemptable: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            cpu: AtomicU32::new(0),
            thread: AtomicU32::new(0),
            _unused: 0,
            waited: AtomicU64::new(0),
            slot: AtomicPtr::new(std::ptr::null_mut()),
            slice: AtomicU64::new(0),
            _pad: [0; 4],
        }
    }

    /// Its place in the table.
    #[inline(always)]
    pub(crate) fn index(&self) -> u32 {
        ((std::ptr::from_ref(self).addr() - (&raw const TABLE).addr()) / size_of::<Line>()) as u32
    }

    /// Whether it had no thread, and is that of `thread` now.
    fn take(&self, thread: u32) -> bool {
        let change = (Ordering::AcqRel, Ordering::Relaxed);
        if self.thread.compare_exchange(0, thread, change.0, change.1).is_err() {
            return false;
        }
        self.slot.store(std::ptr::null_mut(), Ordering::Relaxed);
        self.slice.store(slice::first(), Ordering::Relaxed);
        self.non_preemptable.store(0, Ordering::Relaxed);
        self.preemptable.store(0, Ordering::Relaxed);
        self.cpu.store(NO_CPU, Ordering::Relaxed);
        let generation = self.generation.load(Ordering::Relaxed);
        self.generation.store(generation.wrapping_add(1), Ordering::Release);
        true
    }
}

/// A line for the calling thread.
pub(super) fn claim() -> &'static Line {
    let nobody = &TABLE.0[NOBODY as usize];
    let thread = sys::thread_id();
    let more = |n: u32| (n < LINES as u32).then_some(n + 1);
    let relaxed = Ordering::Relaxed;
    if let Ok(index) = FRESH.fetch_update(relaxed, relaxed, more) {
        let line = line(index);
        if line.take(thread) {
            return line;
        }
        // A thread that searched was quicker, and has left this one a line that is free.
    } else if FREE.fetch_update(relaxed, relaxed, |n| n.checked_sub(1)).is_err() {
        return nobody;
    }
    // Once around, from where the last search ended.
    for _ in 1..LINES {
        let index = SEARCH.fetch_add(1, relaxed) % (LINES as u32 - 1) + 1;
        let line = line(index);
        if line.thread.load(relaxed) == 0 && line.take(thread) {
            return line;
        }
    }
    // Other threads were quicker, and the line lies behind.
    FREE.fetch_add(1, relaxed);
    nobody
}

/// The line's thread, the calling one, needs it no more.
pub(super) fn give_back(line: &Line) {
    line.slot.store(std::ptr::null_mut(), Ordering::Relaxed);
    line.thread.store(0, Ordering::Release);
    FREE.fetch_add(1, Ordering::Relaxed);
}

/// The lines that have, or had, a thread.
pub(crate) fn lines_in_use() -> &'static [Line] {
    &TABLE.0[1..(FRESH.load(Ordering::Relaxed) as usize).min(LINES)]
}

/// In the child of a fork: `kept` is the line of the only thread.
pub(super) fn forget_others(kept: *const Line) {
    let mut free = 0;
    for line in lines_in_use() {
        // A thread of the parent goes on using the slot.
        line.slot.store(std::ptr::null_mut(), Ordering::Relaxed);
        let own = std::ptr::eq(line, kept);
        line.thread.store(if own { sys::thread_id() } else { 0 }, Ordering::Relaxed);
        free += u32::from(!own);
    }
    FREE.store(free, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::{Kind, me};

    #[test]
    fn threads_have_lines_of_their_own() {
        let mine = me();
        assert!(std::ptr::eq(mine, me()));
        assert!(std::ptr::eq(line(mine.index()), mine));
        let other = std::thread::spawn(|| me().index()).join().unwrap();
        assert_ne!(other, mine.index());
    }

    /// A line which a thread is about to take as a fresh one, as well.
    #[test]
    fn a_line_is_taken_once() {
        let line = Line::new();
        assert!(line.take(1));
        assert!(!line.take(2));
        assert_eq!(line.thread.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn leaving_too_often_has_no_effect() {
        let mine = me();
        mine.leave(Kind::Preemptable);
        assert_eq!(mine.nesting(Kind::Preemptable), 0);
        mine.enter(Kind::Preemptable);
        mine.enter(Kind::NonPreemptable);
        assert_eq!((mine.nesting(Kind::Preemptable), mine.nesting(Kind::NonPreemptable)), (1, 1));
        mine.leave(Kind::Preemptable);
        mine.leave(Kind::NonPreemptable);
    }

    /// More threads than lines come and go, while some hold theirs.
    #[test]
    fn lines_of_dead_threads_are_taken_over() {
        let mine = me().index();
        for _ in 0..LINES / 16 + 8 {
            let threads: Vec<_> = (0..16).map(|_| std::thread::spawn(|| me().index())).collect();
            for thread in threads {
                let index = thread.join().unwrap();
                assert!(index != mine && index < LINES as u32);
            }
        }
        assert_ne!(std::thread::spawn(|| me().index()).join().unwrap(), NOBODY);
    }
}
