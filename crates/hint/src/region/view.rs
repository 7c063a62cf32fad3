// SPDX-License-Identifier: MIT OR Apache-2.0
//! A region's content, for a person to read.

use super::layout::{BYTES, MAGIC, Region, VCPUS, VERSION};
use crate::thread::{SLOTS, Slot};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};

/// A vCPU that the host says something of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuView {
    pub vcpu: u32,
    /// As in the header.
    pub state: u32,
    pub runnable: u32,
}

/// A thread of the guest that has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadView {
    pub thread: u32,
    pub non_preemptable: u32,
    pub preemptable: u32,
}

/// A copy of a region. Everything in it is the guest's own word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Changes while a host serves the region.
    pub beat: u64,
    pub vcpus: Vec<VcpuView>,
    pub threads: Vec<ThreadView>,
}

impl View {
    /// The view of a region's bytes; `None` if they are something else.
    pub fn parse(bytes: &[u8]) -> Option<View> {
        let word = |at: usize| {
            let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_ne_bytes(bytes))
        };
        let is = (word(offset_of!(Region, magic))?, word(offset_of!(Region, version))?);
        if is != (MAGIC, VERSION) || bytes.len() < BYTES {
            return None;
        }
        View::of(|at| word(at).unwrap_or(0)).into()
    }

    /// The view of the region that this process has mapped.
    pub fn mapped() -> Option<View> {
        let region = std::ptr::from_ref(super::mapped()?).cast::<AtomicU32>();
        // SAFETY: a region is made of words, and stays mapped; `at` lies in it.
        Some(View::of(|at| unsafe { &*region.add(at / 4) }.load(Ordering::Relaxed)))
    }

    fn of(word: impl Fn(usize) -> u32) -> View {
        let beat = offset_of!(Region, beat);
        let vcpu = |i: usize| {
            let at = offset_of!(Region, vcpus) + 8 * i;
            VcpuView { vcpu: i as u32, state: word(at), runnable: word(at + 4) }
        };
        let thread = |i: usize| {
            let at = offset_of!(Region, slots) + size_of::<Slot>() * i;
            let of = |field| word(at + field);
            ThreadView {
                thread: of(offset_of!(Slot, thread)),
                non_preemptable: of(offset_of!(Slot, non_preemptable)),
                preemptable: of(offset_of!(Slot, preemptable)),
            }
        };
        View {
            beat: u64::from(word(beat)) | u64::from(word(beat + 4)) << 32,
            vcpus: (0..VCPUS).map(vcpu).filter(|vcpu| vcpu.state != 0).collect(),
            threads: (0..SLOTS).map(thread).filter(|thread| thread.thread != 0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a guest writes is a view or none, and no more than there is room for.
    #[test]
    fn any_bytes_can_be_looked_at() {
        let mut bytes = vec![0u8; BYTES];
        assert_eq!(View::parse(&bytes), None);
        bytes[..8].copy_from_slice(&[MAGIC.to_ne_bytes(), VERSION.to_ne_bytes()].concat());
        assert_eq!(View::parse(&bytes), Some(View::default()));
        assert_eq!(View::parse(&bytes[..BYTES - 1]), None);
        assert_eq!(View::parse(&bytes[..6]), None);
        bytes[8..].fill(0xff);
        let view = View::parse(&bytes).unwrap();
        assert_eq!((view.vcpus.len(), view.threads.len(), view.beat), (VCPUS, SLOTS, u64::MAX));
        let mut random = 1u64;
        for byte in &mut bytes[8..] {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (random >> 56) as u8;
        }
        let view = View::parse(&bytes).unwrap();
        let slot = offset_of!(Region, slots);
        let first = u32::from_ne_bytes(bytes[slot..slot + 4].try_into().unwrap());
        assert!(view.threads.iter().any(|thread| thread.thread == first));
        bytes[4] ^= 1;
        assert_eq!(View::parse(&bytes), None, "another version");
    }
}
