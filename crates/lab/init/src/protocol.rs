// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the lab and the `init` of its guests say to each other.
//!
//! One JSON object per line, over the virtio-serial port [`PORT`] where the guest has one, else over its second serial
//! line (`/dev/ttyS1`). The guest speaks first ([`Event::Hello`]); every [`Command`] is answered by exactly one of
//! [`Event::Ready`], [`Event::PhaseDone`], [`Event::Exited`] or [`Event::Error`], possibly after other events.
//!
//! Times are nanoseconds of the guest's `CLOCK_MONOTONIC`, given relative to the start of the phase.

use serde::{Deserialize, Serialize};

/// Name of the virtio-serial port: `/dev/virtio-ports/<PORT>` once udev-like naming is done, found through sysfs.
pub const PORT: &str = "reprieve.lab";

/// Raised when either side would misread the other.
pub const PROTOCOL: u32 = 1;

/// Longest line of either side, bytes, its end included; a longer one is damage.
pub const LINE_MAX: usize = 1 << 20;

/// In an image with the `reprieve` command: how to start it, an argument per line.
pub const REPRIEVE_ARGV: &str = "/lib/reprieve/program/argv";

/// From the lab to a guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Get everything ready that must not be measured (modules, files, trace buffers). Answered by [`Event::Ready`].
    Prepare { workload: Workload, measure: Option<Measure> },
    /// Run the prepared workload for `duration_ms` under measurement (if prepared with one), send the samples, answer
    /// with [`Event::PhaseDone`].
    Phase { phase: u32, duration_ms: u64 },
    /// Start the prepared workload and answer [`Event::Ready`] at once; it runs until power-off. For competitors.
    Start,
    /// Run a program, its standard output and error line by line as [`Event::Output`], answered by [`Event::Exited`].
    /// Used in lab hosts.
    Exec { argv: Vec<String>, env: Vec<(String, String)> },
    /// Read a file of the guest's (of `/proc`, mostly): its text in order as [`Event::Content`], then [`Event::Ready`].
    Read { path: String },
    /// Start another kernel from files of the guest's (`kexec`). Answered by its [`Event::Hello`], if the guest is in order.
    Kexec { kernel: String, initrd: String, cmdline: String },
    /// Send SIGINT to the program started by the running [`Command::Exec`]; not answered by itself.
    Interrupt,
    /// Switch the guest off. Not answered.
    PowerOff,
}

/// What a guest runs. Sizes in bytes, rates per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Workload {
    /// Nothing.
    Idle,
    /// `instances` Postmark processes, each with its own directory of `files` files on tmpfs.
    Postmark { instances: u32, files: u32, seed: u64 },
    /// The kernel module: on each CPU of `cpus` (all, when empty) allocate `object_bytes` and free them through
    /// `call_rcu`, `rate` pairs per second per CPU (0: as fast as it goes), calling the scheduler every `yield_every`
    /// pairs.
    Membench { cpus: Vec<u32>, rate: u32, object_bytes: u32, yield_every: u32 },
    /// `clone()` of a child in new `namespaces`, in a loop, by `workers` processes.
    Clone { workers: u32, namespaces: Vec<Namespace> },
    /// A thread pinned to `producer_cpu` that creates and removes System V semaphore sets of `semaphores` semaphores (each removal
    /// frees the set through `call_rcu`), and on each of `reader_cpus` a thread in a loop of short system calls.
    SemChurn { producer_cpu: u32, reader_cpus: Vec<u32>, semaphores: u32 },
    /// `workers` threads, one per vCPU in turn, each of which creates and unlinks an empty file on tmpfs in a loop; unit `file`.
    FileChurn { workers: u32 },
    /// The real dbench program with `clients` clients on tmpfs.
    Dbench { clients: u32 },
    /// `reprieve` itself, with `arguments` and `--seconds` of the phase's length: one of its benchmarks, whose `--json` becomes
    /// [`PhaseResult::figures`]. It ends by itself, somewhat after its phase.
    Bench { arguments: Vec<String> },
    /// `threads` threads that never stop computing.
    Hog { threads: u32 },
    /// `pairs` pairs of threads, on different vCPUs, that wake each other and sleep, computing for `work_us` before each time; unit `wakeup`.
    PingPong { pairs: u32, work_us: u32 },
    /// [RP]'s bursty processes: `min_ops..=max_ops` arithmetic operations, then `min_sleep_ms..=max_sleep_ms` asleep, uniformly at
    /// random from `seed`.
    Bursty {
        processes: u32,
        min_ops: u64,
        max_ops: u64,
        min_sleep_ms: u32,
        max_sleep_ms: u32,
        seed: u64,
    },
    /// Each of these CPUs is kept in a known state; needs the kernel module `reprieve_hold` for all but [`Held::User`]. Unit `hold`.
    Hold { holds: Vec<Hold> },
}

/// A CPU that stays in `held` for `hold_us` at a time, over and over, with pauses of `pause_us` (0: none but a call of the scheduler).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    pub cpu: u32,
    pub held: Held,
    pub hold_us: u32,
    pub pause_us: u32,
}

/// What a CPU can be kept in. In the kernel, by a function of the module that bears the name (`reprieve_hold_irqs_off`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Held {
    /// User mode.
    User,
    /// Preemptible kernel code.
    Kernel,
    /// An RCU read-side section.
    Reader,
    /// A spinlock held.
    Spinlock,
    /// Bottom halves disabled.
    Bh,
    /// A tasklet.
    Softirq,
    /// An interrupt handler.
    Hardirq,
    /// Interrupts disabled.
    IrqsOff,
}

impl Held {
    pub const ALL: [Held; 8] = [
        Held::User,
        Held::Kernel,
        Held::Reader,
        Held::Spinlock,
        Held::Bh,
        Held::Softirq,
        Held::Hardirq,
        Held::IrqsOff,
    ];

    /// The name in the protocol and in the module's commands.
    pub const fn name(self) -> &'static str {
        match self {
            Held::User => "user",
            Held::Kernel => "kernel",
            Held::Reader => "reader",
            Held::Spinlock => "spinlock",
            Held::Bh => "bh",
            Held::Softirq => "softirq",
            Held::Hardirq => "hardirq",
            Held::IrqsOff => "irqs-off",
        }
    }
}

/// A namespace type of `clone(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Namespace {
    Cgroup,
    Ipc,
    Mnt,
    Net,
    Pid,
    Time,
    User,
    Uts,
}

/// What to measure during a phase, and how often.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// Interval of [`Sample::Memory`], ms; doubled as often as it takes for a phase to have at most 200,000.
    pub memory_ms: u32,
    /// Interval of [`Sample::Fragmentation`] and [`Sample::Cpu`], ms.
    pub slow_ms: u32,
    /// Trace buffer per CPU, KiB: enough for the longest phase.
    pub trace_kb: u32,
    /// `call_rcu` probes per second per CPU ([`Sample::Callback`]); 0 for none. Needs the kernel module.
    pub callback_probe_hz: u32,
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
    /// The load has stopped and the phase is over; sent at that moment, before anything is read or drained. Samples follow.
    LoadStopped { phase: u32 },
    /// One measurement of the phase that has just ended.
    Sample { phase: u32, sample: Sample },
    /// The phase is over and all its samples were sent.
    PhaseDone { phase: u32, result: PhaseResult },
    /// A line that the program of [`Command::Exec`] wrote; one too long for this line comes in parts.
    Output { stderr: bool, line: String },
    /// A part of the file of [`Command::Read`]; what is not UTF-8 is replaced.
    Content { text: String },
    /// The program of [`Command::Exec`] ended: its exit status, or 128 + the signal that killed it.
    Exited { status: i32 },
    /// Something worth telling the user that does not end the run.
    Notice { text: String },
    /// The command failed; the guest stays usable.
    Error { message: String },
}

/// What a guest is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GuestInfo {
    /// `uname -r`.
    pub kernel: String,
    pub cpus: u32,
    pub memory_kb: u64,
    /// Preemption model in force (`none`, `voluntary`, `full`, `lazy`), where the kernel tells.
    pub preempt: Option<String>,
    /// Timer frequency, where the kernel tells.
    pub hz: Option<u32>,
    pub cmdline: String,
    /// Clock source in use.
    pub clocksource: String,
}

/// One measurement. Times in ns since the phase began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "sample", rename_all = "snake_case")]
pub enum Sample {
    /// A completed grace period that began in the phase. `cpu_ns`: time on a vCPU of RCU's own threads and of its softirq between
    /// `start_ns` and `end_ns`, as the guest's clock sees it.
    GracePeriod { start_ns: u64, end_ns: u64, cpu_ns: u64 },
    /// `used_kb` = total - free - page cache (tmpfs files included) - buffers - what measuring takes (trace buffers, samples): what programs
    /// and the kernel hold, all slab memory included.
    Memory { t_ns: u64, free_kb: u64, slab_kb: u64, used_kb: u64 },
    /// Unusable free space index, 0 to 1, by page order (index 0 is order 0), as the kernel's `extfrag/unusable_index`,
    /// weighted over the zones by their free pages.
    Fragmentation { t_ns: u64, unusable: Vec<f64> },
    /// Shares (0 to 1) of the guest's CPU time since the previous such sample; `callbacks` of membench
    /// waiting for a grace period, where that is the load (no stock kernel tells the number of all).
    Cpu { t_ns: u64, steal: f64, kernel: f64, user: f64, idle: f64, callbacks: Option<u64> },
    /// A probe callback: registered at `t_ns` on `cpu`, run `latency_ns` later.
    Callback { t_ns: u64, cpu: u32, latency_ns: u64 },
}

/// What a phase came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseResult {
    pub elapsed_ns: u64,
    /// Operations done by the workload, in its own unit.
    pub operations: f64,
    /// The unit of `operations`, singular, e.g. `transaction`.
    pub unit: String,
    /// What a workload that measures by itself has found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
    pub cost: MeasureCost,
}

/// A figure of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Who or what was measured, e.g. `urcu memb`.
    pub subject: String,
    /// Under which load, e.g. `16 readers`; may be empty.
    pub group: String,
    /// What of it, e.g. `p99`.
    pub measure: String,
    pub unit: String,
    pub value: f64,
}

/// What measuring cost the guest during a phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasureCost {
    /// CPU time of sampling: of each sampling thread, the median CPU time of a sample times their number. (The threads' own
    /// CPU time would contain what the hypervisor stole from them.)
    pub sampler_ns: u64,
    /// Trace events recorded, and those lost to a full buffer.
    pub trace_events: u64,
    pub trace_lost: u64,
    /// Cost of one trace event (a kprobe, the dearest kind), measured in this guest when it was prepared; 0 if unknown.
    pub trace_event_ns: f64,
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
                workload: Workload::Clone {
                    workers: 2,
                    namespaces: vec![Namespace::Net, Namespace::Uts],
                },
                measure: Some(Measure {
                    memory_ms: 20,
                    slow_ms: 1000,
                    trace_kb: 64,
                    callback_probe_hz: 0,
                }),
            },
            r#"{"cmd":"prepare","workload":{"kind":"clone","workers":2,"namespaces":["net","uts"]},"measure":{"memory_ms":20,"slow_ms":1000,"trace_kb":64,"callback_probe_hz":0}}"#,
        );
        round_trip(Command::PowerOff, r#"{"cmd":"power_off"}"#);
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
                sample: Sample::GracePeriod { start_ns: 1, end_ns: u64::MAX, cpu_ns: 2 },
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
