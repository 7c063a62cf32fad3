// SPDX-License-Identifier: MIT OR Apache-2.0
//! The backend for kernels without sched_ext: the stock scheduler, with short slices for all vCPUs.
//!
//! Under EEVDF a thread's slice is its request: how long it wants to run at a time. The scheduler
//! serves the request with the earliest deadline, and a deadline is a request away. So a thread
//! with a short slice waits less for its turn, has the same share of the CPU, and costs more
//! context switches.
//!
//! > **Invariant.** A thread has the slice [`SHORT`] only if guard gave it that.
//!
//! [`SHORT`] is a number that nobody else chooses. So guard needs no list of the threads that it
//! changed: whoever undoes its work looks for that slice ([`slice::restore_all`]). A vCPU whose
//! slice somebody else has chosen keeps it.

use crate::backend::Guard;
use crate::error::Error;
use crate::options::{Backend, Options, Policy};
use crate::statistics::{Did, Statistics, VmStatistics};
use crate::undo;
use crate::undo::slice::{self, SHORT};
use crate::undo::supervisor::Supervisor;
use reprieve_guest::vmm;
use reprieve_watch::Which;
use reprieve_watch::raw::clock;
use reprieve_watch::vms::finder::{self, Finder, Key};
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

/// Time between two looks at the VMs. A look reads `/proc`.
const LOOK: Duration = Duration::from_secs(1);

/// The backend at work. Dropping it restores every slice.
pub struct Eevdf {
    which: Which,
    policy: Policy,
    finder: Finder,
    vms: BTreeMap<Key, vmm::Vm>,
    /// Findings of the last look, and its time.
    seen: Vec<VmStatistics>,
    looked: Option<Instant>,
    begun_ns: u64,
    supervisor: Supervisor,
}

impl Eevdf {
    /// # Errors
    /// On a kernel without custom slices, without root's rights, or in a process that has more than
    /// one thread already.
    pub fn start(options: &Options) -> Result<Eevdf, Error> {
        // First: it forks, and whether slices work is tried with threads.
        let supervisor = undo::begin()?;
        slice::supported().map_err(|why| Error::Unsupported { why })?;
        Ok(Eevdf {
            which: options.vms.clone(),
            policy: options.policy,
            finder: Finder::default(),
            vms: BTreeMap::new(),
            seen: Vec::new(),
            looked: None,
            begun_ns: clock::now_ns(),
            supervisor,
        })
    }

    /// Finds VMs that came, and forgets those that ended.
    fn find(&mut self) {
        self.vms.retain(|_, vm| vm.exists());
        let found = self.finder.find(|pid| self.vms.keys().any(|key| key.pid == pid));
        let wanted = found.into_iter().filter(|of| self.which.wants(of.0.pid, of.1.as_deref()));
        // A VM that cannot be described may just have begun: the next look tries again.
        self.vms.extend(wanted.filter_map(|(key, _)| Some((key, finder::describe(key).ok()?))));
    }
}

/// Gives the VM's vCPUs short slices, and says of how many that is so.
fn shorten(vm: &vmm::Vm, default: Duration) -> VmStatistics {
    let (mut short, mut trouble) = (0, None);
    let vcpus = vm.vcpus_now();
    for tid in vcpus.iter().map(|vcpu| vcpu.tid) {
        match slice::shorten(tid, default, SHORT) {
            Ok(()) => short += 1,
            // The vCPU, or all of the VM, is gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => trouble = Some(error.to_string()),
        }
    }
    VmStatistics {
        pid: vm.pid,
        name: vm.title(),
        trouble,
        vcpus: vcpus.len() as u32,
        did: Did { short, ..Did::default() },
        ..VmStatistics::default()
    }
}

impl Guard for Eevdf {
    fn look(&mut self) -> Result<(), Error> {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return Ok(());
        }
        self.find();
        let reading = |source| Error::Io { what: "reading the default slice".into(), source };
        let default = slice::default().map_err(reading)?;
        self.seen = self.vms.values().map(|vm| shorten(vm, default)).collect();
        self.looked = Some(Instant::now());
        Ok(())
    }

    fn statistics(&mut self) -> Result<Statistics, Error> {
        let now = clock::now_ns();
        Ok(Statistics {
            time_ns: now,
            elapsed_ns: now - self.begun_ns,
            vms: self.seen.clone(),
            process_ns: clock::process_ns(),
            backend: Backend::Eevdf,
            policy: self.policy,
            ..Statistics::default()
        })
    }

    fn ended(&mut self) -> Option<String> {
        let gone = self.supervisor.is_gone();
        gone.then(|| "its supervisor ended, which gives slices back".into())
    }
}
