// SPDX-License-Identifier: MIT OR Apache-2.0
//! Semaphores across processes.

#[path = "../../rcu/tests/common/beside.rs"]
mod beside;
mod common;

use beside::beside;
use common::{Child, errno, namespace, op};
use libc::{IPC_NOWAIT, IPC_PRIVATE};
use reprieve_ipc::{Namespace, SemOp};
use std::time::Duration;

const UNDO: i32 = libc::SEM_UNDO;

fn set(namespace: &Namespace, count: i32) -> i32 {
    namespace.semget(IPC_PRIVATE, count, 0o600).unwrap()
}

fn waiters(namespace: &Namespace, id: i32, count: i32) {
    common::until(|| namespace.sem_waiters(id, 0, false) == Ok(count));
}

#[test]
fn many_sets() {
    let (_directory, n) = namespace();
    let all: Vec<i32> = (0..1000).map(|_| set(&n, 2)).collect();
    for &id in &all {
        n.semop(id, &[op(1, 7, 0)], None).unwrap();
    }
    for &id in &all {
        assert_eq!(n.sem_values(id), Ok(vec![0, 7]));
        n.remove_sem(id).unwrap();
    }
    assert_eq!(n.sem_info().unwrap().sets, 0);
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
}

/// A thread that was cancelled ends after its first call, in the middle of which it holds locks of
/// the process and of the namespace, and opens files.
#[test]
fn a_thread_that_was_cancelled_makes_its_first_call() {
    const DISABLE: i32 = 1;
    let (directory, n) = namespace();
    let path = directory.path().to_owned();
    let id = std::thread::spawn(move || {
        // SAFETY: this thread; what follows is made for it until the next call.
        unsafe { libc::pthread_cancel(libc::pthread_self()) };
        let other = Namespace::open(path);
        let id = n.semget(IPC_PRIVATE, 1, 0o600);
        // SAFETY: a null pointer: the old state is not wanted.
        unsafe { pthread_setcancelstate(DISABLE, std::ptr::null_mut()) };
        assert!(other.is_ok());
        id
    })
    .join()
    .unwrap();
    // This thread is new to the namespace as well: nothing is locked.
    assert_eq!(n.sem_value(id.unwrap(), 0), Ok(0));
}

#[test]
fn an_operation_with_500_parts() {
    let (_directory, n) = namespace();
    let id = set(&n, 1);
    let many: Vec<SemOp> = (0..500).map(|_| op(0, 1, UNDO)).collect();
    n.semop(id, &many, None).unwrap();
    assert_eq!(n.sem_value(id, 0), Ok(500));
    let wide = set(&n, 500);
    let each: Vec<SemOp> = (0..500).map(|num| op(num, 1, UNDO)).collect();
    Child::run(|| {
        n.semop(wide, &each, None).unwrap();
        assert_eq!(n.sem_values(wide), Ok(vec![1; 500]));
    })
    .succeeds();
    assert_eq!(n.sem_values(wide), Ok(vec![0; 500]));
}

#[test]
fn waiters_are_woken_across_processes() {
    let (_directory, n) = namespace();
    let id = set(&n, 2);
    let children: Vec<Child> = (0..4)
        .map(|_| {
            Child::run(|| {
                n.semop(id, &[op(0, -2, 0)], None).unwrap();
                n.semop(id, &[op(1, 1, 0)], None).unwrap();
            })
        })
        .collect();
    waiters(&n, id, 4);
    n.semop(id, &[op(0, 8, 0)], None).unwrap();
    n.semop(id, &[op(1, -4, 0)], None).unwrap();
    children.into_iter().for_each(Child::succeeds);
    assert_eq!(n.sem_values(id), Ok(vec![0, 0]));
}

/// Threads look at a set without its lock before they queue up. If it is removed meanwhile they are
/// not to touch it after their section: an assertion checks that.
#[test]
fn a_set_is_removed_under_those_who_look_at_it() {
    let (_directory, n) = namespace();
    let (ids, turns) = (n.msgget(IPC_PRIVATE, 0o600).unwrap(), set(&n, 1));
    let rounds = 500;
    let children = [1, 2].map(|kind| {
        Child::run(|| {
            for _ in 0..rounds {
                let mut id = [0; 4];
                n.msgrcv(ids, &mut id, kind, 0).unwrap();
                n.semop(turns, &[op(0, 1, 0)], None).unwrap();
                let error = errno(n.semop(i32::from_le_bytes(id), &[op(0, -1, 0)], None));
                assert!([libc::EIDRM, libc::EINVAL].contains(&error), "{error}");
            }
        })
    });
    for round in 0..rounds {
        let id = set(&n, 1);
        for kind in [1, 2] {
            n.msgsnd(ids, kind, &id.to_le_bytes(), 0).unwrap();
        }
        while n.semop(turns, &[op(0, -2, 0)], Some(Duration::from_millis(20))).is_err() {
            assert!(!children.iter().any(Child::is_over), "a child has failed");
        }
        (0..round * 20).for_each(|_| std::hint::spin_loop());
        n.remove_sem(id).unwrap();
    }
    children.into_iter().for_each(Child::succeeds);
}

#[test]
fn adjustments_of_the_dead_are_applied() {
    let (_directory, n) = namespace();
    let id = set(&n, 2);
    n.set_sem_values(id, &[1, 10]).unwrap();
    // The process ends by itself.
    Child::run(|| n.semop(id, &[op(0, -1, UNDO), op(1, 5, UNDO)], None).unwrap()).succeeds();
    assert_eq!(n.sem_values(id), Ok(vec![1, 10]));
    // The holder is killed, while somebody waits.
    let holder = Child::run(|| {
        n.semop(id, &[op(0, -1, UNDO)], None).unwrap();
        common::forever();
    });
    common::until(|| n.sem_value(id, 0) == Ok(0));
    let waiter = Child::run(|| n.semop(id, &[op(0, -1, 0)], None).unwrap());
    waiters(&n, id, 1);
    holder.kill();
    waiter.succeeds();
    assert_eq!(n.sem_value(id, 0), Ok(0));
    assert_eq!(errno(n.semop(id, &[op(0, -1, IPC_NOWAIT)], None)), libc::EAGAIN);
}

#[test]
fn processes_that_end_without_adjustments_leave_no_memory_behind() {
    let (_directory, n) = namespace();
    let id = set(&n, 1);
    n.set_sem_value(id, 0, 1).unwrap();
    let run = |times| {
        for _ in 0..times {
            Child::run(|| {
                n.semop(id, &[op(0, -1, UNDO)], None).unwrap();
                n.semop(id, &[op(0, 1, UNDO)], None).unwrap();
            })
            .succeeds();
        }
        common::memory(&n)
    };
    // More than fit into the piece of memory that the first ones had the file system reserve.
    assert_eq!(run(10), run(2500));
}

#[test]
fn adjustments_outlive_threads_but_not_the_process() {
    let (_directory, n) = namespace();
    let id = set(&n, 1);
    Child::run(|| {
        beside(&[&|| n.semop(id, &[op(0, 3, UNDO)], None).unwrap()], || ());
        assert_eq!(n.sem_value(id, 0), Ok(3));
        let child = Child::run(|| assert_eq!(n.sem_value(id, 0), Ok(3)));
        child.succeeds();
        assert_eq!(n.sem_value(id, 0), Ok(3));
    })
    .succeeds();
    assert_eq!(n.sem_value(id, 0), Ok(0));
}

/// The first thread of a process ends by itself, and one that makes no calls goes on: the process
/// is a zombie to some eyes.
#[test]
fn adjustments_outlive_the_first_thread() {
    let (_directory, n) = namespace();
    let id = set(&n, 1);
    let child = Child::run(|| {
        beside(&[&|| common::forever()], || {
            n.semop(id, &[op(0, 3, UNDO)], None).unwrap();
            // SAFETY: ends this thread only, whose stack the other one refers to; it is not freed.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        })
    });
    common::until(|| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.pid())).unwrap();
        stat[stat.rfind(')').unwrap()..].starts_with(") Z")
    });
    assert_eq!(n.sem_value(id, 0), Ok(3));
    child.kill();
    assert_eq!(n.sem_value(id, 0), Ok(0));
}

/// As when memory runs out: the list of what the process has locked is gone before the kernel walks
/// it. Its parent waits for its mutex before it waits for the process.
#[test]
fn adjustments_of_a_zombie_that_the_kernel_has_not_marked_are_applied() {
    let (_directory, n) = namespace();
    for limit in [None, Some(Duration::ZERO)] {
        let id = set(&n, 2);
        n.set_sem_value(id, 0, 1).unwrap();
        let child = Child::run(|| {
            n.semop(id, &[op(0, -1, UNDO), op(1, 1, 0)], None).unwrap();
            let head = Box::leak(Box::new([0usize; 3]));
            head[0] = head.as_ptr() as usize;
            // SAFETY: an empty list, which is never freed.
            unsafe { libc::syscall(libc::SYS_set_robust_list, head.as_ptr(), size_of_val(head)) };
        });
        n.semop(id, &[op(1, -1, 0)], None).unwrap();
        common::until(|| n.semop(id, &[op(0, -1, 0)], limit).is_ok());
        child.succeeds();
    }
}

/// Ids come again after 65,536 sets in a slot, and so do places in memory.
#[test]
fn adjustments_of_a_set_that_had_the_same_id_are_forgotten() {
    let (_directory, n) = namespace();
    let id = set(&n, 1);
    Child::run(|| {
        for _ in 0..3 {
            n.semop(id, &[op(0, 3, UNDO)], None).unwrap();
            let mut last = id;
            loop {
                n.remove_sem(last).unwrap();
                last = set(&n, 1);
                if last == id {
                    break;
                }
            }
        }
        n.semop(id, &[op(0, 3, UNDO)], None).unwrap();
    })
    .succeeds();
    assert_eq!(n.sem_value(id, 0), Ok(0));
}

#[test]
fn a_mutex_of_many_processes_counts_right() {
    let (_directory, n) = namespace();
    let (id, counter) = (set(&n, 1), set(&n, 2));
    n.set_sem_value(id, 0, 1).unwrap();
    let children: Vec<Child> = (0..6)
        .map(|_| {
            Child::run(|| {
                for _ in 0..500 {
                    n.semop(id, &[op(0, -1, UNDO)], None).unwrap();
                    // Two steps that another process could come between.
                    n.semop(counter, &[op(0, 1, 0)], None).unwrap();
                    assert_eq!(n.sem_value(counter, 0), Ok(1));
                    n.semop(counter, &[op(0, -1, 0), op(1, 1, 0)], None).unwrap();
                    n.semop(id, &[op(0, 1, UNDO)], None).unwrap();
                }
            })
        })
        .collect();
    children.into_iter().for_each(Child::succeeds);
    assert_eq!(n.sem_values(counter), Ok(vec![0, 3000]));
    assert_eq!(n.sem_value(id, 0), Ok(1));
}

/// Threads remember where they found a set.
#[test]
fn a_set_that_others_remove_is_not_found_again() {
    let (_directory, n) = namespace();
    let (steps, ids) = (set(&n, 2), n.msgget(IPC_PRIVATE, 0o600).unwrap());
    let child = Child::run(|| {
        loop {
            n.semop(steps, &[op(0, -1, 0)], None).unwrap();
            let mut id = [0; 4];
            n.msgrcv(ids, &mut id, 0, 0).unwrap();
            let id = i32::from_le_bytes(id);
            // Twice: the second time it is remembered.
            n.semop(id, &[op(0, 1, 0)], None).unwrap();
            n.semop(id, &[op(0, 1, 0)], None).unwrap();
            n.semop(steps, &[op(1, 1, 0)], None).unwrap();
            n.semop(steps, &[op(0, -1, 0)], None).unwrap();
            assert_eq!(errno(n.semop(id, &[op(0, 1, 0)], None)), libc::EINVAL);
            n.semop(steps, &[op(1, 1, 0)], None).unwrap();
        }
    });
    let turn = || {
        n.semop(steps, &[op(0, 1, 0)], None).unwrap();
        while n.semop(steps, &[op(1, -1, IPC_NOWAIT)], None).is_err_and(|e| e.0 == libc::EAGAIN) {
            assert!(!child.is_over());
            std::thread::yield_now();
        }
    };
    for _ in 0..8 {
        let id = set(&n, 1);
        n.msgsnd(ids, 1, &id.to_le_bytes(), 0).unwrap();
        turn();
        assert_eq!(n.sem_value(id, 0), Ok(2));
        n.remove_sem(id).unwrap();
        // Enough removals for several grace periods; their memory is used again.
        let churned: Vec<i32> = (0..100).map(|_| set(&n, 1)).collect();
        churned.iter().for_each(|&id| n.remove_sem(id).unwrap());
        let new: Vec<i32> = (0..4).map(|_| set(&n, 1)).collect();
        turn();
        assert!(new.iter().all(|&id| n.sem_value(id, 0) == Ok(0)));
    }
    child.kill();
}

/// Two processes that wake each other, wherever they run: each turn comes once.
#[test]
fn turns_come_in_order_on_one_cpu_and_on_two() {
    let cpus = common::cpus();
    for pair in [[cpus[0], cpus[0]], [cpus[0], cpus[cpus.len() - 1]]] {
        let (_directory, n) = namespace();
        let (id, queue) = (set(&n, 3), n.msgget(IPC_PRIVATE, 0o600).unwrap());
        let turns = 2000;
        let children = [0u16, 1].map(|i| {
            Child::run(|| {
                common::bind(pair[i as usize]);
                for turn in 0u32..turns {
                    n.semop(id, &[op(i, -1, 0)], None).unwrap();
                    // Nobody else is here: it is this one's turn.
                    let done = n.sem_value(id, 2).unwrap();
                    assert_eq!(done as u32, 2 * turn + u32::from(i));
                    n.semop(id, &[op(2, 1, 0)], None).unwrap();
                    n.semop(id, &[op(1 - i, 1, 0)], None).unwrap();
                    if i == 0 {
                        n.msgsnd(queue, 1, &turn.to_le_bytes(), 0).unwrap();
                    } else {
                        let mut got = [0; 4];
                        n.msgrcv(queue, &mut got, 0, 0).unwrap();
                        assert_eq!(got, turn.to_le_bytes());
                    }
                }
            })
        });
        n.semop(id, &[op(0, 1, 0)], None).unwrap();
        children.into_iter().for_each(Child::succeeds);
        assert_eq!(n.sem_value(id, 2), Ok(2 * turns as i32));
    }
}

#[test]
fn signals_interrupt_waits() {
    let (_directory, n) = namespace();
    let id = set(&n, 1);
    let child = Child::run(|| {
        common::handle_signals();
        assert_eq!(errno(n.semop(id, &[op(0, -1, 0)], None)), libc::EINTR);
    });
    waiters(&n, id, 1);
    common::signal_until_over(child);
    assert_eq!(n.sem_waiters(id, 0, false), Ok(0));
}
