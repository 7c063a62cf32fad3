// SPDX-License-Identifier: MIT OR Apache-2.0
//! The locks that are compared, behind one interface.

use crate::subject::Class;
use reprieve_hint::{RawMutex, RawRwLock, Sleeps, Spins};
use std::cell::UnsafeCell;

/// A lock with sections of two kinds; a mutex makes no difference between them. It is not
/// behind a pointer, so that what it guards can be beside it.
pub trait Lock: Sync + Send + 'static {
    fn new() -> Self;
    fn write<R>(&self, section: impl FnOnce() -> R) -> R;
    fn read<R>(&self, section: impl FnOnce() -> R) -> R {
        self.write(section)
    }
}

/// The locks, and the groups in which they are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Waiters spin.
    Spin,
    /// Waiters sleep, perhaps after some spinning.
    Block,
    /// Many readers or one writer.
    ReadWrite,
}

impl Style {
    pub const ALL: [Style; 3] = [Style::Spin, Style::Block, Style::ReadWrite];

    pub fn name(self) -> &'static str {
        match self {
            Style::Spin => "spin locks",
            Style::Block => "mutexes",
            Style::ReadWrite => "reader-writer locks",
        }
    }
}

/// A lock that takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Spin,
    Mutex,
    RwLock,
    RwSemaphore,
    PthreadSpin,
    Pthread,
    PthreadRw,
    Std,
    StdRw,
    ParkingLot,
    ParkingLotRw,
}

/// Does something with a type that is known at compile time.
pub trait Visit {
    type Output;
    fn visit<L: Lock>(self) -> Self::Output;
}

impl Subject {
    pub const ALL: [Subject; 11] = [
        Subject::Spin,
        Subject::PthreadSpin,
        Subject::Mutex,
        Subject::Pthread,
        Subject::ParkingLot,
        Subject::Std,
        Subject::RwLock,
        Subject::RwSemaphore,
        Subject::PthreadRw,
        Subject::ParkingLotRw,
        Subject::StdRw,
    ];

    /// Its name, its family in `--against` (`None`: Reprieve's), and its style.
    fn facts(self) -> (&'static str, Option<&'static str>, Style) {
        use Style::*;
        match self {
            Subject::Spin => ("spin", None, Spin),
            Subject::PthreadSpin => ("pthread spin", Some("pthread"), Spin),
            Subject::Mutex => ("mutex", None, Block),
            Subject::Pthread => ("pthread", Some("pthread"), Block),
            Subject::ParkingLot => ("parking_lot", Some("parking_lot"), Block),
            Subject::Std => ("std", Some("std"), Block),
            Subject::RwLock => ("rw lock", None, ReadWrite),
            Subject::RwSemaphore => ("rw semaphore", None, ReadWrite),
            Subject::PthreadRw => ("pthread rw", Some("pthread"), ReadWrite),
            Subject::ParkingLotRw => ("parking_lot rw", Some("parking_lot"), ReadWrite),
            Subject::StdRw => ("std rw", Some("std"), ReadWrite),
        }
    }

    pub fn name(self) -> &'static str {
        self.facts().0
    }

    pub fn family(self) -> Option<&'static str> {
        self.facts().1
    }

    pub fn style(self) -> Style {
        self.facts().2
    }

    pub fn class(self) -> Class {
        if self.family().is_none() { Class::Reprieve } else { Class::Peer }
    }

    pub fn visit<V: Visit>(self, visit: V) -> V::Output {
        match self {
            Subject::Spin => visit.visit::<Raw<RawMutex<Spins>>>(),
            Subject::Mutex => visit.visit::<Raw<RawMutex<Sleeps>>>(),
            Subject::RwLock => visit.visit::<RawRw<RawRwLock<Spins>>>(),
            Subject::RwSemaphore => visit.visit::<RawRw<RawRwLock<Sleeps>>>(),
            Subject::ParkingLot => visit.visit::<Raw<parking_lot::RawMutex>>(),
            Subject::ParkingLotRw => visit.visit::<RawRw<parking_lot::RawRwLock>>(),
            Subject::PthreadSpin => visit.visit::<PthreadSpin>(),
            Subject::Pthread => visit.visit::<Pthread>(),
            Subject::PthreadRw => visit.visit::<PthreadRw>(),
            Subject::Std => visit.visit::<std::sync::Mutex<()>>(),
            Subject::StdRw => visit.visit::<std::sync::RwLock<()>>(),
        }
    }
}

/// A mutex of `lock_api`.
pub struct Raw<R>(R);

impl<R: lock_api::RawMutex + Send + Sync + 'static> Lock for Raw<R> {
    fn new() -> Self {
        Raw(R::INIT)
    }

    #[inline(always)]
    fn write<T>(&self, section: impl FnOnce() -> T) -> T {
        self.0.lock();
        let result = section();
        // SAFETY: locked above.
        unsafe { self.0.unlock() };
        result
    }
}

/// A reader-writer lock of `lock_api`.
pub struct RawRw<R>(R);

impl<R: lock_api::RawRwLock + Send + Sync + 'static> Lock for RawRw<R> {
    fn new() -> Self {
        RawRw(R::INIT)
    }

    #[inline(always)]
    fn write<T>(&self, section: impl FnOnce() -> T) -> T {
        self.0.lock_exclusive();
        let result = section();
        // SAFETY: locked above.
        unsafe { self.0.unlock_exclusive() };
        result
    }

    #[inline(always)]
    fn read<T>(&self, section: impl FnOnce() -> T) -> T {
        self.0.lock_shared();
        let result = section();
        // SAFETY: locked above.
        unsafe { self.0.unlock_shared() };
        result
    }
}

impl Lock for std::sync::Mutex<()> {
    fn new() -> Self {
        std::sync::Mutex::new(())
    }

    #[inline(always)]
    fn write<T>(&self, section: impl FnOnce() -> T) -> T {
        let _guard = self.lock();
        section()
    }
}

impl Lock for std::sync::RwLock<()> {
    fn new() -> Self {
        std::sync::RwLock::new(())
    }

    #[inline(always)]
    fn write<T>(&self, section: impl FnOnce() -> T) -> T {
        let _guard = std::sync::RwLock::write(self);
        section()
    }

    #[inline(always)]
    fn read<T>(&self, section: impl FnOnce() -> T) -> T {
        let _guard = std::sync::RwLock::read(self);
        section()
    }
}

/// The C library's mutex, with its defaults. As the other locks of that library here it may move as
/// long as nobody uses it: a section borrows it.
pub struct Pthread(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: that is what a mutex is for.
unsafe impl Send for Pthread {}
// SAFETY: as above.
unsafe impl Sync for Pthread {}

impl Lock for Pthread {
    fn new() -> Self {
        Pthread(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))
    }

    #[inline(always)]
    fn write<T>(&self, section: impl FnOnce() -> T) -> T {
        // SAFETY: an initialized mutex that is borrowed, so it does not move; unlocked by the
        // thread that locked it.
        unsafe { libc::pthread_mutex_lock(self.0.get()) };
        let result = section();
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
        result
    }
}

/// The C library's reader-writer lock, with its defaults.
pub struct PthreadRw(UnsafeCell<libc::pthread_rwlock_t>);

// SAFETY: that is what a lock is for.
unsafe impl Send for PthreadRw {}
// SAFETY: as above.
unsafe impl Sync for PthreadRw {}

impl Lock for PthreadRw {
    fn new() -> Self {
        PthreadRw(UnsafeCell::new(libc::PTHREAD_RWLOCK_INITIALIZER))
    }

    #[inline(always)]
    fn write<T>(&self, section: impl FnOnce() -> T) -> T {
        // SAFETY: an initialized lock that is borrowed, so it does not move; unlocked by the thread
        // that locked it.
        unsafe { libc::pthread_rwlock_wrlock(self.0.get()) };
        let result = section();
        // SAFETY: as above.
        unsafe { libc::pthread_rwlock_unlock(self.0.get()) };
        result
    }

    #[inline(always)]
    fn read<T>(&self, section: impl FnOnce() -> T) -> T {
        // SAFETY: as in `write`.
        unsafe { libc::pthread_rwlock_rdlock(self.0.get()) };
        let result = section();
        // SAFETY: as above.
        unsafe { libc::pthread_rwlock_unlock(self.0.get()) };
        result
    }
}

/// The C library's spin lock.
pub struct PthreadSpin(UnsafeCell<libc::pthread_spinlock_t>);

// SAFETY: that is what a lock is for.
unsafe impl Send for PthreadSpin {}
// SAFETY: as above.
unsafe impl Sync for PthreadSpin {}

impl Lock for PthreadSpin {
    fn new() -> Self {
        // Unlocked is 1 on x86, 0 elsewhere: the library knows.
        let lock = UnsafeCell::new(0);
        // SAFETY: initializes it: an integer, which may move.
        unsafe { libc::pthread_spin_init(lock.get(), libc::PTHREAD_PROCESS_PRIVATE) };
        PthreadSpin(lock)
    }

    #[inline(always)]
    fn write<T>(&self, section: impl FnOnce() -> T) -> T {
        // SAFETY: initialized, and borrowed; unlocked by the thread that locked it.
        unsafe { libc::pthread_spin_lock(self.0.get()) };
        let result = section();
        // SAFETY: as above.
        unsafe { libc::pthread_spin_unlock(self.0.get()) };
        result
    }
}
