// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lets another process look into this one's domains: `reprieve watch` shows the readers, and those
//! that a grace period waits for.
//!
//! The runtime writes nothing for it and exports nothing. A note in the ELF file (`.note.reprieve`,
//! name "Reprieve", type [`VERSION`]) holds the distance to the [`Descriptor`]. This one holds the
//! addresses of the tables and the layout of the structures, which are the runtime's own and may
//! change with each version. The memory changes while another process reads it: the numbers are for
//! display only.

use crate::callback::pending_count::PendingCount;
use crate::callback::per_cpu_lists::Lane;
use crate::callback::reclaimer::Reclaimer;
use crate::domain::table::DOMAINS;
use crate::grace::periods::GracePeriods;
use crate::thread::id::MAX_DOMAINS;
use crate::thread::record::Record;
use crate::thread::registry::{REGISTRIES, Registry, layout};
use std::sync::atomic::AtomicPtr;

/// Raised when a field of [`Descriptor`] changes its meaning. New ones go to the end.
pub(crate) const VERSION: u32 = 1;

/// Where things are. Sizes and offsets in bytes.
#[repr(C)]
pub(crate) struct Descriptor {
    magic: [u8; 8],
    version: u32,
    /// The size of this structure.
    bytes: u32,
    /// Two tables, each of `domains` entries: a registry, and a pointer to the domain's core (none
    /// where it is below 4096).
    registries: &'static [Registry; MAX_DOMAINS],
    cores: &'static [AtomicPtr<Reclaimer>; MAX_DOMAINS],
    domains: u32,
    registry_bytes: u32,
    /// A registry begins with the distance from itself to the first chunk, a chunk with that from
    /// itself to the next; 0: none.
    chunk_records: u32,
    records: u32,
    record_bytes: u32,
    /// u64: nesting in the low half, sections ended in the high half.
    record_word: u32,
    /// u32: the owner's thread id, 0 when free; above 2^31 while it is being cleared, or for good
    /// if the owner has ended and left guards.
    record_owner: u32,
    /// u64: the word as the leader of the grace period found it; 0: nothing to wait for.
    record_snapshot: u32,
    /// u64: odd while a grace period runs.
    core_sequence: u32,
    /// u64: grace periods completed.
    core_completed: u32,
    /// u64: when the one that runs began, CLOCK_MONOTONIC ns.
    core_since: u32,
    /// Address and number of the pending counts' lanes (both 8 bytes).
    core_lanes: u32,
    lane_bytes: u32,
    /// Two u64 each, of which the differences sum up, over all lanes, to what waits: callbacks in
    /// the low half, units of 16 bytes in the high half.
    lane_registered: u32,
    lane_finished: u32,
}

/// Found through the note only.
#[used]
pub(crate) static DESCRIPTOR: Descriptor = Descriptor {
    magic: *b"Reprieve",
    version: VERSION,
    bytes: size_of::<Descriptor>() as u32,
    registries: &REGISTRIES,
    cores: &DOMAINS,
    domains: MAX_DOMAINS as u32,
    registry_bytes: size_of::<Registry>() as u32,
    chunk_records: layout::RECORDS_AT as u32,
    records: layout::RECORDS as u32,
    record_bytes: size_of::<Record>() as u32,
    record_word: Record::WORD as u32,
    record_owner: Record::OWNER as u32,
    record_snapshot: Record::SNAPSHOT as u32,
    core_sequence: (Reclaimer::GRACE + GracePeriods::SEQUENCE) as u32,
    core_completed: (Reclaimer::GRACE + GracePeriods::COMPLETED) as u32,
    core_since: (Reclaimer::GRACE + GracePeriods::SINCE) as u32,
    core_lanes: Reclaimer::LANES as u32,
    lane_bytes: size_of::<Lane>() as u32,
    lane_registered: (Lane::PENDING + PendingCount::REGISTERED) as u32,
    lane_finished: (Lane::PENDING + PendingCount::FINISHED) as u32,
};

// Relative, so that the note needs no relocation and may lie in a read-only segment.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))]
std::arch::global_asm!(
    ".pushsection .note.reprieve, \"a\", %note",
    ".balign 4",
    ".long 9",
    ".long 8",
    ".long {version}",
    ".asciz \"Reprieve\"",
    ".balign 4",
    // This image's own, also where it is linked into a shared object of the program's.
    ".hidden {descriptor}",
    "8: .quad {descriptor} - 8b",
    ".popsection",
    version = const VERSION,
    descriptor = sym DESCRIPTOR,
);
