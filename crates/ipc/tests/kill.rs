// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process is killed (SIGKILL) after any instruction of a call: every object is consistent, its
//! adjustments are applied, nobody waits for ever.
//!
//! The child single-steps itself; its trap handler kills it when as many instructions as were meant
//! are over. Instructions are tried in an order that covers the call evenly, as many as fit into a
//! time (see `common/samples.rs`): all of them with `REPRIEVE_SAMPLES`.
#![cfg(target_arch = "x86_64")]

mod common;
#[path = "../../rcu/tests/common/samples.rs"]
mod samples;

use common::{Child, namespace, op, shared};
use libc::{IPC_NOWAIT, IPC_PRIVATE, SEM_UNDO};
use reprieve_ipc::Namespace;
use samples::{Samples, spread};
use std::arch::asm;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::*};

/// The signal that comes after so many instructions.
static SIGNAL: AtomicI32 = AtomicI32::new(libc::SIGKILL);
static LEFT: AtomicU64 = AtomicU64::new(0);
/// In a page that parent and child share: instructions of the call.
static STEPS: AtomicU64 = AtomicU64::new(0);

extern "C" fn trapped(_: i32) {
    STEPS.fetch_add(1, Relaxed);
    if LEFT.fetch_sub(1, Relaxed) == 1 {
        // SAFETY: ends or stops this process, which the test is about.
        unsafe { libc::kill(libc::getpid(), SIGNAL.load(Relaxed)) };
    }
}

/// Runs `f`, and dies after that many instructions of it. Else its length is the result.
fn stepped(instructions: u64, f: impl FnOnce()) -> u64 {
    // SAFETY: the handler is for traps, which only this function makes.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = trapped as extern "C" fn(i32) as usize;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()), 0);
    }
    LEFT.store(instructions, Relaxed);
    STEPS.store(0, Relaxed);
    // SAFETY: sets a flag that makes a signal of each instruction, and clears it.
    unsafe {
        asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq");
        f();
        asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq");
    }
    STEPS.load(Relaxed)
}

/// Kills children in `call`, after they have done `before`, at instructions all over it; `check` is
/// run after each, with how far the child came.
fn killed_in(
    what: &str,
    n: &Namespace,
    before: impl Fn(&Namespace),
    call: impl Fn(&Namespace),
    check: impl Fn(&Namespace, u64),
) {
    // A registration blocks signals, so it cannot be stepped.
    let before = |n: &Namespace| {
        n.sem_info().unwrap();
        before(n);
    };
    let length = shared::<AtomicU64>();
    Child::run(|| {
        before(n);
        length.store(stepped(u64::MAX, || call(n)), SeqCst);
    })
    .succeeds();
    check(n, u64::MAX);
    let length = length.load(SeqCst);
    assert!(length > 0, "{what} was not stepped");
    let samples = Samples::new(format!("{length} instructions of {what}"), 24);
    for instructions in spread(length).take_while(|_| samples.go_on()) {
        let status = Child::run(|| {
            before(n);
            stepped(instructions, || call(n));
        })
        .ends();
        assert!(status == 0 || status == libc::SIGKILL, "{what}, {instructions}: {status:#x}");
        samples.take();
        check(n, instructions);
    }
    samples.end();
}

#[test]
fn in_a_semaphore_operation() {
    let (_directory, n) = namespace();
    let id = n.semget(IPC_PRIVATE, 3, 0o600).unwrap();
    let values = [5, 0, 2];
    n.set_sem_values(id, &values).unwrap();
    let ops = [op(0, -2, SEM_UNDO), op(1, 7, SEM_UNDO), op(2, 0x100, SEM_UNDO), op(2, -1, 0)];
    // With adjustments nothing remains but what the last part took; the values before it are whole.
    killed_in(
        "an operation with adjustments",
        &n,
        |_| {},
        |n| n.semop(id, &ops, None).unwrap(),
        |n, at| {
            let found = n.sem_values(id).unwrap();
            assert!(found == [5, 0, 2] || found == [5, 0, 1], "{at}: {found:?}");
            n.set_sem_values(id, &values).unwrap();
        },
    );
    let plain = [op(0, -2, 0), op(1, 7, 0)];
    killed_in(
        "an operation",
        &n,
        |n| assert_eq!(n.semop(id, &[op(2, 0, IPC_NOWAIT)], None).unwrap_err().0, libc::EAGAIN),
        |n| n.semop(id, &plain, None).unwrap(),
        |n, at| {
            let found = n.sem_values(id).unwrap();
            assert!(found == [5, 0, 2] || found == [3, 7, 2], "{at}: {found:?}");
            n.set_sem_values(id, &values).unwrap();
        },
    );
}

#[test]
fn in_a_release_that_somebody_waits_for() {
    let (_directory, n) = namespace();
    let id = n.semget(IPC_PRIVATE, 1, 0o600).unwrap();
    killed_in(
        "a release",
        &n,
        |_| {},
        |n| n.semop(id, &[op(0, 1, SEM_UNDO)], None).unwrap(),
        // A waiter gets nothing from the dead, and what it needs from the living.
        |n, at| {
            let waiter = Child::run(|| n.semop(id, &[op(0, -1, 0)], None).unwrap());
            n.semop(id, &[op(0, 1, 0)], None).unwrap();
            waiter.succeeds();
            assert_eq!(n.sem_value(id, 0), Ok(0), "{at}");
        },
    );
}

/// The lock's holder is dead, with changes of its own half made; who finds it dies while it undoes
/// them, or does its own work after that.
#[test]
fn in_mending_what_the_dead_left() {
    let (_directory, n) = namespace();
    let id = n.semget(IPC_PRIVATE, 3, 0o600).unwrap();
    let values = [9, 0, 2];
    n.set_sem_values(id, &values).unwrap();
    let ops = [op(0, -2, 0), op(1, 7, 0)];
    let die_after = |instructions: u64| {
        Child::run(|| {
            n.sem_info().unwrap();
            stepped(instructions, || n.semop(id, &ops, None).unwrap());
        })
        .ends()
    };
    let length = shared::<AtomicU64>();
    Child::run(|| {
        n.sem_info().unwrap();
        length.store(stepped(u64::MAX, || n.semop(id, &ops, None).unwrap()), SeqCst);
    })
    .succeeds();
    n.set_sem_values(id, &values).unwrap();
    let length = length.load(SeqCst);
    for eighths in [5, 6] {
        killed_in(
            &format!("mending what was done after {eighths}/8 of an operation"),
            &n,
            |_| assert_eq!(die_after(length * eighths / 8), libc::SIGKILL),
            |n| n.semop(id, &ops, None).unwrap(),
            |n, at| {
                let found = n.sem_values(id).unwrap();
                let consistent = [[9, 0, 2], [7, 7, 2], [5, 14, 2]];
                assert!(consistent.iter().any(|whole| found == *whole), "{at}: {found:?}");
                n.set_sem_values(id, &values).unwrap();
            },
        );
    }
}

#[test]
fn in_sets_that_come_and_go() {
    let (_directory, n) = namespace();
    let sets = || n.sem_info().unwrap().sets;
    killed_in(
        "making a set",
        &n,
        |_| {},
        |n| assert!(n.semget(77, 5, libc::IPC_CREAT | 0o600).is_ok()),
        |n, at| {
            match n.semget(77, 5, 0) {
                Ok(id) => {
                    assert_eq!(n.sem_values(id), Ok(vec![0; 5]), "{at}");
                    n.remove_sem(id).unwrap();
                }
                Err(error) => assert_eq!(error.0, libc::ENOENT, "{at}"),
            }
            assert_eq!(sets(), 0, "{at}");
        },
    );
    let made = || n.semget(78, 2, libc::IPC_CREAT | 0o600).unwrap();
    made();
    killed_in(
        "removing a set",
        &n,
        |_| {},
        |n| n.remove_sem(made()).unwrap(),
        |n, at| {
            // Half removed is removed.
            let highest = n.sem_info().unwrap().highest;
            let there = (0..=highest).filter(|&slot| n.sem_slot_status(slot, true).is_ok());
            assert_eq!(there.count() as u64, sets(), "{at}");
            let id = made();
            assert_eq!(n.sem_values(id), Ok(vec![0; 2]), "{at}");
            n.semop(id, &[op(0, 1, 0), op(0, -1, 0)], None).unwrap();
            assert_eq!(sets(), 1, "{at}");
        },
    );
}

/// A reader may find a set before it is committed: its memory is nobody else's as long as the
/// reader is there, even if the maker is killed.
#[test]
fn in_making_a_set_that_a_reader_has_found() {
    let (_directory, n) = namespace();
    // Slot 0; the one that is made gets the next.
    n.semget(IPC_PRIVATE, 1, 0o600).unwrap();
    let make = || assert!(n.semget(80, 5, libc::IPC_CREAT | 0o600).is_ok());
    let is_found_after = |instructions: u64| {
        let (queue, found) = (n.msgget(IPC_PRIVATE, 0o600).unwrap(), shared::<AtomicU64>());
        let maker = Child::run(|| {
            n.sem_info().unwrap();
            SIGNAL.store(libc::SIGSTOP, Relaxed);
            stepped(instructions, make);
            // SAFETY: stops this process.
            unsafe { libc::raise(libc::SIGSTOP) };
        });
        maker.stopped();
        let reader = Child::run(|| {
            let result = n.sem_slot_status(1, true);
            found.store(if result.is_ok() { 2 } else { 1 }, SeqCst);
        });
        common::until(|| found.load(SeqCst) != 0 || common::is_asleep(&reader));
        let waits = found.load(SeqCst) == 0;
        if waits {
            // For the set's lock.
            reader.signal(libc::SIGSTOP);
            reader.stopped();
        }
        maker.kill();
        // Free blocks are used for these messages.
        let message = [255; 200];
        (0..8).for_each(|_| n.msgsnd(queue, 1, &message, IPC_NOWAIT).unwrap());
        if waits {
            reader.signal(libc::SIGCONT);
        }
        reader.succeeds();
        for _ in 0..8 {
            let mut got = [0; 200];
            let result = n.msgrcv(queue, &mut got, 0, IPC_NOWAIT);
            assert_eq!((result, got), (Ok((1, 200)), message), "{instructions}");
        }
        n.remove_msg(queue).unwrap();
        if let Ok(id) = n.semget(80, 5, 0) {
            n.remove_sem(id).unwrap();
        }
        waits || found.load(SeqCst) == 2
    };
    let length = shared::<AtomicU64>();
    Child::run(|| {
        n.sem_info().unwrap();
        length.store(stepped(u64::MAX, make), SeqCst);
    })
    .succeeds();
    n.remove_sem(n.semget(80, 5, 0).unwrap()).unwrap();
    let (mut not, mut yes) = (1, length.load(SeqCst));
    assert!(!is_found_after(not) && is_found_after(yes));
    while yes - not > 1 {
        let middle = (not + yes) / 2;
        *if is_found_after(middle) { &mut yes } else { &mut not } = middle;
    }
    // The commit, and more.
    (1..=20).for_each(|more| _ = is_found_after(yes + more));
}

/// The waiter is told by whoever completes the removal, before the set's memory is somebody else's.
#[test]
fn in_removing_a_set_that_somebody_waits_for() {
    let (_directory, n) = namespace();
    let queue = || n.msgget(IPC_PRIVATE, 0o600).unwrap();
    let (ids, ended) = (queue(), queue());
    let waiter = Child::run(|| {
        loop {
            let mut id = [0; 4];
            n.msgrcv(ids, &mut id, 0, 0).unwrap();
            let error = n.semop(i32::from_le_bytes(id), &[op(0, -1, 0)], None).unwrap_err();
            assert_eq!(error.0, libc::EIDRM);
            n.msgsnd(ended, 1, &[], 0).unwrap();
        }
    });
    let made = std::cell::Cell::new(0);
    killed_in(
        "removing a set that somebody waits for",
        &n,
        |n| {
            let id = n.semget(79, 1, libc::IPC_CREAT | 0o600).unwrap();
            n.msgsnd(ids, 1, &id.to_le_bytes(), 0).unwrap();
            common::until(|| n.sem_waiters(id, 0, false) == Ok(1));
            made.set(id);
        },
        |n| n.remove_sem(made.get()).unwrap(),
        |n, at| {
            if let Ok(id) = n.semget(79, 1, 0) {
                n.remove_sem(id).unwrap();
            }
            // Its memory is freed, and used again for other things.
            let others = [0; 40].map(|_| n.semget(IPC_PRIVATE, 1, 0o600).unwrap());
            others.iter().for_each(|&id| n.remove_sem(id).unwrap());
            let (data, message) = (queue(), [255; 200]);
            (0..60).for_each(|_| n.msgsnd(data, 1, &message, IPC_NOWAIT).unwrap());
            common::until(|| {
                assert!(!waiter.is_over(), "{at}: the waiter has failed");
                n.msgrcv(ended, &mut [], 0, IPC_NOWAIT).is_ok()
            });
            for _ in 0..60 {
                let mut found = [0; 200];
                assert_eq!(n.msgrcv(data, &mut found, 0, IPC_NOWAIT), Ok((1, 200)), "{at}");
                assert_eq!(found, message, "{at}");
            }
            n.remove_msg(data).unwrap();
        },
    );
    waiter.kill();
}

#[test]
fn in_sending_and_receiving() {
    let (_directory, n) = namespace();
    let id = n.msgget(IPC_PRIVATE, 0o600).unwrap();
    let receive = |n: &Namespace| {
        let mut to = [0; 128];
        let (kind, bytes) = n.msgrcv(id, &mut to, 0, IPC_NOWAIT).ok()?;
        Some((kind, to[..bytes].to_vec()))
    };
    n.msgsnd(id, 1, &[1; 100], 0).unwrap();
    killed_in(
        "sending",
        &n,
        |_| {},
        |n| n.msgsnd(id, 2, &[2; 100], 0).unwrap(),
        |n, at| {
            assert_eq!(receive(n), Some((1, vec![1; 100])), "{at}");
            if let Some(second) = receive(n) {
                assert_eq!(second, (2, vec![2; 100]), "{at}");
            }
            assert_eq!(receive(n), None, "{at}");
            let status = n.msg_status(id).unwrap();
            assert_eq!((status.messages, status.bytes), (0, 0), "{at}");
            n.msgsnd(id, 1, &[1; 100], 0).unwrap();
        },
    );
    n.msgsnd(id, 2, &[2; 100], 0).unwrap();
    n.msgsnd(id, 3, &[3; 100], 0).unwrap();
    killed_in(
        "receiving",
        &n,
        |_| {},
        |n| assert!(n.msgrcv(id, &mut [0; 128], 2, 0).is_ok()),
        |n, at| {
            let left: Vec<_> = std::iter::from_fn(|| receive(n)).collect();
            let kinds: Vec<i64> = left.iter().map(|(kind, _)| *kind).collect();
            assert!(kinds == [1, 2, 3] || kinds == [1, 3], "{at}: {kinds:?}");
            assert!(left.iter().all(|(kind, data)| *data == vec![*kind as u8; 100]), "{at}");
            let status = n.msg_status(id).unwrap();
            assert_eq!((status.messages, status.bytes), (0, 0), "{at}");
            for kind in 1..=3 {
                n.msgsnd(id, kind, &[kind as u8; 100], 0).unwrap();
            }
        },
    );
}

#[test]
fn in_attaching_and_detaching() {
    let (_directory, n) = namespace();
    let id = n.shmget(IPC_PRIVATE, 4096, 0o600).unwrap();
    killed_in(
        "attaching",
        &n,
        |_| {},
        // SAFETY: nothing is remapped, and nothing used.
        |n| unsafe {
            let at = n.shmat(id, 0, 0).unwrap();
            Namespace::shmdt(at as usize).unwrap();
        },
        |n, at| assert_eq!(n.shm_status(id).unwrap().attached, 0, "{at}"),
    );
    let files = || std::fs::read_dir(n.directory()).unwrap().count();
    let before = files();
    killed_in(
        "making and removing a segment",
        &n,
        |_| {},
        |n| {
            let id = n.shmget(5, 4096, libc::IPC_CREAT | 0o600).unwrap();
            n.remove_shm(id).unwrap();
        },
        |n, at| {
            if let Ok(id) = n.shmget(5, 4096, 0) {
                n.remove_shm(id).unwrap();
            }
            // A process that is new here looks for what the dead have left.
            Child::run(|| assert!(n.shm_info().is_ok())).succeeds();
            assert_eq!(n.shm_info().unwrap().segments, 1, "{at}");
            assert_eq!(files(), before, "{at}");
        },
    );
}
