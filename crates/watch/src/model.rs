// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data model of `watch`: the only interface between collection and presentation, and the
//! schema of `--json` and of recordings.
//!
//! Times are nanoseconds. A point in time is of `CLOCK_MONOTONIC` on the host; [`Snapshot::wall`]
//! ties it to the calendar. Counters and histograms are totals since `watch` attached to the VM,
//! and never fall while it does: a rate is a difference of two snapshots. The exception is time on
//! a CPU: of a stay whose end was not seen nothing is left. When a vCPU is taken out of a VM, the
//! counters of all its vCPUs begin anew.

use serde::{Deserialize, Serialize};

/// The work of a vCPU when it lost its CPU against its will.
///
/// The first that applies, in this order: unknown, user, hardirq, softirq, idle, spinning,
/// no-preempt, irqs-off, reader, kernel. (An interrupt that hits the idle task is as critical as
/// any other; the idle task itself always has preemption disabled.) A reader is counted as such in
/// [`Preemptions::readers`] whatever its class: an interrupted section is still one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// User mode.
    User,
    /// Preemptible kernel code. With a kernel whose readers leave no trace (no PREEMPT_RCU) it may
    /// be a reader.
    Kernel,
    /// In an RCU read-side section, preemptible.
    Reader,
    /// Preemption disabled: a spinlock held, bottom halves disabled, per-CPU data in use.
    NoPreempt,
    /// Spins with preemption disabled, for the owner of a mutex or semaphore, or for the answer to
    /// a call. It goes on when another CPU has run.
    Spinning,
    /// Interrupts off, preemption not disabled.
    IrqsOff,
    /// Serving a softirq.
    Softirq,
    /// Serving a hardware interrupt or an NMI.
    Hardirq,
    /// The idle task.
    Idle,
    /// The guest's work could not be read.
    Unknown,
}

impl Class {
    /// All, in the order in which they are shown.
    pub const ALL: [Class; 10] = [
        Class::User,
        Class::Kernel,
        Class::Reader,
        Class::NoPreempt,
        Class::Spinning,
        Class::IrqsOff,
        Class::Softirq,
        Class::Hardirq,
        Class::Idle,
        Class::Unknown,
    ];

    /// The name in tables, JSON and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Class::User => "user",
            Class::Kernel => "kernel",
            Class::Reader => "reader",
            Class::NoPreempt => "no-preempt",
            Class::Spinning => "spinning",
            Class::IrqsOff => "irqs-off",
            Class::Softirq => "softirq",
            Class::Hardirq => "hardirq",
            Class::Idle => "idle",
            Class::Unknown => "unknown",
        }
    }
}

/// Durations by powers of two: bucket `n` counts those of at least 2^n and less than 2^(n+1)
/// microseconds; bucket 0 also shorter ones, the last also longer ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// Up to [`Histogram::BUCKETS`] counts; trailing zeros may be missing.
    pub counts: Vec<u64>,
    /// Sum of all durations.
    pub total_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Histogram {
    /// 2^27 us are two minutes.
    pub const BUCKETS: usize = 28;
}

/// Times that vCPUs were taken off their CPU, of one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preemptions {
    pub class: Class,
    /// How long it took until the vCPU ran again. The sum of the counts is the number of
    /// preemptions that have ended.
    pub off_cpu: Histogram,
    /// Ended preemptions that hit an RCU reader, and how long they lasted.
    pub readers: u64,
    pub readers_off_cpu_ns: u64,
}

/// A snapshot of everything watched.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`Snapshot::SCHEMA`].
    pub schema: u32,
    /// When it was taken.
    pub time_ns: u64,
    /// The same, nanoseconds since 1970.
    pub wall: u64,
    pub vms: Vec<VmSnapshot>,
    pub processes: Vec<Process>,
    pub cost: Cost,
}

impl Snapshot {
    /// Grows when a field goes or gets another meaning, not when one is added.
    pub const SCHEMA: u32 = 3;
}

/// The cost of watching, and the number of events missed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// How long all of this has been measured.
    pub elapsed_ns: u64,
    /// Runs of the eBPF program at context switches of watched threads, and the time in it.
    pub switches: u64,
    pub switch_ns: u64,
    /// The median of that time per switch; `None` before the first.
    pub switch_median_ns: Option<u64>,
    /// CPU time of the `watch` process itself.
    pub process_ns: u64,
    /// Events that a recording lost, and context switches that were not seen and could not be made
    /// good.
    pub lost: u64,
}

/// A virtual machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VmSnapshot {
    /// The process ID of the VMM.
    pub pid: u32,
    /// The VMM's name for it, else the PID.
    pub name: String,
    /// As "qemu-kvm", "qemu-tcg".
    pub vmm: String,
    pub state: VmState,
    /// Why it is unreadable, in a word: `encrypted`, `layout`, `no-kernel`, `permission`,
    /// `room`, `unsupported`, `vmm` or `other`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The guest kernel's release, once known.
    pub kernel: Option<String>,
    /// Blind spots in this guest, in sentences ("RCU readers leave no trace: ...").
    pub blind: Vec<String>,
    pub vcpus: Vec<Vcpu>,
    /// `None` until the guest has been read.
    pub grace: Option<Grace>,
    /// User mode is quiescent to the guest's RCU on some of its CPUs (context tracking: those of
    /// `nohz_full`); false until the guest has been read.
    pub tracks_user: bool,
    /// `None` unless [`Options::late`](super::Options::late) asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// The processes that took most of the CPU time of its preempted vCPUs, at most
    /// [`VmSnapshot::TAKERS`].
    pub takers: Vec<Taker>,
}

/// A process whose threads were the first to run in place of preempted vCPUs. A preemption counts
/// when it ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taker {
    pub pid: u32,
    /// The name of the VM, else of the process, else of the thread that was first to take a CPU.
    pub name: String,
    /// The process is a VM that is watched.
    pub vm: bool,
    /// Where limits of CPU time apply to it, while it runs.
    pub cgroup: Option<String>,
    /// Preemptions, and how long they lasted.
    pub count: u64,
    pub total_ns: u64,
}

impl VmSnapshot {
    pub const TAKERS: usize = 5;
}

/// Grace periods that were late while a preempted vCPU owed them a quiescent state. A preemption
/// counts when it ends. Not counted are vCPUs preempted in the idle task, or in user mode where the
/// guest tracks it, for which RCU reports soon, and readers that the guest's own scheduler had
/// preempted before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Grace periods.
    pub graces: u64,
    /// Preemptions, and for how long they lasted while the grace period was late.
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state", content = "why")]
pub enum VmState {
    /// The guest is being found in the VM's memory.
    #[default]
    Attaching,
    Watching,
    /// Stopped by its VMM.
    Paused,
    /// The guest cannot be read, and why (encrypted, not Linux, firmware, ...); vCPUs are watched
    /// without classes.
    Unreadable(String),
    /// The process has ended.
    Gone,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Vcpu {
    pub index: u32,
    pub tid: u32,
    pub now: VcpuNow,
    /// An entry per class that occurred.
    pub preemptions: Vec<Preemptions>,
    /// Times that it gave up its CPU itself (halted, or waited for its VMM), and how long it was
    /// until it was woken.
    pub blocks: Histogram,
    /// Waits for a CPU after these wake-ups.
    pub wakes: Histogram,
    /// Time for which it wanted a CPU and had none, of waits that have ended: preemptions and those
    /// after wake-ups. The guest's steal time.
    pub ready_ns: u64,
    /// Preemptions that have ended and began because the VM's cgroup, or one above, had used up its
    /// quota of CPU time, and how long they lasted.
    pub throttled: u64,
    pub throttled_ns: u64,
    /// Time on a CPU, the present stay included.
    pub on_cpu_ns: u64,
    /// Preemptions that have ended, of any class, in non-preemptable sections that programs of the
    /// guest announced, and how long the vCPU was away.
    pub announced: u64,
    pub announced_off_cpu_ns: u64,
}

/// The state of a vCPU now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum VcpuNow {
    Running {
        since_ns: u64,
        /// The host's CPU.
        cpu: u32,
    },
    Preempted {
        since_ns: u64,
        class: Class,
        /// In an RCU read-side section.
        reader: bool,
        at: Location,
        /// Its cgroup, or one above, had used up its quota of CPU time.
        throttled: bool,
    },
    /// The vCPU gave up its CPU, was woken, and waits for a CPU since then.
    Ready {
        since_ns: u64,
        /// When it gave up its CPU.
        halted_ns: u64,
    },
    Halted {
        since_ns: u64,
    },
    /// Not seen at a context switch yet.
    #[default]
    Unseen,
}

/// A location in the guest: task and function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// Name of the guest's current task, and its PID there. Anything may be in the name: escape it.
    pub task: Option<String>,
    pub pid: Option<i32>,
    /// `function+0x12` or `function+0x12 [module]`, in kernel mode.
    pub function: Option<String>,
}

/// A guest's grace periods.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Grace {
    /// Grace periods that began and ended while watched.
    pub durations: Histogram,
    /// Grace periods that ended too fast for both ends to be seen; not in `durations`.
    pub unseen: u64,
    /// `None` as well while the VM is paused.
    pub current: Option<CurrentGrace>,
}

/// The grace period in progress.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CurrentGrace {
    /// The guest's `rcu_state.gp_seq`, below zero while the guest starts.
    pub seq: i64,
    /// When it was seen to begin; with `began_earlier`, it began before that.
    pub began_ns: u64,
    pub began_earlier: bool,
    /// vCPUs that still owe a quiescent state, or run a reader that the guest's own scheduler had
    /// preempted before; [`VmSnapshot::vcpus`] says what they are doing.
    pub owing: Vec<u32>,
    /// Readers that this grace period waits for, and that the guest's own scheduler does not let
    /// run.
    pub blocked_readers: Vec<Location>,
}

/// A process that uses the Reprieve runtime.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    pub domains: Vec<Domain>,
}

/// A domain of the runtime.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Domain {
    pub index: u32,
    /// Registered threads, and those in a plain section now.
    pub threads: u32,
    pub readers: u32,
    pub grace_periods: u64,
    pub callbacks_waiting: u64,
    pub bytes_waiting: u64,
    /// How long the grace period in progress has taken.
    pub current_age_ns: Option<u64>,
    /// Threads that it waits for: at most 1024 in all domains of a process.
    pub laggards: Vec<u32>,
}

/// An event of a recording. Together they are enough to draw each vCPU's states below the guest's
/// grace periods.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum Event {
    /// A vCPU came on a CPU.
    On {
        time_ns: u64,
        pid: u32,
        vcpu: u32,
        cpu: u32,
        /// The class of the preemption that ends, which may be known only now: before, some hosts
        /// do not tell user mode from the kernel.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        was: Option<Class>,
    },
    /// A vCPU was preempted.
    Preempted { time_ns: u64, pid: u32, vcpu: u32, class: Class, reader: bool, at: Location },
    /// A vCPU gave up its CPU.
    Blocked { time_ns: u64, pid: u32, vcpu: u32 },
    /// A grace period was seen to begin.
    GraceBegan { time_ns: u64, pid: u32, seq: i64 },
    /// A grace period was seen to end.
    GraceEnded { time_ns: u64, pid: u32, seq: i64 },
    /// Events are missing from here on, `count` of them. Another one, with a count of 0, is where
    /// the last of them is missing.
    Lost { time_ns: u64, count: u64 },
}

impl Event {
    /// When it happened.
    pub fn time_ns(&self) -> u64 {
        match self {
            Event::On { time_ns, .. }
            | Event::Preempted { time_ns, .. }
            | Event::Blocked { time_ns, .. }
            | Event::GraceBegan { time_ns, .. }
            | Event::GraceEnded { time_ns, .. }
            | Event::Lost { time_ns, .. } => *time_ns,
        }
    }
}
