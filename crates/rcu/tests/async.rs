// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guards that move between threads: on a runtime of many threads, in structs, out of functions.

use reprieve::structures::{Cell, List, Map};
use reprieve::{AnyThread, Domain, OwnedProtected, Protected};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, yield_now};

const WHOLE: usize = 0x600d;

/// Knows whether it was dropped, and counts those that were not.
struct Value {
    state: usize,
    number: usize,
    alive: Arc<AtomicUsize>,
}

impl Value {
    fn new(number: usize, alive: &Arc<AtomicUsize>) -> Value {
        alive.fetch_add(1, SeqCst);
        Value { state: WHOLE, number, alive: alive.clone() }
    }

    #[track_caller]
    fn check(&self) -> usize {
        // SAFETY: alive, or the test has found the fault; not for the compiler to guess.
        assert_eq!(unsafe { (&raw const self.state).read_volatile() }, WHOLE);
        self.number
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.check();
        // SAFETY: ours. Volatile: read after the drop if there is a fault.
        unsafe { (&raw mut self.state).write_volatile(0xdead) };
        self.alive.fetch_sub(1, SeqCst);
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(4).build().unwrap()
}

/// Everything but what is in the structures is freed.
fn settle(domain: &Domain, alive: &AtomicUsize, left: usize) {
    domain.barrier().unwrap();
    assert_eq!((alive.load(SeqCst), domain.stats().held), (left, 0));
}

type Users = Map<u64, Value, Arc<Domain>>;

struct Session {
    user: OwnedProtected<Users, Value>,
}

/// Out of a function that is not a method of the map.
async fn open(users: Arc<Users>, id: u64) -> Option<Session> {
    yield_now().await;
    let user = OwnedProtected::new(users, |users| Some(users.protect(&id)?.into_value()))?;
    yield_now().await;
    Some(Session { user })
}

/// Readers hold what they found across many awaits, and see it whole, while a writer replaces it
/// all the time.
#[test]
fn guards_live_across_awaits_on_many_threads() {
    const KEYS: u64 = 8;
    let alive = Arc::new(AtomicUsize::new(0));
    let domain = Arc::new(Domain::builder().build().unwrap());
    let cell = Arc::new(Cell::new_in(Value::new(0, &alive), domain.clone()));
    let users: Arc<Users> = Arc::new(Map::builder().domain(domain.clone()).build());
    (0..KEYS).for_each(|key| _ = users.insert(key, Value::new(key as usize, &alive)));
    let (stop, moved) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let runtime = runtime();
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for task in 0..16 {
            let (cell, users, moved) = (cell.clone(), users.clone(), moved.clone());
            tasks.spawn(async move {
                while moved.load(SeqCst) < 200 {
                    let held: Protected<'_, Value, AnyThread> = cell.protect().detach();
                    // The writer may have removed the key, and not put it back yet.
                    let Some(session) = open(users.clone(), task % KEYS).await else { continue };
                    let (begun, number) = (std::thread::current().id(), held.check());
                    for _ in 0..4 {
                        yield_now().await;
                        assert_eq!(held.check(), number);
                        assert_eq!(session.user.check() as u64 % KEYS, task % KEYS);
                    }
                    moved.fetch_add((std::thread::current().id() != begun).into(), SeqCst);
                    drop(held);
                    yield_now().await;
                    session.user.check();
                }
            });
        }
        let (writer, alive) = (stop.clone(), alive.clone());
        let (cell, users) = (cell.clone(), users.clone());
        let writer = tokio::task::spawn_blocking(move || {
            for n in KEYS.. {
                if writer.load(SeqCst) {
                    break;
                }
                cell.store(Value::new(n as usize, &alive));
                users.insert(n % KEYS, Value::new(n as usize, &alive));
                if n % 7 == 0 {
                    users.remove(&(n % KEYS));
                    users.insert(n % KEYS, Value::new(n as usize, &alive));
                }
            }
        });
        let mut failed = None;
        while let Some(task) = tasks.join_next().await {
            failed = failed.or(task.err());
        }
        stop.store(true, SeqCst);
        writer.await.unwrap();
        assert!(failed.is_none(), "{failed:?}");
    });
    settle(&domain, &alive, 1 + KEYS as usize);
}

/// The structures go with the last guard, and the domain with them.
#[test]
fn an_owned_guard_keeps_its_structure() {
    let alive = Arc::new(AtomicUsize::new(0));
    let domain = Arc::new(Domain::builder().build().unwrap());
    let list = Arc::new(List::new_in(domain.clone()));
    let cell = Arc::new(Cell::new_in(Value::new(1, &alive), domain.clone()));
    (2..5).for_each(|n| list.push_back(Value::new(n, &alive)));
    let of_list =
        OwnedProtected::new(list.clone(), |list| list.protect(|value| value.number == 3)).unwrap();
    let of_cell = OwnedProtected::new(cell.clone(), |cell| Some(cell.protect())).unwrap();
    assert!(OwnedProtected::new(list, |list| list.protect(|_| false)).is_none());
    cell.store(Value::new(9, &alive));
    drop((cell, domain));
    std::thread::spawn(move || {
        assert_eq!((of_list.check(), of_cell.check()), (3, 1));
        OwnedProtected::owner(&of_list).retain(|_| false);
        drop(of_cell);
        assert_eq!(of_list.check(), 3);
    })
    .join()
    .unwrap();
    assert_eq!(alive.load(SeqCst), 0);
}

/// Of threads that have ended, thousands at a time, given back in another order; and then as many
/// again.
#[test]
fn many_detached_guards_outlive_their_threads() {
    const GUARDS: usize = 3000;
    let alive = Arc::new(AtomicUsize::new(0));
    let domain = Domain::builder().build().unwrap();
    let map = Map::builder().domain(&domain).build();
    (0..GUARDS).for_each(|n| _ = map.insert(n, Value::new(n, &alive)));
    for _ in 0..2 {
        let held = Mutex::new(vec![]);
        std::thread::scope(|scope| {
            for part in 0..4 {
                let (map, held) = (&map, &held);
                scope.spawn(move || {
                    let guards =
                        (part..GUARDS).step_by(4).map(|n| map.protect(&n).unwrap().detach());
                    let guards: Vec<_> = guards.collect();
                    held.lock().unwrap().extend(guards);
                });
            }
        });
        let mut held = held.into_inner().unwrap();
        (0..GUARDS).for_each(|n| _ = map.remove(&n));
        domain.barrier().unwrap();
        assert_eq!((alive.load(SeqCst), domain.stats().held), (GUARDS, GUARDS as u64));
        let seen: HashSet<_> = held.iter().map(|held| held.check()).collect();
        assert_eq!(seen.len(), GUARDS);
        while held.len() > 1 {
            let at = held.len() * 5 / 7;
            held.swap_remove(at);
            (held.len() % 500 == 0).then(|| settle_to(&domain, &alive, held.len()));
        }
        drop(held);
        settle(&domain, &alive, 0);
        (0..GUARDS).for_each(|n| _ = map.insert(n, Value::new(n, &alive)));
    }
}

fn settle_to(domain: &Domain, alive: &AtomicUsize, held: usize) {
    domain.barrier().unwrap();
    assert_eq!((alive.load(SeqCst), domain.stats().held), (held, held as u64));
}

/// A guard that is forgotten keeps its node to the end of the domain, and no longer.
#[test]
fn a_domain_ends_in_spite_of_forgotten_detached_guards() {
    let alive = Arc::new(AtomicUsize::new(0));
    for round in 0..3 {
        let domain = Domain::builder().build().unwrap();
        let cell = Cell::new_in(Value::new(round, &alive), &domain);
        std::mem::forget(cell.protect().detach());
        cell.store(Value::new(round, &alive));
        domain.barrier().unwrap();
        assert_eq!((alive.load(SeqCst), domain.stats().held), (2, 1));
        drop(cell);
        drop(domain);
        assert_eq!(alive.load(SeqCst), 0);
        // The node's address is free for others, which the forgotten guard does not hold.
        let domain = Domain::builder().build().unwrap();
        let cell = Cell::new_in(Value::new(0, &alive), &domain);
        (0..100).for_each(|n| cell.store(Value::new(n, &alive)));
        settle(&domain, &alive, 1);
    }
}
