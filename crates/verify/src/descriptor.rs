// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `rseq_cs` descriptor: version and flags, start, length, abort handler; and behind it, for
//! this command, the self-test's probe.

use crate::image::{Fixup, Image};

/// The signature that the kernel requires before an abort handler.
const SIGNATURE: [u8; 4] = 0x5305_3053u32.to_le_bytes();

/// The objection to the descriptor at an address, if anything.
pub(crate) fn fault(image: &Image<'_>, at: u64) -> Option<String> {
    let Some(head) = image.data(at, 8) else {
        return Some(format!("{at:#x} lies in no section of the file"));
    };
    if head != [0; 8] {
        return Some("its version and flags are not 0".into());
    }
    match image.pointer(at.wrapping_add(8)) {
        Some(Fixup::Here(start)) if start == image.start => {}
        Some(Fixup::Here(start)) => {
            return Some(format!("it begins at {start:#x}, not where the section begins"));
        }
        Some(Fixup::Symbol(name)) => return Some(format!("it begins at `{name}`")),
        None => return Some("it ends before its fields do".into()),
    }
    let Some(abort) = abort(image, at) else {
        return Some("it has no abort handler in this file".into());
    };
    if image.contains(abort) {
        return Some("its abort handler lies inside the section".into());
    }
    match abort.checked_sub(4).and_then(|a| image.constant(a, 4)) {
        Some(bytes) if bytes == SIGNATURE => None,
        _ => Some("the kernel's signature is not before its abort handler".into()),
    }
}

/// Its abort handler.
pub(crate) fn abort(image: &Image<'_>, at: u64) -> Option<u64> {
    match image.pointer(at.wrapping_add(24))? {
        Fixup::Here(abort) => Some(abort),
        _ => None,
    }
}

/// The self-test's probe, the only function that may write to its first argument. Its address
/// stands behind the runtime's own descriptor.
pub(crate) fn probe(image: &Image<'_>, at: u64) -> Option<u64> {
    match image.pointer(at.wrapping_add(32))? {
        Fixup::Here(probe) if image.contains(probe) => Some(probe),
        _ => None,
    }
}
