// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Cell`]: a value that is read all the time and replaced now and then.
//!
//! # What it guarantees
//! One pointer to an immutable node. A writer publishes a new node with a release operation on the
//! pointer and retires the old one through the domain; a reader's one acquiring load therefore
//! finds a node whose value is complete, and which lives as long as the section (or the slot) in
//! which it was found.
//!
//! Compare-and-swap compares addresses. The caller holds a reference to the node it expects, so
//! that node has not been freed and its address not been used again: equal addresses are the same
//! version of the value (no ABA).

use super::copy::{Words, fits};
use super::handle::{self, Global, Handle};
use super::node;
use super::pointer::Pointer;
use crate::read::guard::ReadSide;
use crate::read::protected::Protected;
use crate::read::restart::Lookup;
use crate::read::restart::section::Section;
use std::marker::PhantomData;
use std::sync::atomic::AtomicPtr;

/// A read-mostly value. Readers never wait, nor write to shared memory; writers replace the value
/// as a whole.
///
/// ```
/// use reprieve::structures::Cell;
///
/// #[derive(Clone)]
/// struct Config { hosts: Vec<String>, retries: u32 }
/// let config = Cell::new(Config { hosts: vec![], retries: 3 });
///
/// // In a plain section: references live as long as the guard.
/// let guard = reprieve::read_lock();
/// assert_eq!(config.load(&guard).retries, 3);
/// drop(guard);
///
/// // Read, copy, update:
/// config.update(|old| { let mut new = old.clone(); new.hosts.push("a".into()); new });
///
/// // Protected: held for any time, across blocking calls.
/// let held = config.protect();
/// config.store(Config { hosts: vec![], retries: 0 });
/// assert_eq!(held.hosts, ["a"]);
///
/// // A copy, by a restartable lookup.
/// let limit = Cell::new(10u64);
/// assert_eq!(limit.get(), 10);
/// ```
///
/// In a domain of its own, `Cell<T, &Domain>` or `Cell<T, Arc<Domain>>`:
///
/// ```
/// # use reprieve::{Domain, structures::Cell};
/// let domain = Domain::builder().build()?;
/// let cell = Cell::new_in(1, &domain);
/// assert_eq!(*cell.load(&domain.read_lock()), 1);
/// # Ok::<(), reprieve::Error>(())
/// ```
///
/// A reference outlives neither its guard nor the cell, nor a quiescent state:
///
/// ```compile_fail,E0505
/// let cell = reprieve::structures::Cell::new(1);
/// let guard = reprieve::read_lock();
/// let value = cell.load(&guard);
/// drop(guard);
/// println!("{value}");
/// ```
/// ```compile_fail,E0505
/// let cell = reprieve::structures::Cell::new(1);
/// let guard = reprieve::read_lock();
/// let value = cell.load(&guard);
/// drop(cell);
/// println!("{value}");
/// ```
/// ```compile_fail,E0505
/// let cell = reprieve::structures::Cell::new(1);
/// let held = cell.protect();
/// drop(cell);
/// println!("{}", *held);
/// ```
/// ```compile_fail,E0502
/// let cell = reprieve::structures::Cell::new(1);
/// let mut thread = reprieve::Domain::global().qsbr();
/// let section = thread.read_lock();
/// let value = cell.load(&section);
/// thread.quiescent_state();
/// println!("{value}");
/// ```
///
/// Values are shared between threads, and may outlive every borrow:
///
/// ```compile_fail,E0277
/// reprieve::structures::Cell::new(std::rc::Rc::new(1));
/// ```
/// ```compile_fail,E0597
/// let local = 1;
/// let cell = reprieve::structures::Cell::new(&local);
/// ```
pub struct Cell<T, D = Global> {
    pointer: Pointer<T>,
    domain: D,
    value: PhantomData<T>,
}

/// The values of a [`Cell::compare_and_swap`] that changed nothing.
#[derive(Debug)]
pub struct Changed<'g, T> {
    /// The value in the cell.
    pub current: &'g T,
    /// The one that was to replace it.
    pub new: T,
}

impl<T: Send + Sync + 'static> Cell<T> {
    /// A cell of the default domain.
    pub fn new(value: T) -> Cell<T> {
        Cell::new_in(value, Global)
    }
}

impl<T: Send + Sync + 'static, D: Handle> Cell<T, D> {
    /// A cell of that domain.
    pub fn new_in(value: T, domain: D) -> Cell<T, D> {
        Cell { pointer: Pointer::new(node::allocate(value)), domain, value: PhantomData }
    }

    /// The value, for as long as the guard lives.
    ///
    /// # Panics
    /// If the guard belongs to another domain.
    #[inline(always)]
    #[track_caller]
    pub fn load<'g, G: ReadSide>(&'g self, guard: &'g G) -> &'g T {
        handle::check(&self.domain, guard);
        // SAFETY: never null, and alive while the section lasts.
        unsafe { &*self.pointer.load() }
    }

    /// A copy of the value, by a restartable lookup. (Beyond 32 bytes: from a protected node.)
    #[inline(always)]
    pub fn get(&self) -> T
    where
        T: Copy,
    {
        // SAFETY: the nodes are retired through this domain; the size was looked at.
        unsafe {
            if const { fits::<T, 1>() } {
                self.domain.lookup(&Copied::<T, 1>(&self.pointer.0)).value()
            } else if const { fits::<T, 4>() } {
                self.domain.lookup(&Copied::<T, 4>(&self.pointer.0)).value()
            } else {
                *self.protect()
            }
        }
    }

    /// The value, protected: for any time, and no grace period waits for it.
    #[inline(always)]
    pub fn protect(&self) -> Protected<'_, T> {
        // SAFETY: the nodes are retired through this domain, with the address found here.
        match unsafe { self.domain.protect(&Find(&self.pointer.0)) } {
            Some(protected) => protected,
            None => unreachable!("a cell is never empty"),
        }
    }

    /// Replaces the value. The old one is dropped when nobody reads it any more.
    pub fn store(&self, value: T) {
        self.retire(self.exchange(value));
    }

    /// Replaces the value, and returns the old one for as long as the guard lives.
    ///
    /// # Panics
    /// If the guard belongs to another domain.
    #[track_caller]
    pub fn swap<'g, G: ReadSide>(&'g self, value: T, guard: &'g G) -> &'g T {
        handle::check(&self.domain, guard);
        let old = self.exchange(value);
        self.retire(old);
        // SAFETY: the section began before the node was retired.
        unsafe { &*old }
    }

    /// Replaces the value if it is still `current`, the very one (not an equal one), and returns a
    /// reference to the new.
    ///
    /// # Errors
    /// [`Changed`]: the value that is there instead, and `new`, unused.
    ///
    /// # Panics
    /// If the guard belongs to another domain.
    #[track_caller]
    pub fn compare_and_swap<'g, G: ReadSide>(
        &'g self,
        current: &T,
        new: T,
        guard: &'g G,
    ) -> Result<&'g T, Changed<'g, T>> {
        handle::check(&self.domain, guard);
        let (old, new) = (std::ptr::from_ref(current).cast_mut(), node::allocate(new));
        match self.pointer.replace(old, new) {
            Ok(old) => {
                self.retire(old);
                // SAFETY: whoever replaces it retires it, and the section began before that.
                Ok(unsafe { &*new })
            }
            Err(other) => {
                // SAFETY: as in `load`; the new node was not published.
                let (current, new) = unsafe { (&*other, node::take(new)) };
                Err(Changed { current, new })
            }
        }
    }

    /// Read, copy, update: replaces the value by `f(&value)`. If another writer came first, the
    /// result is dropped and `f` runs again. `f` runs in a plain section, so it must not wait for a
    /// grace period; the result is dropped outside.
    pub fn update(&self, mut f: impl FnMut(&T) -> T) {
        let old = loop {
            let guard = self.domain.read();
            let current = self.pointer.load();
            // SAFETY: as in `load`.
            let new = node::allocate(f(unsafe { &*current }));
            let replaced = self.pointer.replace(current, new);
            // A destructor may wait for a grace period, and outside the section this thread may
            // help if too much waits.
            drop(guard);
            match replaced {
                Ok(old) => break old,
                // SAFETY: it was not published.
                Err(_) => unsafe { node::free(new) },
            }
        };
        self.retire(old);
    }

    fn exchange(&self, value: T) -> *mut T {
        self.pointer.swap(node::allocate(value))
    }

    fn retire(&self, node: *mut T) {
        // SAFETY: just unlinked, by us alone.
        unsafe { node::retire(self.domain.domain(), node) };
    }
}

impl<T, D> Drop for Cell<T, D> {
    fn drop(&mut self) {
        // SAFETY: whatever refers to the value borrows the cell.
        unsafe { node::free(self.pointer.load()) };
    }
}

impl<T: Send + Sync + 'static + std::fmt::Debug, D: Handle> std::fmt::Debug for Cell<T, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cell").field(self.load(&self.domain.read())).finish()
    }
}

struct Find<'a, T>(&'a AtomicPtr<T>);

// SAFETY: one load through the section.
unsafe impl<T> Lookup for Find<'_, T> {
    type Output = *const T;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> *const T {
        section.load(self.0) as *const T
    }
}

struct Copied<'a, T, const N: usize>(&'a AtomicPtr<T>);

// SAFETY: one load through the section, and a copy in line of a value that nobody writes to.
unsafe impl<T: Copy, const N: usize> Lookup for Copied<'_, T, N> {
    type Output = Words<N>;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> Words<N> {
        // SAFETY: alive in this section; the cell asks for sizes that fit.
        unsafe { Words::copy(section.load(self.0)) }
    }
}
