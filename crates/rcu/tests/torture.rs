// SPDX-License-Identifier: MIT OR Apache-2.0
//! Torture: all read sides on all engines at once, by threads that come, go, get signals and fork,
//! while writers replace and free what is read. Freed nodes are poisoned first, and their memory is
//! kept mapped for a while, so that a reader that sees one is caught.
//!
//! `REPRIEVE_TORTURE=SECONDS[:SEED]` runs longer or again; default 10 s, and the seed is printed.
//!
//! A build with `RUSTFLAGS="--cfg reprieve_fault"` breaks the protocol on purpose
//! (`src/platform/fault.rs`) and runs `faults_are_caught` in place of the torture itself.

use reprieve::structures::prefix::{Prefix, PrefixTable};
use reprieve::structures::{List, OrderedMap};
use reprieve::{Cap, Domain, Engine, Head, Lookup, Part, Protected, ReadSide, Section, Traversal};
use std::cell::Cell;
#[cfg(not(reprieve_fault))]
use std::io::Write as _;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use std::thread;
use std::time::{Duration, Instant};

const CHAINS: usize = 16;
/// A fault shows when a node is freed under a reader: the fewer, the sooner, on machines with slow
/// grace periods, too.
const KEYS: u64 = if cfg!(reprieve_fault) { 8 } else { 64 };
const POISON: u64 = 0xdead_dead_dead_dead;

/// Reads, and writes, of an arena, however long they take.
const LEAST: u64 = 100;

/// A reader must see `check == key * MARK + version`, and never poison.
#[repr(C)]
struct Node {
    head: Head,
    next: AtomicPtr<Node>,
    key: u64,
    /// 1: its `next` may lead anywhere.
    unlinked: AtomicU64,
    version: AtomicU64,
    check: AtomicU64,
}

const MARK: u64 = 0x9e37_79b9_7f4a_7c15;

/// Nodes are taken from here and given back: a freed one stays readable, poisoned, until it is used
/// again.
struct Pool {
    free: std::sync::Mutex<std::collections::VecDeque<usize>>,
    taken: AtomicUsize,
}

static POOL: Pool = Pool {
    free: std::sync::Mutex::new(std::collections::VecDeque::new()),
    taken: AtomicUsize::new(0),
};

impl Pool {
    fn take(&self, key: u64, version: u64, next: *mut Node) -> *mut Node {
        // A node that was freed long ago: a late reader of any other still sees its poison.
        let old = {
            let mut free = self.free.lock().unwrap();
            if free.len() > 4096 { free.pop_front() } else { None }
        };
        let node = old.map_or_else(
            || {
                self.taken.fetch_add(1, Relaxed);
                Box::into_raw(Box::<Node>::new_uninit()).cast()
            },
            |n| n as *mut Node,
        );
        // SAFETY: nobody's but ours.
        unsafe {
            node.write(Node {
                head: Head::new(),
                next: AtomicPtr::new(next),
                key,
                unlinked: AtomicU64::new(0),
                version: AtomicU64::new(version),
                check: AtomicU64::new(key.wrapping_mul(MARK).wrapping_add(version)),
            })
        };
        node
    }
}

unsafe extern "C" fn free(head: *mut Head) {
    let node: *mut Node = head.cast();
    // SAFETY: the callback has the node for itself, unless the protocol is broken; then a reader
    // may look, and finds poison.
    unsafe {
        (*node).check.store(POISON, Relaxed);
        (*node).version.store(POISON, Relaxed);
        // A traversal that is here ends.
        (*node).next.store(std::ptr::null_mut(), Relaxed);
        (*node).unlinked.store(0, Relaxed);
    }
    POOL.free.lock().unwrap().push_back(node as usize);
}

struct Table {
    chains: [AtomicPtr<Node>; CHAINS],
    writer: [std::sync::Mutex<()>; CHAINS],
}

impl Table {
    fn new() -> Table {
        let table = Table {
            chains: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHAINS],
            writer: [const { std::sync::Mutex::new(()) }; CHAINS],
        };
        for key in 0..KEYS {
            let chain = &table.chains[key as usize % CHAINS];
            chain.store(POOL.take(key, 0, chain.load(Relaxed)), Release);
        }
        table
    }

    /// Replaces the node of `key` and hands the old one to `reclaim`.
    fn replace(&self, key: u64, reclaim: impl FnOnce(*mut Node)) {
        let old = {
            let _writer = self.writer[key as usize % CHAINS].lock().unwrap();
            let mut link = &self.chains[key as usize % CHAINS];
            // SAFETY: only writers of this chain unlink, and we are the one.
            unsafe {
                while (*link.load(Relaxed)).key != key {
                    link = &(*link.load(Relaxed)).next;
                }
                let old = link.load(Relaxed);
                let version = (*old).version.load(Relaxed) + 1;
                link.store(POOL.take(key, version, (*old).next.load(Relaxed)), Release);
                (*old).unlinked.store(1, Release);
                old
            }
        };
        reclaim(old);
    }
}

/// The lookup of all read sides. `delay` turns with the node in hand make sure that it is
/// interrupted there, too.
struct Find<'a> {
    chain: &'a AtomicPtr<Node>,
    key: u64,
    delay: u64,
}

#[derive(Clone, Copy)]
struct Found {
    version: u64,
    check: u64,
}

impl Find<'_> {
    #[inline(always)]
    unsafe fn node(&self, section: &Section) -> Option<NonNull<Node>> {
        let mut next = section.follow(self.chain);
        // SAFETY: nodes are alive in the section.
        unsafe {
            while let Some(node) = next {
                let node = node.as_ptr();
                if section.read(&raw const (*node).key) == self.key {
                    let mut left = self.delay;
                    while left > 0 {
                        section.read(&raw const (*node).key);
                        left -= 1;
                    }
                    return next;
                }
                next = section.follow(&(*node).next);
            }
        }
        None
    }
}

struct Value<'a>(Find<'a>);

// SAFETY: loops of loads through the section; everything is inlined; the integer operations cannot
// overflow.
unsafe impl Lookup for Value<'_> {
    type Output = Found;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> Found {
        // SAFETY: as the caller's.
        unsafe {
            match self.0.node(section) {
                None => Found { version: 0, check: 0 },
                Some(node) => Found {
                    version: section.read(&raw const (*node.as_ptr()).version as *const u64),
                    check: section.read(&raw const (*node.as_ptr()).check as *const u64),
                },
            }
        }
    }
}

// SAFETY: as above.
unsafe impl Lookup for Find<'_> {
    type Output = *const Node;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> *const Node {
        // SAFETY: as the caller's.
        match unsafe { self.node(section) } {
            None => std::ptr::null(),
            Some(node) => node.as_ptr(),
        }
    }
}

/// The same in parts of one step.
struct Parts<'a>(Find<'a>);

// SAFETY: as above; `Table::replace` marks nodes before it hands them over.
unsafe impl Traversal for Parts<'_> {
    type Node = Node;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn part(&self, section: &Section, from: *const Node, _: usize) -> Part<Node> {
        // SAFETY: nodes are alive in the section, or in a slot.
        unsafe {
            let next = if from as usize == 0 {
                section.follow(self.0.chain)
            } else if section.read(&raw const (*from).unlinked as *const u64) != 0 {
                return Part::lost();
            } else {
                section.follow(&(*from).next)
            };
            let Some(node) = next else {
                return Part::end();
            };
            let node = node.as_ptr();
            let mut left = self.0.delay;
            while left > 0 {
                section.read(&raw const (*node).key);
                left -= 1;
            }
            if section.read(&raw const (*node).key) == self.0.key {
                Part::found(node)
            } else {
                Part::reached(node)
            }
        }
    }
}

/// A value of a list or map, which is poison once it was dropped.
struct Item {
    id: u64,
    check: AtomicU64,
}

impl Item {
    fn new(id: u64) -> Item {
        Item { id, check: AtomicU64::new(id.wrapping_mul(MARK)) }
    }

    fn is_whole(&self, id: u64) -> bool {
        self.id == id && self.check.load(Relaxed) == id.wrapping_mul(MARK)
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        self.check.store(POISON, Relaxed);
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Mostly nothing, now and then long enough to be preempted.
    fn delay(&mut self) -> u64 {
        /// Longer than a grace period, wrong ones among them.
        const LONG: u64 = if cfg!(reprieve_fault) { 1_000_000 } else { 200_000 };
        match self.below(1000) {
            0 => LONG,
            1..20 => 2_000,
            _ => 0,
        }
    }
}

/// Items of the list and of each map that are always there.
const ALWAYS: u64 = 8;

/// The distance of such keys in the ordered map, between which others come and go.
const APART: u64 = 16;

/// The id of a prefix's value: ascending as the prefixes do. Those of length 8 are always there.
fn id(prefix: &Prefix<u32>) -> u64 {
    u64::from(prefix.address()) << 8 | u64::from(prefix.length())
}

struct Arena {
    domain: Arc<Domain>,
    table: Table,
    list: List<Item, Arc<Domain>>,
    ordered: OrderedMap<u64, Item, Arc<Domain>>,
    prefixes: PrefixTable<u32, Item, Arc<Domain>>,
    /// How all reads are done, if not at random: see `read`.
    way: Option<u64>,
    broken: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
}

impl Arena {
    fn check(&self, key: u64, found: Found) {
        // Not in shared memory: an atomic addition is a full barrier, and no fault whose barrier is
        // missing would show.
        READS.set(READS.get() + 1);
        // A node freed in the middle of the two reads is caught by either being poison.
        if found.check == POISON
            || found.version == POISON
            || found.check != key.wrapping_mul(MARK).wrapping_add(found.version)
        {
            self.broken.fetch_add(1, Relaxed);
        }
    }

    fn look(&self, node: *const Node) -> Found {
        // SAFETY: nodes are never unmapped; whether it is alive is what is being tested.
        unsafe {
            Found { version: (*node).version.load(Relaxed), check: (*node).check.load(Relaxed) }
        }
    }

    fn read(&self, random: &mut Random) {
        let key = random.below(KEYS);
        let find =
            Find { chain: &self.table.chains[key as usize % CHAINS], key, delay: random.delay() };
        let any = random.below(18);
        match self.way.unwrap_or(any) {
            // SAFETY: the table is reclaimed through this domain only.
            0..8 => self.check(key, unsafe { self.domain.lookup(&Value(find)) }),
            8..11 => {
                let guard = self.domain.read_lock();
                let nested = (random.below(4) == 0).then(|| self.domain.read_lock());
                // SAFETY: as above.
                let node = unsafe { find.run(guard.section()) };
                let found = self.look(node);
                drop(nested);
                self.check(key, found);
                // Still in the outer section.
                for _ in 0..random.delay().min(2_000) {
                    std::hint::spin_loop();
                }
                self.check(key, self.look(node));
                drop(guard);
            }
            11 => {
                // SAFETY: as above, and nodes are retired with their address.
                match unsafe { self.domain.traverse(&Parts(find)) } {
                    Some(node) => self.check(key, self.look(&*node)),
                    None => _ = self.broken.fetch_add(1, Relaxed),
                }
            }
            12 => self.scan(random),
            13 => self.read_ordered(random),
            14 => self.read_prefixes(random),
            _ => {
                // SAFETY: as above, and nodes are retired with their address.
                let mut held: Vec<_> = (0..=random.below(3) * random.below(6))
                    .filter_map(|_| unsafe { self.domain.protect(&find) })
                    .collect();
                let detached = held.split_off(random.below(2) as usize * held.len());
                let mut spin = || {
                    for _ in 0..random.delay().min(2_000) {
                        std::hint::spin_loop();
                    }
                };
                // They may be retired before they are detached, and looked for meanwhile.
                spin();
                let detached: Vec<_> = detached.into_iter().map(Protected::detach).collect();
                spin();
                if random.below(100) == 0 {
                    thread::sleep(Duration::from_micros(random.below(300)));
                }
                held.iter().for_each(|node| self.check(key, self.look(&**node)));
                detached.iter().for_each(|node| self.check(key, self.look(&**node)));
            }
        }
    }

    /// Counts what is wrong. `delay` turns with the item in hand.
    fn expect(&self, right: bool, delay: u64) {
        READS.set(READS.get() + 1);
        self.broken.fetch_add((!right).into(), Relaxed);
        for _ in 0..delay {
            std::hint::spin_loop();
        }
    }

    /// Items that are always there are seen once, in order, and each is whole.
    fn scan(&self, random: &mut Random) {
        let mut next = 0;
        for item in self.list.iter() {
            let in_order = item.id >= ALWAYS || item.id == next;
            self.expect(item.is_whole(item.id) && in_order, random.delay());
            next += u64::from(item.id < ALWAYS);
        }
        self.expect(next == ALWAYS, 0);
    }

    /// A key that is always there, and a scan of those behind it.
    fn read_ordered(&self, random: &mut Random) {
        let first = random.below(ALWAYS) * APART;
        let found = self.ordered.protect(&first);
        self.expect(found.is_some_and(|held| held.is_whole(first)), 0);
        let mut next = first;
        for held in self.ordered.range(first..ALWAYS * APART) {
            self.expect(held.is_whole(*held.key()) && *held.key() <= next, random.delay());
            next += if *held.key() == next { APART } else { 0 };
        }
        self.expect(next == ALWAYS * APART, 0);
    }

    /// The routes of an address, and now and then all.
    fn read_prefixes(&self, random: &mut Random) {
        let address = (random.below(ALWAYS) << 24 | random.below(1 << 24)) as u32;
        let route = self.prefixes.lookup(address);
        let right = route.is_some_and(|held| {
            let length = held.key().length();
            let covers = Prefix::new(address, length).unwrap() == *held.key();
            covers && length >= 8 && held.is_whole(id(held.key()))
        });
        self.expect(right, 0);
        if random.below(8) > 0 {
            return;
        }
        let (mut last, mut seen) = (None, 0);
        for held in self.prefixes.iter() {
            let id = id(held.key());
            self.expect(held.is_whole(id) && last < Some(id), random.delay());
            (last, seen) = (Some(id), seen + u64::from(held.key().length() == 8));
        }
        self.expect(seen == ALWAYS, 0);
    }

    /// Replaces what is always there, and puts in or takes out others, neighbours together.
    fn write_maps(&self, random: &mut Random) {
        let key = random.below(ALWAYS) * APART;
        self.ordered.insert(key, Item::new(key));
        let (from, inserts) = (random.below(ALWAYS * APART) | 1, random.below(2) == 0);
        for key in (from..from + APART).step_by(2) {
            if inserts {
                self.ordered.insert(key, Item::new(key));
            } else {
                self.ordered.remove(&key);
            }
        }
        for _ in 0..APART {
            // Of length 8 or longer, or a few above.
            let (net, within) = (random.below(ALWAYS) << 24, random.below(4) << 22);
            let prefix = Prefix::new((net | within) as u32, 5 + random.below(6) as u8).unwrap();
            if prefix.length() == 8 || random.below(2) == 0 {
                self.prefixes.insert(prefix, Item::new(id(&prefix)));
            } else {
                self.prefixes.remove(&prefix);
            }
        }
    }

    /// Takes items out, neighbours together, and puts others in.
    fn write_list(&self, random: &mut Random) {
        let id = random.below(ALWAYS);
        self.list.replace_first(|item| item.id == id, |_| Item::new(id));
        for _ in 0..4 {
            let item = Item::new(ALWAYS + random.below(100));
            if random.below(2) == 0 {
                self.list.push_front(item)
            } else {
                self.list.push_back(item)
            }
        }
        if self.list.len() > 40 {
            let most = ALWAYS + random.below(50);
            self.list.retain(|item| item.id < most);
        }
    }

    fn write(&self, random: &mut Random) {
        self.writes.fetch_add(1, Relaxed);
        match random.below(8) {
            0 => self.write_list(random),
            1 => self.write_maps(random),
            _ => (),
        }
        if random.below(1000) == 0 {
            assert_eq!(self.domain.forget_dead_threads(), 0, "nobody died");
        }
        let slow = matches!(self.domain.engine(), Engine::Ltimer { .. } | Engine::Sched { .. });
        let key = random.below(KEYS);
        self.table.replace(key, |old| {
            let retire = || {
                // SAFETY: unlinked, retired once.
                unsafe { self.domain.retire(old.cast(), old.cast(), free, size_of::<Node>(), true) }
            };
            match random.below(20) {
                0 if !slow => {
                    // The node may still be protected: the retirement sees to that.
                    self.domain.synchronize();
                    retire();
                }
                1 => {
                    let cookie = self.domain.start_poll();
                    let end = Instant::now() + Duration::from_millis(random.below(3));
                    while !self.domain.poll(cookie) && Instant::now() < end {
                        thread::yield_now();
                    }
                    retire();
                }
                2 if !slow => {
                    self.domain.synchronize_expedited();
                    retire();
                }
                _ => retire(),
            }
        });
    }
}

/// Forks that took place.
static FORKS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Reads of this thread since it last told its arena; a signal handler may lose some.
    static READS: Cell<u64> = const { Cell::new(0) };
    /// The arena in which the signal handler reads.
    static ARENA: Cell<*const Arena> = const { Cell::new(std::ptr::null()) };
    static SIGNAL_SEED: Cell<u64> = const { Cell::new(1) };
}

/// Reads in every way that is allowed in a handler.
extern "C" fn on_signal(_: i32) {
    let arena = ARENA.get();
    if arena.is_null() {
        return;
    }
    // SAFETY: set while the arena lives.
    let arena = unsafe { &*arena };
    let mut random = Random(SIGNAL_SEED.get());
    let key = random.below(KEYS);
    SIGNAL_SEED.set(random.next() | 1);
    let find =
        Find { chain: &arena.table.chains[key as usize % CHAINS], key, delay: random.below(300) };
    // SAFETY: as in `read`.
    unsafe {
        arena.check(key, arena.domain.lookup(&Value(Find { ..find })));
        let protected = arena.domain.protect(&find).unwrap();
        let guard = arena.domain.read_lock();
        let node = find.run(guard.section());
        arena.check(key, arena.look(node));
        drop(guard);
        arena.check(key, arena.look(&*protected));
        let walked = arena.domain.traverse(&Parts(find)).unwrap();
        arena.check(key, arena.look(&*walked));
    }
    arena.scan(&mut random);
    arena.read_ordered(&mut random);
    arena.read_prefixes(&mut random);
}

/// The child of a fork reads, writes, waits and ends.
fn fork_and_check(arena: &Arena, random: &mut Random) {
    let seed = random.next() | 1;
    // SAFETY: the child uses this crate and memory only (the C library makes malloc usable), and
    // leaves by _exit.
    match unsafe { libc::fork() } {
        0 => {
            // Ends with this thread, should the test be killed.
            // SAFETY: a number.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let mut random = Random(seed);
            let before = arena.broken.load(Relaxed);
            for _ in 0..20 {
                // Not the shared pool's lock: its holder may not exist here.
                let key = random.below(KEYS);
                let find =
                    Find { chain: &arena.table.chains[key as usize % CHAINS], key, delay: 0 };
                // SAFETY: as in `read`.
                arena.check(key, unsafe { arena.domain.lookup(&Value(find)) });
                arena.domain.synchronize_expedited();
            }
            // SAFETY: ends the child at once.
            unsafe { libc::_exit((arena.broken.load(Relaxed) != before) as i32) };
        }
        -1 => eprintln!("fork: {}", std::io::Error::last_os_error()),
        child => {
            FORKS.fetch_add(1, Relaxed);
            let mut status = -1;
            // SAFETY: our own child. A signal of the timer's may interrupt the wait.
            while unsafe { libc::waitpid(child, &mut status, 0) } != child {}
            if status != 0 {
                eprintln!("child of a fork: status {status:#x}");
                arena.broken.fetch_add(1, Relaxed);
            }
        }
    }
}

#[cfg_attr(reprieve_fault, expect(dead_code, reason = "a fault is looked for in `broken` only"))]
struct Report {
    broken: u64,
    reads: u64,
    writes: u64,
    text: String,
}

/// Runs an arena with `readers` reading threads and some writers, for `time`.
fn torture(engine: Engine, readers: u64, time: Duration, seed: u64, forks: bool) -> Report {
    // Half of the runs use no stashes and free at once: the time between an unlinking and the free
    // is the shortest.
    let soft = if readers < 8 { Cap { bytes: 0, callbacks: 0 } } else { Cap::SOFT };
    let domain = Domain::builder()
        .engine(engine)
        .cap(Cap { bytes: 1 << 18, callbacks: 4096 })
        .soft_cap(soft)
        .build()
        .unwrap();
    // Stalls are reported after a short time, and the reports are dropped.
    domain.set_stall_timeout(Some(Duration::from_millis(2)));
    domain.on_stall(|_| ());
    let domain = Arc::new(domain);
    let list = List::new_in(domain.clone());
    (0..ALWAYS).for_each(|id| list.push_back(Item::new(id)));
    let ordered = OrderedMap::new_in(domain.clone());
    (0..ALWAYS).for_each(|n| _ = ordered.insert(n * APART, Item::new(n * APART)));
    let prefixes = PrefixTable::new_in(domain.clone());
    for net in 0..ALWAYS as u32 {
        let prefix = Prefix::new(net << 24, 8).unwrap();
        prefixes.insert(prefix, Item::new(id(&prefix)));
    }
    let way = match std::env::var("REPRIEVE_TORTURE_LOAD").as_deref() {
        Ok("list") => Some(12),
        Ok("ordered") => Some(13),
        Ok("prefixes") => Some(14),
        _ => None,
    };
    let arena = Arc::new(Arena {
        domain,
        table: Table::new(),
        list,
        ordered,
        prefixes,
        way,
        broken: AtomicU64::new(0),
        reads: AtomicU64::new(0),
        writes: AtomicU64::new(0),
    });
    let stop = Arc::new(AtomicBool::new(false));
    let writers = 1 + readers / 8;
    let threads: Vec<_> = (0..readers + writers)
        .map(|id| {
            let (arena, stop) = (arena.clone(), stop.clone());
            thread::spawn(move || {
                let mut random = Random(seed.wrapping_add(id.wrapping_mul(MARK)) | 1);
                while !stop.load(Relaxed) {
                    // A short life, so that threads come and go.
                    let (arena, stop, seed) = (arena.clone(), stop.clone(), random.next() | 1);
                    let body = move || {
                        let mut random = Random(seed);
                        SIGNAL_SEED.set(seed);
                        ARENA.set(&*arena);
                        let turns = random.below(30_000);
                        for turn in 0..turns {
                            if stop.load(Relaxed) {
                                break;
                            }
                            if id < writers {
                                arena.write(&mut random);
                            } else {
                                arena.read(&mut random);
                            }
                            if turn % 256 == 0 {
                                arena.reads.fetch_add(READS.take(), Relaxed);
                                if random.below(4) == 0 {
                                    // SAFETY: a signal to this thread, whose handler is installed.
                                    unsafe { libc::raise(libc::SIGUSR1) };
                                }
                            }
                            if forks && id == writers && turn % 8192 == 0 {
                                fork_and_check(&arena, &mut random);
                            }
                        }
                        ARENA.set(std::ptr::null());
                        arena.reads.fetch_add(READS.take(), Relaxed);
                    };
                    thread::spawn(body).join().unwrap();
                }
            })
        })
        .collect();
    // Meanwhile the process's timer sends signals at arbitrary moments to the threads that run.
    let end = Instant::now() + time;
    let enough = || arena.reads.load(Relaxed) >= LEAST && arena.writes.load(Relaxed) >= LEAST;
    // A thread that ends by itself has panicked.
    let failed = || threads.iter().any(|thread| thread.is_finished());
    while (Instant::now() < end || !enough()) && !failed() {
        thread::sleep(Duration::from_millis(20));
    }
    stop.store(true, Relaxed);
    threads.into_iter().for_each(|t| t.join().unwrap());
    arena.domain.barrier().unwrap();
    let stats = arena.domain.stats();
    assert_eq!(stats.waiting, 0);
    let text = format!(
        "{engine:?}, {readers} readers: {} reads, {} writes, {} grace periods, mean {:?}, p99 {:?}, {} restarts, {} fallbacks, {} broken",
        arena.reads.load(Relaxed),
        arena.writes.load(Relaxed),
        stats.grace_periods.count,
        stats.grace_periods.mean(),
        stats.grace_periods.quantile(0.99),
        stats.restarts,
        stats.fallbacks,
        arena.broken.load(Relaxed),
    );
    Report {
        broken: arena.broken.load(Relaxed),
        reads: arena.reads.load(Relaxed),
        writes: arena.writes.load(Relaxed),
        text,
    }
}

fn install_signals() {
    // SAFETY: the handler reads only, which it may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
        libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut());
        let often = libc::timeval { tv_sec: 0, tv_usec: 700 };
        let timer = libc::itimerval { it_interval: often, it_value: often };
        libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut());
    }
}

/// Seconds and seed.
fn settings() -> (f64, u64) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()
        as u64;
    let text = std::env::var("REPRIEVE_TORTURE").unwrap_or_default();
    let (seconds, seed) = text.split_once(':').unwrap_or((&text, ""));
    let seconds = if seconds.is_empty() { Ok(10.0) } else { seconds.parse() };
    let seed = if seed.is_empty() { Ok(now) } else { seed.parse() };
    match (seconds, seed) {
        (Ok(seconds), Ok(seed)) if (0.0..1e9).contains(&seconds) => (seconds, seed),
        _ => panic!("REPRIEVE_TORTURE={text}: give SECONDS or SECONDS:SEED"),
    }
}

#[test]
#[cfg(not(reprieve_fault))]
fn torture_everything() {
    let (seconds, seed) = settings();
    // Not captured: a test that crashes or is ended says nothing else.
    let _ = writeln!(std::io::stderr(), "REPRIEVE_TORTURE={seconds}:{seed}");
    // SAFETY: a constant of the C library, if it has it.
    let size = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>() };
    // SAFETY: as above.
    println!("rseq area: {} bytes", unsafe { size.as_ref() }.unwrap_or(&0));
    install_signals();
    let tick = Duration::from_millis(3);
    let engines = [
        Engine::Restart,
        Engine::Poll,
        Engine::Ltimer { tick },
        Engine::Sched { tick },
        Engine::Restart,
    ];
    let readers = [1, 4, 16, 64];
    let each = Duration::from_secs_f64(seconds / (engines.len() * readers.len()) as f64);
    let mut random = Random(seed.wrapping_mul(MARK) | 1);
    let (mut broken, mut reads, mut writes) = (0, 0, 0);
    for engine in engines {
        for readers in readers {
            let report = torture(engine, readers, each, random.next(), true);
            println!("{}", report.text);
            reads += report.reads;
            writes += report.writes;
            broken += report.broken;
        }
    }
    println!("{reads} reads, {writes} writes");
    // Not beside the rest: a fork waits for callbacks that sleep.
    for engine in &engines[1..] {
        broken += delayed_stores(*engine, Duration::from_secs_f64(seconds / 16.0));
    }
    assert_eq!(broken, 0, "REPRIEVE_TORTURE={seconds}:{seed}");
    assert!(FORKS.load(Relaxed) > 0, "no fork took place");
}

/// The panic message of a process in which a fault has shown.
#[cfg(reprieve_fault)]
const SEEN: &str = "the fault was seen";

/// A fault, in a process of its own: fails if the fault shows.
#[test]
#[cfg(reprieve_fault)]
#[ignore = "run by faults_are_caught"]
fn tortured_fault() {
    // Ends with the test that runs it.
    // SAFETY: a number.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let (seconds, seed) = settings();
    let tick = Duration::from_millis(3);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let engine = match std::env::var("REPRIEVE_TORTURE_LOAD").as_deref() {
        Ok("poll") => Some(Engine::Poll),
        Ok("ltimer") => Some(Engine::Ltimer { tick }),
        Ok("sched") => Some(Engine::Sched { tick }),
        _ => None,
    };
    if let Some(engine) = engine {
        while Instant::now() < end {
            let broken = delayed_stores(engine, Duration::from_millis(500));
            assert_eq!(broken, 0, "{SEEN}: {broken} broken");
        }
        return;
    }
    install_signals();
    while Instant::now() < end {
        for readers in [2, 16] {
            let report = torture(Engine::Restart, readers, Duration::from_millis(500), seed, false);
            println!("{}", report.text);
            assert_eq!(report.broken, 0, "{SEEN}: {}", report.text);
        }
    }
}

/// Plain sections whose entering stays in the CPU's store buffer, behind stores that miss the
/// cache, while a writer on another CPU unlinks a node, waits and frees it: what the heavy barrier
/// is for. How often a section saw the freed node.
fn delayed_stores(engine: Engine, time: Duration) -> u64 {
    const LINES: usize = 1 << 20;
    /// About what a store buffer holds.
    const STORES: usize = 48;
    let lines: Vec<[AtomicU64; 8]> = (0..LINES).map(|_| [const { AtomicU64::new(1) }; 8]).collect();
    let domain = Arc::new(Domain::builder().engine(engine).build().unwrap());
    let link = AtomicPtr::new(POOL.take(0, 0, std::ptr::null_mut()));
    let (stop, broken) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        // Engines that sleep between ticks do not while somebody waits for callbacks.
        domain.defer(move || thread::sleep(time));
        scope.spawn(|| domain.barrier().unwrap());
        scope.spawn(|| {
            let mut random = Random(MARK);
            while !stop.load(Relaxed) {
                let at: [usize; STORES] =
                    std::array::from_fn(|_| random.below(LINES as u64) as usize);
                for line in at {
                    lines[line][0].store(0, Relaxed);
                }
                let guard = domain.read_lock();
                let node = guard.section().load(&link);
                for _ in 0..300 {
                    // SAFETY: never unmapped.
                    if unsafe { (*node).check.load(Relaxed) } == POISON {
                        broken.fetch_add(1, Relaxed);
                        break;
                    }
                }
                drop(guard);
            }
        });
        let end = Instant::now() + time;
        let mut version = 0;
        while Instant::now() < end {
            version += 1;
            let old = link.swap(POOL.take(0, version, std::ptr::null_mut()), AcqRel);
            domain.synchronize();
            // SAFETY: unlinked; its head is the first field.
            unsafe { free(old.cast()) };
        }
        stop.store(true, Relaxed);
    });
    broken.load(Relaxed)
}

/// Each fault is looked for until it shows: the limit of the test process ends what takes longer
/// than `CATCH` seconds. On an idle machine it takes about one second, beside other work up to a
/// minute.
#[test]
#[cfg(reprieve_fault)]
fn faults_are_caught() {
    use std::os::unix::process::ExitStatusExt as _;
    const CATCH: &str = "36000";
    const TRIES: u32 = 10;
    let run = |fault: &str, load: &str, force: &str, barrier: &str| {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tortured_fault", "--ignored", "--nocapture"])
            .env("REPRIEVE_FAULT", fault)
            .env("REPRIEVE_TORTURE_LOAD", load)
            .env("REPRIEVE_FORCE", force)
            .env("REPRIEVE_BARRIER", barrier)
            .env("REPRIEVE_TORTURE", if fault == "none" { "1" } else { CATCH })
            .output()
            .unwrap()
    };
    let ways = [
        ("", "", ""),
        ("", "", "visit"),
        ("", "plain", ""),
        ("poll", "", ""),
        ("ltimer", "", ""),
        ("sched", "", ""),
    ];
    for (load, force, barrier) in ways {
        let output = run("none", load, force, barrier);
        assert!(output.status.success(), "without a fault it must pass: {load} {output:?}");
    }
    for (fault, load, force, barrier) in [
        ("skip-membarrier", "", "", "interrupt"),
        ("arm-outside", "", "", "interrupt"),
        ("arm-outside", "", "", "visit"),
        ("scan-first", "", "", ""),
        ("let-go", "", "", ""),
        ("no-look", "list", "", ""),
        ("no-look", "ordered", "", ""),
        ("two-steps", "ordered", "", ""),
        ("two-steps", "prefixes", "", ""),
        ("skip-membarrier", "poll", "", ""),
        ("skip-membarrier", "ltimer", "", ""),
        ("skip-membarrier", "sched", "", ""),
        ("fill-late", "", "plain", ""),
        ("leave-all", "", "", ""),
        ("leave-all", "", "plain", ""),
    ] {
        let start = Instant::now();
        // A process may also fail for want of threads or memory.
        let text = (0..TRIES).find_map(|_| {
            let output = run(fault, load, force, barrier);
            let text = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            assert!(
                !output.status.success(),
                "{fault} {load} {force} {barrier} was not caught in {CATCH} s: {text}"
            );
            let crashed = [Some(libc::SIGSEGV), Some(libc::SIGBUS)];
            if text.contains(SEEN) || crashed.contains(&output.status.signal()) {
                return Some(text);
            }
            println!("{fault} {load} {force} {barrier}: failed otherwise: {text}");
            None
        });
        let text = text.unwrap_or_else(|| {
            panic!("{fault} {load} {force} {barrier} was not seen in {TRIES} runs that failed")
        });
        let line = text.lines().rfind(|l| l.contains("broken")).unwrap_or("crashed");
        println!("{fault} {load} {force} {barrier}: {:?}: {line}", start.elapsed());
    }
}
