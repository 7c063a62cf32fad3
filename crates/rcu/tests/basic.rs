// SPDX-License-Identifier: MIT OR Apache-2.0
//! The API on a real kernel, one promise per test.

mod common;

use common::{Cell, FOR_EVER};
use reprieve::{Cap, Domain, Engine, Guard, Protected, Qsbr, QsbrGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

fn engines() -> Vec<Engine> {
    let tick = Duration::from_millis(2);
    vec![Engine::Restart, Engine::Poll, Engine::Ltimer { tick }, Engine::Sched { tick }]
}

fn domain(engine: Engine) -> Domain {
    Domain::builder().engine(engine).build().unwrap()
}

/// Returns when so many callbacks wait. A look while the worker takes callbacks out of a stash may
/// find too few, or too many.
fn await_waiting(domain: &Domain, n: u64) {
    while domain.stats().waiting != n {
        thread::yield_now();
    }
}

#[test]
fn a_grace_period_waits_for_a_section_that_was_running() {
    for engine in engines() {
        let domain = Arc::new(domain(engine));
        let (inside, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let reader = {
            let (domain, inside, ended) = (domain.clone(), inside.clone(), ended.clone());
            thread::spawn(move || {
                let outer = domain.read_lock();
                // Nested sections change the word, and end nothing.
                for _ in 0..20 {
                    let nested = domain.read_lock();
                    inside.store(true, SeqCst);
                    thread::sleep(Duration::from_millis(1));
                    drop(nested);
                }
                ended.store(true, SeqCst);
                drop(outer);
            })
        };
        while !inside.load(SeqCst) {
            thread::yield_now();
        }
        domain.synchronize();
        assert!(ended.load(SeqCst), "{engine:?}");
        reader.join().unwrap();
    }
}

#[test]
fn guards_may_be_dropped_in_any_order() {
    let domain = Arc::new(domain(Engine::Poll));
    let first = domain.read_lock();
    let second = domain.read_lock();
    drop(first);
    let cookie = domain.cookie();
    let other = domain.clone();
    let waiter = thread::spawn(move || other.cond_synchronize(cookie));
    thread::sleep(Duration::from_millis(20));
    assert!(!domain.poll(cookie), "the second guard is still there");
    drop(second);
    waiter.join().unwrap();
    assert!(domain.poll(cookie));
}

#[test]
fn sections_that_began_later_are_not_waited_for() {
    for engine in engines() {
        let domain = Arc::new(domain(engine));
        let stop = Arc::new(AtomicBool::new(false));
        let reader = {
            let (domain, stop) = (domain.clone(), stop.clone());
            thread::spawn(move || {
                // Never outside a section for more than a moment.
                let mut guard = domain.read_lock();
                while !stop.load(Relaxed) {
                    drop(guard);
                    guard = domain.read_lock();
                }
            })
        };
        for _ in 0..20 {
            domain.synchronize();
        }
        stop.store(true, Relaxed);
        reader.join().unwrap();
        assert!(domain.stats().grace_periods.count >= 20);
    }
}

#[test]
fn cookies_name_a_grace_period_that_begins_later() {
    let domain = domain(Engine::Restart);
    let before = domain.cookie();
    assert!(!domain.poll(before));
    domain.synchronize();
    assert!(domain.poll(before));
    let after = domain.cookie();
    assert_ne!(before, after);
    assert!(!domain.poll(after));
    let started = domain.start_poll();
    // The grace period runs by itself.
    while !domain.poll(started) {
        thread::sleep(Duration::from_millis(1));
    }
    domain.cond_synchronize(started);
}

#[test]
fn expedited_does_not_wait_for_ticks() {
    let slow = domain(Engine::Ltimer { tick: FOR_EVER });
    slow.synchronize_expedited();
    assert_eq!(slow.stats().grace_periods.count, 1);
}

#[test]
fn an_expedited_request_hurries_a_grace_period_that_runs() {
    let slow = Arc::new(domain(Engine::Ltimer { tick: FOR_EVER }));
    let other = slow.clone();
    let waiter = thread::spawn(move || other.synchronize());
    thread::sleep(Duration::from_millis(20));
    assert!(!waiter.is_finished(), "the tick is far away");
    // Again, as long as the other has not begun.
    while !waiter.is_finished() {
        slow.synchronize_expedited();
    }
    waiter.join().unwrap();
}

#[test]
#[should_panic(expected = "inside a read-side section")]
fn waiting_inside_a_section_panics_instead_of_hanging() {
    let domain = domain(Engine::Restart);
    let _guard = domain.read_lock();
    domain.synchronize();
}

#[test]
fn a_qsbr_thread_is_waited_for_until_its_quiescent_state() {
    for engine in engines() {
        let domain = Arc::new(domain(engine));
        let go = Arc::new(AtomicBool::new(false));
        let online = Arc::new(AtomicBool::new(false));
        let quiet = Arc::new(AtomicBool::new(false));
        let reader = {
            let (domain, go, online, quiet) =
                (domain.clone(), go.clone(), online.clone(), quiet.clone());
            thread::spawn(move || {
                let mut this = domain.qsbr();
                online.store(true, SeqCst);
                thread::sleep(Duration::from_millis(20));
                quiet.store(true, SeqCst);
                this.quiescent_state();
                this.offline(|| {
                    while !go.load(SeqCst) {
                        thread::yield_now();
                    }
                });
            })
        };
        while !online.load(SeqCst) {
            thread::yield_now();
        }
        domain.synchronize();
        assert!(quiet.load(SeqCst), "{engine:?}");
        // Offline: not waited for.
        domain.synchronize();
        go.store(true, SeqCst);
        reader.join().unwrap();
    }
}

#[test]
fn a_quiescent_state_inside_another_section_is_none() {
    let domain = Arc::new(domain(Engine::Poll));
    let mut this = domain.qsbr();
    let guard = domain.read_lock();
    let cookie = domain.start_poll();
    this.quiescent_state();
    thread::sleep(Duration::from_millis(20));
    assert!(!domain.poll(cookie), "the guard is still there");
    drop(guard);
    this.offline(|| domain.cond_synchronize(cookie));
}

/// C leaves sections open, and has no references that outlive a thread.
#[test]
fn a_thread_that_exits_inside_a_section_of_c_is_not_waited_for() {
    let domain = Arc::new(domain(Engine::Restart));
    // Threads of other tests may be registered under the same index from an earlier domain.
    let before = domain.stats().threads;
    let other = domain.clone();
    thread::spawn(move || reprieve::abi::enter(other.id())).join().unwrap();
    domain.synchronize();
    assert!(domain.stats().threads <= before);
}

#[test]
fn a_protection_by_c_ends_with_its_thread() {
    let cell = Arc::new(Cell::new(1));
    let its_cell = cell.clone();
    thread::spawn(move || {
        // SAFETY: a free slot of this thread, and no address of a node that could be freed yet.
        unsafe { (*reprieve::abi::slot()).store(its_cell.address(), Release) };
    })
    .join()
    .unwrap();
    // SAFETY: the cell is replaced through this domain only.
    unsafe { cell.replace(Domain::global(), 2) };
    reprieve::rcu_barrier().unwrap();
}

/// A value that says when it is dropped.
struct Told(u64, Arc<AtomicBool>);

impl Drop for Told {
    fn drop(&mut self) {
        self.1.store(true, SeqCst);
    }
}

type ToldCell<'d> = reprieve::structures::Cell<Told, &'d Domain>;

/// A thread leaks what it reads by, and gives the reference away: all in safe code. The reference
/// is good until the domain ends.
#[test]
fn a_reference_outlives_the_thread_that_leaked_its_guard() {
    type Read = for<'a> fn(&'a Domain, &'a ToldCell<'a>) -> &'a Told;
    let section: Read = |domain, cell| {
        let guard: &Guard<'_> = Box::leak(Box::new(domain.read_lock()));
        cell.load(guard)
    };
    let online: Read = |domain, cell| {
        let online: &Qsbr<'_> = Box::leak(Box::new(domain.qsbr()));
        let guard: &QsbrGuard<'_> = Box::leak(Box::new(online.read_lock()));
        cell.load(guard)
    };
    let protection: Read = |_, cell| {
        let held: &Protected<'_, Told> = Box::leak(Box::new(cell.protect()));
        held
    };
    // In a thread that C registered.
    let after_c: Read = |domain, cell| {
        reprieve::abi::register(domain.id());
        let guard: &Guard<'_> = Box::leak(Box::new(domain.read_lock()));
        cell.load(guard)
    };
    for (read, waited_for) in
        [(section, true), (online, true), (protection, false), (after_c, true)]
    {
        let domain = Domain::builder().single_list(true).build().unwrap();
        let threads = domain.stats().threads;
        let reports = Arc::new(Mutex::new(Vec::new()));
        let sink = reports.clone();
        domain.set_stall_timeout(Some(Duration::from_millis(1)));
        domain.on_stall(move |stall| sink.lock().unwrap().push(stall.to_string()));
        let dropped = Arc::new(AtomicBool::new(false));
        let told = |value| Told(value, dropped.clone());
        let cell = ToldCell::new_in(told(1), &domain);
        let value = thread::scope(|scope| scope.spawn(|| read(&domain, &cell)).join().unwrap());
        cell.store(Told(2, Arc::default()));
        for _ in 0..3 {
            if waited_for {
                // Until the grace period ends, or is reported to wait.
                let cookie = domain.start_poll();
                reports.lock().unwrap().clear();
                while !domain.poll(cookie) && reports.lock().unwrap().is_empty() {
                    thread::sleep(Duration::from_millis(1));
                }
                assert!(!domain.poll(cookie), "a grace period ended");
                let report = reports.lock().unwrap()[0].clone();
                assert!(report.contains("dead, and it leaked a guard"), "{report}");
            } else {
                // The worker has looked at the callbacks that were registered before.
                for _ in 0..2 {
                    let (sender, receiver) = std::sync::mpsc::channel();
                    domain.defer(move || sender.send(()).unwrap());
                    receiver.recv().unwrap();
                }
            }
            assert!(!dropped.load(SeqCst));
            assert_eq!(value.0, 1);
            assert_eq!(domain.forget_dead_threads(), 0);
        }
        // This thread has registered.
        assert!(domain.stats().threads <= threads + 1);
        drop(cell);
        drop(domain);
        assert!(dropped.load(SeqCst), "the domain's end is that of its guards");
    }
}

#[test]
fn leaked_guards_end_with_their_domain() {
    for _ in 0..3 {
        let domain = domain(Engine::Restart);
        let cell = Cell::new(1);
        std::mem::forget(domain.read_lock());
        // SAFETY: the cell is replaced through this domain only.
        unsafe {
            std::mem::forget(domain.protect(&cell.node()));
            cell.replace(&domain, 2);
        }
        // The drop neither hangs, nor leaves anything behind for the next domain of this index.
        drop(domain);
    }
    domain(Engine::Restart).synchronize();
}

/// A callback in C may be in a section, without a guard, when the last owner of its domain goes.
#[test]
fn the_end_of_a_domain_waits_for_a_section_of_a_callback() {
    use reprieve::abi;
    let domain = domain(Engine::Restart);
    let (id, ended) = (domain.id(), Arc::new(AtomicBool::new(false)));
    let (sender, receiver) = std::sync::mpsc::channel();
    let noted = ended.clone();
    domain.defer(move || {
        abi::enter(id);
        sender.send(()).unwrap();
        // The other thread ends the domain meanwhile, or is about to.
        for _ in 0..30 {
            thread::sleep(Duration::from_millis(1));
            noted.fetch_or(abi::nesting(id) != 1, SeqCst);
        }
        // SAFETY: entered above.
        unsafe { abi::leave(id) };
    });
    receiver.recv().unwrap();
    drop(domain);
    assert!(!ended.load(SeqCst), "the section was ended");
}

#[test]
fn records_are_passed_on() {
    let domain = Arc::new(domain(Engine::Restart));
    let before = domain.stats().threads;
    for _ in 0..200 {
        let other = domain.clone();
        thread::spawn(move || drop(other.read_lock())).join().unwrap();
    }
    let _guard = domain.read_lock();
    assert!(domain.stats().threads <= before + 1);
}

#[test]
fn domains_do_not_wait_for_each_other() {
    let (a, b) = (domain(Engine::Restart), domain(Engine::Poll));
    let _inside = a.read_lock();
    b.synchronize();
}

/// Also in a domain with a single list: its only worker runs the callback.
#[test]
fn a_callback_may_poll_for_a_grace_period_that_it_started() {
    for (single, engine) in
        [true, false].into_iter().flat_map(|s| engines().into_iter().map(move |e| (s, e)))
    {
        let domain =
            Arc::new(Domain::builder().engine(engine).single_list(single).build().unwrap());
        let (sender, receiver) = std::sync::mpsc::channel();
        let other = domain.clone();
        domain.defer(move || {
            let cookie = other.start_poll();
            while !other.poll(cookie) {
                thread::sleep(Duration::from_millis(1));
            }
            drop(other);
            sender.send(()).unwrap();
        });
        assert_eq!(receiver.recv(), Ok(()), "{engine:?}");
    }
}

#[test]
fn a_domain_can_be_dropped_while_a_polled_grace_period_sleeps() {
    for pause in [0, 20] {
        let domain = domain(Engine::Ltimer { tick: FOR_EVER });
        domain.start_poll();
        // The drop finds the grace period not begun, or asleep.
        thread::sleep(Duration::from_millis(pause));
    }
}

/// Those of this thread, or of another, before a look has found them and after. The callbacks of
/// other nodes have run, and that of the node runs at the first barrier after the guard.
#[test]
fn barrier_waits_for_no_guard() {
    for (engine, single) in engines().into_iter().zip([false, true, false, true]) {
        let domain = Domain::builder().engine(engine).single_list(single).build().unwrap();
        let cell = Cell::new(1);
        let barrier = |held| {
            let ran = Arc::new(AtomicUsize::new(0));
            let count = ran.clone();
            domain.defer(move || _ = count.fetch_add(1, SeqCst));
            assert_eq!(domain.barrier(), Ok(()));
            let stats = domain.stats();
            assert_eq!((ran.load(SeqCst), stats.waiting, stats.held), (1, held, held));
        };
        // SAFETY: used through this domain only.
        let mut guards: Vec<_> =
            (0..600).filter_map(|_| unsafe { domain.protect(&cell.node()) }).collect();
        barrier(0);
        // SAFETY: as above.
        unsafe { cell.replace(&domain, 2) };
        for round in 0..3 {
            barrier(1);
            thread::scope(|scope| _ = scope.spawn(|| barrier(1)));
            assert_eq!(guards[0].value, 1, "{engine:?}");
            guards.truncate(300 >> round);
        }
        guards.clear();
        barrier(0);
    }
}

/// The rest of the domain goes on, and the node goes with the domain.
#[test]
fn a_forgotten_guard_keeps_one_node_and_no_barrier() {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    struct Counted;
    impl Drop for Counted {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, SeqCst);
        }
    }
    let domain = Domain::builder().build().unwrap();
    let cell = reprieve::structures::Cell::new_in(Counted, &domain);
    std::mem::forget(cell.protect());
    for i in 0..100 {
        cell.store(Counted);
        assert_eq!(domain.barrier(), Ok(()));
        assert_eq!((DROPPED.load(SeqCst), domain.stats().held), (i, 1));
    }
    drop(cell);
    drop(domain);
    assert_eq!(DROPPED.load(SeqCst), 101);
}

#[test]
fn an_index_is_used_again_with_another_engine() {
    let cell = Cell::new(7);
    for i in 0..50 {
        // More than the near ones, so that the spilled table is used, too.
        let domains: Vec<_> = (0..10).map(|n| domain(engines()[(i + n) % 4])).collect();
        for d in &domains {
            let _guard = d.read_lock();
            // SAFETY: the cell never changes.
            assert_eq!(unsafe { d.lookup(&cell.value()) }, 7);
        }
        domains.iter().for_each(Domain::synchronize);
    }
}

#[test]
fn slots_grow_and_are_found_again() {
    let domain = domain(Engine::Restart);
    let cells: Vec<_> = (0..1200).map(Cell::new).collect();
    for round in 0..3 {
        // SAFETY: the cells are replaced through this domain only.
        let held: Vec<_> =
            cells.iter().map(|c| unsafe { domain.protect(&c.node()) }.unwrap()).collect();
        for cell in &cells {
            // SAFETY: as above.
            unsafe { cell.replace(&domain, round) };
        }
        domain.synchronize();
        thread::sleep(Duration::from_millis(5));
        await_waiting(&domain, 1200);
        assert!(
            held.iter()
                .enumerate()
                .all(|(i, p)| p.value == if round == 0 { i as u64 } else { round - 1 })
        );
        drop(held);
        domain.barrier().unwrap();
    }
}

#[test]
fn callbacks_run_once_each_after_a_grace_period() {
    for engine in engines() {
        for single in [false, true] {
            let domain = Domain::builder().engine(engine).single_list(single).build().unwrap();
            let ran = Arc::new(AtomicU64::new(0));
            let guard = domain.read_lock();
            for _ in 0..100 {
                let ran = ran.clone();
                domain.defer(move || {
                    ran.fetch_add(1, SeqCst);
                });
            }
            thread::sleep(Duration::from_millis(10));
            assert_eq!(ran.load(SeqCst), 0, "{engine:?}");
            drop(guard);
            domain.barrier().unwrap();
            assert_eq!(ran.load(SeqCst), 100, "{engine:?}");
            assert_eq!((domain.stats().run, domain.stats().waiting), (100, 0));
        }
    }
}

#[test]
fn callbacks_may_register_callbacks_and_the_drop_waits_for_all() {
    fn again(domain: &Arc<Domain>, left: u64, ran: &Arc<AtomicU64>) {
        let (weak, ran) = (Arc::downgrade(domain), ran.clone());
        domain.defer(move || {
            ran.fetch_add(1, SeqCst);
            if let (Some(domain), 1..) = (weak.upgrade(), left) {
                assert!(domain.barrier().is_err());
                again(&domain, left - 1, &ran);
            }
        });
    }
    let ran = Arc::new(AtomicU64::new(0));
    let domain = Arc::new(domain(Engine::Restart));
    again(&domain, 9, &ran);
    while ran.load(SeqCst) < 10 {
        domain.barrier().unwrap();
    }
    drop(domain);
    assert_eq!(ran.load(SeqCst), 10);
}

/// The most that waits with that cap: a stash may reserve room for 64 callbacks, and a registration
/// that waited for room in vain, because the worker had no CPU, lets 32 callbacks pass.
fn beyond(cap: u64, one: u64, waits: u64) -> u64 {
    cap + 64 * one + 32 * one * waits
}

#[test]
fn the_cap_holds_and_registering_threads_help() {
    const SIZE: u64 = 2048;
    let cap = Cap { bytes: 64 << 10, callbacks: 1000 };
    let domain = Domain::builder().cap(cap).build().unwrap();
    // Since there was room last.
    let mut waits = 0;
    for _ in 0..20_000 {
        // SAFETY: nobody else knows the value.
        unsafe { domain.retire_box(Box::new([0u8; 1024])) };
        let stats = domain.stats();
        if stats.waiting_bytes < cap.bytes {
            waits = stats.over_cap;
        }
        let allowed = beyond(cap.bytes, SIZE, 1 + stats.over_cap - waits);
        assert!(stats.waiting_bytes <= allowed, "more than {allowed}: {stats:?}");
    }
    domain.barrier().unwrap();
    assert_eq!(domain.stats().run, 20_000);
}

/// The owner of a stash, a worker, or `barrier` closes it: each counts the callbacks that the owner
/// has run.
#[test]
fn callbacks_that_registering_threads_run_are_counted() {
    for n in (1000..2000).step_by(7) {
        let soft = Cap { bytes: u64::MAX, callbacks: 256 };
        let domain = Domain::builder().soft_cap(soft).build().unwrap();
        for _ in 0..n {
            // SAFETY: nobody else knows the value.
            unsafe { domain.retire_box(Box::new(0u64)) };
        }
        domain.barrier().unwrap();
        assert_eq!(domain.stats().run, n);
    }
}

#[test]
fn protected_nodes_do_not_count_for_the_cap() {
    let domain = Domain::builder().cap(Cap { bytes: u64::MAX, callbacks: 100 }).build().unwrap();
    let cells: Vec<_> = (0..1000).map(Cell::new).collect();
    // SAFETY: the cells are replaced through this domain only.
    let held: Vec<_> =
        cells.iter().map(|c| unsafe { domain.protect(&c.node()) }.unwrap()).collect();
    for cell in &cells {
        // SAFETY: as above.
        unsafe { cell.replace(&domain, 0) };
    }
    domain.synchronize();
    await_waiting(&domain, 1000);
    for _ in 0..20 {
        // Fewer than the cap, when the others have been freed. The worker looks at the protected
        // nodes again and again, and for that moment they count.
        while {
            let before = domain.stats().over_cap;
            // SAFETY: nobody else knows the value.
            (0..50).for_each(|_| unsafe { domain.retire_box(Box::new(0u64)) });
            domain.stats().over_cap != before
        } {
            thread::sleep(Duration::from_millis(1));
        }
    }
    drop(held);
    domain.barrier().unwrap();
}

#[test]
fn a_registration_over_the_cap_inside_a_section_does_not_wait() {
    let domain = Domain::builder().cap(Cap { bytes: 0, callbacks: 0 }).build().unwrap();
    let guard = domain.read_lock();
    for _ in 0..1000 {
        domain.defer(|| ());
    }
    assert!(domain.stats().over_cap > 0);
    drop(guard);
    domain.barrier().unwrap();
}

#[test]
fn between_the_caps_nobody_waits_for_a_reader() {
    let soft = Cap { bytes: 64 << 10, callbacks: 1000 };
    let domain = Domain::builder().soft_cap(soft).build().unwrap();
    thread::scope(|scope| {
        let guard = domain.read_lock();
        // Another thread: one inside a section never helps.
        let writer = scope.spawn(|| {
            for _ in 0..5_000 {
                // SAFETY: nobody else knows the value.
                unsafe { domain.retire_box(Box::new([0u8; 1024])) };
            }
        });
        writer.join().unwrap();
        await_waiting(&domain, 5_000);
        let stats = domain.stats();
        assert_eq!((stats.helped, stats.over_cap), (0, 0));
        drop(guard);
    });
    domain.barrier().unwrap();
    assert_eq!((domain.stats().run, domain.stats().waiting), (5_000, 0));
}

#[test]
fn the_cap_holds_while_a_reader_holds_the_grace_period_up() {
    let cap = Cap { bytes: u64::MAX, callbacks: 1000 };
    let domain = Domain::builder().cap(cap).build().unwrap();
    thread::scope(|scope| {
        let guard = domain.read_lock();
        let domain = &domain;
        let writer = scope.spawn(move || {
            let mut most = 0;
            while domain.stats().over_cap < 10 {
                domain.defer(|| ());
                most = most.max(domain.stats().waiting);
                assert!(most <= beyond(1000, 1, domain.stats().over_cap), "{most}");
            }
            most
        });
        // A sweeper may keep what a buffer has reserved.
        assert!(writer.join().unwrap() >= 1000 - 64);
        drop(guard);
    });
    domain.barrier().unwrap();
    assert_eq!(domain.stats().waiting, 0);
}

#[test]
fn what_a_thread_leaves_in_its_stash_runs() {
    for engine in engines() {
        let domain = domain(engine);
        let ran = Arc::new(AtomicU64::new(0));
        let register = |n| {
            for _ in 0..n {
                let ran = ran.clone();
                domain.defer(move || {
                    ran.fetch_add(1, SeqCst);
                });
            }
        };
        // This thread lives on, the other one exits. No thread waits for the callbacks.
        register(3);
        thread::scope(|scope| {
            scope.spawn(|| register(4));
        });
        while ran.load(SeqCst) < 7 {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The index of a domain is used again; its id is not.
#[test]
fn a_domain_that_is_gone_is_not_taken_for_its_successor() {
    let ids: Vec<_> = (0..100).map(|_| Domain::builder().build().unwrap().id()).collect();
    for (i, id) in ids.iter().enumerate() {
        assert!(!ids[..i].contains(id) && *id != Domain::global().id());
    }
    use reprieve::ReadSide;
    let domain = Domain::builder().build().unwrap();
    assert_eq!(domain.read_lock().domain(), domain.id());
    assert_eq!(domain.qsbr().read_lock().domain(), domain.id());
    assert_eq!(reprieve::read_lock().domain(), Domain::global().id());
}

/// Whether an old domain's cookie "has ended" says nothing about another's readers.
#[test]
fn a_cookie_of_another_domain_is_refused() {
    let old = {
        let domain = Domain::builder().build().unwrap();
        let cookie = domain.start_poll();
        domain.cond_synchronize(cookie);
        assert!(domain.poll(cookie));
        cookie
    };
    let domain = Domain::builder().build().unwrap();
    let uses: [&dyn Fn(); 3] =
        [&|| assert!(!domain.poll(old)), &|| assert!(!Domain::global().poll(old)), &|| {
            domain.cond_synchronize(old)
        }];
    for refused in uses.map(|f| std::panic::catch_unwind(std::panic::AssertUnwindSafe(f))) {
        let message = refused.unwrap_err();
        let message = message.downcast_ref::<String>().unwrap();
        assert!(message.contains("a cookie of domain "), "{message}");
    }
}
