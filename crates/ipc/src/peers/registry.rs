// SPDX-License-Identifier: MIT OR Apache-2.0
//! Places for processes and threads: taking one, and clearing those of the dead. All under the
//! registry's lock, with all signals blocked.

use super::{find_namespace, gone, name, own_namespace, place, thread_dead};
use crate::error::{Errno, Result};
use crate::kernel::call;
use crate::space::Space;
use crate::space::layout::*;
use crate::sys;
use std::sync::atomic::Ordering::*;
use std::sync::atomic::fence;

const FULL: Errno = Errno(libc::ENOSPC);
const MOST_THREADS: u64 = (MAX_THREADS - SPARE_THREADS) as u64;

fn start_time(pid: u32) -> u64 {
    match sys::process(pid) {
        sys::Process::Started(start) => start,
        _ => 0,
    }
}

/// This process's name: the one that it has, also from before it executed this program, or a new
/// one.
pub(super) fn own_process(space: &Space, epoch: u64) -> Result<u64> {
    let known = space.process.load(Acquire);
    if known != 0 && space.epoch.load(Acquire) == epoch {
        if let Some(place) = place(space, known) {
            if state(place.generation_state.load(Acquire)) == EMBRYO {
                adopt(space, place);
            }
            return Ok(known);
        }
    }
    // Once for each process: others are told now whether its readers fence.
    space.register();
    // The parent's name, which is not to be found at the next call if there is none to be had now.
    space.process.store(0, Release);
    space.epoch.store(epoch, Release);
    let pid = sys::process_id();
    let (namespace, start) = (find_namespace(), start_time(pid));
    let mut free = None;
    let used = space.header().processes.load(SeqCst).min(MAX_PROCESSES.into());
    for index in 0..used {
        let process = space.process_at(index)?;
        let word = process.generation_state.load(Acquire);
        match state(word) {
            LIVE if start != 0
                && namespace != 0
                && process.pid.load(Relaxed) == pid.into()
                && process.namespace.load(Relaxed) == namespace
                && process.start.load(Relaxed) == start =>
            {
                let own = name(index, word >> 32);
                let unfenced = space.unfenced.load(SeqCst).into();
                if super::image_runs(space, own)? {
                    // Another copy of this library in the same program. Readers of either count.
                    process.unfenced.fetch_max(unfenced, SeqCst);
                } else {
                    // Another program of the same process: its attachments are gone, its semaphore
                    // adjustments are kept.
                    process.image.fetch_add(1, SeqCst);
                    process.leader.store(0, SeqCst);
                    process.unfenced.store(unfenced, SeqCst);
                }
                space.process.store(own, Release);
                return Ok(own);
            }
            FREE => free = free.or(Some(index)),
            _ if !super::process_alive(space, name(index, word >> 32)) => {
                free = free.or(Some(index));
            }
            _ => {}
        }
    }
    let index = claim_index(space, free)?;
    let process = space.process_at(index)?;
    let generation = fill(space, process, pid.into(), namespace, start, 0);
    process.generation_state.store(generation << 32 | LIVE, SeqCst);
    let name = name(index, generation);
    space.process.store(name, Release);
    Ok(name)
}

/// A place that is free, or a new one.
fn claim_index(space: &Space, free: Option<u64>) -> Result<u64> {
    if let Some(index) = free {
        return Ok(index);
    }
    let used = space.header().processes.load(SeqCst);
    if used >= MAX_PROCESSES.into() {
        return Err(FULL);
    }
    let at = PROCESSES + used * size_of::<Process>() as u64;
    space.reserve(at & !(PAGE - 1), PAGE)?;
    space.header().processes.store(used + 1, SeqCst);
    Ok(used)
}

/// Fills a place that nobody's name names any more. The new generation.
fn fill(space: &Space, p: &Process, pid: u64, namespace: u64, start: u64, parent: u64) -> u64 {
    let generation = (p.generation_state.load(Acquire) >> 32).wrapping_add(1).max(1) & 0x7fff_ffff;
    p.generation_state.store(generation << 32 | FREE, SeqCst);
    p.namespace.store(namespace, Relaxed);
    p.start.store(start, Relaxed);
    p.time.store(sys::time_namespace(), Relaxed);
    p.leader.store(0, Relaxed);
    p.unfenced.store(space.unfenced.load(SeqCst).into(), Relaxed);
    p.image.store(0, Relaxed);
    p.undoes.store(0, Relaxed);
    p.parent.store(parent, Relaxed);
    p.pid.store(pid, SeqCst);
    generation
}

/// Names for children that this process is about to fork: as many as asked for, if there are.
pub(crate) fn embryos(space: &Space, parent: u64, count: usize) -> Vec<u64> {
    let _signals = sys::SignalsBlocked::new();
    let mut names = Vec::with_capacity(count);
    let Ok(_registry) = space.registry() else { return names };
    let used = space.header().processes.load(SeqCst).min(MAX_PROCESSES.into());
    let mut next = 0;
    while names.len() < count {
        let word = |index| space.process_at(index).map(|p| p.generation_state.load(Acquire));
        let mut rest = next..used;
        let mut free = rest.find(|&index| word(index).is_ok_and(|word| state(word) == FREE));
        next = free.map_or(used, |index| index + 1);
        if free.is_none() && names.is_empty() && used >= MAX_PROCESSES.into() {
            // A place of the dead, as in `own_process`; it takes longer.
            free = (0..used).find(|&index| {
                word(index).is_ok_and(|w| !super::process_alive(space, name(index, w >> 32)))
            });
        }
        let Ok(index) = claim_index(space, free) else { break };
        let Ok(process) = space.process_at(index) else { break };
        let generation = fill(space, process, 0, own_namespace(), 0, parent);
        process.generation_state.store(generation << 32 | EMBRYO, SeqCst);
        names.push(name(index, generation));
    }
    names
}

/// In the child, when it registers: takes the name that it was born with.
fn adopt(space: &Space, process: &Process) {
    let pid = sys::process_id();
    // Not the parent's if that was about to have its children in another one. First: the number
    // that follows means somebody else in the parent's.
    process.namespace.store(find_namespace(), SeqCst);
    process.start.store(0, SeqCst);
    process.time.store(sys::time_namespace(), SeqCst);
    process.start.store(start_time(pid), SeqCst);
    process.pid.store(pid.into(), SeqCst);
    space.register();
    process.unfenced.store(space.unfenced.load(SeqCst).into(), SeqCst);
    let generation = process.generation_state.load(Acquire) >> 32;
    process.generation_state.store(generation << 32 | LIVE, SeqCst);
}

/// Says a child's number, by which its death is seen. In one step with a look at the name: the
/// child may have registered, and its place may be somebody else's.
pub(crate) fn name_embryo(space: &Space, embryo: u64, pid: u32) {
    change_embryo(space, embryo, EMBRYO | u64::from(pid) << 2);
}

/// In the parent: there is no child.
pub(crate) fn remove_embryo(space: &Space, embryo: u64) {
    change_embryo(space, embryo, FREE);
}

fn change_embryo(space: &Space, embryo: u64, to: u64) {
    if let Some(process) = place(space, embryo) {
        let generation = embryo & !0xffff_ffff;
        let word = &process.generation_state;
        let _ = word.compare_exchange(generation | EMBRYO, generation | to, SeqCst, SeqCst);
    }
}

/// A place for this thread; its number.
pub(super) fn own_thread(space: &Space, process: u64) -> Result<u64> {
    let header = space.header();
    let free = space.threads()?.find(|(_, thread)| thread.process.load(Acquire) == 0);
    let free = free.map(|(number, _)| number);
    // The last ones are for who is to clear those of the dead: that takes a place.
    let spare = free.unwrap_or(header.threads.load(SeqCst).saturating_add(1)) > MOST_THREADS;
    if spare && dead_threads(space).next().is_none() {
        return Err(FULL);
    }
    let number = match free {
        Some(number) => number,
        None => {
            let used = header.threads.load(SeqCst);
            if used >= MAX_THREADS.into() {
                return Err(FULL);
            }
            space.reserve(THREADS + used * THREAD, size_of::<Thread>() as u64)?;
            header.threads.store(used + 1, SeqCst);
            used + 1
        }
    };
    let thread = space.thread(number)?;
    thread.robust.store(0, Relaxed);
    thread.reader.store(thread.reader.load(Relaxed).wrapping_add(1) & !1, Relaxed);
    thread.changes.store(0, Relaxed);
    thread.waits_on.store(0, Relaxed);
    thread.pokes.store(0, Relaxed);
    thread.held.iter().for_each(|held| held.store(0, Relaxed));
    thread.generation.fetch_add(1, SeqCst);
    thread.tid.store(sys::thread_id().into(), SeqCst);
    thread.robust.store(lock_for_life(thread).into(), SeqCst);
    thread.process.store(process, SeqCst);
    let leader = &space.process_at(process & 0xffff_ffff)?.leader;
    let _ = leader.compare_exchange(0, number, SeqCst, SeqCst);
    // Pairs with the fence of a grace period: it sees this place, or we see what it unlinked.
    fence(SeqCst);
    Ok(number)
}

/// Locks the robust mutex. Whether the kernel will mark it.
fn lock_for_life(thread: &Thread) -> bool {
    let (mut head, mut length) = (std::ptr::null_mut::<libc::c_void>(), 0usize);
    // SAFETY: asks for this thread's list; two words to be filled in.
    let listed = unsafe { call!(SYS_get_robust_list, 0, &raw mut head, &raw mut length) }.is_ok();
    thread.life.iter().for_each(|word| word.store(0, Relaxed));
    if !listed || head.is_null() || cfg!(not(target_env = "gnu")) {
        return false;
    }
    let mutex = (&raw const thread.life).cast_mut().cast::<libc::pthread_mutex_t>();
    // SAFETY: this place is ours alone; it is aligned, large enough and never unmapped.
    let locked = unsafe {
        let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
        libc::pthread_mutexattr_init(&mut attributes);
        libc::pthread_mutexattr_setrobust(&mut attributes, libc::PTHREAD_MUTEX_ROBUST);
        libc::pthread_mutexattr_setpshared(&mut attributes, libc::PTHREAD_PROCESS_SHARED);
        let made = libc::pthread_mutex_init(mutex, &attributes) == 0;
        libc::pthread_mutexattr_destroy(&mut attributes);
        made && libc::pthread_mutex_lock(mutex) == 0
    };
    // The first word is the kernel's in glibc: its number says so.
    locked && thread.life[0].load(SeqCst) == sys::thread_id()
}

/// Numbers of threads that are dead and whose place is not cleared.
pub(super) fn dead_threads(space: &Space) -> impl Iterator<Item = (u64, &Thread)> {
    let dead = |thread: &Thread| thread.process.load(Acquire) != 0 && thread_dead(space, thread);
    space.threads().into_iter().flatten().filter(move |(_, thread)| dead(thread))
}

/// Frees the places of processes of which nothing is left.
pub(super) fn clear_processes(space: &Space) {
    let used = space.header().processes.load(SeqCst).min(MAX_PROCESSES.into());
    for process in (0..used).filter_map(|index| space.process_at(index).ok().map(|p| (index, p))) {
        let (index, process) = process;
        let word = process.generation_state.load(Acquire);
        let unused = match state(word) {
            FREE => false,
            EMBRYO => !super::embryo_alive(space, process, word),
            // The first asks the kernel nothing about a process that lives, as most do.
            _ => !super::process_alive(space, name(index, word >> 32)) && gone(process),
        };
        if unused {
            let _ = process.generation_state.compare_exchange(
                word,
                word & !0xffff_ffff | FREE,
                SeqCst,
                SeqCst,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::Namespace;

    #[test]
    fn who_finds_all_places_taken_clears_those_of_the_dead() {
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let space = n.space;
        let registers = || std::thread::spawn(move || n.begin().map(|_| ())).join().unwrap();
        let own = n.begin().unwrap().1.process;
        for number in 2..=MOST_THREADS {
            let thread = space.thread(number).unwrap();
            thread.robust.store(1, Relaxed);
            thread.life[0].store(super::super::OWNER_DIED, Relaxed);
            thread.tid.store(1, Relaxed);
            thread.process.store(own, Relaxed);
        }
        space.header().threads.store(MOST_THREADS, SeqCst);
        assert_eq!(registers(), Ok(()));
        assert_eq!(space.thread(2).unwrap().process.load(Relaxed), 0);
        // Places of the living.
        for number in 2..=MOST_THREADS {
            let thread = space.thread(number).unwrap();
            thread.life[0].store(1, Relaxed);
            thread.process.store(own, Relaxed);
        }
        let last = space.thread(MOST_THREADS + 1).unwrap();
        last.process.store(0, Relaxed);
        assert_eq!(registers(), Err(FULL));
    }

    #[test]
    fn a_child_that_gets_no_place_does_not_take_its_parents_name() {
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let (_call, local) = n.begin().unwrap();
        let (space, parent) = (n.space, local.process);
        // As this process would find it as that one's child: the numbers there are another's.
        let own = place(space, parent).unwrap();
        own.pid.store(sys::parent_id().into(), Relaxed);
        own.start.store(0, Relaxed);
        // All others are taken, in a PID namespace that is not known: none of them is dead.
        for index in 1..u64::from(MAX_PROCESSES) {
            let place = space.process_at(index).unwrap();
            let generation = fill(space, place, 1, 0, 0, 0);
            place.generation_state.store(generation << 32 | LIVE, SeqCst);
        }
        space.header().processes.store(MAX_PROCESSES.into(), SeqCst);
        let child = space.epoch.load(Relaxed) + 1;
        for _ in 0..2 {
            assert_eq!(own_process(space, child), Err(FULL));
        }
    }

    #[test]
    fn a_child_to_be_gets_a_place_of_the_dead() {
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let own = n.begin().unwrap().1.process;
        let space = n.space;
        for index in 1..u64::from(MAX_PROCESSES) {
            let place = space.process_at(index).unwrap();
            let dead = fill(space, place, 0, 0, 0, 0);
            place.generation_state.store(dead << 32 | EMBRYO, SeqCst);
        }
        space.header().processes.store(MAX_PROCESSES.into(), SeqCst);
        let child = embryos(space, own, 3)[0];
        assert_eq!(place(space, child).unwrap().parent.load(Relaxed), own);
        assert_eq!(child >> 32, 2);
    }
}
