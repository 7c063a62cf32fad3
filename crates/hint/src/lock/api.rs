// SPDX-License-Identifier: MIT OR Apache-2.0
//! The locks as users meet them: `lock_api`'s types over the raw locks.

use super::{Sleeps, Spins, mutex::RawMutex, rw::RawRwLock};

/// A mutex. Whoever comes may take a free lock; nobody is overtaken for long.
pub type Mutex<T> = lock_api::Mutex<RawMutex<Sleeps>, T>;
/// See [`Mutex`].
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex<Sleeps>, T>;

/// A spin lock for short sections: the mutex, with sections marked as non-preemptable.
pub type SpinLock<T> = lock_api::Mutex<RawMutex<Spins>, T>;
/// See [`SpinLock`].
pub type SpinLockGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex<Spins>, T>;

/// A reader-writer lock for short sections, marked as non-preemptable. Writers go first.
pub type RwLock<T> = lock_api::RwLock<RawRwLock<Spins>, T>;
/// See [`RwLock`].
pub type RwLockReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, RawRwLock<Spins>, T>;
/// See [`RwLock`].
pub type RwLockWriteGuard<'a, T> = lock_api::RwLockWriteGuard<'a, RawRwLock<Spins>, T>;

/// A reader-writer semaphore: the same for sections that may sleep, marked as preemptable.
pub type RwSemaphore<T> = lock_api::RwLock<RawRwLock<Sleeps>, T>;
/// See [`RwSemaphore`].
pub type RwSemaphoreReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, RawRwLock<Sleeps>, T>;
/// See [`RwSemaphore`].
pub type RwSemaphoreWriteGuard<'a, T> = lock_api::RwLockWriteGuard<'a, RawRwLock<Sleeps>, T>;
