// SPDX-License-Identifier: MIT OR Apache-2.0
//! fork, exit, signals and start-up, each in the situation it is dangerous in.

#[path = "common/beside.rs"]
mod beside;
#[path = "common/child.rs"]
mod child;
mod common;
#[path = "common/policy.rs"]
mod policy;
#[path = "common/samples.rs"]
mod samples;

use beside::beside;
use child::in_child;
use common::{Cell, FOR_EVER};
use policy::{policy, set_policy};
use reprieve::{Domain, Engine, Restartable};
use samples::Samples;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

/// This program again, for one of its ignored tests.
fn this_program(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command
}

/// Runs a test in a process of its own, which has to pass, and shows what it prints.
#[track_caller]
fn passes(command: &mut Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{command:?}: {output:?}");
    print!("{text}");
}

#[test]
fn a_child_forgets_the_other_readers_of_its_parent() {
    let domain = Arc::new(Domain::builder().build().unwrap());
    let cell = Cell::new(5);
    let (ready, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let (domain, ready, stop) = (domain.clone(), ready.clone(), stop.clone());
            thread::spawn(move || {
                let _guard = domain.read_lock();
                ready.fetch_add(1, SeqCst);
                while !stop.load(SeqCst) {
                    thread::sleep(Duration::from_millis(1));
                }
            })
        })
        .collect();
    while ready.load(SeqCst) < 4 {
        thread::yield_now();
    }
    // A grace period is running, and will not end in the parent. The child's polls have it run
    // anew.
    let cookie = domain.start_poll();
    thread::sleep(Duration::from_millis(20));
    let status = in_child(|| {
        let early = domain.poll(cookie);
        await_polled(&domain, cookie);
        domain.synchronize();
        // SAFETY: used through this domain only.
        let read = unsafe { domain.lookup(&cell.value()) };
        !early && domain.poll(cookie) && read == 5
    });
    assert_eq!(status, 0);
    assert!(!domain.poll(cookie), "the parent's readers are still there");
    stop.store(true, SeqCst);
    readers.into_iter().for_each(|r| r.join().unwrap());
    domain.synchronize();
}

#[test]
fn a_section_of_the_forking_thread_goes_on_in_the_child() {
    let domain = Arc::new(Domain::builder().engine(Engine::Poll).build().unwrap());
    let guard = domain.read_lock();
    let cookie = domain.start_poll();
    thread::sleep(Duration::from_millis(10));
    let status = in_child(|| {
        beside(&[&|| domain.cond_synchronize(cookie)], || {
            thread::sleep(Duration::from_millis(20));
            let waited = !domain.poll(cookie);
            drop(guard);
            waited
        })
    });
    assert_eq!(status, 0);
}

#[test]
fn waiting_callbacks_run_in_both_processes() {
    for held in [false, true] {
        let domain = Domain::builder().build().unwrap();
        let ran = Arc::new(AtomicU64::new(0));
        let guard = held.then(|| domain.read_lock());
        (0..1000).for_each(|_| count_later(&domain, &ran));
        let mut guard = Some(guard);
        let start = Instant::now();
        let status = in_child(|| {
            // A fork that waited for so long went without what a worker had in hand.
            let missed = start.elapsed() >= Duration::from_secs(1);
            drop(guard.take());
            domain.barrier().unwrap();
            domain.defer(|| ());
            domain.barrier().unwrap();
            missed || ran.load(SeqCst) == 1000
        });
        assert_eq!(status, 0, "held: {held}");
        drop(guard);
        domain.barrier().unwrap();
        assert_eq!(ran.load(SeqCst), 1000);
    }
}

/// The CPUs that this thread may run on.
fn cpus() -> Vec<usize> {
    // SAFETY: plain data of the size given.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

/// Binds this thread, and those that it creates.
fn bind(cpu: usize) {
    // SAFETY: as above.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

/// Registers a callback that counts up.
fn count_later(domain: &Domain, ran: &Arc<AtomicU64>) {
    let ran = ran.clone();
    domain.defer(move || _ = ran.fetch_add(1, SeqCst));
}

/// Polls until the grace period has ended.
fn await_polled(domain: &Domain, cookie: reprieve::Cookie) {
    while !domain.poll(cookie) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// The threads of this process that run grace periods in the background.
fn background() -> Vec<i32> {
    let id = |task: std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        (name.trim() == "reprieve-gp").then(|| task.file_name().to_str()?.parse().ok())?
    };
    std::fs::read_dir("/proc/self/task").unwrap().flatten().filter_map(id).collect()
}

/// A child that registers on one CPU only, and waits for nothing, runs what the parent registered
/// on others. Without workers there the test hangs.
#[test]
fn a_child_runs_the_callbacks_of_all_cpus() {
    let domain = Domain::builder().build().unwrap();
    let ran = Arc::new(AtomicU64::new(0));
    let guard = domain.read_lock();
    let cpus = cpus();
    // Each has a stash of its own until all have registered.
    let registered = Barrier::new(cpus.len());
    thread::scope(|scope| {
        for &cpu in &cpus {
            let (domain, registered, ran) = (&domain, &registered, &ran);
            scope.spawn(move || {
                bind(cpu);
                count_later(domain, ran);
                registered.wait();
            });
        }
    });
    let mut guard = Some(guard);
    let start = Instant::now();
    let status = in_child(|| {
        // A fork that waited for so long went without what a worker had in hand.
        let missed = start.elapsed() >= Duration::from_secs(1);
        bind(cpus[0]);
        drop(guard.take());
        domain.defer(|| ());
        while !missed && ran.load(SeqCst) < cpus.len() as u64 {
            thread::sleep(Duration::from_millis(1));
        }
        true
    });
    assert_eq!(status, 0);
    drop(guard);
    domain.barrier().unwrap();
    assert_eq!(ran.load(SeqCst), cpus.len() as u64);
}

#[test]
fn protections_of_the_parents_other_threads_are_forgotten() {
    let domain = Arc::new(Domain::builder().build().unwrap());
    let cell = Arc::new(Cell::new(5));
    let (ready, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let holder = {
        let (domain, cell, ready, stop) =
            (domain.clone(), cell.clone(), ready.clone(), stop.clone());
        thread::spawn(move || {
            // SAFETY: used through this domain only.
            let node = unsafe { domain.protect(&cell.node()) }.unwrap();
            ready.store(true, SeqCst);
            while !stop.load(SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            node.value
        })
    };
    while !ready.load(SeqCst) {
        thread::yield_now();
    }
    // SAFETY: as above.
    unsafe { cell.replace(&domain, 6) };
    let status = in_child(|| {
        domain.barrier().unwrap();
        domain.stats().waiting == 0
    });
    assert_eq!(status, 0);
    // Held in the parent. A look while the worker takes the callback out of its stash may find
    // another number.
    while domain.stats().waiting != 1 {
        thread::yield_now();
    }
    stop.store(true, SeqCst);
    assert_eq!(holder.join().unwrap(), 5);
    domain.barrier().unwrap();
}

#[test]
fn a_callback_may_fork() {
    let domain = Domain::builder().build().unwrap();
    let status = Arc::new(AtomicU64::new(u64::MAX));
    let result = status.clone();
    domain.defer(move || {
        let status = in_child(|| {
            reprieve::synchronize_rcu();
            true
        });
        result.store(status as u64, SeqCst);
    });
    domain.barrier().unwrap();
    assert_eq!(status.load(SeqCst), 0);
}

#[test]
fn forks_during_a_flood_of_callbacks() {
    let domain = Arc::new(Domain::builder().build().unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let flood = {
        let (domain, stop) = (domain.clone(), stop.clone());
        thread::spawn(move || {
            while !stop.load(Relaxed) {
                domain.defer(|| ());
            }
        })
    };
    for _ in 0..20 {
        let status = in_child(|| {
            domain.defer(|| ());
            domain.barrier().is_ok() && domain.stats().waiting == 0
        });
        assert_eq!(status, 0);
    }
    stop.store(true, Relaxed);
    flood.join().unwrap();
    domain.barrier().unwrap();
}

/// The membarrier registration must hold in the child, too: threads of the child read while it
/// frees.
#[test]
fn a_child_has_working_grace_periods_of_its_own() {
    let domain = Arc::new(Domain::builder().build().unwrap());
    let cell = Arc::new(Cell::new(0));
    // SAFETY: used through this domain only, here and below.
    assert_eq!(unsafe { domain.lookup(&cell.value()) }, 0);
    let status = in_child(|| {
        let (stop, wrong) = (AtomicBool::new(false), AtomicBool::new(false));
        let read = || {
            let mut last = 0;
            while !stop.load(Relaxed) {
                // SAFETY: as above.
                let now = unsafe { domain.lookup(&cell.value()) };
                if now < last || now > 2000 {
                    wrong.store(true, Relaxed);
                }
                last = now;
            }
        };
        beside(&[&read, &read, &read, &read], || {
            for i in 1..=2000 {
                // SAFETY: as above.
                unsafe { cell.replace(&domain, i) };
                if i % 20 == 0 {
                    domain.synchronize();
                }
            }
            stop.store(true, Relaxed);
        });
        domain.barrier().unwrap();
        !wrong.load(Relaxed) && domain.stats().grace_periods.count >= 100
    });
    assert_eq!(status, 0);
}

static HANDLED: AtomicU64 = AtomicU64::new(0);
static TARGET: AtomicPtr<Cell> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn read_in_handler(_: i32) {
    let _guard = reprieve::read_lock();
    // SAFETY: the cell is never replaced, and set before the signal.
    unsafe {
        let cell = &*TARGET.load(SeqCst);
        let value = reprieve::lookup(&cell.value());
        let node = reprieve::protect(&cell.node()).unwrap();
        HANDLED.fetch_add((value == 3 && node.value == 3) as u64, SeqCst);
    }
}

#[test]
fn a_signal_handler_may_be_the_first_reader_of_its_thread() {
    TARGET.store(Box::into_raw(Box::new(Cell::new(3))), SeqCst);
    for _ in 0..20 {
        thread::spawn(|| {
            // SAFETY: the handler reads only, which it may.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = read_in_handler as extern "C" fn(i32) as usize;
                libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
                libc::raise(libc::SIGUSR2);
            }
        })
        .join()
        .unwrap();
    }
    assert_eq!(HANDLED.load(SeqCst), 20);
}

#[test]
fn sections_in_destructors_of_other_thread_locals() {
    struct Late;
    impl Drop for Late {
        fn drop(&mut self) {
            let _guard = reprieve::read_lock();
        }
    }
    thread_local! { static LATE: Late = const { Late }; }
    for _ in 0..50 {
        thread::spawn(|| {
            // Registered before and after the crate's own.
            drop(reprieve::read_lock());
            LATE.with(|_| ());
        })
        .join()
        .unwrap();
    }
    reprieve::synchronize_rcu();
}

static LATE_KEY: std::sync::OnceLock<libc::pthread_key_t> = std::sync::OnceLock::new();

/// A guard kept in a thread-specific key of the program's own ends before the thread's record goes
/// to another thread.
#[test]
fn a_guard_in_a_thread_specific_key() {
    unsafe extern "C" fn end(guard: *mut libc::c_void) {
        // SAFETY: the box made below.
        drop(unsafe { Box::from_raw(guard.cast::<(reprieve::Guard<'static>, u64)>()) });
    }
    // SAFETY: the destructor stays.
    let key = *LATE_KEY.get_or_init(|| unsafe {
        let mut key = 0;
        assert_eq!(libc::pthread_key_create(&mut key, Some(end)), 0);
        key
    });
    for _ in 0..50 {
        let thread = thread::spawn(move || {
            let guard = Box::into_raw(Box::new((reprieve::read_lock(), 0u64)));
            // SAFETY: the key exists.
            unsafe { libc::pthread_setspecific(key, guard.cast()) };
        });
        let other = thread::spawn(|| {
            for turn in 0..100 {
                let _guard = reprieve::read_lock();
                // Each one costs a slice beside busy threads.
                if turn % 20 == 0 {
                    thread::yield_now();
                }
            }
        });
        thread.join().unwrap();
        other.join().unwrap();
    }
    // A count that went below zero would look like a section without end.
    reprieve::synchronize_rcu();
}

/// A thread forks while another one is in its destructors, of which the last ends a section.
#[test]
fn a_section_that_a_destructor_ends_does_not_go_on_in_a_child() {
    type Held = (reprieve::Guard<'static>, Sender<()>, Receiver<()>);
    unsafe extern "C" fn end(held: *mut libc::c_void) {
        // SAFETY: the box made below.
        let (guard, exiting, go_on) = *unsafe { Box::from_raw(held.cast::<Held>()) };
        exiting.send(()).unwrap();
        go_on.recv().unwrap();
        drop(guard);
    }
    // The library's key comes first, and with it its destructor.
    reprieve::synchronize_rcu();
    drop(reprieve::read_lock());
    let mut key = 0;
    // SAFETY: the destructor stays.
    assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(end)) }, 0);
    let ((exiting, exits), (release, go_on)) = (channel(), channel());
    let thread = thread::spawn(move || {
        let held: Box<Held> = Box::new((reprieve::read_lock(), exiting, go_on));
        // SAFETY: the key exists.
        unsafe { libc::pthread_setspecific(key, Box::into_raw(held).cast()) };
    });
    exits.recv().unwrap();
    let status = in_child(|| {
        reprieve::synchronize_rcu();
        true
    });
    release.send(()).unwrap();
    thread.join().unwrap();
    assert_eq!(status, 0);
    reprieve::synchronize_rcu();
}

/// The kernel may still know a thread that was joined.
#[test]
fn what_a_joined_thread_leaked_is_protected_in_a_child() {
    let domain: &Domain = Box::leak(Box::new(Domain::builder().build().unwrap()));
    thread::spawn(|| std::mem::forget(domain.read_lock())).join().unwrap();
    let status = in_child(|| {
        let cookie = domain.start_poll();
        (0..20).all(|_| {
            thread::sleep(Duration::from_millis(1));
            !domain.poll(cookie)
        })
    });
    assert_eq!(status, 0);
}

/// A thread's data under a key of its own: a guard, and rounds of destructors in each of which it
/// uses a further domain.
struct LastActs {
    guard: Option<reprieve::Guard<'static>>,
    leak: bool,
    open: bool,
    domains: Vec<Arc<Domain>>,
    rounds: usize,
}

static LAST_KEY: std::sync::OnceLock<libc::pthread_key_t> = std::sync::OnceLock::new();

unsafe extern "C" fn act(acts: *mut libc::c_void) {
    // SAFETY: the box made by the test.
    let mut acts = unsafe { Box::from_raw(acts.cast::<LastActs>()) };
    acts.rounds += 1;
    let guard = acts.domains[acts.rounds].read_lock();
    if acts.open {
        std::mem::forget(guard);
    } else {
        drop(guard);
    }
    if acts.rounds < 3 {
        let key = *LAST_KEY.get().unwrap();
        // SAFETY: the key exists.
        unsafe { libc::pthread_setspecific(key, Box::into_raw(acts).cast()) };
    } else if acts.leak {
        std::mem::forget(acts.guard.take());
    }
}

/// A thread gives its records back, though destructors use further domains until the last round but
/// one: without a guard, with one that a destructor drops in that round, with one that nobody
/// drops, with sections that these destructors leave open, and if the first of them is the thread's
/// first reader. In a process of its own: registries outlive their domains, and may still have
/// records of other tests' threads.
#[test]
fn destructors_that_use_further_domains() {
    passes(&mut this_program("last_acts"));
}

#[test]
#[ignore = "run by destructors_that_use_further_domains"]
fn last_acts() {
    // SAFETY: the destructor stays.
    let key = *LAST_KEY.get_or_init(|| unsafe {
        let mut key = 0;
        assert_eq!(libc::pthread_key_create(&mut key, Some(act)), 0);
        key
    });
    let domains: Vec<_> = (0..4).map(|_| Arc::new(Domain::builder().build().unwrap())).collect();
    for (first, guard, leak, open) in [
        (false, false, false, false),
        (true, false, false, false),
        (true, true, false, false),
        (true, false, false, true),
        (true, true, true, false),
    ] {
        let mine = domains.clone();
        thread::spawn(move || {
            if first {
                drop(mine[0].read_lock());
            }
            let guard = guard.then(reprieve::read_lock);
            let acts =
                Box::into_raw(Box::new(LastActs { guard, leak, open, domains: mine, rounds: 0 }));
            // SAFETY: the key exists.
            unsafe { libc::pthread_setspecific(key, acts.cast()) };
        })
        .join()
        .unwrap();
        let left: Vec<_> = domains.iter().map(|d| d.stats().threads).collect();
        assert_eq!(left, [0; 4], "{:?}", (first, guard, leak, open));
        // The default domain's record, too. The leaked guard, which comes last, is there for ever.
        assert_eq!(Domain::global().stats().threads, 0);
        if !leak {
            reprieve::synchronize_rcu();
        }
    }
}

/// Lookups forced into plain sections, and into restartable ones.
#[test]
fn forced_either_way() {
    for force in ["plain", "restart"] {
        let mut forced = this_program("forced");
        passes(forced.env("REPRIEVE_FORCE", force).env_remove("GLIBC_TUNABLES"));
    }
}

#[test]
#[ignore = "run by forced_either_way"]
fn forced() {
    let plain = std::env::var("REPRIEVE_FORCE").unwrap() == "plain";
    let cell = Cell::new(0);
    // Lookups in the default domain before anything else asks for it count as well.
    // SAFETY: the cell is not replaced meanwhile.
    (0..2).for_each(|_| assert_eq!(unsafe { reprieve::lookup(&cell.value()) }, 0));
    let stats = Domain::global().stats();
    assert_eq!(stats.fallbacks == 2, plain, "{stats:?}");

    let domain = Domain::builder().build().unwrap();
    for i in 0..1000 {
        // SAFETY: used through this domain only.
        unsafe {
            let node = domain.protect(&cell.node()).unwrap();
            assert_eq!((domain.lookup(&cell.value()), node.value), (i, i));
            cell.replace(&domain, i + 1);
        }
    }
    domain.barrier().unwrap();
    assert_eq!(domain.stats().fallbacks > 1000, plain, "{:?}", domain.stats());
    let forced = if plain { Restartable::ForcedPlain } else { Restartable::Yes };
    assert_eq!(reprieve::support().restartable, forced);
}

/// glibc told not to register rseq: lookups run in plain sections.
#[test]
#[cfg(target_env = "gnu")]
fn without_rseq() {
    let mut without = this_program("no_rseq");
    passes(without.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0").env_remove("REPRIEVE_FORCE"));
}

#[test]
#[ignore = "run by without_rseq"]
fn no_rseq() {
    if cfg!(target_arch = "x86_64") {
        assert_eq!(reprieve::support().restartable, Restartable::NoRseq);
    }
    let cell = Cell::new(3);
    // SAFETY: never replaced.
    assert_eq!(unsafe { reprieve::lookup(&cell.value()) }, 3);
    reprieve::synchronize_rcu();
}

/// membarrier filtered from the start: readers execute fences.
#[test]
fn without_membarrier() {
    use std::os::unix::process::CommandExt;
    let mut command = this_program("no_membarrier");
    // SAFETY: prctl only, between fork and exec.
    unsafe { command.pre_exec(|| forbid(&[libc::SYS_membarrier], libc::ENOSYS)) };
    passes(&mut command);
}

/// A seccomp filter that answers these system calls with an error. For this thread and those it
/// creates.
fn forbid(calls: &[libc::c_long], error: i32) -> std::io::Result<()> {
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    // No allocation: this may be the child of a fork.
    let mut filter = [statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW); 16];
    filter[0] = statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0);
    for (pair, call) in filter[1..15].chunks_mut(2).zip(calls) {
        pair[0] = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, *call as u32);
        pair[1] =
            statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | error as u32);
    }
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the program outlives the calls.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) != 0
        {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

#[test]
#[ignore = "run by without_membarrier"]
fn no_membarrier() {
    let support = reprieve::support();
    assert!(!support.membarrier);
    assert_ne!(support.restartable, Restartable::Yes);
    let domain = Arc::new(Domain::builder().build().unwrap());
    let cell = Arc::new(Cell::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let (domain, cell, stop) = (domain.clone(), cell.clone(), stop.clone());
            thread::spawn(move || {
                let mut last = 0;
                while !stop.load(Relaxed) {
                    // SAFETY: used through this domain only.
                    let now = unsafe { domain.lookup(&cell.value()) };
                    assert!(now >= last);
                    last = now;
                }
            })
        })
        .collect();
    for i in 1..500 {
        // SAFETY: as above.
        unsafe { cell.replace(&domain, i) };
        if i % 50 == 0 {
            domain.synchronize();
        }
    }
    stop.store(true, Relaxed);
    readers.into_iter().for_each(|r| r.join().unwrap());
    domain.barrier().unwrap();
}

/// The list of CPUs on which a task may run.
fn allowed_cpus(task: &Path) -> String {
    let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:\t"));
    line.unwrap_or_default().to_string()
}

/// The name and the CPUs of each thread of this process.
fn names_and_cpus() -> Vec<(String, String)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
    let name = |task: &Path| std::fs::read_to_string(task.join("comm")).unwrap_or_default();
    tasks.map(|task| (name(&task).trim().to_string(), allowed_cpus(&task))).collect()
}

/// A process that was bound to some CPUs stays there. In a process of its own: the workers of other
/// tests have the same names.
#[test]
fn workers_stay_on_the_cpus_of_their_process() {
    passes(&mut this_program("bound_workers"));
}

#[test]
#[ignore = "run by workers_stay_on_the_cpus_of_their_process"]
fn bound_workers() {
    let Some(&last) = cpus().last() else { panic!("a thread runs nowhere") };
    if last == 0 {
        // A single CPU: nowhere else to go.
        return;
    }
    thread::spawn(move || {
        bind(last);
        let domain = Domain::builder().build().unwrap();
        // The grace period's thread, and the worker of this CPU.
        domain.defer(|| ());
        // Both have run, and so they have their names, and are bound, when these return.
        await_polled(&domain, domain.start_poll());
        domain.barrier().unwrap();
        let found = names_and_cpus();
        for name in ["reprieve-gp".into(), format!("reprieve-cb/{last}")] {
            assert!(found.contains(&(name, last.to_string())), "{found:?}");
        }
    })
    .join()
    .unwrap();
}

/// A callback has the CPU of its worker, but not the thread for grace periods that it starts: a
/// real-time thread may take that CPU, and nobody who only polls lets a thread run elsewhere.
#[test]
fn grace_periods_that_a_callback_starts() {
    passes(&mut this_program("started_by_a_callback"));
}

#[test]
#[ignore = "run by grace_periods_that_a_callback_starts"]
fn started_by_a_callback() {
    let domain = Arc::new(Domain::builder().build().unwrap());
    let (send, receive) = channel();
    let starts = domain.clone();
    domain.defer(move || send.send(starts.start_poll()).unwrap());
    domain.barrier().unwrap();
    // When it has led a grace period it has its name and its CPUs.
    await_polled(&domain, receive.recv().unwrap());
    let all = allowed_cpus("/proc/self".as_ref());
    let background = names_and_cpus().into_iter().filter(|thread| thread.0 == "reprieve-gp");
    assert_eq!(background.map(|thread| thread.1).collect::<Vec<_>>(), [all]);
}

/// A destructor that needs more stack than the standard library's threads have, as a recursive one
/// of a long list does, and no more than the program's threads have by default.
#[test]
fn a_recursive_destructor_in_a_callback() {
    const DEPTH: usize = 4 << 20;
    fn nested(top: usize) {
        let frame = std::hint::black_box([0u8; 1 << 10]);
        if top - frame.as_ptr().addr() < DEPTH {
            nested(top);
        }
        std::hint::black_box(frame);
    }
    struct Deep(bool);
    impl Drop for Deep {
        fn drop(&mut self) {
            if self.0 {
                nested((&raw const self).addr());
            }
        }
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills it in.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) }, 0);
    if !(8 << 20..1 << 30).contains(&limit.rlim_cur) {
        return println!("a thread's stack has another size here: skipped");
    }
    let domain = Domain::builder().build().unwrap();
    let cell = reprieve::structures::Cell::new_in(Deep(true), &domain);
    cell.store(Deep(false));
    domain.barrier().unwrap();
}

/// A real-time thread's workers are ordinary threads, as is the one for grace periods in the
/// background.
#[test]
fn workers_of_a_real_time_thread() {
    passes(this_program("real_time_registrant").arg("--test-threads=1"));
}

#[test]
#[ignore = "run by workers_of_a_real_time_thread"]
fn real_time_registrant() {
    let registrant = || {
        if !set_policy(libc::SCHED_FIFO, 10) {
            return println!("no real-time priority allowed here: skipped");
        }
        let domain = Domain::builder().build().unwrap();
        let workers = Arc::new(AtomicU64::new(u64::MAX));
        let seen = workers.clone();
        domain.defer(move || seen.store(policy(0) as u64, SeqCst));
        await_polled(&domain, domain.start_poll());
        domain.barrier().unwrap();
        assert_eq!(workers.load(SeqCst), libc::SCHED_OTHER as u64);
        assert_eq!(background().into_iter().map(policy).collect::<Vec<_>>(), [libc::SCHED_OTHER]);
    };
    thread::spawn(registrant).join().unwrap();
}

/// The same of a thread of lower priority than the main thread, as far as the system allows.
#[test]
fn workers_of_a_low_priority_thread() {
    for policy in ["batch_registrant", "idle_registrant"] {
        passes(this_program(policy).arg("--test-threads=1"));
    }
}

#[test]
#[ignore = "run by workers_of_a_low_priority_thread"]
fn batch_registrant() {
    low_priority_registrant(libc::SCHED_BATCH);
}

#[test]
#[ignore = "run by workers_of_a_low_priority_thread"]
fn idle_registrant() {
    low_priority_registrant(libc::SCHED_IDLE);
}

fn low_priority_registrant(low: i32) {
    // SAFETY: these calls read their parameters.
    let policy_and_nice = |thread: i32| unsafe {
        let nice = libc::getpriority(libc::PRIO_PROCESS, thread as libc::id_t);
        (policy(thread), nice)
    };
    // SAFETY: as above.
    let set_nice = |nice| unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) == 0 };
    const LOWEST: i32 = 19;
    let lower = move || assert!(set_policy(low, 0) && set_nice(LOWEST));
    let main = policy_and_nice(std::process::id() as i32);
    let best = (if main.0 == low { low } else { libc::SCHED_OTHER }, main.1.max(0));
    // The best that a thread may have here.
    let expected = thread::spawn(move || {
        lower();
        let policy = if best.0 != low && set_policy(best.0, 0) { best.0 } else { low };
        (policy, if set_nice(best.1) { best.1 } else { LOWEST })
    });
    let expected = expected.join().unwrap();
    let registrant = move || {
        lower();
        let domain = Domain::builder().build().unwrap();
        // Nobody else leads it: when it is over its thread has its name and priority.
        await_polled(&domain, domain.start_poll());
        assert_eq!(background().into_iter().map(policy_and_nice).collect::<Vec<_>>(), [expected]);
        let (send, receive) = channel();
        domain.defer(move || send.send(policy_and_nice(0)).unwrap());
        domain.barrier().unwrap();
        assert_eq!(receive.recv().unwrap(), expected);
        assert_eq!(policy_and_nice(0), (low, LOWEST));
    };
    thread::spawn(registrant).join().unwrap();
}

/// Where no worker can be started `barrier` runs the callbacks itself.
#[test]
fn without_threads() {
    let domain = Domain::builder().build().unwrap();
    let ran = Arc::new(AtomicU64::new(0));
    let status = in_child(|| {
        // A filter is for ever: hence the child.
        if forbid(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN).is_err() {
            return false;
        }
        (0..100).for_each(|_| count_later(&domain, &ran));
        domain.barrier().unwrap();
        // A domain whose last owner a callback drops stays; others come and go.
        let stays = Domain::builder().build().unwrap();
        domain.defer(move || drop(stays));
        domain.barrier().unwrap();
        drop(Domain::builder().build().unwrap());
        // No thread can run grace periods in the background, either.
        let cookie = domain.start_poll();
        while !domain.poll(cookie) {}
        ran.load(SeqCst) == 100
    });
    assert_eq!(status, 0);
}

/// The end of a domain waits for callbacks of callbacks: nothing of theirs is left to the next
/// domain of the same index.
#[test]
fn callbacks_of_callbacks_when_a_domain_ends() {
    static RAN: AtomicU64 = AtomicU64::new(0);
    fn chain(domain: *const Domain, links: u64) {
        let domain = domain.expose_provenance();
        // SAFETY: a domain lives until its callbacks have run.
        let alive = unsafe { &*std::ptr::with_exposed_provenance::<Domain>(domain) };
        alive.defer(move || {
            RAN.fetch_add(1, SeqCst);
            if links > 1 {
                chain(std::ptr::with_exposed_provenance(domain), links - 1);
            }
        });
    }
    for workers in [false, true] {
        let status = in_child(|| {
            if !workers && forbid(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN).is_err() {
                return false;
            }
            let first = Box::new(Domain::builder().build().unwrap());
            chain(&raw const *first, 9);
            drop(first);
            let ran = RAN.load(SeqCst);
            let second = Domain::builder().build().unwrap();
            let done = Arc::new(AtomicBool::new(false));
            let set = done.clone();
            second.defer(move || set.store(true, SeqCst));
            second.barrier().unwrap();
            ran == 9 && done.load(SeqCst) && second.stats().waiting == 0
        });
        assert_eq!(status, 0, "workers: {workers}");
    }
}

/// Where no thread can be started a poll returns, however long the ticks are.
#[test]
fn a_poll_does_not_wait_for_ticks() {
    let engines = [Engine::Ltimer { tick: FOR_EVER }, Engine::Sched { tick: FOR_EVER }];
    for engine in engines {
        let domain = Domain::builder().engine(engine).build().unwrap();
        let status = in_child(|| {
            if forbid(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN).is_err() {
                return false;
            }
            let guard = domain.read_lock();
            let cookie = domain.start_poll();
            let early = (0..3).any(|_| domain.poll(cookie));
            drop(guard);
            while !domain.poll(cookie) {}
            !early
        });
        assert_eq!(status, 0, "{engine:?}");
    }
}

/// Callbacks that wait when the process exits are not run, and do not keep it from exiting.
#[test]
fn exit_with_callbacks_waiting() {
    let output = this_program("exits").output().unwrap();
    assert_eq!(output.status.code(), Some(7));
}

#[test]
#[ignore = "run by exit_with_callbacks_waiting"]
fn exits() {
    let _guard = reprieve::read_lock();
    for _ in 0..100 {
        Domain::global().defer(|| std::process::abort());
    }
    std::process::exit(7);
}

/// The first lookup of a process may be that of a thread whose CPU nobody gets: the self-test is
/// not conclusive at first, and lookups are plain until it is.
#[test]
fn the_first_lookup_of_a_real_time_thread() {
    passes(this_program("in_real_time").arg("--test-threads=1"));
}

#[test]
#[ignore = "run by the_first_lookup_of_a_real_time_thread"]
fn in_real_time() {
    let cell = Cell::new(7);
    let look = |priority: i32| {
        // SAFETY: no preconditions.
        bind(unsafe { libc::sched_getcpu() } as usize);
        if !set_policy(libc::SCHED_FIFO, priority) {
            return println!("no real-time priority allowed here: skipped");
        }
        for _ in 0..100 {
            // SAFETY: the cell is never replaced.
            unsafe {
                assert_eq!(reprieve::lookup(&cell.value()), 7);
                assert_eq!(reprieve::protect(&cell.node()).unwrap().value, 7);
            }
        }
        println!("priority {priority}: {}", reprieve::support().restartable);
    };
    thread::scope(|scope| {
        // Nothing is above 99, so there no helper gets the CPU.
        scope.spawn(|| look(99)).join().unwrap();
        scope.spawn(|| look(10)).join().unwrap();
    });
}

/// Other threads start and end others while one forks: whatever they had locked then, the child has
/// workers.
#[test]
fn a_fork_while_threads_come_and_go() {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    thread::Builder::new()
                        .name("busy".into())
                        .spawn(|| ())
                        .unwrap()
                        .join()
                        .unwrap();
                }
            });
        }
        let samples = Samples::new("forks while threads come and go", 30);
        while samples.go_on() {
            samples.take();
            let status = in_child(|| {
                let domain = Domain::builder().build().unwrap();
                let done = Arc::new(AtomicBool::new(false));
                let set = done.clone();
                domain.defer(move || set.store(true, Relaxed));
                domain.barrier().unwrap();
                let _ = domain.start_poll();
                drop(domain);
                done.load(Relaxed)
            });
            if status != 0 {
                stop.store(true, Relaxed);
                panic!("{status:#x}");
            }
        }
        stop.store(true, Relaxed);
        samples.end();
    });
}
