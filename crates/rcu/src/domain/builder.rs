// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings of a domain.

use super::{Cap, Domain, Error, table};
use crate::callback::reclaimer::Reclaimer;
use crate::grace::engine::{self, GraceEngine};
use crate::grace::periods::GracePeriods;
use crate::platform::{facts, sys};
use crate::thread::id::DomainId;
use crate::thread::load::Load;
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

/// The cap, with limits that the load can exceed.
fn reachable(cap: Cap) -> Cap {
    let limit = |value: u64, most| if value == u64::MAX { value } else { value.min(most) };
    let (bytes, callbacks) = Load::HIGHEST_CAP;
    Cap { bytes: limit(cap.bytes, bytes), callbacks: limit(cap.callbacks, callbacks) }
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
    /// until enough of them have run. Default: [`Cap::default`]. Limits beyond 32 GiB or 2^31
    /// callbacks (but `u64::MAX`) count as these: a load that is far higher looks like a low one.
    pub fn cap(mut self, cap: Cap) -> Builder {
        self.cap = reachable(cap);
        self
    }

    /// Beyond this, grace periods are hurried, and threads that register mere frees help, as long
    /// as grace periods are a matter of microseconds. (A thread that registers many of them helps
    /// below it, too.) The lower of this and the cap counts. Default: [`Cap::SOFT`]. Very high
    /// limits as in [`cap`](Builder::cap).
    pub fn soft_cap(mut self, cap: Cap) -> Builder {
        self.soft_cap = reachable(cap);
        self
    }

    /// A single list and worker for all CPUs, as in the paper's first version of rcu-poll. For
    /// comparison: per-CPU lists are the default.
    pub fn single_list(mut self, single: bool) -> Builder {
        self.single_list = single;
        self
    }

    /// Builds it.
    ///
    /// # Errors
    /// [`Error::TooManyDomains`] if [`MAX_DOMAINS`](crate::MAX_DOMAINS) exist. Those count whose
    /// last owner a callback has dropped, until their own callbacks have run.
    pub fn build(self) -> Result<Domain, Error> {
        let index = table::reserve().ok_or(Error::TooManyDomains)?;
        let domain = self.build_at(index);
        table::publish(&domain.reclaimer);
        Ok(domain)
    }

    /// A domain that the fork handlers do not know yet.
    pub(super) fn build_at(self, index: usize) -> Domain {
        let engine: Box<dyn GraceEngine> = match self.engine {
            Engine::Restart | Engine::Poll => Box::new(engine::poll::Poll),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The highest load that is told from a low one exceeds every cap but none.
    #[test]
    fn no_cap_is_out_of_reach() {
        let most = Load::from_bits(u64::MAX);
        for cap in [
            Cap { bytes: most.bytes(), callbacks: u64::MAX },
            Cap { bytes: u64::MAX - 1, callbacks: u64::MAX },
            Cap { bytes: u64::MAX, callbacks: most.callbacks() },
            Cap { bytes: u64::MAX, callbacks: u64::MAX - 1 },
        ] {
            let domain = Domain::builder().cap(cap).soft_cap(cap).build().unwrap();
            for set in [domain.reclaimer().cap(), domain.reclaimer().soft_cap()] {
                assert!(most.bytes() > set.bytes || most.callbacks() > set.callbacks, "{cap:?}");
            }
        }
        let none = Domain::builder().cap(Cap::NONE).soft_cap(Cap::NONE).build().unwrap();
        assert_eq!(none.reclaimer().cap(), &Cap::NONE);
    }
}
