// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layout of the mapped file. A change here is a new [`VERSION`].
//!
//! All fields are atomics, so every value of every byte is a value of the type: another process may
//! write anything at any time, and what is read is checked where it is used.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// Types that may be looked at anywhere in the mapped file.
///
/// # Safety
/// They consist of atomics only, without padding that matters, and have an alignment of at most 64.
pub(crate) unsafe trait Shared {}

// SAFETY: an atomic.
unsafe impl Shared for AtomicU64 {}

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"reprvipc");
pub(crate) const VERSION: u64 = 10;

pub(crate) const MAX_PROCESSES: u32 = 1 << 14;
pub(crate) const MAX_THREADS: u32 = (1 << 14) + SPARE_THREADS;
/// Places for threads that find all others taken, and some of them by the dead.
pub(crate) const SPARE_THREADS: u32 = 64;

/// Slots of ids (the kernel's IPCMNI): the width of a slot's number in an id.
pub(crate) const SLOTS: u64 = 1 << 15;

pub(crate) const PAGE: u64 = 4096;
pub(crate) const PROCESSES: u64 = 1 << 16;
/// With the first threads in the first chunk.
pub(crate) const THREADS: u64 = PROCESSES + (2 << 20);
pub(crate) const HEAP: u64 = 520 << 20;
/// The file is sparse: this is neither memory nor address space.
pub(crate) const SIZE: u64 = HEAP + (4 << 30);
/// The file is mapped in chunks of this size. No value lies in two.
pub(crate) const CHUNK: u64 = 4 << 20;
/// The heap gets memory from the file system in pieces of this size.
pub(crate) const PIECE: u64 = 256 << 10;

/// Size classes of the heap: blocks of 2^6 bytes to a chunk.
pub(crate) const SMALLEST: u32 = 6;
pub(crate) const CLASSES: usize = 17;

/// A lock: 0, or the [`mark`] of the thread that holds it.
#[repr(C)]
pub(crate) struct Lock {
    pub word: AtomicU32,
    /// The sleepers' word: odd while there may be some, another value after each wake-up.
    pub sleepers: AtomicU32,
}

/// The three kinds of objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Kind {
    /// Semaphore sets.
    Sem,
    /// Message queues.
    Msg,
    /// Shared memory segments.
    Shm,
}

/// The ids of one kind.
#[repr(C, align(64))]
pub(crate) struct Ids {
    pub lock: Lock,
    /// The array, grown by copy.
    pub array: AtomicU64,
    /// Objects there are.
    pub used: AtomicU64,
    /// Slots below this one have been used; an index above names nothing.
    pub high: AtomicU64,
    /// The sum of the objects: semaphores, pages.
    pub total: AtomicU64,
    /// Objects that are marked as removed and still linked.
    pub removing: AtomicU64,
}

/// The array of ids: its length, then the entries.
#[repr(C)]
pub(crate) struct Array {
    pub length: AtomicU64,
    pub reserved: AtomicU64,
}

#[repr(C)]
pub(crate) struct Entry {
    /// The object's offset; 0: none.
    pub object: AtomicU64,
    /// Its key, and above it the slot's sequence number.
    pub key_sequence: AtomicU64,
}

#[repr(C, align(64))]
pub(crate) struct Header {
    pub magic: AtomicU64,
    pub version: AtomicU64,
    pub size: AtomicU64,
    /// Threads' places below this one have been used.
    pub threads: AtomicU64,
    pub processes: AtomicU64,
    /// For those who mend what the dead left.
    pub recovery: Lock,
    /// Grace periods that have begun: what a section found before the last one may be gone.
    pub reclaims: AtomicU64,
    pub ids: [Ids; 3],
    pub heap: Heap,
    /// When somebody last looked for dead threads that the kernel has not marked: the second, and
    /// below it the PID namespace, since nobody can ask for the threads of another one.
    pub looked: [AtomicU64; 8],
}

#[repr(C, align(64))]
pub(crate) struct Heap {
    pub lock: Lock,
    /// Memory from here on was never used.
    pub top: AtomicU64,
    /// Up to here the file system has reserved it.
    pub reserved: AtomicU64,
    pub free: [AtomicU64; CLASSES],
    /// Unlinked objects that readers may still see; those that wait for a grace period; its number.
    pub limbo: AtomicU64,
    pub limbo_count: AtomicU64,
    pub waiting: AtomicU64,
    pub ticket: AtomicU64,
}

/// Before each block of the heap.
#[repr(C)]
pub(crate) struct Block {
    /// A mark, whether it is in use, and its class.
    pub state: AtomicU64,
    /// The next one that is free, or in limbo.
    pub next: AtomicU64,
}

/// A process. Named by its place and the generation of that place.
#[repr(C, align(64))]
pub(crate) struct Process {
    /// Generation, below it the number of a child to be born (once it is known), and a state.
    pub generation_state: AtomicU64,
    pub pid: AtomicU64,
    pub namespace: AtomicU64,
    pub start: AtomicU64,
    /// The thread that registered first, plus one: a shortcut to "is alive".
    pub leader: AtomicU64,
    /// Whether its readers rely on membarrier.
    pub unfenced: AtomicU64,
    /// How often it has executed another program.
    pub image: AtomicU64,
    /// The name of the parent of a child to be born.
    pub parent: AtomicU64,
    /// The time namespace in which it read when it started: others see another time.
    pub time: AtomicU64,
    /// Whether it has ever had adjustments of semaphores.
    pub undoes: AtomicU64,
    pub reserved: [AtomicU64; 6],
}

pub(crate) const FREE: u64 = 0;
pub(crate) const LIVE: u64 = 1;
/// Reserved by a parent for a child that it forks. The child has not registered.
pub(crate) const EMBRYO: u64 = 2;

/// The state in a process's first word.
pub(crate) fn state(word: u64) -> u64 {
    word & 3
}

/// The number of a child that has not registered; 0: not known yet.
pub(crate) fn embryo_pid(word: u64) -> u32 {
    (word as u32) >> 2
}

/// Locks that a thread may hold at a time.
pub(crate) const HELD: usize = 4;
/// Words that one transaction may change: an operation on 500 semaphores with SEM_UNDO, and some.
pub(crate) const LOG: usize = 1100;

#[repr(C)]
pub(crate) struct Change {
    pub offset: AtomicU64,
    pub old: AtomicU64,
}

/// A thread. Only itself writes here, but for its queue links and status, which the lock of the
/// object protects that it waits for.
#[repr(C, align(64))]
pub(crate) struct Thread {
    /// A robust mutex of the C library's, locked as long as the thread lives.
    pub life: [AtomicU32; 16],
    /// Odd inside a read-side section.
    pub reader: AtomicU64,
    /// The name of its process; 0: nobody's place.
    pub process: AtomicU64,
    pub tid: AtomicU64,
    /// Whether the kernel marks `life` when the thread dies, but for rare cases.
    pub robust: AtomicU64,
    /// Offsets of the locks that it holds or is about to take.
    pub held: [AtomicU64; HELD],
    pub status: AtomicU32,
    /// How often the place has been taken.
    pub generation: AtomicU32,
    /// The object that it waits for, and the queue it is in.
    pub waits_on: AtomicU64,
    pub queue: AtomicU64,
    pub next: AtomicU64,
    pub previous: AtomicU64,
    pub want: [AtomicU64; 2],
    /// The CPU of who poked it last, plus one.
    pub poker: AtomicU64,
    /// Whether it has poked threads that it has yet to wake.
    pub pokes: AtomicU64,
    pub changes: AtomicU64,
    pub log: [Change; LOG],
}

/// A thread's number (its index plus one) and, above it, the generation of its place: what a lock
/// says of its holder. Without the generation, who is about to take a lock from a dead thread could
/// take it from the living one that has got the place meanwhile.
pub(crate) fn mark(number: u64, thread: &Thread) -> u32 {
    const { assert!(MAX_THREADS <= NUMBER_MASK) };
    let generation = thread.generation.load(std::sync::atomic::Ordering::Acquire);
    number as u32 & NUMBER_MASK | (generation & 0x7fff) << 16
}

/// The thread's number in a mark.
pub(crate) const NUMBER_MASK: u32 = 0xffff;

/// The bytes of a thread's place: whole pages, and a whole number of places in a chunk.
pub(crate) const THREAD: u64 = (size_of::<Thread>() as u64).next_power_of_two();

// SAFETY: atomics only.
unsafe impl Shared for Header {}
// SAFETY: as above.
unsafe impl Shared for Lock {}
// SAFETY: as above.
unsafe impl Shared for Array {}
// SAFETY: as above.
unsafe impl Shared for Entry {}
// SAFETY: as above.
unsafe impl Shared for Block {}
// SAFETY: as above.
unsafe impl Shared for Process {}
// SAFETY: as above.
unsafe impl Shared for Thread {}

const _: () = assert!(size_of::<Header>() as u64 <= PROCESSES);
const _: () = assert!(PROCESSES + MAX_PROCESSES as u64 * size_of::<Process>() as u64 <= THREADS);
const _: () = assert!(THREADS + MAX_THREADS as u64 * THREAD <= HEAP);
const _: () = assert!(THREAD >= PAGE && THREADS % THREAD == 0 && CHUNK % THREAD == 0);
const _: () = assert!(HEAP % CHUNK == 0 && CHUNK == 1 << (SMALLEST as usize + CLASSES - 1));
const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= 64);
