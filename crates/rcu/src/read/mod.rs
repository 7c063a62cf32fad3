// SPDX-License-Identifier: MIT OR Apache-2.0
//! The three read sides: plain sections and QSBR (`guard`), restartable lookups and protected
//! references (`restart`); and what this process can do (`support`).
//!
//! Stands on `platform` and `thread`. A read side touches its own thread's memory and nothing else:
//! it knows neither grace periods nor domains, except by [`LookupDomain`](restart::LookupDomain).

pub(crate) mod guard;
pub(crate) mod protected;
pub(crate) mod restart;
pub(crate) mod support;
