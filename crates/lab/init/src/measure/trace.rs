// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recording RCU's events with the kernel's tracer, in a trace instance of our own.
//!
//! Everything that patches kernel text (the kprobes, the tracepoints) is done once, when preparing;
//! a phase only switches recording on and off. Buffers do not wrap: when one is full, later events
//! are lost and counted. So the record is complete up to the first loss on any CPU; grace periods
//! that end later are dropped ([`Trace::read`]). Nothing is read during a phase.
//!
//! Recorded: kprobes on `rcu_gp_init` and `rcu_gp_cleanup`; `sched_switch` from or to threads named
//! `rcu*` (filtered in the kernel); `softirq_entry` and `softirq_exit` of softirq 9, RCU.

use super::gp::{GracePeriod, Kind, Tracker, in_progress, is_rcu_thread};
use super::ring;
use crate::bytes::u16_at;
use crate::sys::{self, Context, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
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
    ids: Ids,
    cpus: usize,
    memory_kb: u64,
}

/// Numbers of the events in the record, and offsets of the names in `sched_switch`.
struct Ids {
    init: u16,
    cleanup: u16,
    switch: u16,
    prev_comm: usize,
    next_comm: usize,
    softirq_entry: u16,
    softirq_exit: u16,
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
        let ids = Ids::read(&events)?;
        let cpus = sys::cpus() as usize;
        let memory_kb = (0..cpus).map(|cpu| buffer_memory_kb(&root, cpu)).sum();
        let trace = Trace { root, ids, cpus, memory_kb };
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

    /// Reads and empties the record: calls `each` for every grace period that began at `from` or
    /// later and ended by `to`.
    pub fn read(&self, from: u64, to: u64, mut each: impl FnMut(GracePeriod)) -> Result<Volume> {
        let mut volume = Volume::default();
        let mut streams = Vec::new();
        for cpu in 0..self.cpus {
            let dir = self.root.join(format!("per_cpu/cpu{cpu}"));
            if let Ok(stats) = fs::read_to_string(dir.join("stats")) {
                let lost = lost_events(&stats);
                streams.push(Stream::open(&dir, cpu, lost)?);
                volume.lost += lost;
            }
        }
        let mut tracker = Tracker::new(self.cpus);
        let mut found = Vec::new();
        // Whether a CPU lost events is known only at the end of its stream, so grace periods are
        // held back until everything is read.
        loop {
            for s in streams.iter_mut() {
                s.fill(&self.ids)?;
            }
            let Some(s) =
                streams.iter_mut().filter(|s| s.head().is_some()).min_by_key(|s| s.head())
            else {
                break;
            };
            let (time, kind) = s.take();
            volume.events += 1;
            if let Some(kind) = kind {
                found.extend(tracker.event(time, s.cpu, kind));
            }
        }
        volume.complete_until = streams.iter().filter(|s| s.lost > 0).map(|s| s.last).min();
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

/// A CPU's record, read a page at a time.
struct Stream {
    cpu: usize,
    file: File,
    page: Vec<u8>,
    /// Events of the current page, last first.
    events: Vec<(u64, Option<Kind>)>,
    ended: bool,
    lost: u64,
    /// Time of the last event read.
    last: u64,
}

impl Stream {
    fn open(dir: &Path, cpu: usize, lost: u64) -> Result<Stream> {
        let path = dir.join("trace_pipe_raw");
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)
            .context(path.display())?;
        Ok(Stream {
            cpu,
            file,
            page: vec![0; 4096],
            events: Vec::new(),
            ended: false,
            lost,
            last: 0,
        })
    }

    /// Makes sure that the next event is there, unless the record has ended.
    fn fill(&mut self, ids: &Ids) -> Result<()> {
        while self.events.is_empty() && !self.ended {
            let n = match self.file.read(&mut self.page) {
                Ok(n) => n,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => 0,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e).context(format_args!("trace of CPU {}", self.cpu)),
            };
            self.ended = n == 0;
            let events = &mut self.events;
            ring::events(&self.page[..n], |e| events.push((e.time_ns, ids.classify(e.data))));
            events.reverse();
        }
        Ok(())
    }

    fn head(&self) -> Option<u64> {
        self.events.last().map(|e| e.0)
    }

    fn take(&mut self) -> (u64, Option<Kind>) {
        let event = self.events.pop().unwrap_or_default();
        self.last = event.0;
        event
    }
}

impl Ids {
    fn read(events: &Path) -> Result<Ids> {
        let format = |event: &str| {
            let path = events.join(event).join("format");
            fs::read_to_string(&path).context(path.display())
        };
        let id = |event: &str| {
            parse_id(&format(event)?).ok_or_else(|| format!("event {event}: no id in its format"))
        };
        let switch = format("sched/sched_switch")?;
        let field = |name: &str| {
            parse_offset(&switch, name)
                .ok_or_else(|| format!("event sched_switch has no field {name}"))
        };
        Ok(Ids {
            init: id("reprieve/gp_init")?,
            cleanup: id("reprieve/gp_cleanup")?,
            switch: id("sched/sched_switch")?,
            prev_comm: field("prev_comm")?,
            next_comm: field("next_comm")?,
            softirq_entry: id("irq/softirq_entry")?,
            softirq_exit: id("irq/softirq_exit")?,
        })
    }

    /// The meaning of a recorded event; `None` for a switch between threads that do not count.
    fn classify(&self, data: &[u8]) -> Option<Kind> {
        let id = u16_at(data, 0)?;
        if id == self.init {
            Some(Kind::Init)
        } else if id == self.cleanup {
            Some(Kind::Cleanup)
        } else if id == self.softirq_entry {
            Some(Kind::SoftirqOn)
        } else if id == self.softirq_exit {
            Some(Kind::SoftirqOff)
        } else if id == self.switch {
            if is_rcu_thread(name_at(data, self.next_comm)?) {
                Some(Kind::ThreadOn)
            } else if is_rcu_thread(name_at(data, self.prev_comm)?) {
                Some(Kind::ThreadOff)
            } else {
                None
            }
        } else {
            None
        }
    }
}

/// The 16 bytes of a thread's name, up to the terminator.
fn name_at(data: &[u8], at: usize) -> Option<&[u8]> {
    data.get(at..at + 16)?.split(|b| *b == 0).next()
}

fn parse_id(format: &str) -> Option<u16> {
    format.lines().find_map(|l| l.strip_prefix("ID:")?.trim().parse().ok())
}

/// Offset of a field: `field:char prev_comm[16]; offset:8; size:16; signed:0;`.
fn parse_offset(format: &str, field: &str) -> Option<usize> {
    format.lines().find_map(|line| {
        let mut parts = line.trim().strip_prefix("field:")?.split(';');
        let name = parts.next()?.rsplit(' ').next()?.split('[').next()?;
        let offset = parts.next()?.trim().strip_prefix("offset:")?;
        (name == field).then(|| offset.parse().ok())?
    })
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

    const FORMATS: [&str; 3] = [
        include_str!("testdata/6.1.sched_switch_format"),
        include_str!("testdata/6.12.sched_switch_format"),
        include_str!("testdata/7.3.sched_switch_format"),
    ];

    #[test]
    fn formats_of_stock_guests_are_understood() {
        for format in FORMATS {
            assert!(parse_id(format).is_some());
            assert_eq!(parse_offset(format, "prev_comm"), Some(8));
            assert_eq!(parse_offset(format, "next_comm"), Some(40));
            assert_eq!(parse_offset(format, "comm"), None);
        }
        assert_eq!(parse_id("ID: x"), None);
        assert_eq!(parse_offset("field:;offset", ""), None);
    }

    /// A page of a stock guest's record, and the beginning of the same as the kernel prints it.
    #[test]
    fn a_real_page_reads_as_the_kernel_prints_it() {
        let page = include_bytes!("testdata/6.12.trace_page");
        let text = include_str!("testdata/6.12.trace_text");
        let ids = Ids {
            init: 1554,
            cleanup: 1555,
            switch: 310,
            prev_comm: 8,
            next_comm: 40,
            softirq_entry: 155,
            softirq_exit: 154,
        };
        let mut events = Vec::new();
        ring::events(page, |e| {
            // The kernel rounds to microseconds.
            events.push(((e.time_ns + 500) / 1_000, ids.classify(e.data)));
        });
        let printed: Vec<(u64, Option<Kind>)> = text.lines().map(printed_event).collect();
        assert!(printed.len() >= 80 && events.len() >= printed.len());
        assert_eq!(events[..printed.len()], printed);
    }

    /// `COMM-PID [CPU] FLAGS SECONDS.MICROSECONDS: EVENT: ...`
    fn printed_event(line: &str) -> (u64, Option<Kind>) {
        let mut parts = line.splitn(3, ": ");
        let time = parts.next().unwrap().rsplit(' ').next().unwrap();
        let (seconds, micros) = time.split_once('.').unwrap();
        let time = seconds.parse::<u64>().unwrap() * 1_000_000 + micros.parse::<u64>().unwrap();
        let kind = match (parts.next().unwrap(), parts.next().unwrap()) {
            ("gp_init", _) => Some(Kind::Init),
            ("gp_cleanup", _) => Some(Kind::Cleanup),
            ("softirq_entry", _) => Some(Kind::SoftirqOn),
            ("softirq_exit", _) => Some(Kind::SoftirqOff),
            ("sched_switch", rest) if rest.contains("next_comm=rcu_preempt") => {
                Some(Kind::ThreadOn)
            }
            ("sched_switch", rest) if rest.contains("prev_comm=rcu_preempt") => {
                Some(Kind::ThreadOff)
            }
            _ => None,
        };
        (time, kind)
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
        let ids = Ids {
            init: 1,
            cleanup: 2,
            switch: 3,
            prev_comm: 8,
            next_comm: 40,
            softirq_entry: 4,
            softirq_exit: 5,
        };
        let switch = |from: &str, to: &str| {
            let mut data = vec![0; 64];
            data[0] = 3;
            data[8..8 + from.len()].copy_from_slice(from.as_bytes());
            data[40..40 + to.len()].copy_from_slice(to.as_bytes());
            ids.classify(&data)
        };
        assert_eq!(switch("swapper/0", "rcu_preempt"), Some(Kind::ThreadOn));
        assert_eq!(switch("rcu_preempt", "swapper/0"), Some(Kind::ThreadOff));
        assert_eq!(switch("rcuc/0", "rcu_preempt"), Some(Kind::ThreadOn));
        assert_eq!(switch("rcu_tasks_kthre", "init"), None);
        assert_eq!(ids.classify(&[1, 0]), Some(Kind::Init));
        assert_eq!(ids.classify(&[3, 0, 0]), None);
        assert_eq!(ids.classify(&[]), None);
    }
}
