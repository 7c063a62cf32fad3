// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asks the kernel about another thread of this process, without stopping or signalling it.
//!
//! - **Alive?** `/proc/TID/stat` gives its state and when it started; without `/proc`, signal 0.
//! - **On a CPU?** The state `R` means running *or* waiting for a CPU. The thread's CPU clock tells
//!   which: the kernel brings it up to date at each reading for a thread that runs, and it stands
//!   still for one that does not. Two readings in a row differ or they do not.
//! - **Blocked where?** `/proc/self/task/TID/syscall` gives the system call of a thread that is in
//!   the kernel, and of no other; `wchan` the kernel's function, where the kernel gives that away.

use crate::platform::sys;
use std::fs::read_to_string;

/// The fields of `stat` that matter here. See proc(5).
#[derive(Debug, PartialEq)]
pub(crate) struct Stat {
    pub(crate) name: String,
    pub(crate) state: char,
    /// Nanoseconds since boot, rounded down to the kernel's user-visible tick.
    pub(crate) started: u64,
    /// The CPU it runs on or ran on last.
    pub(crate) cpu: Option<u32>,
}

impl Stat {
    /// The state of a thread of this machine, in this process or not.
    pub(crate) fn of(thread: u32) -> Option<Stat> {
        if !proc_is_ours() {
            return None;
        }
        // A thread's directory is found under /proc by its id, though it is not listed there.
        Stat::parse(&read_to_string(format!("/proc/{thread}/stat")).ok()?, ticks_per_second())
    }

    /// The name is in parentheses and may itself contain any character.
    fn parse(text: &str, ticks: u64) -> Option<Stat> {
        let (name, rest) = text.split_once('(')?.1.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // Field n of the manual is fields[n - 3].
        let started: u64 = fields.get(22 - 3)?.parse().ok()?;
        Some(Stat {
            name: name.to_owned(),
            state: fields.first()?.chars().next()?,
            started: (started as u128 * 1_000_000_000 / ticks as u128) as u64,
            cpu: fields.get(39 - 3).and_then(|f| f.parse().ok()),
        })
    }

    pub(crate) fn dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// Whether the ids in `/proc` are those of this process's PID namespace: a container may have been
/// given the `/proc` of another PID namespace.
fn proc_is_ours() -> bool {
    let expected = format!("{}/task/{}", std::process::id(), sys::thread_id());
    std::fs::read_link("/proc/thread-self")
        .is_ok_and(|found| found.as_os_str() == expected.as_str())
}

fn ticks_per_second() -> u64 {
    // SAFETY: no preconditions.
    unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64
}

/// Whether the thread that had id `thread` at time `taken` (since boot; 0 if that is not known) is
/// known to be dead. False when in doubt.
///
/// A later thread may have got the id: it started after `taken`. But when a process is restored
/// from a checkpoint its own threads have, too; that shows in the process itself, which cannot be
/// younger than the record.
///
/// (For domains in shared memory: the same questions of a thread of another process. What is in the
/// record suffices for them: thread ids are unique in a PID namespace.)
pub(crate) fn dead(thread: u32, taken: u64) -> bool {
    match Stat::of(thread) {
        Some(stat) if stat.dead() => true,
        Some(stat) if taken != 0 && stat.started > taken => {
            Stat::of(std::process::id()).is_some_and(|process| process.started <= taken)
        }
        Some(_) => false,
        // Gone, or no /proc of ours, or one that hides other users' processes. A process that
        // shares our memory and is not a thread of ours would answer to kill.
        None => !sys::exists_here(thread) && !sys::exists(thread),
    }
}

/// Whether the thread is on a CPU now. `None`: no such thread.
pub(crate) fn on_cpu(thread: u32) -> Option<bool> {
    let before = sys::cpu_time(thread)?;
    // The clock may be coarser than two readings are apart.
    for _ in 0..8 {
        if sys::cpu_time(thread)? != before {
            return Some(true);
        }
    }
    Some(false)
}

/// The system call of a thread in the kernel. -1 if it is in a page fault or the like.
pub(crate) fn blocked_in(thread: u32) -> Option<i64> {
    let text = read_to_string(format!("/proc/self/task/{thread}/syscall")).ok()?;
    // "running", or a number and what belongs to it.
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// The kernel function in which the thread is blocked.
pub(crate) fn kernel_function(thread: u32) -> Option<String> {
    let text = read_to_string(format!("/proc/self/task/{thread}/wchan")).ok()?;
    (!text.is_empty() && text != "0").then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
    use std::time::Duration;

    #[test]
    fn names_may_contain_anything() {
        let fields = "S 8232 8232 26681 0 -1 4194304 98 0 0 0 5 6 0 0 20 0 1 0 250 3133440 380 18446744073709551615 93963296350208 \
            93963296370089 140728168736304 0 0 0 0 0 0 0 0 0 17 3 0 0 0 0 0 93963296386096 93963296387712 93963430785024 0 0 0 0 0";
        for name in ["sh", "a) R 1 (b", ") (", ""] {
            let stat = Stat::parse(&format!("77 ({name}) {fields}"), 100).unwrap();
            assert_eq!((stat.name.as_str(), stat.state, stat.cpu), (name, 'S', Some(3)));
            assert_eq!(stat.started, 2_500_000_000);
        }
        for broken in ["", "77", "77 (", "77 (a", "77 (a)", "77 (a) S 1", "77 (a) R x x x x"] {
            assert_eq!(Stat::parse(broken, 100), None, "{broken}");
        }
    }

    #[test]
    fn a_live_thread_a_dead_one_and_one_that_took_its_id() {
        let id = AtomicU32::new(0);
        let stop = AtomicBool::new(false);
        let now = sys::since_boot();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                id.store(sys::thread_id(), SeqCst);
                while !stop.load(SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            while id.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            assert!(!dead(id.load(SeqCst), sys::since_boot()));
            // Long before it started somebody else must have had the id: but then the process is
            // older than that, too.
            let process = Stat::of(std::process::id()).unwrap().started;
            assert!(
                dead(id.load(SeqCst), process)
                    == (Stat::of(id.load(SeqCst)).unwrap().started > process)
            );
            assert!(
                !dead(id.load(SeqCst), process.saturating_sub(1_000_000_000)),
                "restored from a checkpoint"
            );
            stop.store(true, SeqCst);
        });
        // The join may come a moment before the kernel has let the thread go.
        while !dead(id.load(SeqCst), now) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn running_and_blocked() {
        assert_eq!(on_cpu(sys::thread_id()), Some(true));
        let (id, stop) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                id.store(sys::thread_id(), SeqCst);
                while !stop.load(SeqCst) {
                    std::thread::park();
                }
            });
            // Asleep after a moment. (Its state says so before it has left its CPU.)
            while Stat::of(id.load(SeqCst)).is_none_or(|stat| stat.state != 'S')
                || blocked_in(id.load(SeqCst)).is_none_or(|call| call < 0)
            {
                std::thread::yield_now();
            }
            let found = (on_cpu(id.load(SeqCst)), blocked_in(id.load(SeqCst)));
            stop.store(true, SeqCst);
            thread.thread().unpark();
            // (In emulation it is the host's call that shows.)
            assert!(matches!(found, (Some(false), Some(0..))), "{found:?}");
        });
    }
}
