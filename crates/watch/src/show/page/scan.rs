// SPDX-License-Identifier: MIT OR Apache-2.0
//! From events to time lines: how long each vCPU was in which state, and when grace periods began
//! and ended.
//!
//! A recording does not fit in memory, so it is read twice; both readings hand it to a [`Scan`],
//! which keeps the state in progress of each vCPU and of each VM and tells a [`Sink`] what has
//! ended. Where events were lost nothing is claimed: every state is unknown until the next event
//! about that vCPU.

use crate::model::{Class, Event, Location, Snapshot, VcpuNow, VmState};
use crate::show::activity::position;
use crate::show::recording::Record;
use std::collections::{BTreeMap, BTreeSet};

/// A time line's state, as a number: also an index of colours and names on the page.
pub type State = u8;

pub const RUNNING: State = 0;
/// The first of the states "preempted in a class", in the order of [`Class::ALL`].
pub const PREEMPTED: State = 1;
pub const HALTED: State = PREEMPTED + Class::ALL.len() as State;
pub const UNSEEN: State = HALTED + 1;
pub const STATES: usize = UNSEEN as usize + 1;

/// Names of the states.
pub fn names() -> Vec<String> {
    let mut all = vec!["running".to_string()];
    all.extend(Class::ALL.iter().map(|class| format!("preempted: {}", class.name())));
    all.extend(["halted".into(), "not seen".into()]);
    all
}

/// Times beyond this are not believed: 36 years after the host was started.
const LATEST: u64 = 1 << 60;

pub fn is_preempted(state: State) -> bool {
    (PREEMPTED..HALTED).contains(&state)
}

/// A vCPU of a VM, named by its process.
pub type Lane = (u32, u32);

/// A time in one state.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    pub from: u64,
    pub to: u64,
    pub state: State,
    /// In an RCU reader.
    pub reader: bool,
    pub at: Location,
}

/// A grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    pub from: u64,
    pub to: u64,
    pub seq: u64,
    /// The grace period was still in progress when the recording ended.
    pub open: bool,
}

impl Period {
    pub fn length(&self) -> u64 {
        self.to - self.from
    }
}

/// The grace period that a `gp_seq` belongs to: its lowest two bits are a state, which changes
/// meanwhile.
pub fn number(seq: u64) -> u64 {
    seq >> 2
}

/// Receives states, grace periods and snapshots as they are scanned.
pub trait Sink {
    fn segment(&mut self, lane: Lane, segment: Segment);
    fn period(&mut self, pid: u32, period: Period);
    fn snapshot(&mut self, snapshot: &Snapshot);
}

/// The recording as far as it was read.
#[derive(Default)]
pub struct Scan {
    lanes: BTreeMap<Lane, Segment>,
    open: BTreeMap<u32, Period>,
    /// First and last point in time.
    pub span: Option<(u64, u64)>,
    pub events: u64,
    pub lost: u64,
}

impl Scan {
    pub fn feed(&mut self, record: &Record, sink: &mut dyn Sink) {
        match record {
            Record::Event(event) => {
                self.events += 1;
                self.event(event, sink);
            }
            Record::Snapshot(snapshot) => {
                let time = snapshot.time_ns.min(LATEST);
                self.see(time);
                self.part(snapshot, time, sink);
                self.seed(snapshot);
                sink.snapshot(snapshot);
            }
        }
    }

    /// Ends what is in progress.
    pub fn finish(&mut self, sink: &mut dyn Sink) {
        let Some((_, end)) = self.span else { return };
        for (lane, mut segment) in std::mem::take(&mut self.lanes) {
            segment.to = end.max(segment.from);
            sink.segment(lane, segment);
        }
        for (pid, period) in std::mem::take(&mut self.open) {
            sink.period(pid, Period { to: end.max(period.from), open: true, ..period });
        }
    }

    /// Ends the time lines of VMs that have ended: nothing is known of their last grace period.
    /// Also of those whose last threads still run, and of those that no snapshot saw running.
    fn part(&mut self, snapshot: &Snapshot, time: u64, sink: &mut dyn Sink) {
        let runs = snapshot.vms.iter().filter(|vm| vm.state != VmState::Gone);
        let running: BTreeSet<u32> = runs.map(|vm| vm.pid).collect();
        self.open.retain(|pid, _| running.contains(pid));
        let ended: BTreeMap<Lane, Segment>;
        (self.lanes, ended) = std::mem::take(&mut self.lanes)
            .into_iter()
            .partition(|(lane, _)| running.contains(&lane.0));
        for (lane, mut last) in ended {
            last.to = time.max(last.from);
            sink.segment(lane, last);
        }
    }

    fn event(&mut self, event: &Event, sink: &mut dyn Sink) {
        let plain = |state| (state, false, Location::default());
        let at_most = |time: &u64| (*time).min(LATEST);
        match event {
            Event::On { time_ns, pid, vcpu, was, .. } => {
                let before = self.lanes.get_mut(&(*pid, *vcpu));
                let before = before.filter(|segment| is_preempted(segment.state));
                if let Some((segment, class)) = before.zip(*was) {
                    segment.state = preempted(class);
                }
                self.change((*pid, *vcpu), at_most(time_ns), plain(RUNNING), sink);
            }
            Event::Blocked { time_ns, pid, vcpu } => {
                self.change((*pid, *vcpu), at_most(time_ns), plain(HALTED), sink);
            }
            Event::Preempted { time_ns, pid, vcpu, class, reader, at } => {
                let state = preempted(*class);
                self.change((*pid, *vcpu), at_most(time_ns), (state, *reader, at.clone()), sink);
            }
            Event::GraceBegan { time_ns, pid, seq } => {
                let time = at_most(time_ns);
                self.see(time);
                let period = Period { from: time, to: time, seq: *seq, open: false };
                self.open.insert(*pid, period);
            }
            Event::GraceEnded { time_ns, pid, seq } => {
                let time = at_most(time_ns);
                self.see(time);
                // Another one's end: the beginning of this one was not seen.
                if let Some(period) =
                    self.open.remove(pid).filter(|p| number(p.seq) == number(*seq))
                {
                    let to = time.max(period.from);
                    sink.period(*pid, Period { to, ..period });
                }
            }
            Event::Lost { time_ns, count } => {
                let time = at_most(time_ns);
                self.see(time);
                self.lost = self.lost.saturating_add(*count);
                let lanes: Vec<Lane> = self.lanes.keys().copied().collect();
                for lane in lanes {
                    self.change(lane, time, plain(UNSEEN), sink);
                }
                self.open.clear();
            }
        }
    }

    fn change(
        &mut self,
        lane: Lane,
        time: u64,
        (state, reader, at): (State, bool, Location),
        sink: &mut dyn Sink,
    ) {
        self.see(time);
        let next = Segment { from: time, to: time, state, reader, at };
        let old = self.lanes.insert(lane, next);
        // Nothing is known of a vCPU before its first event, nor of time that runs backwards.
        if let Some(mut old) = old.filter(|old| old.from < time) {
            old.to = time;
            sink.segment(lane, old);
        }
    }

    /// Takes the states of vCPUs without an event so far.
    fn seed(&mut self, snapshot: &Snapshot) {
        let begin = self.span.map_or(0, |(begin, _)| begin);
        for vm in snapshot.vms.iter().filter(|vm| vm.state != VmState::Gone) {
            for vcpu in &vm.vcpus {
                let (since, state, reader, at) = match &vcpu.now {
                    VcpuNow::Running { since_ns, .. } => {
                        (*since_ns, RUNNING, false, Location::default())
                    }
                    VcpuNow::Preempted { since_ns, class, reader, at, .. } => {
                        (*since_ns, preempted(*class), *reader, at.clone())
                    }
                    VcpuNow::Halted { since_ns: since }
                    | VcpuNow::Ready { halted_ns: since, .. } => {
                        (*since, HALTED, false, Location::default())
                    }
                    VcpuNow::Unseen => continue,
                };
                let from = since.max(begin).min(LATEST);
                self.lanes.entry((vm.pid, vcpu.index)).or_insert(Segment {
                    from,
                    to: from,
                    state,
                    reader,
                    at,
                });
            }
        }
    }

    fn see(&mut self, time: u64) {
        let (begin, end) = self.span.unwrap_or((time, time));
        self.span = Some((begin.min(time), end.max(time)));
    }
}

fn preempted(class: Class) -> State {
    PREEMPTED + position(class) as State
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Segments(Vec<Segment>);

    impl Sink for Segments {
        fn segment(&mut self, _: Lane, segment: Segment) {
            self.0.push(segment);
        }

        fn period(&mut self, _: u32, _: Period) {}

        fn snapshot(&mut self, _: &Snapshot) {}
    }

    #[test]
    fn a_class_that_is_known_late_counts() {
        let (mut scan, mut seen) = (Scan::default(), Segments::default());
        let (pid, vcpu) = (1, 0);
        for (time_ns, was) in [(10, Some(Class::User)), (30, None)] {
            let class = Class::Kernel;
            let at = Location::default();
            for event in [
                Event::Preempted { time_ns, pid, vcpu, class, reader: false, at },
                Event::On { time_ns: time_ns + 10, pid, vcpu, cpu: 0, was },
            ] {
                scan.feed(&Record::Event(event), &mut seen);
            }
        }
        let states: Vec<State> = seen.0.iter().map(|segment| segment.state).collect();
        assert_eq!(states, [preempted(Class::User), RUNNING, preempted(Class::Kernel)]);
    }

    #[test]
    fn nothing_is_claimed_of_a_gap() {
        let (mut scan, mut seen) = (Scan::default(), Segments::default());
        let on = |time_ns| Event::On { time_ns, pid: 1, vcpu: 0, cpu: 0, was: None };
        let lost = |time_ns, count| Event::Lost { time_ns, count };
        for event in [on(10), lost(20, 5), on(25), lost(30, 0), on(40), on(50)] {
            scan.feed(&Record::Event(event), &mut seen);
        }
        let states: Vec<_> = seen.0.iter().map(|s| (s.from, s.state)).collect();
        let wanted = [(10, RUNNING), (20, UNSEEN), (25, RUNNING), (30, UNSEEN), (40, RUNNING)];
        assert_eq!((states, scan.lost), (wanted.to_vec(), 5));
    }
}
