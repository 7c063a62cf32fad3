// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings of a domain.

use super::{Cap, Domain, Error, table};
use crate::callback::reclaimer::Reclaimer;
use crate::grace::engine::{self, GraceEngine};
use crate::grace::periods::GracePeriods;
use crate::platform::{facts, sys};
use crate::thread::id::DomainId;
use std::sync::Arc;
use std::time::Duration;

/// How a domain finds out that its readers have left their sections. `grace/engine/` documents
/// each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Engine {
    /// Restartable lookups start over; grace periods wait for plain sections only.
    #[default]
    Restart,
    /// Look at all readers at once, and again: rcu-poll of the FREENIX 2003 paper.
    Poll,
    /// Look at all readers on each tick: rcu-ltimer of the paper.
    Ltimer {
        /// Time between two looks.
        tick: Duration,
    },
    /// Pass a token from reader to reader: rcu-sched of the paper.
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

    /// The cap on waiting callbacks: a registration that exceeds it waits, some 20 ms at most,
    /// until enough of them have run. Default: [`Cap::default`].
    pub fn cap(mut self, cap: Cap) -> Builder {
        self.cap = cap;
        self
    }

    /// Beyond this, grace periods are hurried, and threads that register mere frees help, as long
    /// as grace periods are a matter of microseconds. The lower of this and the cap counts.
    /// Default: [`Cap::SOFT`].
    pub fn soft_cap(mut self, cap: Cap) -> Builder {
        self.soft_cap = cap;
        self
    }

    /// One list and one worker for all CPUs, as in the paper's first version of rcu-poll. For
    /// comparison: per-CPU lists are the default.
    pub fn single_list(mut self, single: bool) -> Builder {
        self.single_list = single;
        self
    }

    /// Builds it.
    ///
    /// # Errors
    /// [`Error::TooManyDomains`] if [`MAX_DOMAINS`](crate::MAX_DOMAINS) exist.
    pub fn build(self) -> Result<Domain, Error> {
        let index = table::reserve().ok_or(Error::TooManyDomains)?;
        let domain = self.build_at(index);
        table::publish(&domain.reclaimer);
        Ok(domain)
    }

    /// A domain that the fork handlers do not know yet.
    pub(super) fn build_at(self, index: usize) -> Domain {
        let engine: Box<dyn GraceEngine> = match self.engine {
            Engine::Restart => Box::new(engine::restart::Restart),
            Engine::Poll => Box::new(engine::poll::Poll),
            Engine::Ltimer { tick } => Box::new(engine::ltimer::Ltimer { tick }),
            Engine::Sched { tick } => Box::new(engine::sched::Sched { tick }),
        };
        let barrier = facts::barrier(self.engine == Engine::Restart);
        let id = DomainId::new(index);
        let grace = GracePeriods::new(id, engine, barrier);
        let lanes = if self.single_list { 1 } else { sys::cpus() };
        let reclaimer = Arc::new(Reclaimer::new(grace, lanes, self.cap, self.soft_cap));
        Domain { id, engine: self.engine, reclaimer }
    }
}
