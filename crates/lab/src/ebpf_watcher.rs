// SPDX-License-Identifier: MIT OR Apache-2.0
//! Watches the lab's guests from outside, with the library behind `reprieve watch`.

use crate::process::Cancel;
use crate::watcher::{Preempted, Totals};
use reprieve_watch::model::{Event, Snapshot, VmSnapshot, VmState};
use reprieve_watch::{Options, Watch, Which};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Interval of the looks whether the guest is seen already.
const POLL: Duration = Duration::from_millis(20);

/// Interval of the search for new VMs: long, since the VM to watch exists already.
const INTERVAL: Duration = Duration::from_secs(1);

/// A VM that is being watched, and whose guest is seen.
pub struct Watched {
    pid: u32,
    watch: Watch,
}

impl Watched {
    /// Watches the VM of process `pid`, with its events if `events`, and waits until it can tell
    /// what the guest is doing.
    pub fn open(
        pid: u32,
        events: bool,
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<Watched, String> {
        let vms = Which::Named(vec![pid.to_string()]);
        let options = Options { vms, interval: INTERVAL, events, ..Options::default() };
        let watch = Watch::start(&options).map_err(|e| e.to_string())?;
        let mut watched = Watched { pid, watch };
        let end = Instant::now() + limit;
        loop {
            match watched.vm().map(|(vm, _)| vm.state) {
                Ok(VmState::Watching) => return Ok(watched),
                // The watcher tries again meanwhile.
                Ok(VmState::Unreadable(why)) if Instant::now() >= end => return Err(why),
                Ok(_) | Err(_) if Instant::now() < end => {}
                Ok(_) => {
                    return Err(format!(
                        "the guest was not found in the VM's memory within {} s",
                        limit.as_secs()
                    ));
                }
                Err(why) => return Err(why),
            }
            cancel.sleep(POLL).map_err(|e| e.to_string())?;
        }
    }

    /// Events since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        self.watch.events()
    }

    /// The VM as it is now, with the rest of the snapshot.
    pub fn vm(&mut self) -> Result<(VmSnapshot, Snapshot), String> {
        let mut snapshot = self.watch.snapshot().map_err(|e| e.to_string())?;
        let vm = snapshot.vms.iter().position(|vm| vm.pid == self.pid);
        let vm = vm.ok_or_else(|| format!("no VM in process {}", self.pid))?;
        Ok((snapshot.vms.swap_remove(vm), snapshot))
    }

    /// The totals since watching began.
    pub fn totals(&mut self) -> Result<Totals, String> {
        let (vm, snapshot) = self.vm()?;
        let mut classes: BTreeMap<String, Preempted> = BTreeMap::new();
        let mut readers = Preempted::default();
        for class in vm.vcpus.iter().flat_map(|vcpu| &vcpu.preemptions) {
            let sum = classes.entry(class.class.name().into()).or_default();
            sum.count += class.off_cpu.counts.iter().sum::<u64>();
            sum.ns += class.off_cpu.total_ns;
            readers.count += class.readers;
            readers.ns += class.readers_off_cpu_ns;
        }
        let announced = vm.vcpus.iter().fold(Preempted::default(), |sum, vcpu| Preempted {
            count: sum.count + vcpu.announced,
            ns: sum.ns + vcpu.announced_off_cpu_ns,
        });
        let grace = vm.grace.unwrap_or_default();
        let cost = snapshot.cost;
        Ok(Totals {
            classes,
            readers,
            announced,
            grace_periods: grace.durations.counts.iter().sum(),
            grace_periods_ns: grace.durations.total_ns,
            grace_periods_unseen: grace.unseen,
            cost_ns: cost.switch_ns + cost.process_ns,
            lost: cost.lost,
        })
    }
}
