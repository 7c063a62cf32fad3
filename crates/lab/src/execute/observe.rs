// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host's view of the VMs: scheduling counters, and what a watcher reads.

use super::Context;
use crate::ebpf_watcher::Watched;
use crate::limit::scaled;
use crate::record::HostPhase;
use crate::vm::{SchedCounters, Threads, Vm};
use crate::watcher::{Totals, WatchOutcome};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long the watcher may take to find the guest under test: under a second on real hardware,
/// many in an emulated lab host.
const WATCH_LIMIT: Duration = Duration::from_secs(60);

/// The watcher of the guest under test. It stays attached from phase to phase, since attaching
/// takes longer than a short phase in an emulated lab host.
#[derive(Default)]
pub struct Watch {
    /// The VMM's process that it watches.
    pid: u32,
    state: WatchState,
}

#[derive(Default)]
enum WatchState {
    /// Nothing is watched yet.
    #[default]
    None,
    /// The watcher failed, for this reason.
    Failed(String),
    Watching {
        watching: Box<Watched>,
        before: Option<Box<Totals>>,
        seen: Option<Box<Totals>>,
    },
}

impl Watch {
    /// Watches the VM of process `pid`, unless it does already.
    pub fn attach(&mut self, context: &Context, pid: u32) {
        let attached = self.pid == pid && matches!(self.state, WatchState::Watching { .. });
        if attached {
            return;
        }
        // The one before is detached first.
        self.state = WatchState::None;
        self.pid = pid;
        let limit = scaled(WATCH_LIMIT);
        self.state = match Watched::open(pid, false, limit, context.cancel) {
            Ok(watched) => {
                WatchState::Watching { watching: Box::new(watched), before: None, seen: None }
            }
            Err(why) => WatchState::Failed(why),
        };
    }

    /// At the beginning of a phase.
    pub fn begin(&mut self) {
        self.note(|totals, before, seen| (*before, *seen) = (Some(Box::new(totals)), None));
    }

    /// At its end.
    pub fn end(&mut self) {
        self.note(|totals, before, seen| *seen = before.take().map(|b| Box::new(totals.since(&b))));
    }

    fn note(
        &mut self,
        keep: impl FnOnce(Totals, &mut Option<Box<Totals>>, &mut Option<Box<Totals>>),
    ) {
        let WatchState::Watching { watching, before, seen } = &mut self.state else { return };
        match watching.totals() {
            Ok(totals) => keep(totals, before, seen),
            Err(why) => self.state = WatchState::Failed(why),
        }
    }

    /// The observations of the phase that has ended.
    pub fn outcome(&mut self) -> Option<WatchOutcome> {
        match &mut self.state {
            WatchState::None => None,
            WatchState::Failed(why) => Some(WatchOutcome::Missing(why.clone())),
            WatchState::Watching { seen, .. } => Some(seen.take().map_or_else(
                || WatchOutcome::Missing("the guest did not report every step of the phase".into()),
                WatchOutcome::Seen,
            )),
        }
    }
}

/// Reads the host's scheduling counters of the VMs.
pub struct SchedReader {
    subject: Threads,
    all: BTreeMap<String, Threads>,
}

pub struct SchedReading {
    at: Instant,
    vcpus: SchedCounters,
    all: BTreeMap<String, SchedCounters>,
}

impl SchedReader {
    pub fn new(place: usize, subjects: &[Vm], competitors: &[Vm]) -> SchedReader {
        let all = subjects.iter().chain(competitors);
        SchedReader {
            subject: subjects[place].threads().clone(),
            all: all.map(|vm| (vm.name.clone(), vm.threads().clone())).collect(),
        }
    }

    pub fn read(&self) -> SchedReading {
        SchedReading {
            at: Instant::now(),
            vcpus: self.subject.vcpu_counters(),
            all: self.all.iter().map(|(name, vm)| (name.clone(), vm.counters())).collect(),
        }
    }
}

impl SchedReading {
    pub fn since(&self, before: &SchedReading) -> HostPhase {
        let vcpus = self.vcpus.since(before.vcpus);
        let ran = |(name, now): (&String, &SchedCounters)| {
            let then = before.all.get(name).copied().unwrap_or_default();
            (name.clone(), now.since(then).run_ns)
        };
        HostPhase {
            vcpu_preemptions: vcpus.preemptions,
            vcpu_wait_ns: vcpus.wait_ns,
            cpu_ns: self.all.iter().map(ran).collect(),
            elapsed_ns: (self.at - before.at).as_nanos() as u64,
            outside: None,
            policy: None,
            other_busy: None,
        }
    }
}
