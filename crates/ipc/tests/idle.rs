// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who waits for long does not look, and is woken by a death.

mod common;

use common::{Child, forever, namespace, op, until};
use reprieve_ipc::{Namespace, signals};
use std::time::Duration;

/// `futex_waitv`, on all machines.
const SLEEPS_IDLY: &str = "449 ";

/// A child that takes a unit which nobody gives, in a library that sees each signal.
fn waits(n: Namespace, set: i32) -> Child {
    Child::run(move || {
        signals::deliver_with(signals::delivered);
        n.semop(set, &[op(0, -1, 0)], Some(Duration::from_secs(50))).unwrap();
    })
}

fn sleeps_idly(child: &Child) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{}/syscall", child.pid())).unwrap();
    call.starts_with(SLEEPS_IDLY)
}

/// How often it has gone to sleep.
fn sleeps(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

fn kernel_can() -> bool {
    // SAFETY: no words, which is an error where there is the call.
    let can = unsafe { libc::syscall(libc::SYS_futex_waitv, 0, 0, 0, 0, 0) } == -1
        && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
    if !can {
        println!("SKIPPED: no futex_waitv");
    }
    can
}

#[test]
fn idle_waiters_sleep_on() {
    if !kernel_can() {
        return;
    }
    let (_directory, n) = namespace();
    let set = n.semget(libc::IPC_PRIVATE, 1, 0o600).unwrap();
    n.set_sem_value(set, 0, 1).unwrap();
    let holder = Child::run(move || {
        n.semop(set, &[op(0, -1, libc::SEM_UNDO)], None).unwrap();
        forever();
    });
    until(|| n.sem_value(set, 0).unwrap() == 0);
    let waiters = [waits(n, set), waits(n, set)];
    waiters.iter().for_each(|waiter| until(|| sleeps_idly(waiter)));
    let before = waiters.each_ref().map(sleeps);
    // Some thirty looks, if they looked.
    std::thread::sleep(Duration::from_secs(2));
    let after = waiters.each_ref().map(sleeps);
    let looks: u64 = after.iter().zip(before).map(|(after, before)| after - before).sum();
    // The look of the full minute may be among these.
    assert!(looks <= 4, "{looks} looks");
    // A unit that another process holds comes back with its death.
    holder.kill();
    until(|| waiters.iter().any(Child::is_over));
    assert!(waiters.iter().filter(|waiter| waiter.is_over()).count() == 1);
    n.semop(set, &[op(0, 1, 0)], None).unwrap();
    waiters.into_iter().for_each(Child::succeeds);
}

/// The one that has the unit dies in the queue, woken or not: the other one gets it.
#[test]
fn who_is_poked_and_dies_leaves_the_unit_to_an_idle_waiter() {
    if !kernel_can() {
        return;
    }
    let (_directory, n) = namespace();
    let set = n.semget(libc::IPC_PRIVATE, 1, 0o600).unwrap();
    let first = waits(n, set);
    until(|| n.sem_waiters(set, 0, false).unwrap() == 1);
    let second = waits(n, set);
    until(|| sleeps_idly(&first) && sleeps_idly(&second));
    first.signal(libc::SIGSTOP);
    first.stopped();
    n.semop(set, &[op(0, 1, 0)], None).unwrap();
    first.kill();
    second.succeeds();
}
