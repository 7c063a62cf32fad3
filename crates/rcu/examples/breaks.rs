// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lookup with a bounds check, whose panic is a call out of the section: the tests build this
//! program and look for the finding.

use reprieve::{Lookup, Section};

struct Element<'a>(&'a [u64; 8], &'a usize);

// SAFETY: not kept, on purpose: nothing here is ever freed, and the index is in range.
unsafe impl Lookup for Element<'_> {
    type Output = u64;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> u64 {
        // SAFETY: a reference is readable.
        self.0[unsafe { section.read(self.1) }]
    }
}

fn main() {
    let index = std::env::args().count();
    // SAFETY: as above.
    let element = unsafe { reprieve::lookup(&Element(&[7; 8], &index)) };
    assert_eq!(element, 7);
}
