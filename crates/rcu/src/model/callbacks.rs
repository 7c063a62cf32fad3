// SPDX-License-Identifier: MIT OR Apache-2.0
//! Callbacks: buffers and sweeps, lists, pending counts, `barrier`, how a worker sleeps, and how a
//! missing one is noticed. The worker's loop is the model's own, without grace periods.

use super::tools::check;
use crate::callback::per_cpu_lists::PerCpuLists;
use crate::callback::unserved::Unserved;
use crate::callback::worker_wait::WorkerWait;
use crate::platform::barrier::Kind;
use crate::platform::sync::{AtomicU32, Ordering};
use crate::thread::head::{Head, LEAF};
use crate::thread::load::Load;
use crate::thread::record::Record;
use crate::thread::registry::Registry;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

#[repr(C)]
struct Callback {
    head: Head,
    ran: UnsafeCell<u32>,
}

unsafe extern "C" fn run(head: *mut Head) {
    // SAFETY: the head is a callback's first field, and callbacks are never given back.
    unsafe { (*head.cast::<Callback>()).ran.with_mut(|r| *r += 1) };
}

/// A callback of one unit, as `call_rcu` gets it.
fn callback(flags: u32) -> *mut Callback {
    let head = Head { function: Some(run), units: 1, flags, ..Head::new() };
    Box::into_raw(Box::new(Callback { head, ran: UnsafeCell::new(0) }))
}

/// Times it ran; loom reports it if the run is not ordered before this.
fn ran(callback: *mut Callback) -> u32 {
    // SAFETY: never given back.
    unsafe { (*callback).ran.with(|r| *r) }
}

struct Shared {
    lists: PerCpuLists,
    registry: Registry,
    workers: [WorkerWait; 2],
    stop: AtomicU32,
}

impl Shared {
    fn new() -> Arc<Shared> {
        Shared::of(1)
    }

    fn of(lanes: usize) -> Arc<Shared> {
        Arc::new(Shared {
            lists: PerCpuLists::new(lanes, Kind::Membarrier),
            registry: Registry::new(),
            workers: [WorkerWait::new(), WorkerWait::new()],
            stop: AtomicU32::new(0),
        })
    }

    /// A thread's record, with its buffer.
    fn record(&self, thread: u32) -> &Record {
        self.registry.claim(thread).unwrap()
    }

    /// `Reclaimer::register`, with buffers for `n` callbacks.
    fn register(&self, record: &Record, n: u32) -> *mut Callback {
        self.register_at(0, record, n)
    }

    fn register_at(&self, lane: usize, record: &Record, n: u32) -> *mut Callback {
        let callback = callback(0);
        let mut buffer = record.buffer.enter(false);
        // SAFETY: fresh, and never given back.
        unsafe {
            if let Some(buffer) = &mut buffer {
                if buffer.put(callback.cast()) {
                    return callback;
                }
                let home = buffer.home();
                if self.lists.close(buffer).1 {
                    self.workers[home].notify();
                }
                self.lists.open(buffer, lane, 1, n);
                assert!(buffer.put(callback.cast()));
            } else {
                self.lists.push_unbuffered(&record.buffer, lane, callback.cast());
            }
        }
        drop(buffer);
        self.workers[lane].notify();
        callback
    }

    fn sweep(&self) {
        self.lists.sweep(&self.registry, |_| Some(true));
    }

    /// A batch; returns how many.
    fn run(&self) -> usize {
        self.run_lane(0)
    }

    fn run_lane(&self, lane: usize) -> usize {
        let mut count = 0;
        for leaves in [false, true] {
            let mut next = self.lists.take(lane, leaves);
            while !next.is_null() {
                // SAFETY: ours since `take`.
                let head = unsafe { &*next };
                let (after, phase) = (head.next, head.flags as usize & 1);
                let load = Load::one(head.units);
                // SAFETY: as above.
                unsafe { run(next) };
                self.lists.lane(lane).pending.finish(phase, load);
                next = after;
                count += 1;
            }
        }
        count
    }

    fn barrier(&self) {
        self.lists.phase().barrier(|phase| self.drain(phase));
    }

    /// `Reclaimer::drain`; the model's worker is not asleep.
    fn drain(&self, phase: usize) {
        while self.lists.waiting(phase) != Load::NONE {
            self.sweep();
            thread::yield_now();
        }
    }

    /// A worker that runs what is on the lists until it has run `n`.
    fn worker(shared: &Arc<Shared>, n: usize) -> thread::JoinHandle<()> {
        let shared = shared.clone();
        thread::spawn(move || {
            let mut count = 0;
            while count < n {
                count += shared.run();
                if count < n {
                    thread::yield_now();
                }
            }
        })
    }

    fn nothing_waits(&self) -> bool {
        (0..2).all(|phase| self.lists.waiting(phase) == Load::NONE)
    }
}

#[test]
fn each_callback_is_taken_once() {
    check(3, || {
        let shared = Shared::new();
        let pushers: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let callback = callback(0);
                    // SAFETY: fresh, and never given back.
                    unsafe { shared.lists.push(0, callback.cast()) };
                    callback as usize
                })
            })
            .collect();
        let mut count = shared.run();
        let callbacks: Vec<_> =
            pushers.into_iter().map(|p| p.join().unwrap() as *mut Callback).collect();
        count += shared.run();
        assert_eq!(count, 2);
        assert!(callbacks.into_iter().all(|c| ran(c) == 1));
        assert!(shared.nothing_waits());
    });
}

/// Owner and sweeper at the same buffer.
#[test]
fn a_buffer_is_swept_beside_its_owner() {
    check(4, || {
        let shared = Shared::new();
        shared.record(1);
        let owner = shared.clone();
        let owner = thread::spawn(move || {
            let record = owner.registry.records().next().unwrap();
            [owner.register(record, 2) as usize, owner.register(record, 2) as usize]
        });
        shared.sweep();
        let mut count = shared.run();
        let callbacks = owner.join().unwrap().map(|c| c as *mut Callback);
        shared.sweep();
        count += shared.run();
        assert_eq!(count, 2);
        assert!(callbacks.into_iter().all(|c| ran(c) == 1));
        assert!(shared.nothing_waits());
    });
}

/// A sweeper that does not keep the owner out.
#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_sweep_without_revocation_is_caught() {
    check(4, || {
        let shared = Shared::new();
        let record = shared.record(1);
        let first = shared.register(record, 2);
        let sweeper = shared.clone();
        let sweeper = thread::spawn(move || {
            let record = sweeper.registry.records().next().unwrap();
            crate::grace::heavy::interrupt(Kind::Membarrier, &sweeper.registry);
            if let Some(mut buffer) = record.buffer.seize() {
                sweeper.lists.close(&mut buffer);
            }
        });
        let second = shared.register(record, 2);
        sweeper.join().unwrap();
        shared.sweep();
        shared.run();
        assert_eq!((ran(first), ran(second)), (1, 1));
    });
}

/// A callback that is ready stays with the owner, or goes back to the lists, and runs once.
#[test]
fn what_is_ready_in_a_buffer_is_run_once() {
    check(3, || {
        let shared = Shared::new();
        let record = shared.record(1);
        let leaf = callback(LEAF);
        // SAFETY: fresh, and never given back.
        unsafe { shared.lists.push(0, leaf.cast()) };
        let head = shared.lists.take(0, true);
        // SAFETY: ours since `take`.
        let chain = unsafe { crate::thread::list::Chain::of(head) };
        record.buffer.enter(false).unwrap().set_ready(0, chain);
        let sweeper = shared.clone();
        let sweeper = thread::spawn(move || {
            sweeper.sweep();
            sweeper.run();
        });
        if let Some(mut buffer) = record.buffer.enter(false) {
            buffer.run_one();
        }
        sweeper.join().unwrap();
        shared.sweep();
        shared.run();
        assert_eq!(ran(leaf), 1);
        assert!(shared.nothing_waits());
    });
}

/// An owner ends inside its buffer, and the record goes to another thread, while a sweeper comes.
#[test]
fn an_abandoned_buffer_is_emptied_and_used_again() {
    check(4, || {
        let shared = Shared::new();
        let first = shared.register(shared.record(1), 3) as usize;
        let owner = shared.clone();
        let owner = thread::spawn(move || {
            let record = owner.registry.records().next().unwrap();
            std::mem::forget(record.buffer.enter(false));
            record.release();
            let record = owner.record(2);
            [first, owner.register(record, 2) as usize]
        });
        shared.sweep();
        let mut count = shared.run();
        let callbacks = owner.join().unwrap().map(|c| c as *mut Callback);
        shared.sweep();
        count += shared.run();
        assert_eq!(count, 2);
        assert!(callbacks.into_iter().all(|c| ran(c) == 1));
    });
}

/// A callback in the buffer of a thread that has stopped registering, while another thread
/// registers: `barrier` waits for the first.
#[test]
fn barrier_waits_for_what_was_registered_before() {
    check(2, || {
        let shared = Shared::new();
        let record = shared.record(1);
        let callback = shared.register(record, 2);
        let worker = Shared::worker(&shared, 1);
        shared.barrier();
        assert_eq!(ran(callback), 1);
        worker.join().unwrap();
    });
}

#[test]
fn barrier_beside_a_registration() {
    check(2, || {
        let shared = Shared::new();
        let callback = callback(0);
        // SAFETY: fresh, and never given back.
        unsafe { shared.lists.push(0, callback.cast()) };
        let other = shared.clone();
        let other = thread::spawn(move || {
            let record = other.record(1);
            other.register(record, 1);
            // The callback may have been registered before the barrier or after it.
            other.sweep();
            while other.run() == 0 {
                thread::yield_now();
            }
            other.run();
        });
        shared.barrier();
        assert_eq!(ran(callback), 1);
        other.join().unwrap();
    });
}

/// A registration with a phase read long ago, then two barriers: the second must wait for it, so
/// one change of phase is not enough.
fn stale_phase(barrier: fn(&Shared)) {
    check(3, move || {
        let shared = Shared::new();
        let stale = shared.lists.phase().current();
        barrier(&shared);
        let callback = callback(0);
        let load = Load::one(1);
        shared.lists.lane(0).pending.register(stale, load);
        // SAFETY: fresh, and never given back.
        unsafe {
            (*callback).head.flags |= stale as u32;
            let head = callback.cast();
            let chain = crate::thread::list::Chain { first: head, last: head };
            shared.lists.give(0, false, chain);
        }
        let worker = Shared::worker(&shared, 1);
        barrier(&shared);
        assert_eq!(ran(callback), 1);
        worker.join().unwrap();
    });
}

#[test]
fn barrier_sees_a_stale_phase() {
    stale_phase(Shared::barrier);
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_barrier_with_one_change_of_phase_is_caught() {
    stale_phase(|shared| shared.drain(shared.lists.phase().change()));
}

/// The pending count is read while registrations begin and end: a callback that waits all the time
/// is included.
fn sums(read: fn(&Shared) -> Load) {
    check(3, move || {
        let shared = Shared::new();
        let pending = &shared.lists.lane(0).pending;
        pending.register(0, Load::one(1));
        let other = shared.clone();
        let other = thread::spawn(move || {
            let pending = &other.lists.lane(0).pending;
            pending.register(0, Load::one(1));
            pending.finish(0, Load::one(1));
        });
        let load = read(&shared);
        assert!((1..=2).contains(&load.callbacks()), "assertion: {load:?}");
        other.join().unwrap();
    });
}

#[test]
fn the_pending_count_never_shows_too_little() {
    sums(|shared| shared.lists.waiting(0));
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_pending_count_read_in_the_wrong_order_is_caught() {
    sums(|shared| {
        let [registered, finished] = shared.lists.lane(0).pending.sums(0);
        let registered = Load::from_bits(registered.load(Ordering::Acquire));
        registered.less(Load::from_bits(finished.load(Ordering::Acquire)))
    });
}

/// A worker that sleeps without a limit when it finds nothing; `found` is what it looks for when it
/// has said that it sleeps.
fn sleeper(found: fn(&Shared) -> bool) {
    check(3, move || {
        let shared = Shared::new();
        let other = shared.clone();
        let worker = thread::spawn(move || {
            loop {
                if other.run() != 0 {
                    return;
                }
                other.sweep();
                if !other.lists.any(0) {
                    other.workers[0].sleep(None, || found(&other));
                }
                // Or the owner is inside.
                thread::yield_now();
            }
        });
        let record = shared.record(1);
        let callback = shared.register(record, 2);
        // Nobody comes after it to wake the worker.
        worker.join().unwrap();
        assert_eq!(ran(callback), 1);
    });
}

/// A worker that does not look again is not woken by a registration that looked before.
#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_sleep_without_a_second_look_is_caught() {
    sleeper(|_| false);
}

#[test]
fn a_registration_wakes_the_worker() {
    sleeper(|shared| shared.lists.any(0) || shared.registry.records().any(|r| r.buffer.pending()));
}

/// A worker that runs two callbacks.
fn run_two(shared: &Shared) {
    let mut count = 0;
    while count < 2 {
        count += shared.run();
        if count < 2 {
            shared.workers[0].sleep(None, || shared.lists.any(0));
        }
    }
}

/// Puts a callback on the list.
fn push(shared: &Shared) {
    // SAFETY: fresh, and never given back.
    unsafe { shared.lists.push(0, callback(0).cast()) };
}

/// A thread ends while it wakes the worker, after `beginning`. The next registration does so.
fn dying_waker(beginning: fn(&WorkerWait)) {
    check(3, move || {
        let shared = Shared::new();
        let other = shared.clone();
        let worker = thread::spawn(move || run_two(&other));
        push(&shared);
        beginning(&shared.workers[0]);
        push(&shared);
        shared.workers[0].notify();
        worker.join().unwrap();
    });
}

#[test]
fn a_thread_may_end_while_it_wakes_the_worker() {
    // The sleeper is not woken, and does not fall asleep any more.
    dying_waker(|worker| worker.event().begin_to_happen());
    dying_waker(|worker| _ = worker.event().happen());
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_wake_that_says_so_first_is_caught() {
    dying_waker(WorkerWait::say_awake);
}

/// A registration wakes the worker, which works and sleeps again before the former says that it is
/// awake; and another one comes.
fn late_waker(wake: fn(&WorkerWait)) {
    check(3, move || {
        let shared = Shared::new();
        let registrants = [wake, WorkerWait::notify].map(|wake| {
            let shared = shared.clone();
            thread::spawn(move || {
                push(&shared);
                wake(&shared.workers[0]);
            })
        });
        run_two(&shared);
        registrants.into_iter().for_each(|registrant| registrant.join().unwrap());
    });
}

#[test]
fn a_late_waker_does_not_hide_a_sleep() {
    late_waker(WorkerWait::notify);
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_wake_about_any_sleep_is_caught() {
    late_waker(|worker| {
        worker.event().happen();
        worker.say_awake();
    });
}

/// The workers of two lanes, and an owner that opens its buffer on one and then on the other.
/// `sweep` is a worker's.
fn two_lanes(sweep: fn(&Shared, usize)) {
    check(3, move || {
        let shared = Shared::of(2);
        let record = shared.record(1);
        let first = shared.register_at(0, record, 1);
        let workers = [0, 1].map(|lane| {
            let shared = shared.clone();
            thread::spawn(move || {
                while shared.run_lane(lane) == 0 {
                    sweep(&shared, lane);
                    let buffered = || {
                        let mut records = shared.registry.records();
                        records.any(|r| r.buffer.pending() && r.buffer.home() == lane)
                    };
                    if !shared.lists.any(lane) {
                        shared.workers[lane].sleep(None, || shared.lists.any(lane) || buffered());
                    }
                    // Or the owner is inside.
                    thread::yield_now();
                }
            })
        });
        // Nobody comes after it.
        let second = shared.register_at(1, record, 1);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!((ran(first), ran(second)), (1, 1));
    });
}

#[test]
fn a_buffer_that_changes_lanes_is_found_by_the_right_worker() {
    two_lanes(|shared, lane| {
        shared.lists.sweep(&shared.registry, |s| (s.home() == lane).then_some(true));
    });
}

/// When the owner is kept out, its buffer may belong to another lane. The worker of that lane looks
/// while the callback is neither pending nor on a list.
#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_sweep_with_the_lane_of_a_first_look_is_caught() {
    two_lanes(|shared, lane| {
        let record = shared.registry.records().next().unwrap();
        if !record.buffer.pending() || record.buffer.home() != lane {
            return;
        }
        record.buffer.revoke();
        crate::grace::heavy::interrupt(Kind::Membarrier, &shared.registry);
        if let Some(mut buffer) = record.buffer.seize() {
            shared.lists.close(&mut buffer);
        }
    });
}

/// The child of a fork: one thread puts a callback on the list of a lane without a worker, and
/// another one, which has found the note of the fork, looks for such lanes. One of them becomes the
/// worker.
fn a_lane_without_a_worker(serve: fn(&Shared, &Unserved)) {
    check(3, move || {
        let shared = Shared::of(2);
        let unserved = Arc::new(Unserved::new());
        unserved.note();
        let other = (shared.clone(), unserved.clone());
        let other = thread::spawn(move || serve(&other.0, &other.1));
        let callback = callback(0);
        // SAFETY: fresh, and never given back.
        unsafe { shared.lists.push(1, callback.cast()) };
        unserved.note();
        if unserved.noted() {
            serve(&shared, &unserved);
        }
        other.join().unwrap();
        assert_eq!(ran(callback), 1);
    });
}

#[test]
fn a_lane_without_a_worker_gets_one() {
    a_lane_without_a_worker(|shared, unserved| {
        unserved.take();
        shared.run_lane(1);
    });
}

/// Callbacks that come between the look and the end of the note.
#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_note_that_is_taken_after_the_look_is_caught() {
    a_lane_without_a_worker(|shared, unserved| {
        shared.run_lane(1);
        unserved.take();
    });
}

/// The domain is dropped, or a barrier is in a hurry: the worker is told while it goes to sleep.
#[test]
fn a_worker_that_is_told_to_stop_does_not_sleep() {
    check(3, || {
        let shared = Shared::new();
        let other = shared.clone();
        let worker = thread::spawn(move || {
            let stopping = || other.stop.load(Ordering::SeqCst) != 0;
            while !stopping() {
                other.workers[0].sleep(None, stopping);
            }
        });
        shared.stop.store(1, Ordering::SeqCst);
        shared.workers[0].wake();
        worker.join().unwrap();
    });
}

/// A grace period that is asked for is run, and the background thread stops when it is told to.
#[test]
fn the_driver_serves_and_stops() {
    use super::tools::World;
    use crate::grace::background::Background;
    use crate::grace::engine::poll::Poll;
    use crate::grace::sequence::Sequence;
    struct Domain {
        world: Arc<World>,
        grace: Sequence,
        stats: crate::grace::stats::GraceStats,
        background: Background,
        stop: AtomicU32,
    }
    check(2, || {
        let domain = Arc::new(Domain {
            world: World::new(),
            grace: Sequence::new(),
            stats: crate::grace::stats::GraceStats::new(),
            background: Background::new(),
            stop: AtomicU32::new(0),
        });
        let d = domain.clone();
        let server = thread::spawn(move || {
            let run = |cookie| {
                let attempt = d.world.attempt(Kind::Membarrier);
                assert!(d.grace.run_until(cookie, &attempt, &Poll, &d.stats));
            };
            d.background.serve(&d.grace, run, || d.stop.load(Ordering::SeqCst) != 0);
        });
        let cookie = domain.grace.cookie();
        domain.background.ask(cookie);
        while !domain.grace.done(cookie) {
            thread::yield_now();
        }
        domain.stop.store(1, Ordering::SeqCst);
        domain.background.wake();
        server.join().unwrap();
    });
}
