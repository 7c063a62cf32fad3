// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong, and what to do about it.

/// An error of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The number of domains is limited.
    TooManyDomains,
    /// A callback asked to wait until callbacks have run.
    InCallback,
    /// A thread asked to wait until callbacks have run, one of which waits for a [`Protected`](crate::Protected) guard of this thread's.
    Protecting,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::TooManyDomains => {
                write!(f, "{} RCU domains exist: drop some, or share one", crate::MAX_DOMAINS)
            }
            Error::InCallback => f.write_str(
                "a callback cannot wait for callbacks: call barrier() from another thread",
            ),
            Error::Protecting => f.write_str(
                "this thread protects a node that is being retired, and barrier() waits until it is freed: drop the Protected guard first",
            ),
        }
    }
}

impl std::error::Error for Error {}
