// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes under load are killed at random points, and others take their place. In the end no
//! count is wrong, no message lost or received twice, no segment leaked, and nobody waits for what
//! never comes.
//!
//! Workers write down, in memory that they share, what they are about to do and what has been done,
//! so that only what a dead worker was in the middle of is in doubt.

mod common;

use common::{Child, namespace, op, shared, until};
use libc::{IPC_NOWAIT, IPC_PRIVATE, SEM_UNDO};
use reprieve_ipc::{Namespace, SHM_DEST};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

const WORKERS: usize = 4;
/// Messages, at most. After them the load goes on without new ones.
const MESSAGES: usize = 1 << 26;

/// The call that a worker is in the middle of.
const NOTHING: u8 = 0;
const SENDING: u8 = 1;
const RECEIVING: u8 = 2;

/// A message has been sent, and received: bits of its word.
const SENT: u8 = 1;
const RECEIVED: u8 = 2;

/// Memory that parent and children share.
#[repr(C)]
struct Book {
    next_message: AtomicU64,
    now: [AtomicU8; WORKERS],
    rounds: [AtomicU64; WORKERS],
    /// Received twice.
    twice: AtomicU32,
    messages: [AtomicU8; MESSAGES],
}

impl Book {
    fn received(&self, number: u64) {
        if self.messages[number as usize].fetch_or(RECEIVED, SeqCst) & RECEIVED != 0 {
            self.twice.fetch_add(1, SeqCst);
        }
    }
}

/// The objects of the load.
struct Load {
    n: Namespace,
    /// The mutex, and a count that only its holder raises.
    mutex: i32,
    queue: i32,
    book: &'static Book,
}

impl Load {
    /// Whether it has been sent, unless the queue is full; `None` after the last message. A message
    /// carries its number, then padding that the number determines.
    fn send(&self, own: usize) -> Option<bool> {
        let number = self.book.next_message.fetch_add(1, SeqCst);
        if number >= MESSAGES as u64 {
            return None;
        }
        let mut message = number.to_le_bytes().to_vec();
        message.resize(8 + number as usize % 64, number as u8);
        self.book.now[own].store(SENDING, SeqCst);
        let sent = self.n.msgsnd(self.queue, number as i64 % 5 + 1, &message, IPC_NOWAIT);
        if sent.is_ok() {
            self.book.messages[number as usize].fetch_or(SENT, SeqCst);
        }
        self.book.now[own].store(NOTHING, SeqCst);
        Some(sent.is_ok())
    }

    fn receive(&self, own: usize, flags: i32) {
        self.book.now[own].store(RECEIVING, SeqCst);
        let mut to = [0; 128];
        let received = self.n.msgrcv(self.queue, &mut to, 0, flags);
        if let Ok((kind, bytes)) = received {
            let number = u64::from_le_bytes(to[..8].try_into().unwrap());
            assert_eq!((kind, bytes), (number as i64 % 5 + 1, 8 + number as usize % 64));
            assert!(to[8..bytes].iter().all(|&byte| byte == number as u8));
            self.book.received(number);
        }
        self.book.now[own].store(NOTHING, SeqCst);
    }

    fn work(&self, own: usize) {
        let n = &self.n;
        for i in 0u32.. {
            n.semop(self.mutex, &[op(0, -1, SEM_UNDO), op(1, 1, SEM_UNDO)], None).unwrap();
            assert_eq!(n.sem_value(self.mutex, 1), Ok(1));
            n.semop(self.mutex, &[op(1, -1, SEM_UNDO), op(0, 1, SEM_UNDO)], None).unwrap();
            // A worker that has sent one may wait for one: enough are there. A full queue has more.
            match self.send(own) {
                Some(true) => self.receive(own, 0),
                Some(false) => (0..4).for_each(|_| self.receive(own, IPC_NOWAIT)),
                None => {}
            }
            if i % 16 == 0 {
                let set = n.semget(IPC_PRIVATE, 4, 0o600).unwrap();
                n.semop(set, &[op(3, 1, SEM_UNDO)], None).unwrap();
                n.remove_sem(set).unwrap();
            }
            if i % 16 == 8 {
                let id = n.shmget(IPC_PRIVATE, 4096, 0o600).unwrap();
                // SAFETY: nothing is remapped; it is used while it is attached.
                unsafe {
                    let at = n.shmat(id, 0, 0).unwrap();
                    n.remove_shm(id).unwrap();
                    at.write(1);
                    Namespace::shmdt(at as usize).unwrap();
                }
            }
            self.book.rounds[own].fetch_add(1, SeqCst);
        }
    }
}

/// Kills that many; what it says tells how often they struck where.
fn random_kills(kills: usize) {
    let start = Instant::now();
    let (_directory, n) = namespace();
    let mutex = n.semget(IPC_PRIVATE, 2, 0o600).unwrap();
    let queue = n.msgget(IPC_PRIVATE, 0o600).unwrap();
    n.set_sem_values(mutex, &[1, 0]).unwrap();
    let load = Load { n, mutex, queue, book: shared() };
    let book = load.book;
    let begin = |own: usize| Child::run(|| load.work(own));
    // The calls that the dead were in the middle of, by kind.
    let mut struck = [0u32; 3];
    let mut end = |own: usize, worker: Child| {
        assert!(!worker.is_over(), "a worker has failed");
        worker.kill();
        struck[usize::from(book.now[own].swap(NOTHING, SeqCst))] += 1;
    };
    let mut workers: Vec<Option<Child>> = (0..WORKERS).map(|own| Some(begin(own))).collect();
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..kills {
        std::thread::sleep(Duration::from_micros(random.u64(..2048)));
        let own = random.usize(..WORKERS);
        end(own, workers[own].take().unwrap());
        workers[own] = Some(begin(own));
    }
    // Nobody is stuck: all go on.
    for (own, worker) in workers.iter().enumerate() {
        let before = book.rounds[own].load(SeqCst);
        until(|| {
            assert!(!worker.as_ref().unwrap().is_over(), "a worker has failed");
            book.rounds[own].load(SeqCst) > before
        });
    }
    for (own, worker) in workers.into_iter().enumerate() {
        end(own, worker.unwrap());
    }
    assert_eq!(n.sem_values(mutex), Ok(vec![1, 0]));
    let left = drain(&n, queue, book);
    let sent = messages_are_complete(book, struck);
    let sets = sets_are_whole(&n, mutex, kills);
    let segments = segments_are_gone(&n, kills);
    println!(
        "{kills} kills in {:.1?}: {} rounds; {sent} messages, {left} left; \
         {} died sending, {} receiving; {sets} sets and {segments} segments of the dead removed",
        start.elapsed(),
        book.rounds.iter().map(|rounds| rounds.load(SeqCst)).sum::<u64>(),
        struck[usize::from(SENDING)],
        struck[usize::from(RECEIVING)],
    );
}

/// Empties the queue, whose counts must be right.
fn drain(n: &Namespace, queue: i32, book: &Book) -> u64 {
    let (mut messages, mut bytes) = (0, 0);
    let before = n.msg_status(queue).unwrap();
    let mut to = [0; 128];
    while let Ok((_, size)) = n.msgrcv(queue, &mut to, 0, IPC_NOWAIT) {
        (messages, bytes) = (messages + 1, bytes + size as u64);
        book.received(u64::from_le_bytes(to[..8].try_into().unwrap()));
    }
    assert_eq!((before.messages, before.bytes), (messages, bytes));
    assert_eq!(n.msg_status(queue).unwrap().bytes, 0);
    messages
}

/// Each message that was sent has been received, once. Those whose sender or receiver was killed
/// before it could write it down are at most as many as such kills. How many there were.
fn messages_are_complete(book: &Book, struck: [u32; 3]) -> u64 {
    let count = book.next_message.load(SeqCst).min(MESSAGES as u64) as usize;
    let (mut all, mut lost, mut unannounced) = (0, 0, 0);
    for message in &book.messages[..count] {
        let state = message.load(SeqCst);
        all += u64::from(state != 0);
        match state {
            SENT => lost += 1,
            RECEIVED => unannounced += 1,
            _ => {}
        }
    }
    assert!(lost <= struck[usize::from(RECEIVING)], "{lost} messages lost: {struck:?}");
    assert!(unannounced <= struck[usize::from(SENDING)], "{unannounced} unsent: {struck:?}");
    assert_eq!(book.twice.load(SeqCst), 0, "messages received twice");
    all
}

/// Sets that were made and not removed are there, and whole. How many it removed.
fn sets_are_whole(n: &Namespace, mutex: i32, kills: usize) -> usize {
    let info = n.sem_info().unwrap();
    let found = (0..=info.highest).filter_map(|slot| n.sem_slot_status(slot, true).ok());
    let found: Vec<_> = found.collect();
    assert_eq!(found.len() as u64, info.sets);
    assert!(found.len() <= kills + WORKERS + 1);
    assert_eq!(found.iter().map(|(_, set)| set.count).sum::<u64>(), info.semaphores);
    for (id, set) in &found {
        assert_eq!(n.sem_values(*id).unwrap().len() as u64, set.count);
        assert!(n.sem_values(*id).unwrap().iter().all(|&v| v == u16::from(*id == mutex && v == 1)));
        n.remove_sem(*id).unwrap();
    }
    assert_eq!(n.sem_info().unwrap().semaphores, 0);
    found.len() - 1
}

/// Segments that were removed are gone; those whose maker died before are attached by nobody. How
/// many it removed.
fn segments_are_gone(n: &Namespace, kills: usize) -> usize {
    // A process that is new here looks for what the dead have left.
    Child::run(|| assert!(n.shm_info().is_ok())).succeeds();
    let info = n.shm_info().unwrap();
    let found = (0..=info.highest).filter_map(|slot| n.shm_slot_status(slot, true).ok());
    let found: Vec<_> = found.collect();
    assert_eq!(found.len() as u64, info.segments);
    assert!(found.len() <= kills + WORKERS);
    for segment in &found {
        assert_eq!((segment.attached, segment.status.mode & SHM_DEST), (0, 0), "{segment:?}");
        n.remove_shm(segment.status.id).unwrap();
    }
    assert_eq!(n.shm_info().unwrap().pages, 0);
    let files = std::fs::read_dir(n.directory()).unwrap().map(|file| file.unwrap().file_name());
    let files: Vec<_> = files.filter(|name| name.to_str().unwrap().starts_with("shm.")).collect();
    assert!(files.is_empty(), "{files:?}");
    found.len()
}

#[test]
fn under_load() {
    random_kills(150);
}

#[test]
#[ignore = "minutes: make test-lab"]
fn ten_thousand_under_load() {
    random_kills(10_000);
}
