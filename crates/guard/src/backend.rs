// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface of every backend.

use crate::error::Error;
use crate::options::Policy;
use crate::statistics::Statistics;

/// A backend that is attached. Dropping it detaches it.
pub trait Guard {
    /// Does what the backend has to do again and again.
    ///
    /// # Errors
    /// When the backend cannot go on.
    fn look(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// The backend's totals since it was attached.
    ///
    /// # Errors
    /// When the statistics cannot be read; the scheduling goes on.
    fn statistics(&mut self) -> Result<Statistics, Error>;

    /// Changes the policy for the VMs that have this name or process ID, for as long as they run.
    /// Without one, for all, also for VMs that come later. Returns the names of those that run.
    ///
    /// # Errors
    /// When there is no such VM, or in a dry run.
    fn set(&mut self, vm: Option<&str>, policy: Policy) -> Result<Vec<String>, Error> {
        let _ = (vm, policy);
        Err(Error::Option {
            what: "--policy",
            why: "this is a dry run: start it again with another",
        })
    }

    /// Why it no longer schedules, if it does not: the kernel may have thrown it out. One line.
    fn ended(&mut self) -> Option<String> {
        None
    }
}
