// SPDX-License-Identifier: MIT OR Apache-2.0
//! The policy in force. It stays so from phase to phase, as long as the next phase has the same
//! policy and guest: the kernel verifies guard's program for longer than a short phase takes.

use super::Context;
use crate::error::{Error, Result};
use crate::limit::scaled;
use crate::policy::Policy;
use crate::scheduler::{InForce, Target};
use serde_json::Value;
use std::time::Duration;

/// How long a policy may take to be in force, and to be gone again.
const LIMIT: Duration = Duration::from_secs(60);

/// Dropping it ends the policy in any case.
#[derive(Default)]
pub struct Force {
    now: Option<Applied>,
}

struct Applied {
    policy: Policy,
    /// The VMM's process of the guest under test.
    pid: u32,
    in_force: Box<dyn InForce>,
}

impl Applied {
    fn failed(policy: &Policy) -> impl FnOnce(String) -> Error {
        move |why| Error::Other(format!("policy {policy}: {why}"))
    }
}

impl Force {
    /// Puts `policy` into force for the guest `target`, which runs.
    pub fn want(&mut self, policy: &Policy, target: Target, context: &Context) -> Result<()> {
        let same = |now: &Applied| now.policy == *policy && now.pid == target.pid;
        if self.now.as_ref().is_some_and(same) {
            return Ok(());
        }
        self.end()?;
        let applied = context.scheduler.apply(policy, target, scaled(LIMIT), context.cancel);
        context.cancel.check()?;
        let in_force = applied.map_err(Applied::failed(policy))?;
        self.now = Some(Applied { policy: policy.clone(), pid: target.pid, in_force });
        Ok(())
    }

    /// The policy's report about itself so far.
    ///
    /// # Errors
    /// It is no longer in force.
    pub fn report(&mut self) -> Result<Option<Value>> {
        let Some(Applied { policy, in_force, .. }) = &mut self.now else { return Ok(None) };
        in_force.report().map_err(Applied::failed(policy))
    }

    pub fn end(&mut self) -> Result<()> {
        let Some(Applied { policy, in_force, .. }) = self.now.take() else { return Ok(()) };
        in_force.end(scaled(LIMIT)).map_err(Applied::failed(&policy))
    }
}
