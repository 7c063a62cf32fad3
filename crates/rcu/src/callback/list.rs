// SPDX-License-Identifier: MIT OR Apache-2.0
//! One CPU's list of registered callbacks: any thread pushes, one takes everything.
//!
//! Taking everything makes the list immune to reuse of addresses (no node is unlinked while another thread looks at it), so a compare-and-swap
//! on the head is enough. Pushes release, the take acquires: the callback sees what its registration wrote.
//!
//! # The account, and how `barrier` knows that all callbacks have run
//! Each registration is added to one of two accounts, chosen by the domain's phase, *before* it is pushed, and subtracted after it has run.
//! `barrier` changes the phase and waits until the account of the old phase is empty, twice. A registration that
//! happened before `barrier` is in one account or the other, and each is seen empty once after it; a registration that read the
//! phase long ago may land in either account and merely prolong the wait.

use super::{Head, PHASE};
use crate::sync::{AtomicPtr, AtomicU64, Ordering};

/// Callbacks in the low half, units of 16 bytes in the high half.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Load(u64);

impl Load {
    #[cfg(not(loom))]
    pub(crate) const NONE: Load = Load(0);

    pub(crate) fn one(units: u32) -> Load {
        Load((units as u64) << 32 | 1)
    }

    pub(crate) fn callbacks(self) -> u64 {
        self.0 & u32::MAX as u64
    }

    pub(crate) fn bytes(self) -> u64 {
        (self.0 >> 32) * 16
    }

    /// `self` without `other`, which is a part of it, or was a moment ago: then nothing is left.
    #[cfg(not(loom))]
    pub(crate) fn less(self, other: Load) -> Load {
        let callbacks = self.callbacks().saturating_sub(other.callbacks());
        Load((self.0 >> 32).saturating_sub(other.0 >> 32) << 32 | callbacks)
    }

    #[cfg(not(loom))]
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    #[cfg(not(loom))]
    pub(crate) fn from_bits(bits: u64) -> Load {
        Load(bits)
    }

    pub(crate) fn add(self, other: Load) -> Load {
        Load(self.0.wrapping_add(other.0))
    }
}

pub(crate) struct List {
    head: AtomicPtr<Head>,
    accounts: [AtomicU64; 2],
}

impl List {
    pub(crate) fn new() -> List {
        List {
            head: AtomicPtr::new(std::ptr::null_mut()),
            accounts: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    /// Registers `head` under `phase` (its lowest bit). Returns whether the list was empty, and the account after.
    ///
    /// # Safety
    /// `head` is the caller's alone, and stays valid until it is run.
    pub(crate) unsafe fn push(&self, head: *mut Head, phase: u32) -> (bool, Load) {
        // SAFETY: the head is ours until it is published below.
        let units = unsafe {
            (*head).flags = (*head).flags & !PHASE | phase & PHASE;
            (*head).units
        };
        let one = Load::one(units);
        let account =
            Load(self.accounts[(phase & PHASE) as usize].fetch_add(one.0, Ordering::Relaxed))
                .add(one);
        (self.push_chain(head, head), account)
    }

    /// Puts a chain of accounted heads (from `first` to `last`) on the list. Returns whether it was empty.
    pub(crate) fn push_chain(&self, first: *mut Head, last: *mut Head) -> bool {
        let mut old = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the chain is the caller's until it is published.
            unsafe { (*last).next = old };
            match self.head.compare_exchange_weak(old, first, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return old.is_null(),
                Err(now) => old = now,
            }
        }
    }

    /// Takes everything: a chain, or null.
    pub(crate) fn take(&self) -> *mut Head {
        if self.is_empty() {
            return std::ptr::null_mut();
        }
        self.head.swap(std::ptr::null_mut(), Ordering::Acquire)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed).is_null()
    }

    /// Callbacks of that phase have run.
    pub(crate) fn subtract(&self, phase: usize, load: Load) {
        if load != Load::default() {
            // Release: pairs with `account`, so that `barrier` returns after the callbacks' effects.
            self.accounts[phase].fetch_sub(load.0, Ordering::Release);
        }
    }

    pub(crate) fn account(&self, phase: usize) -> Load {
        Load(self.accounts[phase].load(Ordering::Acquire))
    }

    /// In the child of a fork: the accounts are what is really there.
    #[cfg(not(loom))]
    pub(crate) fn set_accounts(&self, loads: [Load; 2]) {
        self.accounts.iter().zip(loads).for_each(|(a, l)| a.store(l.0, Ordering::Relaxed));
    }

    #[cfg(not(loom))]
    pub(crate) fn peek(&self) -> *mut Head {
        self.head.load(Ordering::Relaxed)
    }
}
