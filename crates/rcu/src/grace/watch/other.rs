// SPDX-License-Identifier: MIT OR Apache-2.0
//! Systems other than Linux: no priorities, no stacks and no names for readers that stall.

pub(crate) mod boost {
    use crate::platform::Instant;
    use crate::thread::registry::Registry;
    use std::sync::atomic::AtomicU64;

    #[derive(Default)]
    pub(crate) struct Boost {
        /// Readers boosted.
        pub(crate) count: AtomicU64,
    }

    impl Boost {
        pub(in super::super) fn new(_: bool) -> Boost {
            Boost::default()
        }

        /// Turns it off, or returns false.
        pub(crate) fn set(&self, on: bool) -> bool {
            !on
        }

        pub(in super::super) fn help(&self, _: &Registry, _: Option<Instant>) {}
    }
}

pub(crate) mod stack {
    use crate::error::Error;

    /// Threads that are asked.
    pub(crate) const THREADS: usize = 0;

    /// Stall reports show stacks on Linux only.
    ///
    /// # Errors
    /// [`Error::StackSignal`].
    pub fn enable_stacks(signal: i32) -> Result<(), Error> {
        Err(Error::StackSignal { signal })
    }

    pub(crate) fn capture(_: &[u32]) -> Vec<Vec<usize>> {
        Vec::new()
    }
}

pub(super) mod symbol {
    pub(crate) struct Symbol(pub(crate) usize);

    impl std::fmt::Display for Symbol {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{:#x}", self.0)
        }
    }
}
