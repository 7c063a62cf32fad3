// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface of every backend.

use crate::error::Error;
use crate::options::{Options, Policy};
use crate::statistics::{Statistics, VmStatistics};
use reprieve_watch::Watch;
use reprieve_watch::model::{VmSnapshot, VmState};
use reprieve_watch::raw::clock;
use std::time::Duration;

/// A backend that is attached. Dropping it detaches it.
pub trait Guard {
    /// Does what the backend has to do again and again. Called several times per second.
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
    /// When there is no such VM, or the backend cannot do that.
    fn set(&mut self, vm: Option<&str>, policy: Policy) -> Result<Vec<String>, Error> {
        let _ = (vm, policy);
        Err(Error::Unsupported { why: "a policy per VM needs --backend sched-ext".into() })
    }

    /// Why it no longer schedules, if it does not: the kernel may have thrown it out. One line.
    fn ended(&mut self) -> Option<String> {
        None
    }
}

/// The eyes of the backends that read guests.
pub struct Observer {
    pub watch: Watch,
    started_ns: u64,
    process_ns: u64,
}

impl Observer {
    /// Counts who holds up grace periods that are older than `late`.
    ///
    /// # Errors
    /// Without the rights to watch, or on a kernel without BTF.
    pub fn start(options: &Options, late: Option<Duration>) -> Result<Observer, Error> {
        let process_ns = clock::process_ns();
        let watch = Watch::start(&reprieve_watch::Options {
            vms: options.vms.clone(),
            stand_ins: options.stand_ins.clone(),
            late,
            ..reprieve_watch::Options::default()
        })?;
        Ok(Observer { watch, started_ns: clock::now_ns(), process_ns })
    }

    /// Statistics of the VMs that run.
    pub fn statistics(
        &mut self,
        of: impl FnMut(&VmSnapshot) -> VmStatistics,
    ) -> Result<Statistics, Error> {
        let snapshot = self.watch.snapshot()?;
        Ok(Statistics {
            time_ns: snapshot.time_ns,
            elapsed_ns: snapshot.time_ns.saturating_sub(self.started_ns),
            vms: snapshot.vms.iter().filter(|vm| vm.state != VmState::Gone).map(of).collect(),
            process_ns: clock::process_ns().saturating_sub(self.process_ns),
            ..Statistics::default()
        })
    }
}
