// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grace periods that are started and only polled for. A thread of the domain runs them.
//!
//! > **Invariant.** While a started grace period has not ended, the thread runs it, or the next
//! > poll starts the thread anew or makes an attempt of its own; and the thread runs nothing but
//! > grace periods.
//!
//! A program may thus poll wherever it likes, in a callback too: workers cannot run these grace
//! periods, since a callback keeps its worker as long as it likes. The first `start_poll` starts
//! the thread. A poll starts it anew in the child of a fork, and makes an attempt of its own where
//! the system has no thread for us.
//!
//! > **Invariant.** The thread sleeps only when the last grace period that was asked for has ended,
//! > or is about to be woken: a caller that asks writes the number before the event happens, and
//! > the thread reads the event before the number.

use super::sequence::{GpSeq, Sequence};
use crate::platform::event::Event;
use crate::platform::sync::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::AtomicBool;

pub(crate) struct Background {
    /// The end of the last grace period that was asked for.
    last: AtomicU64,
    asked: Event,
    #[cfg(not(loom))]
    started: AtomicBool,
}

impl Background {
    pub(crate) fn new() -> Background {
        Background {
            last: AtomicU64::new(0),
            asked: Event::new(),
            #[cfg(not(loom))]
            started: AtomicBool::new(false),
        }
    }

    pub(crate) fn last(&self) -> GpSeq {
        GpSeq(self.last.load(Ordering::Acquire))
    }

    /// Asks for a grace period. The thread, if there is one, runs it.
    pub(crate) fn ask(&self, cookie: GpSeq) {
        self.last.fetch_max(cookie.0, Ordering::Release);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        self.asked.happen();
    }

    /// The thread: has all grace periods run that are asked for, by `run`, until it is told to
    /// stop.
    pub(crate) fn serve(
        &self,
        sequence: &Sequence,
        run: impl Fn(GpSeq),
        stopping: impl Fn() -> bool,
    ) {
        loop {
            let count = self.asked.count();
            let last = self.last();
            if !sequence.done(last) {
                run(last);
            } else if stopping() {
                return;
            } else {
                self.asked.sleep(count, None);
            }
        }
    }

    /// Whether there is a thread, after `start` was called if need be: it starts the thread that
    /// calls [`serve`](Background::serve), or returns false.
    #[cfg(not(loom))]
    pub(crate) fn ensure(&self, start: impl FnOnce() -> bool) -> bool {
        if self.started.load(Ordering::Relaxed) {
            return true;
        }
        // A handler that ends this thread, or forks, does not come in between.
        let _blocked = crate::platform::sys::SignalsBlocked::new();
        if self.started.swap(true, Ordering::Relaxed) {
            return true;
        }
        let started = start();
        if !started {
            self.started.store(false, Ordering::Relaxed);
        }
        started
    }

    /// In the child of a fork: there is no thread, and nobody sleeps.
    #[cfg(not(loom))]
    pub(crate) fn after_fork(&self) {
        self.started.store(false, Ordering::Relaxed);
        self.asked.after_fork();
    }
}
