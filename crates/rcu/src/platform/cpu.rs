// SPDX-License-Identifier: MIT OR Apache-2.0
//! A CPU as the models have it: what the kernel does to restartable sections.

/// The kernel's knowledge of the thread on a CPU.
#[derive(Default)]
pub(crate) struct Cpu {
    pub(crate) armed: bool,
    pub(crate) interrupted: bool,
}

impl Cpu {
    /// The restart: a thread inside goes to its abort handler, any other goes on.
    pub(crate) fn interrupt(&mut self) {
        self.interrupted |= self.armed;
        self.armed = false;
    }
}
