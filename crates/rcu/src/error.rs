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
    /// This process may not give its threads real-time priority.
    Boost,
    /// A signal cannot be used to ask threads for their stacks.
    StackSignal {
        /// Its number.
        signal: i32,
    },
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::TooManyDomains => {
                write!(f, "{} RCU domains exist: drop some, or share one", crate::thread::id::MAX_DOMAINS)
            }
            Error::InCallback => f.write_str(
                "a callback cannot wait for callbacks: call barrier() from another thread",
            ),
            Error::Boost => f.write_str(
                "readers cannot be given real-time priority: needs CAP_SYS_NICE or RLIMIT_RTPRIO of 2, and a real-time budget where cgroups limit it",
            ),
            Error::StackSignal { signal } => write!(
                f,
                "signal {signal} has a handler already, or is no real-time signal (SIGRTMIN to SIGRTMAX on Linux): choose another for stacks"
            ),
        }
    }
}

impl std::error::Error for Error {}
