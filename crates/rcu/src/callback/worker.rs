// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that runs a queue's callbacks on the queue's CPU.
//!
//! Started by the first registration on that CPU. A batch gathers for [`LINGER`], or until it is [`full`]; while one waits for its
//! grace period the next gathers by itself. Callbacks in a stash whose owner has not opened it anew for that time are taken from there. The worker blocks
//! all signals, so that handlers run on the program's own threads.

use super::intake::Swept;
use super::load::Load;
use super::queue::{Step, Who};
use crate::domain::core::Core;
use crate::sys;
use std::sync::Arc;
use std::time::Duration;

/// How long a small batch gathers.
const LINGER: Duration = Duration::from_millis(1);

/// How often protected nodes are looked for again: first and longest pause.
const HELD: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(20));

/// Turns with something left for later after which it is found out whether its owner is dead.
const DOUBT: u64 = 100;

/// A batch that need not gather longer.
pub(crate) fn full(load: Load) -> bool {
    load.callbacks() >= 256 || load.bytes() >= 128 << 10
}

/// Starts the worker of `core.queues[index]`. False if the system has no thread for it: the next registration tries again.
pub(crate) fn start(core: &Arc<Core>, index: usize) -> bool {
    let thread_core = core.clone();
    let work = move || work(&thread_core, index);
    let thread = sys::Thread::start(format!("reprieve-cb/{index}"), sys::STACK, work);
    thread.map(|thread| core.workers.add(thread)).is_some()
}

/// Binds this thread to the CPU, if that is among those its creator was bound to: queues are numbered as CPUs are, and the first one
/// has a worker whether or not the program runs on the first CPU.
fn bind(cpu: usize) {
    // SAFETY: numbers that do not fit are not looked up.
    let allowed = |set| cpu < libc::CPU_SETSIZE as usize && unsafe { libc::CPU_ISSET(cpu, &set) };
    if sys::affinity().is_some_and(allowed) {
        sys::bind(cpu);
    }
}

fn work(core: &Core, index: usize) {
    if core.queues.len() > 1 {
        bind(index);
    }
    let queue = &core.queues[index];
    let in_a_hurry = || core.grace.urgency.any() || core.stopping();
    let gather = || {
        let enough = || full(core.intake.lane(index).account.here());
        if !in_a_hurry() {
            queue.alarm.linger(LINGER, || enough() || in_a_hurry());
        }
    };
    let found = || queue.any(core) || core.stashed(index);
    let mut held_pause = HELD.0;
    let mut turns = 0u64;
    loop {
        turns += 1;
        if turns % DOUBT == 0 {
            core.seek_lost();
        }
        let step = queue.step(core, Who::Worker);
        core.calm();
        if step == Step::Progress {
            held_pause = HELD.0;
            gather();
            continue;
        }
        match core.sweep_lane(index, core.stopping()) {
            Swept::Some => continue,
            Swept::Later => {
                queue.alarm.linger(LINGER, || false);
                continue;
            }
            Swept::Nothing => (),
        }
        core.audit();
        if step == Step::Idle {
            if core.stopping() {
                return;
            }
            queue.alarm.sleep(None, || found() || core.stopping());
            // What is in stashes now, and is still there when the batch has gathered, is taken.
            core.sweep_lane(index, false);
            gather();
        } else {
            queue.alarm.sleep(Some(held_pause), found);
            held_pause = (held_pause * 2).min(HELD.1);
        }
    }
}
