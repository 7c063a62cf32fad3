// SPDX-License-Identifier: MIT OR Apache-2.0
//! The users of the namespace: processes and threads, and how the dead are known.
//!
//! A thread owns a *place* in the mapped file. In it lies a robust mutex of the C library's that
//! the thread locks for life: when it ends, however, the kernel marks that mutex (`OWNER_DIED`),
//! before a parent's `waitpid` returns. So everybody sees with one load whether a thread is alive,
//! across PID namespaces too. Where the kernel keeps no robust list (some emulators), the thread
//! and its process are asked for by number and start time instead.
//!
//! Some deaths the kernel does not mark: it compares the mutex with the thread's number, and a
//! thread that executes another program has got the first thread's number before that; and when
//! memory runs out, the list may be gone before the kernel walks it. Who waits, or counts the
//! living, therefore asks for all threads by number now and then, and marks those that are gone
//! ([`Local::mark_the_unmarked`]).
//!
//! A *process* is named by its place and that place's generation, so that the name of a dead
//! one never comes back. It is dead when all its registered threads are, and it is not there under
//! its number and start time: it may have executed another program, or its registered threads may
//! have ended before it.

mod local;
mod registry;

pub(crate) use local::{Local, Remembered, Section};
pub(crate) use local::{after_fork, epoch, local, make_local, prepare_forks};
pub(crate) use registry::{embryos, name_embryo, remove_embryo};

use crate::error::Result;
use crate::maps::Maps;
use crate::space::Space;
use crate::space::layout::*;
use crate::sys;
use std::sync::atomic::Ordering::*;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// This process's PID namespace, 0 where it is not known, and the number of the process that found
/// it. A process stays for life in the namespace in which it began, but what tells may be out of
/// its sight later (`chroot`).
static NAMESPACE: AtomicU64 = AtomicU64::new(0);
static FOUND_BY: AtomicU32 = AtomicU32::new(0);

/// The number of this process's PID namespace, once it has registered; 0 if it is not known. That
/// is no namespace: two processes that do not know theirs may be in different ones.
pub(crate) fn own_namespace() -> u64 {
    NAMESPACE.load(Relaxed)
}

/// When a process registers: finds its namespace.
fn find_namespace() -> u64 {
    if FOUND_BY.load(Relaxed) != sys::process_id() {
        inherit_namespace();
    }
    let found = sys::pid_namespace();
    if found != 0 {
        NAMESPACE.store(found, Relaxed);
    }
    own_namespace()
}

/// In the child of a fork: its namespace is its parent's if they call the parent by one number. (In
/// another namespace the parent has none.) The child's number.
fn inherit_namespace() -> u32 {
    let own = sys::process_id();
    if FOUND_BY.swap(own, Relaxed) != sys::parent_id() {
        NAMESPACE.store(0, Relaxed);
    }
    own
}

/// Whether that process's numbers mean the same here: only then it can be asked for.
fn is_here(process: &Process) -> bool {
    let here = own_namespace();
    here != 0 && process.namespace.load(Acquire) == here
}

/// Somebody sleeps on the mutex, whom the kernel wakes when it marks it.
pub(crate) const FUTEX_WAITERS: u32 = 0x8000_0000;
/// The kernel's mark.
pub(crate) const OWNER_DIED: u32 = 0x4000_0000;

/// A process's name: its place, and the generation of the place above it.
pub(crate) fn name(index: u64, generation: u64) -> u64 {
    index | generation << 32
}

/// The place of a process that has that name now.
pub(crate) fn place(space: &Space, process: u64) -> Option<&Process> {
    let found = space.process_at(process & 0xffff_ffff).ok()?;
    let word = found.generation_state.load(Acquire);
    (word >> 32 == process >> 32 && state(word) != FREE).then_some(found)
}

/// Whether the thread in this place, which is somebody's, is dead.
#[inline]
pub(crate) fn thread_dead(space: &Space, thread: &Thread) -> bool {
    let tid = thread.tid.load(Acquire) as u32;
    if thread.robust.load(Relaxed) == 1 {
        return thread.life[0].load(Acquire) & !FUTEX_WAITERS != tid;
    }
    let Some(process) = place(space, thread.process.load(Acquire)) else { return true };
    let pid = process.pid.load(Relaxed) as u32;
    is_here(process) && (gone(process) || sys::thread_gone(pid, tid))
}

/// Whether the thread in this place is gone though the kernel has not marked it. The answer is
/// about the place's thread as long as nobody clears the place.
///
/// A first thread's number is there until its process is reaped, and then may be another process's,
/// so it is its process that is asked for. That is a zombie only after the kernel has walked the
/// list: no mark comes later, and nothing of the thread runs.
pub(crate) fn gone_unmarked(space: &Space, thread: &Thread) -> bool {
    let Some(process) = place(space, thread.process.load(Acquire)) else { return false };
    let (pid, tid) = (process.pid.load(Relaxed) as u32, thread.tid.load(Acquire) as u32);
    thread.robust.load(Relaxed) == 1
        && is_here(process)
        && (sys::thread_gone(pid, tid) || tid == pid && gone(process))
}

/// Whether there is no process of its number and start time, as far as this one can know.
fn gone(process: &Process) -> bool {
    // The number first: who changes both changes the namespace first.
    let pid = process.pid.load(Acquire) as u32;
    is_here(process)
        && match sys::process(pid) {
            sys::Process::Started(start) => {
                let differs = || {
                    let known = process.start.load(Acquire);
                    known != 0 && start != known
                };
                // The kernel adds the reader's time namespace's offset. Twice, since a child that
                // takes its name over changes both.
                differs() && process.time.load(Acquire) == sys::time_namespace() && differs()
            }
            sys::Process::Gone => true,
            sys::Process::Unknown => false,
        }
}

/// Whether a thread of that process, in its present program, is alive.
pub(crate) fn image_alive(space: &Space, process: u64) -> bool {
    let Some(found) = place(space, process) else { return false };
    let word = found.generation_state.load(Acquire);
    if state(word) == EMBRYO {
        return embryo_alive(space, found, word);
    }
    let is_alive =
        |thread: &Thread| thread.process.load(Acquire) == process && !thread_dead(space, thread);
    match found.leader.load(Acquire) {
        // The process has its name, and is about to register its first thread.
        0 => !gone(found),
        leader => {
            space.thread(leader).is_ok_and(is_alive)
                || space.threads().map_or(true, |mut threads| threads.any(|(_, t)| is_alive(t)))
        }
    }
}

/// The same, for certain: a thread that the kernel marks when it ends, or when its process executes
/// another program. To be asked by that process.
pub(crate) fn image_runs(space: &Space, process: u64) -> Result<bool> {
    Ok(space.threads()?.any(|(_, thread)| {
        thread.process.load(Acquire) == process
            && thread.robust.load(Relaxed) == 1
            && !thread_dead(space, thread)
            && !gone_unmarked(space, thread)
    }))
}

/// Whether that process, of which no registered thread is alive, is there.
pub(crate) fn is_there(space: &Space, process: u64) -> bool {
    let Some(found) = place(space, process) else { return false };
    let live = state(found.generation_state.load(Acquire)) == LIVE;
    live && is_here(found) && !gone(found)
}

/// The number of a process, which may be dead, as long as its place is nobody else's.
pub(crate) fn number(space: &Space, process: u64) -> Option<u32> {
    let found = space.process_at(process & 0xffff_ffff).ok()?;
    let word = found.generation_state.load(Acquire);
    let of_child = Some(embryo_pid(word)).filter(|&pid| pid != 0);
    let number = of_child.unwrap_or(found.pid.load(Acquire) as u32);
    (word >> 32 == process >> 32 && number != 0).then_some(number)
}

/// How often that process has mapped a file; `None` where that cannot be known.
pub(crate) fn mappings(space: &Space, process: u64, name: &str, inode: u64) -> Option<u64> {
    place(space, process).filter(|found| is_here(found))?;
    let number = number(space, process)?;
    let own = number == sys::process_id();
    let look = || {
        let maps = if own { Maps::own() } else { Maps::of_process(number) };
        Some(maps?.of(name, inode).len() as u64)
    };
    // A mapping that moves while the list is read may be missed.
    look().and_then(|times| if times == 0 { look() } else { Some(times) })
}

/// A child that has not registered lives if its parent does, or once its number is known, if it is
/// there. (A process that has got the number of a dead child since has not mapped the segment.)
fn embryo_alive(space: &Space, embryo: &Process, word: u64) -> bool {
    match embryo_pid(word) {
        0 => {
            // A process that reserves a name has one itself.
            let parent = embryo.parent.load(Relaxed);
            let live = |p: &Process| state(p.generation_state.load(Acquire)) == LIVE;
            place(space, parent).is_some_and(live) && image_alive(space, parent)
        }
        pid => !is_here(embryo) || sys::process(pid) != sys::Process::Gone,
    }
}

/// Frees the place of a child that has died and had not registered. The number stays.
pub(crate) fn clear_embryo(space: &Space, process: u64) {
    if let Some(found) = place(space, process) {
        let word = found.generation_state.load(Acquire);
        if state(word) == EMBRYO && embryo_pid(word) != 0 && !embryo_alive(space, found, word) {
            let free = word & !EMBRYO | FREE;
            let _ = found.generation_state.compare_exchange(word, free, SeqCst, SeqCst);
        }
    }
}

/// Whether that process is alive, whatever program it executes.
#[inline]
pub(crate) fn process_alive(space: &Space, process: u64) -> bool {
    image_alive(space, process) || is_there(space, process)
}
