// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recording RCU's events with the kernel's tracer, in a trace instance of our own.
//!
//! Everything that patches kernel text (the kprobes, the tracepoints) is done once, when preparing;
//! a phase only switches recording on and off. Buffers do not wrap: when one is full, later events
//! are lost and counted. So the record is complete up to the first loss on any CPU; grace periods
//! that end later are dropped ([`Trace::read`]). Nothing is read during a phase; what the kernel
//! then prints, with all CPUs' events in order, has times in microseconds.
//!
//! Recorded: kprobes on `rcu_gp_init` and `rcu_gp_cleanup`; `sched_switch` from or to threads named
//! `rcu*` (filtered in the kernel); `softirq_entry` and `softirq_exit` of softirq 9, RCU.

use super::gp::{GracePeriod, Kind, Tracker, in_progress, is_rcu_thread};
use crate::sys::{self, Context, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

const TRACING: &str = "/sys/kernel/tracing";
/// Name of the instance, and of the group of its kprobes.
const NAME: &str = "reprieve";
const RCU_SOFTIRQ: &str = "vec==9";

/// Writes a value to a control file of the tracer.
fn write(path: impl AsRef<Path>, value: &str, append: bool) -> Result<()> {
    let path = path.as_ref();
    let attempt = OpenOptions::new().write(true).append(append).truncate(!append).open(path);
    attempt
        .and_then(|mut f| f.write_all(value.as_bytes()))
        .context(format_args!("writing {value:?} to {}", path.display()))
}

/// Adds a kprobe to our group, unless it is there already.
fn add_kprobe(event: &str, function: &str) -> Result<()> {
    if Path::new(TRACING).join("events").join(NAME).join(event).exists() {
        return Ok(());
    }
    write(format!("{TRACING}/kprobe_events"), &format!("p:{NAME}/{event} {function}\n"), true)
}

/// The instance, set up and not recording.
pub struct Trace {
    root: PathBuf,
    cpus: usize,
    memory_kb: u64,
}

impl Trace {
    pub fn prepare(buffer_kb: u32) -> Result<Trace> {
        add_kprobe("gp_init", "rcu_gp_init")?;
        add_kprobe("gp_cleanup", "rcu_gp_cleanup")?;
        let root = Path::new(TRACING).join("instances").join(NAME);
        if !root.exists() {
            fs::create_dir(&root).context(format_args!("trace instance {}", root.display()))?;
        }
        write(root.join("tracing_on"), "0", false)?;
        for (file, value) in [("trace_clock", "mono"), ("options/overwrite", "0")] {
            write(root.join(file), value, false)?;
        }
        // Saves a look-up per event whose result is not used; not every kernel has this option.
        let _ = write(root.join("options/record-cmd"), "0", false);
        write(root.join("buffer_size_kb"), &buffer_kb.max(8).to_string(), false)?;
        let events = root.join("events");
        let filters = [
            ("sched/sched_switch", r#"prev_comm ~ "rcu*" || next_comm ~ "rcu*""#),
            ("irq/softirq_entry", RCU_SOFTIRQ),
            ("irq/softirq_exit", RCU_SOFTIRQ),
        ];
        for (event, filter) in filters {
            write(events.join(event).join("filter"), filter, false)?;
        }
        let cpus = sys::cpus() as usize;
        let memory_kb = (0..cpus).map(|cpu| buffer_memory_kb(&root, cpu)).sum();
        let trace = Trace { root, cpus, memory_kb };
        for (event, _) in filters {
            trace.enable(event, true)?;
        }
        trace.enable("reprieve/gp_init", true)?;
        trace.enable("reprieve/gp_cleanup", true)?;
        Ok(trace)
    }

    /// Memory that the buffers take.
    pub fn memory_kb(&self) -> u64 {
        self.memory_kb
    }

    /// Switches an event on or off in the instance.
    fn enable(&self, event: &str, on: bool) -> Result<()> {
        let file = self.root.join("events").join(event).join("enable");
        write(file, if on { "1" } else { "0" }, false)
    }

    /// Drops the old record and starts recording.
    pub fn start(&self) -> Result<()> {
        write(self.root.join("trace"), "", false)?;
        write(self.root.join("tracing_on"), "1", false)
    }

    pub fn stop(&self) -> Result<()> {
        write(self.root.join("tracing_on"), "0", false)
    }

    /// Calls `each` for every grace period of the record that began at `from` or later and ended by
    /// `to`.
    pub fn read(&self, from: u64, to: u64, mut each: impl FnMut(GracePeriod)) -> Result<Volume> {
        let mut volume = Volume::default();
        let mut lost = vec![0; self.cpus];
        for (cpu, lost) in lost.iter_mut().enumerate() {
            let stats = fs::read_to_string(self.root.join(format!("per_cpu/cpu{cpu}/stats")));
            *lost = lost_events(&stats.unwrap_or_default());
        }
        volume.lost = lost.iter().sum();
        let path = self.root.join("trace");
        let file = File::open(&path).context(path.display())?;
        let mut tracker = Tracker::new(self.cpus);
        let mut found = Vec::new();
        // Of each CPU, the last event.
        let mut last = vec![0; self.cpus];
        for line in BufReader::with_capacity(1 << 16, file).lines() {
            let line = line.context(path.display())?;
            let Some((time, cpu, kind)) = parse(&line) else { continue };
            volume.events += 1;
            if let Some(last) = last.get_mut(cpu) {
                *last = time;
            }
            if let Some(kind) = kind {
                found.extend(tracker.event(time, cpu, kind));
            }
        }
        let losses = last.iter().zip(&lost).filter(|&(_, &lost)| lost > 0);
        volume.complete_until = losses.map(|(&last, _)| last).min();
        let complete = |at: u64| volume.complete_until.is_none_or(|until| at <= until);
        // An event after a loss may have ended it.
        volume.open = in_progress(&found, tracker.open(), to).filter(|_| complete(to));
        for gp in found {
            if gp.start_ns >= from && gp.end_ns <= to && complete(gp.end_ns) {
                each(gp);
            }
        }
        Ok(volume)
    }
}

impl Drop for Trace {
    /// Without measuring, a guest has no cost of events.
    fn drop(&mut self) {
        let _ = self.stop();
        for event in ["sched", "irq", NAME] {
            let _ = self.enable(event, false);
        }
    }
}

/// Memory of one CPU's buffer, as the kernel says it is; 0 for a CPU without one.
fn buffer_memory_kb(root: &Path, cpu: usize) -> u64 {
    let size = fs::read_to_string(root.join(format!("per_cpu/cpu{cpu}/buffer_size_kb")));
    pages(size.ok().and_then(|s| s.trim().parse().ok()).unwrap_or(0)).saturating_mul(PAGE_BYTES)
        >> 10
}

/// Memory of a page of the buffer, with its `struct buffer_page` (a cache line).
const PAGE_BYTES: u64 = 4096 + 64;

/// Pages of a buffer of `size_kb`, which is their room for events (all but the 16 bytes of the
/// head). The reader has one more page.
fn pages(size_kb: u64) -> u64 {
    if size_kb == 0 { 0 } else { size_kb.saturating_mul(1024).div_ceil(4096 - 16) + 1 }
}

/// How much was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    pub events: u64,
    pub lost: u64,
    /// The last event before the first loss on any CPU, if there was one.
    pub complete_until: Option<u64>,
    /// When the grace period began that was in progress at the end.
    pub open: Option<u64>,
}

/// Time, CPU and meaning of an event as the kernel prints it,
/// `COMM-PID [CPU] FLAGS SECONDS.MICROSECONDS: EVENT: ...`; no meaning for a switch between threads
/// that do not count.
fn parse(line: &str) -> Option<(u64, usize, Option<Kind>)> {
    let (head, rest) = line.split_once(": ")?;
    let (event, fields) = rest.split_once(':')?;
    let (_, at) = head.rsplit_once('[')?;
    let (cpu, flags_and_time) = at.split_once(']')?;
    let (seconds, micros) = flags_and_time.rsplit_once(' ')?.1.split_once('.')?;
    let time = seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?;
    let counts = |field| name_in(fields, field).is_some_and(is_rcu_thread);
    let kind = match event {
        "gp_init" => Some(Kind::Init),
        "gp_cleanup" => Some(Kind::Cleanup),
        "softirq_entry" => Some(Kind::SoftirqOn),
        "softirq_exit" => Some(Kind::SoftirqOff),
        "sched_switch" if counts("next_comm=") => Some(Kind::ThreadOn),
        "sched_switch" if counts("prev_comm=") => Some(Kind::ThreadOff),
        _ => None,
    };
    Some((time * 1_000, cpu.parse().ok()?, kind))
}

fn name_in<'a>(fields: &'a str, field: &str) -> Option<&'a str> {
    fields.split_once(field)?.1.split(' ').next()
}

/// Events lost according to a `stats` file: for want of space, or overwritten.
fn lost_events(stats: &str) -> u64 {
    stats
        .lines()
        .filter_map(|l| l.split_once(':'))
        .filter(|(k, _)| matches!(*k, "overrun" | "commit overrun" | "dropped events"))
        .filter_map(|(_, v)| v.trim().parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stock_guest_prints_is_understood() {
        let text = include_str!("testdata/6.12.trace_text");
        let events: Vec<_> = text.lines().map(|line| parse(line).unwrap()).collect();
        assert_eq!(events[0], (6_007_669_000, 0, Some(Kind::ThreadOn)));
        assert_eq!(events[1], (6_007_694_000, 0, Some(Kind::Cleanup)));
        assert_eq!(events[2], (6_007_711_000, 0, Some(Kind::Init)));
        assert_eq!(events[3], (6_007_736_000, 0, Some(Kind::ThreadOff)));
        assert_eq!(events[4], (6_010_382_000, 0, Some(Kind::SoftirqOn)));
        assert_eq!(events[5], (6_010_418_000, 0, Some(Kind::SoftirqOff)));
        for other in ["# tracer: nop", "##### CPU 1 buffer started ####", "", "a: b: c"] {
            assert_eq!(parse(other), None);
        }
    }

    #[test]
    fn memory_of_a_buffer_is_more_than_its_size() {
        // 3840 KiB asked for: 964 pages of 4080 bytes, told as 3840 again, and the reader's.
        assert_eq!(pages(3_840), 965);
        assert_eq!((pages(0), pages(8)), (0, 4));
    }

    #[test]
    fn every_kind_of_loss_counts() {
        let stats = "entries: 1000\noverrun: 1\ncommit overrun: 2\nbytes: 20000\n\
            oldest event ts:     3.245096\nnow ts:     3.443324\ndropped events: 4\nread events: 0\n";
        assert_eq!(lost_events(stats), 7);
        assert_eq!(lost_events("overrun: x\nnonsense"), 0);
    }

    #[test]
    fn switches_are_told_apart_by_the_names_in_them() {
        let switch = |from: &str, to: &str| {
            let fields = format!("prev_comm={from} prev_pid=1 ==> next_comm={to} next_pid=2");
            parse(&format!("a-1 [007] d..2. 1.000002: sched_switch: {fields}"))
        };
        let at = |kind| Some((1_000_002_000, 7, kind));
        assert_eq!(switch("swapper/0", "rcu_preempt"), at(Some(Kind::ThreadOn)));
        assert_eq!(switch("rcu_preempt", "swapper/0"), at(Some(Kind::ThreadOff)));
        assert_eq!(switch("rcuc/0", "rcu_preempt"), at(Some(Kind::ThreadOn)));
        assert_eq!(switch("rcu_tasks_kthre", "init"), at(None));
    }
}
