// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ordered map and the prefix table, for C: of pointers, which belong to the structure.

use reprieve_core::abi;
use reprieve_core::structures::ordered::{Held, OrderedMap};
use reprieve_core::structures::prefix::{Prefix, PrefixTable};
use std::ffi::{c_int, c_uint, c_void};
use std::ops::Bound::Included;
use std::slice;

type Free = Option<unsafe extern "C" fn(*mut c_void)>;

/// A pointer of the program's, and how it is freed.
struct Value {
    pointer: *mut c_void,
    free: Free,
}

// SAFETY: C passes pointers from thread to thread, as `ordered.h` says.
unsafe impl Send for Value {}
// SAFETY: as above.
unsafe impl Sync for Value {}

impl Drop for Value {
    fn drop(&mut self) {
        if let Some(free) = self.free {
            // SAFETY: the program's function for this, called once.
            unsafe { free(self.pointer) };
        }
    }
}

/// `struct reprieve_protected`.
#[repr(C)]
pub struct Protected {
    node: *const c_void,
    slot: *const c_void,
}

impl Protected {
    fn new<K>(held: Held<'_, K, Value>) -> Protected {
        let (node, slot) = abi::keep(held);
        Protected { node: node.cast(), slot: slot.cast() }
    }
}

/// `struct reprieve_entry`.
#[repr(C)]
pub struct Entry {
    held: Protected,
    key: u64,
    value: *mut c_void,
}

/// `struct reprieve_ordered`.
pub struct Ordered {
    map: OrderedMap<u64, Value>,
    free: Free,
}

/// What other threads did with the structure before comes before what this one does next.
fn found<'a, K, S>(structure: &S, held: Option<Held<'a, K, Value>>) -> Option<Held<'a, K, Value>> {
    abi::acquire_lock(structure);
    held
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_ordered_new(free: Free) -> *mut Ordered {
    Box::into_raw(Box::new(Ordered { map: OrderedMap::new(), free }))
}

/// # Safety
/// `map` is null, or from `reprieve_ordered_new`, and used by nobody any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_ordered_free(map: *mut Ordered) {
    if !map.is_null() {
        abi::acquire_lock(map);
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(map) });
    }
}

impl Ordered {
    fn value(&self, pointer: *mut c_void) -> Value {
        abi::release_lock(self);
        Value { pointer, free: self.free }
    }
}

/// # Safety
/// `map` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_ordered_set(map: *const Ordered, key: u64, value: *mut c_void) {
    // SAFETY: the caller's promise.
    let map = unsafe { &*map };
    map.map.insert(key, map.value(value));
}

/// 1, or 0 if the key is there: then the value stays the caller's.
///
/// # Safety
/// `map` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_ordered_add(
    map: *const Ordered,
    key: u64,
    value: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let map = unsafe { &*map };
    match map.map.insert_new(key, map.value(value)) {
        Ok(()) => 1,
        Err((_, value)) => {
            std::mem::forget(value);
            0
        }
    }
}

/// # Safety
/// `map` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_ordered_remove(map: *const Ordered, key: u64) -> c_int {
    // SAFETY: the caller's promise.
    let map = unsafe { &*map };
    found(map, map.map.remove(&key)).is_some().into()
}

/// # Safety
/// `map` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_ordered_count(map: *const Ordered) -> usize {
    // SAFETY: the caller's promise.
    unsafe { (*map).map.len() }
}

/// # Safety
/// `map` is alive, `entry` valid for a write.
unsafe fn find<'m>(
    map: *const Ordered,
    entry: *mut Entry,
    find: impl FnOnce(&'m OrderedMap<u64, Value>) -> Option<Held<'m, u64, Value>>,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let map = &*map;
        let Some(held) = found(map, find(&map.map)) else {
            return 0;
        };
        let (key, value) = (*held.key(), held.pointer);
        entry.write(Entry { held: Protected::new(held), key, value });
    }
    1
}

/// # Safety
/// As for `find`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_ordered_get(
    map: *const Ordered,
    key: u64,
    entry: *mut Entry,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { find(map, entry, |map| map.protect(&key)) }
}

/// # Safety
/// As for `find`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_ordered_at_least(
    map: *const Ordered,
    key: u64,
    entry: *mut Entry,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { find(map, entry, |map| map.lower_bound(Included(&key))) }
}

/// # Safety
/// As for `find`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_ordered_at_most(
    map: *const Ordered,
    key: u64,
    entry: *mut Entry,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { find(map, entry, |map| map.upper_bound(Included(&key))) }
}

/// # Safety
/// `map` is alive; `visit` may be called with its keys, values and `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_ordered_scan(
    map: *const Ordered,
    first: u64,
    last: u64,
    visit: unsafe extern "C" fn(u64, *mut c_void, *mut c_void) -> c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let map = unsafe { &*map };
    for held in map.map.range(first..=last) {
        abi::acquire_lock(map);
        // SAFETY: the caller's promise.
        let result = unsafe { visit(*held.key(), held.pointer, argument) };
        abi::release();
        if result != 0 {
            return result;
        }
    }
    0
}

/// `struct reprieve_route`.
#[repr(C)]
pub struct Route {
    held: Protected,
    address: [u8; 16],
    length: c_uint,
    value: *mut c_void,
}

/// `struct reprieve_prefixes`. Addresses of 32 bits are the first bits of one of 128.
pub struct Prefixes {
    table: PrefixTable<u128, Value>,
    bits: c_uint,
    free: Free,
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_prefixes_new(bits: c_uint, free: Free) -> *mut Prefixes {
    if bits != 32 && bits != 128 {
        return std::ptr::null_mut();
    }
    Box::into_raw(Box::new(Prefixes { table: PrefixTable::new(), bits, free }))
}

/// # Safety
/// `table` is null, or from `reprieve_prefixes_new`, and used by nobody any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_prefixes_free(table: *mut Prefixes) {
    if !table.is_null() {
        abi::acquire_lock(table);
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(table) });
    }
}

impl Prefixes {
    /// # Safety
    /// The address has as many bits as those of the table.
    unsafe fn address(&self, address: *const u8) -> u128 {
        let mut bytes = [0; 16];
        let length = self.bits as usize / 8;
        // SAFETY: the caller's promise.
        bytes[..length].copy_from_slice(unsafe { slice::from_raw_parts(address, length) });
        u128::from_be_bytes(bytes)
    }

    /// # Safety
    /// As for `address`.
    unsafe fn prefix(&self, address: *const u8, length: c_uint) -> Option<Prefix<u128>> {
        // SAFETY: the caller's promise.
        let address = unsafe { self.address(address) };
        if length <= self.bits { Prefix::new(address, length as u8) } else { None }
    }
}

fn route(held: Held<'_, Prefix<u128>, Value>) -> Route {
    let (address, length) = (held.key().address().to_be_bytes(), held.key().length().into());
    let value = held.pointer;
    Route { held: Protected::new(held), address, length, value }
}

/// 0, or `EINVAL` if the prefix is longer than an address.
///
/// # Safety
/// `table` is alive, and the address one of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_prefixes_set(
    table: *const Prefixes,
    address: *const u8,
    length: c_uint,
    value: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let (table, prefix) = unsafe { (&*table, (*table).prefix(address, length)) };
    let Some(prefix) = prefix else {
        return libc::EINVAL;
    };
    abi::release_lock(table);
    table.table.insert(prefix, Value { pointer: value, free: table.free });
    0
}

/// # Safety
/// As for `reprieve_prefixes_set`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_prefixes_remove(
    table: *const Prefixes,
    address: *const u8,
    length: c_uint,
) -> c_int {
    // SAFETY: the caller's promise.
    let (table, prefix) = unsafe { (&*table, (*table).prefix(address, length)) };
    let removed = prefix.and_then(|prefix| table.table.remove(&prefix));
    found(table, removed).is_some().into()
}

/// # Safety
/// `table` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_prefixes_count(table: *const Prefixes) -> usize {
    // SAFETY: the caller's promise.
    unsafe { (*table).table.len() }
}

/// # Safety
/// As for `reprieve_prefixes_set`; `result` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_prefixes_lookup(
    table: *const Prefixes,
    address: *const u8,
    result: *mut Route,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let table = &*table;
        let held = found(table, table.table.lookup(table.address(address)));
        let Some(held) = held else {
            return 0;
        };
        result.write(route(held));
    }
    1
}

/// # Safety
/// `table` is alive; `visit` may be called with its routes and `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_prefixes_scan(
    table: *const Prefixes,
    visit: unsafe extern "C" fn(*const u8, c_uint, *mut c_void, *mut c_void) -> c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let table = unsafe { &*table };
    for held in table.table.iter() {
        abi::acquire_lock(table);
        let (address, length) = (held.key().address().to_be_bytes(), held.key().length());
        // SAFETY: the caller's promise.
        let result = unsafe { visit(address.as_ptr(), length.into(), held.pointer, argument) };
        abi::release();
        if result != 0 {
            return result;
        }
    }
    0
}
