// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hints and their answers, end to end on this kernel: this process registers with a server of its
//! own, and sees its threads lose their CPUs. Nothing is timed: each step waits for what it
//! expects.

use reprieve_hint::{Mutex, State, connect, current_thread, is_overloaded, is_preempted, state};
use reprieve_watch::publish::Server;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// A CPU that this process may use; the calling thread stays on it.
fn pin() -> u32 {
    // SAFETY: plain data of the size given.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &mut set);
        let cpu = (0..1024).find(|&cpu| libc::CPU_ISSET(cpu, &set)).unwrap();
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut one);
        libc::sched_setaffinity(0, size_of_val(&one), &one);
        cpu as u32
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    for i in 0.. {
        if done() {
            return;
        }
        if i % 1000 == 999 {
            eprintln!("waiting: {what}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Ends<'a>([&'a AtomicBool; 2]);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|flag| flag.store(true, Ordering::Relaxed));
    }
}

#[test]
fn programs_learn_what_the_scheduler_does() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("hint.sock");
    // SAFETY: no other thread of this process runs yet that reads the environment.
    unsafe { std::env::set_var("REPRIEVE_HINT", &socket) };
    let mutex = Mutex::new(());
    // Nobody serves yet.
    drop(mutex.lock());
    assert_eq!((is_preempted(current_thread()), is_overloaded(0)), (None, None));
    assert!(connect(Duration::from_secs(1)).unwrap_err().to_string().contains("hint.sock"));

    let mut server = Server::start(&socket).unwrap();
    assert!(Server::start(&socket).is_err(), "two servers at one socket");
    let (stop, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        // A failed check must not leave the others running.
        let _ends = Ends([&stop, &done]);
        let serving = scope.spawn(|| {
            server.run(&stop, |_| true).unwrap();
            server
        });
        connect(Duration::from_secs(600)).unwrap();
        assert_eq!(state(current_thread()), Some(State::Running));

        // A thread that sleeps.
        let (tell, told) = channel();
        let (wake, woken) = channel::<()>();
        let sleeper = scope.spawn(move || {
            tell.send(current_thread()).unwrap();
            // Again and again: the kernel may miss a switch.
            while woken.recv_timeout(Duration::from_millis(5)).is_err() {}
        });
        let thread = told.recv().unwrap();
        // Both at the same time: between two waits it may wake, and lose its CPU.
        until("a sleeper", || {
            state(thread) == Some(State::Blocked) && is_preempted(thread) == Some(false)
        });
        wake.send(()).unwrap();
        sleeper.join().unwrap();

        // Two that want the same CPU, each in a section of either kind.
        let (tell, told) = channel();
        for kind in [reprieve_hint::non_preemptable, reprieve_hint::preemptable] {
            let (tell, done) = (tell.clone(), &done);
            scope.spawn(move || {
                let cpu = pin();
                let _section = kind();
                tell.send((current_thread(), cpu)).unwrap();
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let threads = [told.recv().unwrap(), told.recv().unwrap()];
        for (thread, cpu) in threads {
            until("a preemption", || is_preempted(thread) == Some(true));
            until("a CPU again", || state(thread) == Some(State::Running));
            until("two on a CPU", || is_overloaded(cpu) == Some(true));
        }
        done.store(true, Ordering::Relaxed);

        // A child of a fork registers anew: the page tells of its own threads.
        // SAFETY: the child only takes a lock, asks, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(mutex.lock());
            let known = connect(Duration::from_secs(600)).is_ok();
            let right = known && state(current_thread()) == Some(State::Running);
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = 0;
        // SAFETY: our child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);

        stop.store(true, Ordering::Relaxed);
        let server = serving.join().unwrap();
        let counts = server.counts();
        assert!(counts.in_non_preemptable > 0 && counts.in_preemptable > 0, "{counts:?}");
        assert!(counts.preempted >= counts.in_non_preemptable.max(counts.in_preemptable));
        drop(server);
    });
    assert!(!socket.exists());
    // The page's beat has stopped: it is not believed for long.
    until("a dead page", || is_preempted(current_thread()).is_none());
    // Locks go on.
    drop(mutex.lock());
}
