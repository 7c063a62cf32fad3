// SPDX-License-Identifier: MIT OR Apache-2.0
//! A list of registered callbacks: any thread pushes a chain, one takes everything.
//!
//! Taking everything makes the list immune to reuse of addresses (no node is unlinked while another
//! thread looks at it), so a compare-and-swap on the head is enough. Pushes release, the take
//! acquires: the callback sees what its registration wrote.

use crate::platform::sync::{AtomicPtr, Ordering};
use crate::thread::head::Head;
use std::ptr::null_mut;
use std::sync::atomic::compiler_fence;

pub(crate) struct List(AtomicPtr<Head>);

impl List {
    pub(crate) fn new() -> List {
        List(AtomicPtr::new(null_mut()))
    }

    /// Puts a chain (from `first` to `last`) on the list. Returns whether the list was empty.
    ///
    /// # Safety
    /// The chain is the caller's alone, and its heads stay valid until they are run.
    pub(crate) unsafe fn push(&self, first: *mut Head, last: *mut Head) -> bool {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            // SAFETY: the chain is the caller's until it is published.
            unsafe { (*last).next = old };
            match self.0.compare_exchange_weak(old, first, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return old.is_null(),
                Err(now) => old = now,
            }
        }
    }

    /// Takes everything: a chain, or null.
    pub(crate) fn take(&self) -> *mut Head {
        if self.is_empty() {
            return null_mut();
        }
        self.0.swap(null_mut(), Ordering::Acquire)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed).is_null()
    }
}

/// Has the processor fetch what will be read soon: after a grace period a head is in no cache.
#[inline(always)]
pub(crate) fn fetch<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: a hint, for whatever address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = at;
}

/// A chain with both ends known. Empty: two null pointers.
#[derive(Clone, Copy)]
pub(crate) struct Chain {
    pub(crate) first: *mut Head,
    pub(crate) last: *mut Head,
}

impl Chain {
    pub(crate) const EMPTY: Chain = Chain { first: null_mut(), last: null_mut() };

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Adds a head at the front.
    ///
    /// # Safety
    /// The head and the chain are the caller's alone.
    #[inline(always)]
    pub(crate) unsafe fn push(&mut self, head: *mut Head) {
        // SAFETY: the caller's promise.
        unsafe { (*head).next = self.first };
        if self.first.is_null() {
            self.last = head;
        }
        // A sweeper that finds the chain in the middle of this follows `first` to heads that are
        // linked: see `buffer.rs`.
        compiler_fence(Ordering::Release);
        self.first = head;
    }

    /// Removes the head at the front, or returns null. The next one is fetched.
    ///
    /// # Safety
    /// The chain is the caller's alone.
    #[inline(always)]
    pub(crate) unsafe fn pop(&mut self) -> *mut Head {
        let head = self.first;
        if !head.is_null() {
            // SAFETY: the caller's promise.
            self.first = unsafe { (*head).next };
            fetch(self.first);
        }
        head
    }

    /// The chain that `List::take` returned.
    ///
    /// # Safety
    /// The chain is the caller's alone.
    pub(crate) unsafe fn of(first: *mut Head) -> Chain {
        let mut last = first;
        // SAFETY: the caller's promise.
        unsafe {
            while let Some(head) = last.as_ref().filter(|h| !h.next.is_null()) {
                last = head.next;
            }
        }
        Chain { first, last }
    }
}
