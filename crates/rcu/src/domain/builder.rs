// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings of a domain.

use super::core::{self, Core};
use super::{Cap, Domain, Error};
use std::sync::Arc;
use std::time::Duration;

/// How a domain learns that its readers have passed. The documentation of each is in `engine/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Engine {
    /// Restartable lookups start over, and only plain sections are waited for.
    #[default]
    Restart,
    /// Ask at once, everywhere, and again: rcu-poll of the FREENIX 2003 paper.
    Poll,
    /// Look on each tick and batch: its rcu-ltimer.
    Ltimer {
        /// Time between two looks.
        tick: Duration,
    },
    /// A token goes from reader to reader: its rcu-sched.
    Sched {
        /// Time between two looks at the token's holder.
        tick: Duration,
    },
}

/// Settings of a domain, fixed when it is built.
#[derive(Clone, Debug)]
pub struct Builder {
    pub(super) engine: Engine,
    pub(super) cap: Cap,
    pub(super) soft_cap: Cap,
    pub(super) single_list: bool,
}

impl Builder {
    /// The grace-period engine. Default: [`Engine::Restart`].
    pub fn engine(mut self, engine: Engine) -> Builder {
        self.engine = engine;
        self
    }

    /// The cap on waiting callbacks: a registration that exceeds it waits, some 20 ms at most, until enough of them have run. Default: [`Cap::default`].
    pub fn cap(mut self, cap: Cap) -> Builder {
        self.cap = cap;
        self
    }

    /// Beyond this, grace periods are hurried, and threads that register mere frees help, as long as grace periods are a matter of microseconds. The
    /// lower of this and the cap counts. Default: [`Cap::SOFT`].
    pub fn soft_cap(mut self, cap: Cap) -> Builder {
        self.soft_cap = cap;
        self
    }

    /// One list and one worker for all CPUs, as in the paper's first version of rcu-poll. For comparison: per-CPU lists are the default.
    pub fn single_list(mut self, single: bool) -> Builder {
        self.single_list = single;
        self
    }

    /// Builds it.
    ///
    /// # Errors
    /// [`Error::TooManyDomains`] if [`MAX_DOMAINS`](crate::MAX_DOMAINS) exist.
    pub fn build(self) -> Result<Domain, Error> {
        let index = core::reserve().ok_or(Error::TooManyDomains)?;
        let core = Arc::new(Core::new(index, &self));
        core::publish(&core);
        Ok(Domain { id: core.id, core })
    }
}
