// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes that took the CPUs of a VM's preempted vCPUs, by name.

use crate::cgroup;
use crate::model::{Taker, VmSnapshot};
use crate::raw::types;
use reprieve_guest::vmm::process;
use std::collections::{BTreeMap, HashMap};

/// Names and cgroups of takers. A process that has ended keeps its own while it is shown.
#[derive(Default)]
pub struct Takers {
    known: HashMap<u32, (Option<String>, Option<String>)>,
}

impl Takers {
    /// Puts the takers of most time into each VM.
    pub fn put(&mut self, all: Vec<(types::pair, types::taken_times)>, vms: &mut [VmSnapshot]) {
        let mut by_vm: BTreeMap<u32, Vec<(u32, types::taken_times)>> = BTreeMap::new();
        for (pair, taken) in all.into_iter().filter(|(_, taken)| taken.count > 0) {
            by_vm.entry(pair.vm).or_default().push((pair.taker, taken));
        }
        let names: HashMap<u32, String> = vms.iter().map(|vm| (vm.pid, vm.name.clone())).collect();
        let before = std::mem::take(&mut self.known);
        for vm in vms {
            let Some(mut takers) = by_vm.remove(&vm.pid) else { continue };
            takers.sort_by_key(|(_, taken)| std::cmp::Reverse(taken.total_ns));
            takers.truncate(VmSnapshot::TAKERS);
            let known = &mut self.known;
            vm.takers = takers
                .into_iter()
                .map(|(pid, taken)| {
                    let look = || before.get(&pid).cloned().unwrap_or_else(|| look(pid));
                    let (name, cgroup) = known.entry(pid).or_insert_with(look).clone();
                    let own = names.get(&pid).cloned();
                    Taker {
                        pid,
                        vm: own.is_some(),
                        name: own.or(name).unwrap_or_else(|| super::events::text(&taken.comm)),
                        cgroup,
                        count: taken.count,
                        total_ns: taken.total_ns,
                    }
                })
                .collect();
        }
    }
}

/// Reads nothing that is memory of the process.
fn look(pid: u32) -> (Option<String>, Option<String>) {
    const NAME_MAX: u64 = 64;
    let name = process::file(pid, "comm", NAME_MAX).ok();
    let name = name.map(|name| reprieve_page::plain(String::from_utf8_lossy(&name).trim_end()));
    (name, cgroup::path(pid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::testing::vm;

    #[test]
    fn takers_have_names_and_those_of_most_time_come_first() {
        let me = std::process::id();
        let taken = |total_ns, comm: &[u8; 4]| {
            let mut taken = types::taken_times { count: 1, total_ns, ..Default::default() };
            taken.comm.iter_mut().zip(comm).for_each(|(to, &from)| *to = from as _);
            taken
        };
        let pair = |taker| types::pair { vm: 7, taker };
        let mut all = vec![
            (pair(me), taken(30, b"mine")),
            (pair(8), taken(40, b"CPU\x1b")),
            (pair(u32::MAX), taken(20, b"gon\x1b")),
            (types::pair { vm: 9, taker: 7 }, taken(10, b"who?")),
        ];
        all.extend((0..9).map(|n| (pair(u32::MAX - 1 - n), taken(1, b"many"))));
        let mut vms = [vm(7, "starved", vec![]), vm(8, "greedy", vec![])];
        Takers::default().put(all, &mut vms);
        let seen: Vec<_> = vms[0].takers.iter().map(|t| (t.vm, t.name.as_str())).collect();
        let own = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(seen[..3], [(true, "greedy"), (false, own.trim_end()), (false, "gon?")]);
        assert_eq!(seen.len(), VmSnapshot::TAKERS);
        assert!(vms[0].takers[1].cgroup.is_some() && vms[0].takers[2].cgroup.is_none());
        assert!(vms[1].takers.is_empty());
    }
}
