// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grace periods that wait too long: who is reported, when, and what becomes of readers that died.

mod common;

use common::Cell;
use reprieve::watch::{Laggard, Stall, State};
use reprieve::{Domain, Engine};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_millis(60);

fn engines() -> [Engine; 4] {
    let tick = Duration::from_millis(2);
    [Engine::Restart, Engine::Poll, Engine::Ltimer { tick }, Engine::Sched { tick }]
}

/// A domain whose reports are kept.
fn watched(engine: Engine) -> (Arc<Domain>, Arc<Mutex<Vec<Stall>>>) {
    let domain = Arc::new(Domain::builder().engine(engine).build().unwrap());
    let reports = Arc::new(Mutex::new(Vec::new()));
    let sink = reports.clone();
    domain.set_stall_timeout(Some(TIMEOUT));
    domain.on_stall(move |stall| sink.lock().unwrap().push(stall.clone()));
    (domain, reports)
}

/// Waits for a condition. The reader of the test sees its name where the test hangs.
fn await_that(_what: &str, mut condition: impl FnMut() -> bool) {
    while !condition() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns when a thread of this process sleeps, or has gone.
fn await_sleep(thread: u32) {
    await_that("a thread's sleep", || {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
        stat.map_or(true, |stat| stat.rsplit(')').next().unwrap().starts_with(" S"))
    });
}

fn thread_id() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::gettid() as u32 }
}

#[test]
fn a_blocked_reader_is_named() {
    for engine in engines() {
        let (domain, reports) = watched(engine);
        let (id, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let reader = thread::Builder::new().name("sleepy) R (".into());
        let reader = {
            let (domain, id, stop) = (domain.clone(), id.clone(), stop.clone());
            reader.spawn(move || {
                let _guard = domain.read_lock();
                id.store(thread_id(), SeqCst);
                while !stop.load(SeqCst) {
                    thread::park();
                }
            })
        };
        let reader = reader.unwrap();
        await_that("the reader", || id.load(SeqCst) != 0);
        await_sleep(id.load(SeqCst));
        let cookie = domain.start_poll();
        await_that("a report", || !reports.lock().unwrap().is_empty());
        let stall = reports.lock().unwrap()[0].clone();
        assert_eq!((stall.domain, stall.laggards.len()), (domain.id(), 1));
        let laggard = &stall.laggards[0];
        assert_eq!((laggard.thread, laggard.name.as_str()), (id.load(SeqCst), "sleepy) R ("));
        assert!(laggard.waiting >= TIMEOUT && laggard.cpu.is_some(), "{laggard:?}");
        assert!(laggard.ran.unwrap() < laggard.waiting);
        let State::Blocked { call, .. } = &laggard.state else { panic!("{laggard:?}") };
        assert_eq!(*call, Some(libc::SYS_futex));
        let text = stall.to_string();
        let waiting = format!("in its section for {:.3} s", laggard.waiting.as_secs_f64());
        assert!(text.contains(&format!("(sleepy) R (), {waiting}")), "{text}");
        assert!(text.contains("blocked in system call"), "{text}");
        // The same when asked, and only while it lasts.
        let asked = domain.stalled(TIMEOUT).unwrap();
        assert_eq!(asked.laggards[0].thread, laggard.thread);
        assert!(domain.stalled(Duration::from_secs(3600)).is_none());
        assert!(!domain.poll(cookie));
        stop.store(true, SeqCst);
        reader.thread().unpark();
        reader.join().unwrap();
        await_that("the grace period", || domain.poll(cookie));
        assert!(domain.stalled(Duration::ZERO).is_none());
        assert_eq!(domain.stats().stalls as usize, reports.lock().unwrap().len());
        assert_eq!(domain.stats().forgotten, 0);
    }
}

#[test]
fn reports_become_rare() {
    let (domain, reports) = watched(Engine::Poll);
    let guard = domain.read_lock();
    let cookie = domain.start_poll();
    await_that("three reports", || reports.lock().unwrap().len() >= 3);
    let none = Arc::new(AtomicU64::new(0));
    let called = none.clone();
    // The hook is replaced while the leader may be in the old one.
    domain.on_stall(move |_| _ = called.fetch_add(1, SeqCst));
    await_that("another report", || none.load(SeqCst) != 0);
    drop(guard);
    await_that("the grace period", || domain.poll(cookie));
    let reports = reports.lock().unwrap();
    assert!(reports[0].waiting >= TIMEOUT);
    // Each says how long the grace period had waited when it was due.
    for two in reports.windows(2) {
        assert!(two[1].waiting - two[0].waiting >= 3 * TIMEOUT, "{two:?}");
    }
    assert_eq!(domain.stats().stalls, reports.len() as u64 + none.load(SeqCst));
}

/// Each section is short, so the reader is not reported, although it has been reading for long and
/// the watch has notes about its earlier sections.
#[test]
fn a_reader_that_comes_back_is_not_reported() {
    let (domain, reports) = watched(Engine::Poll);
    let stop = Arc::new(AtomicBool::new(false));
    let reader = {
        let (domain, stop) = (domain.clone(), stop.clone());
        thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !stop.load(SeqCst) {
                let start = Instant::now();
                let guard = domain.read_lock();
                thread::sleep(TIMEOUT / 6);
                drop(guard);
                longest = longest.max(start.elapsed());
            }
            longest
        })
    };
    let end = Instant::now() + 8 * TIMEOUT;
    while Instant::now() < end || domain.stats().grace_periods.count < 8 {
        domain.synchronize();
    }
    stop.store(true, SeqCst);
    // A machine that gives the reader no CPU for 60 ms makes a section long.
    let longest = reader.join().unwrap();
    let reports = reports.lock().unwrap();
    assert!(reports.iter().all(|r| r.waiting >= TIMEOUT && r.waiting <= longest), "{reports:?}");
}

#[test]
fn nothing_is_reported_when_turned_off() {
    let (domain, reports) = watched(Engine::Poll);
    domain.set_stall_timeout(None);
    let guard = domain.read_lock();
    let cookie = domain.start_poll();
    thread::sleep(5 * TIMEOUT);
    drop(guard);
    await_that("the grace period", || domain.poll(cookie));
    assert!(reports.lock().unwrap().is_empty());
    assert_eq!(domain.stats().stalls, 0);
}

/// More spinning readers than CPUs: some run, some are preempted.
#[test]
fn running_and_preempted_readers() {
    let cpus = thread::available_parallelism().unwrap().get();
    let (domain, reports) = watched(Engine::Restart);
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..(2 * cpus + 1).min(12))
        .map(|_| {
            let (domain, stop) = (domain.clone(), stop.clone());
            let id = Arc::new(AtomicU32::new(0));
            let spun = id.clone();
            let handle = thread::spawn(move || {
                let _guard = domain.read_lock();
                spun.store(thread_id(), SeqCst);
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
            (id, handle)
        })
        .collect();
    await_that("the readers", || readers.iter().all(|(id, _)| id.load(SeqCst) != 0));
    let cookie = domain.start_poll();
    let seen = |wanted: &dyn Fn(&Laggard) -> bool| {
        reports.lock().unwrap().iter().flat_map(|r| r.laggards.clone()).any(|l| wanted(&l))
    };
    await_that("a preempted reader", || seen(&|l| l.state == State::Preempted));
    await_that("a running reader, unless this machine is too busy", || {
        seen(&|l| l.state == State::Running) || cpus == 1 || reports.lock().unwrap().len() > 20
    });
    let reports = reports.lock().unwrap().clone();
    stop.store(true, SeqCst);
    let ids: Vec<u32> = readers.iter().map(|(id, _)| id.load(SeqCst)).collect();
    readers.into_iter().for_each(|(_, handle)| handle.join().unwrap());
    await_that("the grace period", || domain.poll(cookie));
    assert!(reports.iter().flat_map(|r| &r.laggards).all(|l| ids.contains(&l.thread)));
}

#[test]
fn by_default_reports_go_to_standard_error() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "prints", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    assert!(output.status.success());
    let reports = String::from_utf8_lossy(&output.stdout);
    let reports = reports.lines().find_map(|line| line.strip_prefix("reports: ")).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let expected = "reprieve: a grace period of the default domain has waited ";
    // Mostly one. A machine that is busy may keep the reader inside for long.
    assert_eq!(text.matches(expected).count().to_string(), reports, "{text}");
    assert!(text.contains(" s for 1 reader\n  thread "), "{text}");
}

#[test]
#[ignore = "run by by_default_reports_go_to_standard_error"]
fn prints() {
    let domain = Domain::global();
    domain.set_stall_timeout(Some(Duration::from_millis(200)));
    let guard = reprieve::read_lock();
    let cookie = domain.start_poll();
    await_that("a report", || domain.stats().stalls != 0);
    drop(guard);
    await_that("the grace period", || domain.poll(cookie));
    println!("\nreports: {}", domain.stats().stalls);
}

/// A hook that panics does no harm to the grace period, nor does what it panics with.
#[test]
fn a_hook_may_panic() {
    struct Payload;
    impl Drop for Payload {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new(()));
        }
    }
    let (domain, _) = watched(Engine::Poll);
    let calls = Arc::new(AtomicU64::new(0));
    let called = calls.clone();
    domain.on_stall(move |_| {
        called.fetch_add(1, SeqCst);
        std::panic::resume_unwind(Box::new(Payload));
    });
    let guard = domain.read_lock();
    let cookie = domain.start_poll();
    await_that("the hook", || calls.load(SeqCst) != 0);
    drop(guard);
    await_that("the grace period", || domain.poll(cookie));
    domain.synchronize();
}

/// Runs `f` on a thread that ends without any destructor. Its id.
fn on_a_thread_that_dies(f: impl FnOnce() + Send) -> u32 {
    struct Start<F>(Option<F>, u32);
    extern "C" fn start<F: FnOnce()>(argument: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the argument is that of pthread_create below, which waits for us. The thread is
        // one that may end so.
        unsafe {
            let start = &mut *argument.cast::<Start<F>>();
            start.1 = thread_id();
            start.0.take().unwrap()();
            libc::syscall(libc::SYS_exit, 0);
        }
        std::ptr::null_mut()
    }
    fn spawn<F: FnOnce() + Send>(f: F) -> u32 {
        let mut argument = Start(Some(f), 0);
        // SAFETY: the argument outlives the thread.
        unsafe {
            let mut thread = std::mem::zeroed();
            let argument: *mut Start<F> = &mut argument;
            let created =
                libc::pthread_create(&mut thread, std::ptr::null(), start::<F>, argument.cast());
            assert_eq!(created, 0);
            libc::pthread_join(thread, std::ptr::null_mut());
        }
        argument.1
    }
    let id = spawn(f);
    // The join may come a moment before the kernel has let the thread go.
    // SAFETY: signal 0 is not delivered.
    let exists = || unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), id, 0) } == 0;
    await_that("the end of a thread", || !exists());
    id
}

#[test]
fn a_dead_reader_is_forgotten_and_reported() {
    for engine in engines() {
        let (domain, reports) = watched(engine);
        let dead = on_a_thread_that_dies(|| std::mem::forget(domain.read_lock()));
        domain.synchronize();
        assert_eq!(domain.stats().forgotten, 1);
        // Another test's thread may still be registered in an earlier domain of this index.
        await_that("the record's release", || domain.stats().threads == 0);
        let reports = reports.lock().unwrap();
        let laggard = &reports.last().unwrap().laggards[0];
        assert_eq!(laggard.thread, dead);
        let text = reports.last().unwrap().to_string();
        assert!(text.contains("dead; its section is forgotten"), "{text}");
    }
}

#[test]
fn a_dead_reader_is_waited_for_if_the_program_wants() {
    let (domain, reports) = watched(Engine::Poll);
    domain.set_forget_dead(false);
    let dead = on_a_thread_that_dies(|| std::mem::forget(domain.read_lock()));
    let cookie = domain.start_poll();
    await_that("a report", || !reports.lock().unwrap().is_empty());
    let laggard = reports.lock().unwrap()[0].laggards[0].clone();
    assert_eq!(
        (laggard.thread, laggard.state.to_string().as_str()),
        (dead, "dead, and waited for")
    );
    thread::sleep(4 * TIMEOUT);
    assert!(!domain.poll(cookie));
    assert_eq!(domain.forget_dead_threads(), 1);
    await_that("the grace period", || domain.poll(cookie));
    assert_eq!(domain.forget_dead_threads(), 0);
}

#[test]
fn what_a_dead_thread_protects_is_given_up_on_request() {
    let (domain, _) = watched(Engine::Restart);
    let cell = Cell::new(1);
    // SAFETY: used through this domain only, here and below.
    on_a_thread_that_dies(|| std::mem::forget(unsafe { domain.protect(&cell.node()) }));
    // SAFETY: as above.
    unsafe { cell.replace(&domain, 2) };
    domain.synchronize();
    thread::sleep(TIMEOUT);
    // A look while the worker takes the callback out of its stash may find another number.
    await_that("the node waits", || domain.stats().waiting == 1);
    assert_eq!(domain.forget_dead_threads(), 1);
    domain.barrier().unwrap();
    assert_eq!(domain.stats().waiting, 0);
}

/// Threads that are alive are never taken for dead, however often a thread looks for dead ones.
#[test]
fn the_living_are_not_forgotten() {
    let (domain, _) = watched(Engine::Restart);
    let (stop, cell) = (Arc::new(AtomicBool::new(false)), Arc::new(Cell::new(0)));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (domain, stop, cell) = (domain.clone(), stop.clone(), cell.clone());
            thread::spawn(move || {
                while !stop.load(SeqCst) {
                    // Threads come and go under the seeker's eyes.
                    let (domain, cell) = (domain.clone(), cell.clone());
                    let inner = thread::spawn(move || {
                        // SAFETY: used through this domain only, here and below.
                        let node = unsafe { domain.protect(&cell.node()) }.unwrap();
                        let _guard = domain.read_lock();
                        thread::yield_now();
                        // SAFETY: as above.
                        assert!(node.value <= unsafe { domain.lookup(&cell.value()) });
                    });
                    inner.join().unwrap();
                }
            })
        })
        .collect();
    let end = Instant::now() + Duration::from_millis(500);
    let mut value = 0;
    while Instant::now() < end || value < 100 {
        value += 1;
        // SAFETY: as above.
        unsafe { cell.replace(&domain, value) };
        assert_eq!(domain.forget_dead_threads(), 0);
    }
    stop.store(true, SeqCst);
    readers.into_iter().for_each(|r| r.join().unwrap());
    domain.barrier().unwrap();
    assert_eq!(domain.stats().forgotten, 0);
}
