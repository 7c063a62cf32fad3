// SPDX-License-Identifier: MIT OR Apache-2.0
//! Putting a scheduling policy into force on the host, for one or more phases.
//!
//! A [`Scheduler`] knows how to start `reprieve guard`, the caller when.

use crate::policy::Policy;
use crate::process::Cancel;
use std::time::Duration;

/// The VM under test, on its host.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The VMM's process.
    pub pid: u32,
    /// The threads of its vCPUs.
    pub vcpus: &'a [u32],
    /// The threads of the other VMs' vCPUs.
    pub others: &'a [u32],
}

/// Can put policies into force on the host where the VMs' processes run.
pub trait Scheduler {
    /// Whether this host can do `policy`.
    ///
    /// # Errors
    /// The reason why it cannot, with what to do, as a sentence for the user.
    fn check(&self, policy: &Policy) -> Result<(), String>;

    /// Puts `policy` into force, and returns when it is, at the latest after `limit`. Dropping the
    /// result ends it in any case.
    ///
    /// # Errors
    /// Why that failed; nothing is in force then.
    fn apply(
        &self,
        policy: &Policy,
        target: Target,
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<Box<dyn InForce>, String>;
}

/// A policy that is in force, until this is dropped.
pub trait InForce {
    /// The policy's report about itself so far, if it makes one.
    ///
    /// # Errors
    /// It is no longer in force.
    fn report(&mut self) -> Result<Option<serde_json::Value>, String>;

    /// Ends it, within `limit`, and makes sure that the stock scheduler is back as it was.
    ///
    /// # Errors
    /// The policy had ended before, or something of it is left.
    fn end(self: Box<Self>, limit: Duration) -> Result<(), String>;
}
