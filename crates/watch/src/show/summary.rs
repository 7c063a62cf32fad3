// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables at the end of a run: what happened to each VM, by class of preemption, and what watching
//! cost.

use super::activity::{Activity, VmActivity, position};
use super::text::{self, count, optional, percent, plain, time};
use super::verdict::verdict;
use crate::model::{Class, Cost, Process, Snapshot, VmSnapshot, VmState};
use comfy_table::{CellAlignment, ContentArrangement, Table, TableComponent, presets};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Narrower terminals get this width all the same.
const NARROWEST: usize = 60;

/// The VMs and processes of a run. A snapshot forgets those that ended; this does not.
#[derive(Default)]
pub struct Seen {
    first: Option<Snapshot>,
    /// When the last snapshot was taken.
    end_ns: u64,
    cost: Cost,
    /// By process and name: the VM's last snapshot, and when it was taken.
    vms: BTreeMap<(u32, String), (u64, VmSnapshot)>,
    processes: BTreeMap<u32, Process>,
}

impl Seen {
    /// Takes a snapshot that is younger than the last one.
    pub fn note(&mut self, snapshot: &Snapshot) {
        self.first.get_or_insert_with(|| snapshot.clone());
        (self.end_ns, self.cost) = (snapshot.time_ns, snapshot.cost.clone());
        for vm in &snapshot.vms {
            let key = (vm.pid, vm.name.clone());
            match self.vms.get_mut(&key) {
                // No longer attached, it has lost its kernel and its grace periods.
                Some((_, last)) if vm.state == VmState::Gone => last.state = VmState::Gone,
                _ => drop(self.vms.insert(key, (snapshot.time_ns, vm.clone()))),
            }
        }
        for ((pid, _), (_, vm)) in &mut self.vms {
            if !snapshot.vms.iter().any(|now| now.pid == *pid && now.name == vm.name) {
                vm.state = VmState::Gone;
            }
        }
        self.processes.extend(snapshot.processes.iter().map(|p| (p.pid, p.clone())));
    }

    /// Whether there was no VM and no process at any time.
    pub fn is_empty(&self) -> bool {
        self.vms.is_empty() && self.processes.is_empty()
    }

    /// The activity since the first snapshot, for a terminal of `width` columns; ends with a line
    /// feed.
    pub fn text(&self, width: usize) -> String {
        let width = width.max(NARROWEST);
        let mut out = String::new();
        let first = self.first.as_ref();
        if self.is_empty() {
            let begin = first.map_or(self.end_ns, |first| first.time_ns);
            let seconds = self.end_ns.saturating_sub(begin) as f64 / 1e9;
            return format!("No virtual machine was seen in {seconds:.0} s\n");
        }
        for (at, vm) in self.vms.values() {
            let activity = VmActivity::between(first, *at, vm);
            let _ = writeln!(out, "{}", heading(vm, &activity));
            let _ = writeln!(out, "  verdict: {}", verdict(&activity));
            if !activity.takers.is_empty() {
                let _ = writeln!(out, "  CPU taken by {}", text::takers(&activity.takers));
            }
            if activity.all.total_off_ns() > 0 {
                let _ = writeln!(out, "{}", classes(&activity.all, width));
            }
            for line in &vm.blind {
                let _ = writeln!(out, "  not visible: {}", plain(line));
            }
            out.push('\n');
        }
        for process in self.processes.values() {
            out.push_str(&domains(process, first));
        }
        out.extend(first.map(|first| cost(&first.cost, &self.cost)));
        out
    }
}

fn heading(vm: &VmSnapshot, activity: &VmActivity) -> String {
    let all = &activity.all;
    let seconds = all.elapsed_ns as f64 / 1e9;
    let mut lines = vec![format!(
        "{} (pid {}, {}, Linux {}): {}, {seconds:.0} s",
        plain(&vm.name),
        vm.pid,
        plain(&vm.vmm),
        vm.kernel.as_deref().map_or("unknown".into(), plain),
        text::vcpus(vm.vcpus.len()),
    )];
    lines.extend(text::state(&vm.state));
    lines.push(text::preemptions(all));
    lines.extend(text::throttled(all));
    if all.readers > 0 {
        let mean = time(all.readers_ns as f64 / all.readers as f64);
        lines.push(format!("RCU readers preempted: {}, for {mean} on average", all.readers));
    }
    if vm.grace.is_some() {
        let n = activity.graces();
        lines.push(format!("grace periods: {n}, {}", text::graces(activity)));
    }
    lines.join("\n  ")
}

fn classes(all: &Activity, width: usize) -> String {
    let mut table = bare(width);
    table.set_header(["preempted in", "count", "1/s", "time off CPU", "share"]);
    for class in Class::ALL {
        let (n, off) = (all.preemptions[position(class)], all.off_ns[position(class)]);
        if n > 0 || off > 0 {
            table.add_row([
                class.name().to_string(),
                n.to_string(),
                count(all.per_second(n)),
                time(off as f64),
                percent(off as f64 / all.total_off_ns() as f64),
            ]);
        }
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    indented(&table)
}

fn domains(process: &Process, first: Option<&Snapshot>) -> String {
    let mut out =
        format!("{} (pid {}): uses the Reprieve runtime\n", plain(&process.name), process.pid);
    let old = first.and_then(|first| first.processes.iter().find(|p| p.pid == process.pid));
    for domain in &process.domains {
        let before = old.and_then(|p| p.domains.iter().find(|d| d.index == domain.index));
        let graces = domain.grace_periods.saturating_sub(before.map_or(0, |d| d.grace_periods));
        let _ = writeln!(out, "  {}; {graces} grace periods", text::domain(domain));
    }
    out.push('\n');
    out
}

/// The cost of watching from the first snapshot on.
fn cost(first: &Cost, last: &Cost) -> String {
    let elapsed = last.elapsed_ns.saturating_sub(first.elapsed_ns) as f64;
    let switches = last.switches.saturating_sub(first.switches);
    let switch_ns = last.switch_ns.saturating_sub(first.switch_ns);
    let process_ns = last.process_ns.saturating_sub(first.process_ns);
    let mean = (switches > 0).then(|| switch_ns as f64 / switches as f64);
    format!(
        "Watching took {:.2} % of a CPU: {} context switches/s, {} each (median {}); {} events lost\n",
        100.0 * (switch_ns + process_ns) as f64 / elapsed,
        count(switches as f64 * 1e9 / elapsed),
        optional(mean, time),
        optional(last.switch_median_ns.map(|ns| ns as f64), time),
        last.lost.saturating_sub(first.lost),
    )
}

fn bare(width: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_style(TableComponent::HeaderLines, '─');
    table.set_style(TableComponent::MiddleHeaderIntersections, '─');
    let width = u16::try_from(width - 2).unwrap_or(u16::MAX);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    table
}

fn indented(table: &Table) -> String {
    let lines = table.lines().map(|line| format!("  {}", line.trim_end()));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::testing::busy;

    fn seen(snapshots: &[Snapshot]) -> Seen {
        let mut seen = Seen::default();
        snapshots.iter().for_each(|snapshot| seen.note(snapshot));
        seen
    }

    #[test]
    fn a_vm_that_ended_is_in_the_summary() {
        let (mut gone, mut after) = (busy(20), busy(40));
        let db = &mut gone.vms[0];
        (db.state, db.kernel, db.grace) = (VmState::Gone, None, None);
        after.vms.clear();
        after.processes.clear();
        let out = seen(&[busy(0), busy(10), gone, after]).text(80);
        for line in [
            "db-primary (pid 4711, qemu-kvm, Linux 6.12.117+deb12-cloud-amd64): 2 vCPUs, 10 s",
            "  grace periods: 550, 55.0/s; mean 17.0 ms, p50 16.7 ms, p99 17.0 ms",
            "   reader           100   10.0         1.20 s    15 %",
            "cache-server (pid 99): uses the Reprieve runtime",
        ] {
            assert!(out.contains(line), "{line:?} in\n{out}");
        }
        let ended = text::state(&VmState::Gone).unwrap();
        assert_eq!(out.matches(&format!("\n  {ended}\n")).count(), 3, "{out}");
    }

    #[test]
    fn a_run_sums_up_to_a_table_per_vm() {
        let out = seen(&[busy(0), busy(10)]).text(80);
        for line in [
            "db-primary (pid 4711, qemu-kvm, Linux 6.12.117+deb12-cloud-amd64): 2 vCPUs, 10 s",
            "  RCU readers preempted: 120, for 10.7 ms on average",
            "  grace periods: 550, 55.0/s; mean 17.0 ms, p50 16.7 ms, p99 17.0 ms",
            "  unreadable: memory is encrypted (SEV)",
            "   reader           100   10.0         1.20 s    15 %",
            "cache-server (pid 99): uses the Reprieve runtime",
            "Watching took 0.90 % of a CPU: 5.00k context switches/s, 600 ns each (median 540 ns); 0 events lost",
        ] {
            assert!(out.contains(line), "{line:?} in\n{out}");
        }
        assert!(out.lines().all(|line| !line.contains('\x1b')), "{out}");
    }

    #[test]
    fn nothing_seen_is_said() {
        let mut none = busy(1);
        none.vms.clear();
        none.processes.clear();
        assert_eq!(seen(&[none]).text(80), "No virtual machine was seen in 0 s\n");
    }
}
