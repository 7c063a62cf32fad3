// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of this crate, and what to do about them.

/// An error of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The number of domains is limited.
    TooManyDomains,
    /// A callback asked to wait until callbacks have run.
    InCallback,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::TooManyDomains => {
                write!(
                    f,
                    "{} RCU domains exist: drop some, or share one",
                    crate::thread::id::MAX_DOMAINS
                )
            }
            Error::InCallback => f.write_str(
                "a callback cannot wait for callbacks: call barrier() from another thread",
            ),
        }
    }
}

impl std::error::Error for Error {}
