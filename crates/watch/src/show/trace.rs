// SPDX-License-Identifier: MIT OR Apache-2.0
//! A recording as a trace in JSON, which Perfetto and Chrome's tracing show.
//!
//! A VM is a process of the trace. Its first thread has the grace periods, the others are vCPUs.
//! Each state of a vCPU and each grace period is a slice. A mark among the grace periods says at a
//! snapshot which vCPUs hold one up. Times are those of the host's `CLOCK_MONOTONIC`, so that the
//! trace lies beside others of the host.
//!
//! [`States`] turns events into slices. From lost events on it claims nothing about a vCPU until
//! the next event about that vCPU.

use super::recording::{self, Line, Reader};
use super::text::{NONE, grace_period, location, plain};
use crate::model::{Event, Location, Snapshot, VcpuNow, VmSnapshot, VmState};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::Path;

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Recording(#[from] recording::Error),
    #[error("{0}: the recording has no events; it was cut off before the first, or no VM ran")]
    Empty(String),
    #[error("the trace: {0}")]
    Io(#[from] io::Error),
}

/// Writes the trace of the recording `file` to `out`. Returns whether the end of the recording is
/// missing.
///
/// # Errors
/// When `file` is no recording or empty, and when `out` cannot be written.
pub fn write(file: &Path, mut out: impl Write) -> Result<bool, Error> {
    let mut reader = Reader::open(file)?;
    let (mut states, mut events, mut before) = (States::default(), 0, "[\n");
    let mut write = |all: &mut Vec<Value>| {
        for event in all.drain(..) {
            write!(out, "{before}{event}")?;
            before = ",\n";
        }
        Ok::<(), io::Error>(())
    };
    for record in reader.by_ref() {
        match record? {
            Line::Event(event) => {
                events += 1;
                states.event(event);
            }
            Line::Snapshot(snapshot) => states.snapshot(&snapshot),
        }
        write(&mut states.trace)?;
    }
    if events == 0 {
        return Err(Error::Empty(file.display().to_string()));
    }
    states.finish();
    write(&mut states.trace)?;
    out.write_all(b"\n]\n")?;
    out.flush()?;
    Ok(reader.cut_off())
}

/// A state of a vCPU in progress, or a grace period.
struct Slice {
    since: u64,
    name: String,
    details: Value,
}

/// The thread of a VM's grace periods. Threads of vCPUs follow.
const GRACE: u32 = 1;

fn thread(vcpu: u32) -> u32 {
    vcpu.saturating_add(GRACE + 1)
}

/// What is in progress, by process and thread of the trace.
#[derive(Default)]
struct States {
    open: BTreeMap<(u32, u32), Slice>,
    named: BTreeSet<(u32, u32)>,
    /// The time of the last record.
    now: u64,
    /// Events of the trace that are not yet written.
    trace: Vec<Value>,
}

impl States {
    fn event(&mut self, event: Event) {
        self.now = self.now.max(event.time_ns());
        match event {
            Event::On { time_ns, pid, vcpu, was, .. } => {
                let before = self.open.get_mut(&(pid, thread(vcpu)));
                let preempted = before.filter(|slice| slice.name.starts_with(PREEMPTED));
                if let Some((slice, class)) = preempted.zip(was) {
                    slice.name = format!("{PREEMPTED}{}", class.name());
                }
                self.begin((pid, thread(vcpu)), time_ns, "running".into(), json!({}));
            }
            Event::Blocked { time_ns, pid, vcpu } => {
                self.begin((pid, thread(vcpu)), time_ns, "halted".into(), json!({}));
            }
            Event::Preempted { time_ns, pid, vcpu, class, reader, at } => {
                let name = format!("{PREEMPTED}{}", class.name());
                self.begin((pid, thread(vcpu)), time_ns, name, details(reader, &at));
            }
            Event::GraceBegan { time_ns, pid, seq } => {
                self.open.remove(&(pid, GRACE));
                let name = format!("grace period {}", grace_period(seq));
                self.begin((pid, GRACE), time_ns, name, json!({}));
            }
            Event::GraceEnded { time_ns, pid, seq } => {
                let name = format!("grace period {}", grace_period(seq));
                // Another one's end: nobody saw this one begin.
                if let Some(slice) = self.open.remove(&(pid, GRACE)).filter(|s| s.name == name) {
                    self.end((pid, GRACE), slice, time_ns);
                }
            }
            Event::Lost { time_ns, count } => {
                for (at, slice) in std::mem::take(&mut self.open) {
                    // The end of a grace period may be among what was lost.
                    if at.1 != GRACE {
                        self.end(at, slice, time_ns);
                    }
                }
                if count > 0 {
                    let name = format!("{count} events were lost");
                    self.trace
                        .push(json!({ "ph": "i", "s": "g", "ts": us(time_ns), "name": name }));
                }
            }
        }
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.now = self.now.max(snapshot.time_ns);
        let running = || snapshot.vms.iter().filter(|vm| vm.state != VmState::Gone);
        let pids: BTreeSet<u32> = running().map(|vm| vm.pid).collect();
        let ended: Vec<_> = self.open.keys().filter(|at| !pids.contains(&at.0)).copied().collect();
        for at in ended {
            let slice = self.open.remove(&at);
            if let Some(slice) = slice.filter(|_| at.1 != GRACE) {
                self.end(at, slice, snapshot.time_ns);
            }
        }
        for vm in running() {
            if self.named.insert((vm.pid, 0)) {
                let name = json!({ "name": plain(&vm.name) });
                let process =
                    json!({ "ph": "M", "name": "process_name", "pid": vm.pid, "args": name });
                self.trace.push(process);
            }
            self.seed(vm, snapshot.time_ns);
            let grace = vm.grace.as_ref().and_then(|grace| grace.current.as_ref());
            if let Some(current) = grace.filter(|current| !current.owing.is_empty()) {
                let readers: Vec<_> = current.blocked_readers.iter().map(location).collect();
                self.trace.push(json!({
                    "ph": "i", "s": "t", "ts": us(snapshot.time_ns), "pid": vm.pid, "tid": GRACE,
                    "name": "held up", "args": { "by vCPUs": current.owing, "by readers": readers },
                }));
            }
        }
    }

    /// Takes the states of vCPUs that had no event so far.
    fn seed(&mut self, vm: &VmSnapshot, now: u64) {
        for vcpu in &vm.vcpus {
            let (name, details) = match &vcpu.now {
                VcpuNow::Unseen => continue,
                VcpuNow::Running { .. } => ("running".into(), json!({})),
                VcpuNow::Halted { .. } | VcpuNow::Ready { .. } => ("halted".into(), json!({})),
                VcpuNow::Preempted { class, reader, at, .. } => {
                    (format!("{PREEMPTED}{}", class.name()), details(*reader, at))
                }
            };
            if !self.open.contains_key(&(vm.pid, thread(vcpu.index))) {
                self.begin((vm.pid, thread(vcpu.index)), now, name, details);
            }
        }
    }

    fn begin(&mut self, at: (u32, u32), since: u64, name: String, details: Value) {
        if self.named.insert(at) {
            let name = match at.1.checked_sub(GRACE + 1) {
                None => "grace periods".into(),
                Some(vcpu) => format!("vCPU {vcpu}"),
            };
            for (what, value) in [
                ("thread_name", json!({ "name": name })),
                ("thread_sort_index", json!({ "sort_index": at.1 })),
            ] {
                let thread =
                    json!({ "ph": "M", "name": what, "pid": at.0, "tid": at.1, "args": value });
                self.trace.push(thread);
            }
        }
        if let Some(before) = self.open.insert(at, Slice { since, name, details }) {
            self.end(at, before, since);
        }
    }

    fn end(&mut self, (pid, tid): (u32, u32), slice: Slice, time: u64) {
        self.trace.push(json!({
            "ph": "X", "pid": pid, "tid": tid, "ts": us(slice.since),
            "dur": us(time.saturating_sub(slice.since)), "name": slice.name, "args": slice.details,
        }));
    }

    fn finish(&mut self) {
        for (at, slice) in std::mem::take(&mut self.open) {
            self.end(at, slice, self.now);
        }
    }
}

const PREEMPTED: &str = "preempted: ";

fn details(reader: bool, at: &Location) -> Value {
    let mut details = json!({});
    if reader {
        details["reader"] = true.into();
    }
    let at = location(at);
    if at != NONE {
        details["at"] = at.into();
    }
    details
}

/// The format's times are in microseconds.
fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Class, CurrentGrace, Grace, Histogram};
    use crate::show::recording::Writer;
    use crate::show::testing::{preempted, snapshot, vcpu, vm};

    const PID: u32 = 4711;
    const US: u64 = 1000;

    fn on(us: u64, was: Option<Class>) -> Event {
        Event::On { time_ns: us * US, pid: PID, vcpu: 0, cpu: 3, was }
    }

    fn off(us: u64, class: Class) -> Event {
        let at = Location { task: Some("sh\x1b".into()), pid: Some(7), function: None };
        Event::Preempted { time_ns: us * US, pid: PID, vcpu: 0, class, reader: true, at }
    }

    /// The slices of the trace: thread, beginning, length, name.
    fn slices(trace: &[Value]) -> Vec<(u64, f64, f64, &str)> {
        let number = |event: &Value, key: &str| event[key].as_f64().unwrap();
        let slice = |event| (number(event, "ts"), number(event, "dur"));
        let slices = trace.iter().filter(|event| event["ph"] == "X");
        let parts = slices.map(|e| (e["tid"].as_u64(), slice(e), e["name"].as_str()));
        parts.map(|(tid, (ts, dur), name)| (tid.unwrap(), ts, dur, name.unwrap())).collect()
    }

    fn of(events: impl IntoIterator<Item = Event>) -> Vec<Value> {
        let mut states = States::default();
        events.into_iter().for_each(|event| states.event(event));
        states.finish();
        states.trace
    }

    #[test]
    fn a_recording_becomes_a_trace() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recording");
        let mut writer = Writer::create(&path).unwrap();
        let mut guest = vm(PID, "db</script>\x1b", vec![vcpu(0), vcpu(1)]);
        guest.vcpus[1].now = preempted(0, Class::Reader);
        writer.snapshot(snapshot(10 * US, vec![guest.clone()])).unwrap();
        let grace = |time: u64, end, seq| match end {
            false => Event::GraceBegan { time_ns: time * US, pid: PID, seq },
            true => Event::GraceEnded { time_ns: time * US, pid: PID, seq },
        };
        for event in [grace(20, false, 4), on(30, None), off(40, Class::User), grace(50, true, 5)] {
            writer.event(event).unwrap();
        }
        let current = CurrentGrace { owing: vec![1], seq: 8, ..CurrentGrace::default() };
        guest.grace =
            Some(Grace { durations: Histogram::default(), unseen: 0, current: Some(current) });
        writer.snapshot(snapshot(60 * US, vec![guest])).unwrap();
        writer.finish().unwrap();
        let mut out = vec![];
        assert!(!write(&path, &mut out).unwrap());
        let trace: Vec<Value> = serde_json::from_slice(&out).unwrap();
        let wanted = [
            (2, 30.0, 10.0, "running"),
            (1, 20.0, 30.0, "grace period 1"),
            (2, 40.0, 20.0, "preempted: user"),
            (3, 10.0, 50.0, "preempted: reader"),
        ];
        assert_eq!(slices(&trace), wanted);
        assert_eq!(trace[0]["args"]["name"], "db</script>?");
        let last = trace.iter().find(|event| event["name"] == "preempted: user").unwrap();
        assert_eq!(last["args"], json!({ "reader": true, "at": "sh? 7" }));
        let mark = trace.iter().find(|event| event["name"] == "held up").unwrap();
        assert_eq!((&mark["ts"], &mark["args"]["by vCPUs"]), (&json!(60.0), &json!([1])));
    }

    #[test]
    fn a_class_that_is_known_late_counts() {
        let trace = of([off(10, Class::Kernel), on(20, Some(Class::User)), off(30, Class::Kernel)]);
        let names: Vec<_> = slices(&trace).iter().map(|slice| slice.3).collect();
        assert_eq!(names, ["preempted: user", "running", "preempted: kernel"]);
    }

    #[test]
    fn nothing_is_claimed_of_a_gap() {
        let lost = |us, count| Event::Lost { time_ns: us * US, count };
        let grace = Event::GraceBegan { time_ns: 12 * US, pid: PID, seq: 4 };
        let trace = of([on(10, None), grace, lost(20, 5), lost(25, 0), on(30, None), on(40, None)]);
        let times: Vec<_> = slices(&trace).iter().map(|slice| (slice.1, slice.2)).collect();
        assert_eq!(times, [(10.0, 10.0), (30.0, 10.0), (40.0, 0.0)]);
        let marks = trace.iter().filter(|event| event["name"] == "5 events were lost");
        assert_eq!(marks.count(), 1);
    }

    #[test]
    fn a_vm_that_ended_has_no_more_states() {
        let mut states = States::default();
        states.event(on(10, None));
        states.event(Event::GraceBegan { time_ns: 15 * US, pid: PID, seq: 4 });
        states.snapshot(&snapshot(20 * US, vec![]));
        states.snapshot(&snapshot(30 * US, vec![]));
        states.finish();
        assert_eq!(slices(&states.trace), [(2, 10.0, 10.0, "running")]);
    }

    #[test]
    fn an_empty_recording_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recording");
        Writer::create(&path).unwrap().finish().unwrap();
        assert!(matches!(write(&path, io::sink()), Err(Error::Empty(_))));
    }
}
