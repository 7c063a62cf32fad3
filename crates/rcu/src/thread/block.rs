// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread's block: pointers to its records, one per domain it has read in, and the state of its
//! restartable sections.
//!
//! The block is `repr(C)` thread-local storage of the initial-exec model where we can choose
//! it (x86-64: defined in assembly). So its address takes one addition, in shared objects too;
//! nothing is allocated at the first access, which a signal handler may make; and C can inline the
//! same fast path.
//!
//! # Slow path and fences
//! The fast path is taken if and only if the record's pointer is in [`Thread::fast`] (or `spill`;
//! for C: in [`Thread::shared`]). A thread that has not registered yet has null there, and so have
//! all threads where membarrier is missing: those take the slow path each time and execute a fence.
//! That choice costs the fast path nothing.
//!
//! # Registration and exit
//! A thread registers itself the first time it enters a section of a domain, with all signals
//! blocked, without allocating from the heap or taking a lock (except where the library was loaded
//! late: see `exit::allocates`). A thread-specific key's destructor gives its records back: after
//! the destructors of `thread_local!` and C++ objects, in the first round in which no section or
//! protection of the thread is open. A destructor that enters a section when the records have been
//! given back registers anew, until the next round. (After the last one, C's record is lost until
//! `forget_dead_threads` finds the owner dead, or a grace period that waits for its section.)
//!
//! # What is open in the last round
//! A Rust guard may be leaked, and references from it may be in other threads and have no end
//! (`'static`). So:
//!
//! > **Invariant.** Sections and protections of a thread that has used a domain from Rust do not
//! > end with the thread: its record in the domain is left behind, with what is open, and is nobody
//! > else's ([`Record::leave_behind`]). (Except by a bare `exit` system call, which safe Rust does
//! > not make.)
//!
//! Grace periods wait for such a section for ever, and report it. What is open in the record of a
//! thread that has used the domain from C alone ends here: C knows no such references, and
//! liburcu's programs leave sections open.
//!
//! How the two are told apart without cost to readers: Rust and C have pointers of their own for
//! the fast path. Rust's is null until the thread takes Rust's slow path, which notes the use in
//! the record. The price is that nobody knows who opened which section in a thread that has done
//! both in one domain: there C's sections do not end with the thread either.

use super::id::MAX_DOMAINS;
use super::record::Record;
use super::registry::{REGISTRIES, Registry};
use crate::platform::exit::{AtExit, run_at_thread_exit};
use crate::platform::fork::{self, Handlers, Part};
use crate::platform::{annotate, facts, start, sys};

use std::sync::atomic::{Ordering, fence};

/// Domains whose records are found without a second load.
const NEAR: usize = 4;

/// The block of a thread, zero at first. The layout is shared with assembly and C.
///
/// Two cache lines. A shared object of the initial-exec model needs static TLS, and glibc keeps
/// little of it for objects that are opened late.
#[repr(C, align(64))]
pub(crate) struct Thread {
    /// The state of restartable sections:
    /// - [`IDLE`]: a lookup in the default domain may begin at once;
    /// - the stack pointer of an attempt that has been entered, to which its abort returns: a
    ///   signal handler that finds it has interrupted the attempt, and leaves it and `saved` as
    ///   they were;
    /// - 0: take the slow path, which finds out.
    pub(crate) stack: usize,
    /// Address of the thread's `rseq_cs` field, once `stack` has not been 0.
    cs: usize,
    /// Registers that the attempt's abort restores: rbx, rbp, r13, r14.
    pub(crate) saved: [usize; 4],
    /// The record in the default domain, for C's fast path and for those who look from outside.
    /// Null: call the library.
    pub(crate) shared: *const Record,
    /// The record whose quiescent states C announces in line (`abi.rs`). Null: call the library.
    pub(crate) online: *const Record,
    /// Records of the first domains, for Rust's fast path. Null: take the slow path, which notes
    /// the use.
    fast: [*const Record; NEAR],
    /// All records of this thread by domain index; then the same as `fast` for all domains.
    table: *mut *const Record,
    /// Address of the queue (or buffer) whose callbacks this thread is running, or 0.
    pub(crate) running: usize,
    /// Address of the domain's state whose thread of the runtime this is, or 0.
    works_for: usize,
    /// The note of a thread of the runtime that is [`Bound`], else 0; or [`EXITING`].
    bound: u64,
}

/// The records have been given back for the last time: the thread exits. No note has this bit.
const EXITING: u64 = 1 << 63;

/// A thread of the runtime that is bound to a CPU.
#[derive(Clone, Copy)]
pub(crate) struct Bound {
    /// Its id; not 0.
    pub(crate) thread: u32,
    pub(crate) cpu: usize,
}

impl Bound {
    /// As one word, not 0 and below 2^63.
    pub(crate) fn note(self) -> u64 {
        (self.cpu as u64) << 32 | u64::from(self.thread)
    }

    pub(crate) fn noted(note: u64) -> Option<Bound> {
        (note != 0).then_some(Bound { thread: note as u32, cpu: (note >> 32) as usize })
    }
}

impl Thread {
    /// Where `cs` is, for C.
    #[allow(dead_code)] // Rust 1.85 does not see its use in an assertion
    pub(crate) const CS: usize = std::mem::offset_of!(Thread, cs);
}

const TABLE_BYTES: usize = 2 * MAX_DOMAINS * size_of::<*const Record>();

/// This thread's block. Only this thread may use it.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[inline(always)]
pub(crate) fn this() -> *mut Thread {
    let thread: *mut Thread;
    // SAFETY: reads the thread pointer and a constant that the linker put into the GOT (or into the
    // instruction).
    unsafe {
        std::arch::asm!(
            "mov {0}, qword ptr [rip + reprieve_thread@GOTTPOFF]",
            "add {0}, qword ptr fs:[0]",
            out(reg) thread,
            options(pure, nomem, nostack)
        );
    }
    thread
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
std::arch::global_asm!(
    ".pushsection .tbss.reprieve_thread,\"awT\",@nobits",
    ".balign 64",
    // Visible to C code in other images, which inlines the fast path, and never replaced by another
    // image's.
    ".globl reprieve_thread",
    ".protected reprieve_thread",
    ".type reprieve_thread,@object",
    ".size reprieve_thread,{size}",
    "reprieve_thread: .zero {size}",
    ".popsection",
    size = const size_of::<Thread>(),
);

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
#[inline(always)]
pub(crate) fn this() -> *mut Thread {
    use std::cell::UnsafeCell;
    thread_local! {
        static THREAD: UnsafeCell<Thread> = const {
            UnsafeCell::new(Thread {
                stack: 0,
                cs: 0,
                saved: [0; 4],
                shared: std::ptr::null(),
                online: std::ptr::null(),
                fast: [std::ptr::null(); NEAR],
                table: std::ptr::null_mut(),
                running: 0,
                works_for: 0,
                bound: 0,
            })
        };
    }
    THREAD.with(|t| t.get())
}

/// [`Thread::stack`] of a thread whose lookups in the default domain may begin at once. No stack
/// pointer: those are multiples of 16.
pub(crate) const IDLE: usize = 8;

/// The block and its `cs` if a lookup in the default domain may begin at once.
#[inline(always)]
pub(crate) fn ready() -> Option<(*mut Thread, usize)> {
    let thread = this();
    // SAFETY: the block is this thread's own. Volatile: signal handlers and assembly write it.
    unsafe {
        ((&raw const (*thread).stack).read_volatile() == IDLE).then(|| (thread, (*thread).cs))
    }
}

/// Ends an attempt that was not aborted: disarms (as the kernel would at the next preemption, when
/// it finds the thread outside), and gives `saved` up.
///
/// # Safety
/// The block is this thread's, in an attempt.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[inline(always)]
pub(crate) unsafe fn leave(thread: *mut Thread) {
    // SAFETY: the caller's promise. `cs` is loaded again so that the attempt need not keep it in a
    // register.
    unsafe {
        let cs = (&raw const (*thread).cs).read_volatile() as *mut usize;
        cs.write_volatile(0);
        (&raw mut (*thread).stack).write_volatile(IDLE);
    }
}

/// Whether the caller is a signal handler that interrupted an attempt.
pub(crate) fn entered() -> bool {
    // SAFETY: as in `ready`.
    unsafe { !matches!((&raw const (*this()).stack).read_volatile(), 0 | IDLE) }
}

/// The saved state of an interrupted attempt, if there is one: for a signal handler that makes
/// attempts of its own.
pub(crate) struct Interrupted(Option<(usize, [usize; 4])>);

impl Interrupted {
    pub(crate) fn save() -> Interrupted {
        // SAFETY: the block is this thread's own.
        Interrupted(entered().then(|| unsafe {
            let thread = this();
            ((*thread).stack, (*thread).saved)
        }))
    }

    /// Puts it back. If there was none, the next lookup may begin at once.
    pub(crate) fn restore(self) {
        // SAFETY: the block is this thread's own. The stack pointer first: a handler that comes in
        // between finds an attempt, leaves it as it was, and the attempt goes on only after all
        // handlers. The other way round its own fast path would find no attempt and take `saved`.
        unsafe {
            let thread = this();
            let Some((stack, saved)) = self.0 else {
                (&raw mut (*thread).stack).write_volatile(IDLE);
                return;
            };
            (&raw mut (*thread).stack).write_volatile(stack);
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
            (&raw mut (*thread).saved).write_volatile(saved);
        }
    }
}

/// Notes the address of this thread's `rseq_cs` field.
pub(crate) fn set_cs(cs: usize) {
    // SAFETY: the block is this thread's own.
    unsafe { (*this()).cs = cs };
}

/// The record of this thread in domain `index`, for guards, if the fast path may use it.
#[inline(always)]
pub(crate) fn fast(index: usize) -> Option<&'static Record> {
    // SAFETY: the block is this thread's own; a pointer in it is null or leads to a record, and
    // records are never freed. `table` is null or leads to a table of two times MAX_DOMAINS
    // pointers, whose second half is null where readers execute fences, and `index` is that of a
    // domain.
    unsafe {
        let thread = this();
        if index < NEAR {
            (*thread).fast[index].as_ref()
        } else {
            let table = (*thread).table;
            if table.is_null() { None } else { (*table.add(MAX_DOMAINS + index)).as_ref() }
        }
    }
}

/// The record of this thread in domain `index`, not for guards, if no fence is needed.
#[inline(always)]
pub(crate) fn fast_unguarded(index: usize) -> Option<&'static Record> {
    if index == 0 {
        // SAFETY: as in `fast`.
        return unsafe { (*this()).shared.as_ref() };
    }
    if facts::fenced() { None } else { existing(index) }
}

/// The record of this thread in domain `index`, for guards, registering it if need be.
#[cold]
#[inline(never)]
pub(crate) fn slow(index: usize) -> &'static Record {
    let record = unguarded(index);
    record.note_guards();
    if exiting() {
        // No round of destructors is sure to come that would find a guard leaked.
        record.leave_behind(sys::thread_id(), false);
    }
    if !facts::fenced() {
        // SAFETY: the block is this thread's own, and has a table since it is registered.
        unsafe {
            let thread = this();
            *(*thread).table.add(MAX_DOMAINS + index) = record;
            if index < NEAR {
                (*thread).fast[index] = record;
            }
        }
    }
    record
}

/// The record of this thread in domain `index`, registering it if need be. For C, and for all but
/// guards: what is open in it ends with the thread.
pub(crate) fn unguarded(index: usize) -> &'static Record {
    existing(index).unwrap_or_else(|| register(index))
}

/// The record of this thread in domain `index`, for guards.
#[inline(always)]
pub(crate) fn record(index: usize) -> &'static Record {
    match fast(index) {
        Some(record) => record,
        None => slow(index),
    }
}

/// The record of this thread in domain `index` if it has one.
pub(crate) fn existing(index: usize) -> Option<&'static Record> {
    // SAFETY: as in `fast`; `table` is null or such a table.
    unsafe {
        let table = (*this()).table;
        if table.is_null() { None } else { (*table.add(index)).as_ref() }
    }
}

/// See `abi`.
pub(crate) fn reader_offset() -> isize {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        let pointer: usize;
        // SAFETY: reads the thread pointer.
        unsafe {
            std::arch::asm!("mov {0}, qword ptr fs:[0]", out(reg) pointer,
                options(pure, readonly, nostack, preserves_flags));
        }
        (this().addr() + std::mem::offset_of!(Thread, shared)).wrapping_sub(pointer) as isize
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    0
}

fn register(index: usize) -> &'static Record {
    start::ensure();
    let handlers = const { &Handlers { prepare: before_fork, parent: || (), child: after_fork } };
    fork::enter(Part::Threads, handlers);
    let _blocked = sys::SignalsBlocked::new();
    if let Some(record) = existing(index) {
        // A signal handler came first.
        return record;
    }
    let thread = this();
    // SAFETY: the block is this thread's own, and no handler interrupts us. A fresh table is
    // zeroed: all null.
    unsafe {
        if (*thread).table.is_null() {
            (*thread).table = sys::map_pages(TABLE_BYTES).cast();
            if (*thread).table.is_null() {
                sys::die("no memory to register a thread");
            }
        }
        let Some(record) = REGISTRIES[index].claim(sys::thread_id()) else {
            sys::die("no memory to register a thread");
        };
        annotate::acquire(annotate::clock());
        record.stamp();
        *(*thread).table.add(index) = record;
        if index == 0 && !facts::fenced() {
            (*thread).shared = record;
        }
        run_at_thread_exit(const { &(unregister as AtExit) });
        record
    }
}

/// Gives all records of this thread back: it exits. Not yet if one is in use, unless this is the
/// `last` round of destructors; then it stays behind if guards may have used it.
fn unregister(last: bool) {
    let _blocked = sys::SignalsBlocked::new();
    let thread = this();
    // SAFETY: as in `register`. The table was mapped with this size.
    unsafe {
        if last {
            (*thread).bound = EXITING;
        }
        let table = (*thread).table;
        if table.is_null() {
            return;
        }
        let records = || (0..MAX_DOMAINS).filter_map(|index| (*table.add(index)).as_ref());
        if !last && records().any(Record::in_use) {
            // A thread that registers in a destructor may have no last round. Guards and
            // protections dropped until the next round are released there after all.
            let left = records().filter(|record| record.outlives_owner());
            left.for_each(|record| record.leave_behind(sys::thread_id(), false));
            return;
        }
        (*thread).stack = 0;
        (*thread).shared = std::ptr::null();
        (*thread).fast = [std::ptr::null(); NEAR];
        (*thread).online = std::ptr::null();
        (*thread).table = std::ptr::null_mut();
        // The thread may exit out of a callback.
        (*thread).running = 0;
        records().for_each(|record| {
            if record.outlives_owner() {
                record.buffer.abandon();
                record.leave_behind(sys::thread_id(), true);
            } else {
                record.release();
            }
        });
        libc::munmap(table.cast(), TABLE_BYTES);
    }
}

/// Whether this thread has given its records back for the last time.
pub(crate) fn exiting() -> bool {
    // SAFETY: the block is this thread's own.
    unsafe { (*this()).bound == EXITING }
}

/// This thread is one of the runtime's: notes whether it is bound to one of several CPUs.
pub(crate) fn note_bound() {
    let bound = sys::only_cpu().map(|cpu| Bound { thread: sys::thread_id(), cpu });
    // SAFETY: the block is this thread's own.
    unsafe { (*this()).bound = bound.map_or(0, Bound::note) };
}

/// Whether this thread is one of the runtime's that is bound to a CPU.
pub(crate) fn bound() -> Option<Bound> {
    // SAFETY: the block is this thread's own.
    Bound::noted(unsafe { (*this()).bound } & !EXITING)
}

/// Starts a thread of the runtime's, for which others wait: it has neither the priority of its
/// creator nor the one CPU of a worker that starts it. `None` if the system refuses one.
pub(crate) fn start(
    name: std::fmt::Arguments<'_>,
    f: impl FnOnce() + Send + 'static,
) -> Option<sys::Thread> {
    let by_bound = bound().is_some();
    sys::Thread::start(name, sys::Stack::Program, move || {
        sys::schedule_like_main();
        if by_bound {
            sys::unbind(sys::thread_id());
        }
        note_bound();
        f();
    })
}

/// This thread of the runtime works for the domain whose state has that address, or for none any
/// more.
pub(crate) fn set_works_for(state: usize) {
    // SAFETY: the block is this thread's own.
    unsafe { (*this()).works_for = state };
}

/// See [`set_works_for`].
pub(crate) fn works_for() -> usize {
    // SAFETY: the block is this thread's own.
    unsafe { (*this()).works_for }
}

/// The queue or buffer whose callbacks this thread is running: see [`Thread::running`].
pub(crate) fn running() -> usize {
    // SAFETY: the block is this thread's own.
    unsafe { (*this()).running }
}

/// Whether this thread is running a callback.
pub(crate) fn in_callback() -> bool {
    running() != 0
}

/// Before a fork: finds the threads that had no last round and have ended. No more than a system
/// call that is no cancellation point: an allocator's locks may be held.
fn before_fork() {
    for record in REGISTRIES.iter().flat_map(Registry::records) {
        record.settle(|thread| !sys::exists_here(thread));
    }
}

/// In the child of a fork: all threads but this one are gone, and this one has another id. What
/// ended threads left behind stays: this thread may have references from there.
fn after_fork() {
    if let Some(bound) = bound() {
        let own = Bound { thread: sys::thread_id(), ..bound };
        // SAFETY: the block is this thread's own.
        unsafe { (*this()).bound = own.note() };
    }
    for (index, registry) in REGISTRIES.iter().enumerate() {
        let own = existing(index);
        for record in registry.records() {
            if own.is_some_and(|own| std::ptr::eq(own, record)) {
                record.rename(sys::thread_id());
            } else if record.owner() != 0 && !record.stays_in_child() {
                record.release();
            }
        }
    }
}

/// Enters a plain section of domain `index`, for a guard: everything loaded from here on is
/// protected until the record's `leave`.
#[inline(always)]
pub(crate) fn enter(index: usize) -> &'static Record {
    match fast(index) {
        Some(record) => {
            record.enter();
            crate::platform::barrier::light();
            record
        }
        None => enter_slow(index),
    }
}

#[cold]
#[inline(never)]
fn enter_slow(index: usize) -> &'static Record {
    let record = slow(index);
    record.enter();
    // Where membarrier is missing this pairs with `heavy`'s; for a first section it is merely a
    // light barrier.
    fence(Ordering::SeqCst);
    record
}
