// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol between the lab and the `init` of its guests.
//!
//! A JSON object per line, over the virtio-serial port [`PORT`]. The guest speaks first
//! ([`Event::Hello`]); every [`Command`] is answered by exactly one of [`Event::Ready`],
//! [`Event::PhaseDone`], [`Event::Exited`] or [`Event::Error`], possibly after other events.
//!
//! Times are nanoseconds of the guest's `CLOCK_MONOTONIC`, given relative to the start of the
//! phase.

mod workload;

pub use workload::{Held, Hold, Program, Workload};

use serde::{Deserialize, Serialize};

/// Name of the virtio-serial port: `/dev/virtio-ports/<PORT>` once udev-like naming is done, found
/// through sysfs.
pub const PORT: &str = "reprieve.lab";

/// Raised with every incompatible change.
pub const PROTOCOL: u32 = 6;

/// Longest line of either side, bytes, including its end; a longer line is an error.
pub const LINE_MAX: usize = 1 << 20;

/// Longest line of a program of [`Command::Exec`] that comes whole, bytes. Records of the lab in a
/// lab host have to be shorter: it cannot read their parts.
pub const OUTPUT_MAX: usize = 256 << 10;

/// Name of the kernel parameter, and so of the variable in init's environment, by which the lab
/// multiplies init's time limits on a slow machine.
pub const TIMEOUT_FACTOR: &str = "reprieve_timeout_factor";

/// The same for the slice of a lab host's stock scheduler, ns, and the file that it goes to.
pub const BASE_SLICE: &str = "reprieve_base_slice";
pub const BASE_SLICE_FILE: &str = "/sys/kernel/debug/sched/base_slice_ns";

/// From the lab to a guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Prepare the workload and the measuring (modules, files, trace buffers), so that this is not
    /// measured. Answered by [`Event::Ready`].
    Prepare { workload: Workload, measure: Option<Measure> },
    /// Run the prepared workload for `duration_ms` under measurement (if prepared with one), send
    /// the samples, answer with [`Event::PhaseDone`].
    Phase { phase: u32, duration_ms: u64 },
    /// Start the prepared workload and answer [`Event::Ready`] at once; it runs until power-off.
    /// For competitors.
    Start,
    /// Answer [`Event::Ready`] if the workload of [`Command::Start`] still does its work, else
    /// [`Event::Error`]. The VM has run for about `ran_ms` since the last check: its own clock may
    /// count pauses.
    Check { ran_ms: u64 },
    /// Run a program, its standard output and error line by line as [`Event::Output`], answered by
    /// [`Event::Exited`]. Used in lab hosts.
    Exec { argv: Vec<String>, env: Vec<(String, String)> },
    /// Measure a cost for `duration_ms`, with nothing else running: [`Event::Cost`] if it could be
    /// measured, then [`Event::Ready`].
    Calibrate { cost: Cost, duration_ms: u64 },
    /// Read a file of the guest (mostly of `/proc`): its text in order as [`Event::Content`], then
    /// [`Event::Ready`].
    Read { path: String },
    /// Start another kernel from files of the guest (`kexec`). Answered by the [`Event::Hello`] of
    /// the new kernel's init.
    Kexec { kernel: String, initrd: String, cmdline: String },
    /// A line for the standard input of the program of the running [`Command::Exec`]; not answered.
    Input { line: String },
    /// Switch the guest off. Not answered.
    PowerOff,
}

/// A cost of [`Command::Calibrate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cost {
    /// An instruction that leaves the VM and comes back.
    Exit,
    /// A switch between CPUs 0 and 1, which share a CPU of the host.
    Switch,
}

/// The measurements of a phase, and how often.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// Interval of [`Sample::Memory`], ms; longer where a phase would have more than 100,000.
    pub memory_ms: u32,
    /// Interval of [`Sample::Fragmentation`] and [`Sample::Cpu`], ms.
    pub slow_ms: u32,
    /// Trace buffer per CPU, KiB: enough for the longest phase.
    pub trace_kb: u32,
}

/// From a guest to the lab.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// First line after boot.
    Hello { protocol: u32, guest: GuestInfo },
    /// Done with [`Command::Prepare`] or [`Command::Start`].
    Ready,
    /// The phase begins: its time 0 is when the load starts, right after this was sent.
    PhaseStarted { phase: u32 },
    /// The load has stopped and the phase is over; sent at that moment, before the recorded samples
    /// are read. Samples follow.
    LoadStopped { phase: u32 },
    /// A measurement of the phase that has just ended.
    Sample { phase: u32, sample: Sample },
    /// The phase is over and all its samples were sent.
    PhaseDone { phase: u32, result: PhaseResult },
    /// A line that the program of [`Command::Exec`] wrote; a very long line comes in parts.
    Output { stderr: bool, line: String },
    /// A cost, and how often it was measured.
    Cost { ns: u64, count: u64 },
    /// A part of the file of [`Command::Read`]; bytes that are not UTF-8 are replaced.
    Content { text: String },
    /// The program of [`Command::Exec`] ended: its exit status, or 128 + the signal that killed it.
    Exited { status: i32 },
    /// A message for the user; the run goes on.
    Notice { text: String },
    /// The command failed; the guest stays usable.
    Error { message: String },
}

/// Facts about a guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GuestInfo {
    /// `uname -r`.
    pub kernel: String,
    pub cpus: u32,
    pub memory_kb: u64,
    /// Current preemption model (`none`, `voluntary`, `full`, `lazy`), if the kernel shows it.
    pub preempt: Option<String>,
    /// Timer frequency, if the kernel shows it.
    pub hz: Option<u32>,
    pub cmdline: String,
    /// Clock source in use.
    pub clocksource: String,
}

/// A measurement. Times in ns since the phase began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "sample", rename_all = "snake_case")]
pub enum Sample {
    GracePeriod(GracePeriod),
    /// The grace period that was in progress at the end of the phase, `open_ns` after `start_ns`:
    /// it takes at least that long. `start_ns` is 0 if it began before the phase.
    OpenGracePeriod {
        start_ns: u64,
        open_ns: u64,
    },
    Memory(Memory),
    Fragmentation(Fragmentation),
    Cpu(Cpu),
}

/// A completed grace period that began in the phase. `cpu_ns`: time on a vCPU of RCU's own threads
/// and of its softirq between `start_ns` and `end_ns`, as the guest's clock sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GracePeriod {
    pub start_ns: u64,
    pub end_ns: u64,
    pub cpu_ns: u64,
}

/// `used_kb` = total - free - page cache (tmpfs files included) - buffers - what measuring takes
/// (trace buffers, samples): what programs and the kernel hold, all slab memory included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    pub t_ns: u64,
    pub free_kb: u64,
    pub slab_kb: u64,
    pub used_kb: u64,
}

/// Unusable free space index, 0 to 1, by page order (index 0 is order 0), as the kernel's
/// `extfrag/unusable_index`, weighted over the zones by their free pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fragmentation {
    pub t_ns: u64,
    pub unusable: Vec<f64>,
}

/// Shares (0 to 1) of the guest's CPU time since the previous such sample; `callbacks` of membench
/// waiting for a grace period, where that is the load (no stock kernel tells the number of all).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    pub t_ns: u64,
    pub steal: f64,
    pub kernel: f64,
    pub user: f64,
    pub idle: f64,
    pub callbacks: Option<u64>,
}

/// The result of a phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseResult {
    pub elapsed_ns: u64,
    /// Operations done by the workload, in its own unit.
    pub operations: f64,
    /// The unit of `operations`, singular, e.g. `transaction`.
    pub unit: String,
    /// The figures of a workload that measures by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
    pub cost: MeasureCost,
}

/// A figure of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The subject of the measurement, e.g. `urcu memb`.
    pub subject: String,
    /// The load, e.g. `16 readers`; may be empty.
    pub group: String,
    /// The measure, e.g. `p99`.
    pub measure: String,
    pub unit: String,
    pub value: f64,
    /// The figure is this much or more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
    #[serde(default)]
    pub better: Better,
}

/// The direction in which a figure is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    #[default]
    Lower,
    Higher,
    /// Describes the run; neither is better.
    Neither,
}

/// What measuring took during a phase, and what it missed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasureCost {
    /// Trace events recorded, and those lost to a full buffer.
    pub trace_events: u64,
    pub trace_lost: u64,
    /// If any were lost: until when in the phase none was. Later grace periods are not in the
    /// samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_until_ns: Option<u64>,
    /// Longest interval between two memory samples.
    pub longest_gap_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T>(value: T, text: &str)
    where
        T: Serialize + for<'a> Deserialize<'a> + PartialEq + std::fmt::Debug,
    {
        assert_eq!(serde_json::to_string(&value).unwrap(), text);
        assert_eq!(serde_json::from_str::<T>(text).unwrap(), value);
    }

    #[test]
    fn commands_survive_the_line() {
        round_trip(
            Command::Prepare {
                workload: Workload::Clone { workers: 2 },
                measure: Some(Measure { memory_ms: 20, slow_ms: 1000, trace_kb: 64 }),
            },
            r#"{"cmd":"prepare","workload":{"kind":"clone","workers":2},"measure":{"memory_ms":20,"slow_ms":1000,"trace_kb":64}}"#,
        );
        round_trip(Command::PowerOff, r#"{"cmd":"power_off"}"#);
        round_trip(Command::Check { ran_ms: 5 }, r#"{"cmd":"check","ran_ms":5}"#);
        round_trip(Command::Read { path: "/p".into() }, r#"{"cmd":"read","path":"/p"}"#);
        round_trip(
            Command::Exec { argv: vec!["a b".into()], env: vec![("X".into(), "\n\"".into())] },
            r#"{"cmd":"exec","argv":["a b"],"env":[["X","\n\""]]}"#,
        );
    }

    #[test]
    fn events_survive_the_line() {
        round_trip(
            Event::Sample {
                phase: 3,
                sample: Sample::GracePeriod(GracePeriod {
                    start_ns: 1,
                    end_ns: u64::MAX,
                    cpu_ns: 2,
                }),
            },
            r#"{"event":"sample","phase":3,"sample":{"sample":"grace_period","start_ns":1,"end_ns":18446744073709551615,"cpu_ns":2}}"#,
        );
        round_trip(
            Event::Output { stderr: true, line: "\u{1b}[1mx".into() },
            r#"{"event":"output","stderr":true,"line":"\u001b[1mx"}"#,
        );
        round_trip(Event::LoadStopped { phase: 0 }, r#"{"event":"load_stopped","phase":0}"#);
    }

    #[test]
    fn what_is_held_has_one_name() {
        for held in Held::ALL {
            round_trip(held, &format!("\"{}\"", held.name()));
        }
    }

    #[test]
    fn misspelt_commands_are_refused() {
        for text in [
            r#"{"cmd":"phase","phase":1}"#,
            r#"{"cmd":"phase","phase":1,"duration_ms":5,"more":1}"#,
            r#"{"cmd":"prepare","workload":{"kind":"hog","threads":1,"x":2},"measure":null}"#,
            r#"{"cmd":"nonsense"}"#,
            "{}",
        ] {
            assert!(serde_json::from_str::<Command>(text).is_err(), "{text}");
        }
    }
}
