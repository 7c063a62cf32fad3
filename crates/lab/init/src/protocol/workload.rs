// SPDX-License-Identifier: MIT OR Apache-2.0
//! The workloads of guests, and what each needs in the guest's image.
//!
//! A new workload is a variant of [`Workload`] here, a file in `init/src/workload` and a line in
//! that folder's `prepare`. If it needs a program, [`Workload::program`] names it.

use serde::{Deserialize, Serialize};

/// The workload of a guest. Sizes in bytes, rates per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Workload {
    /// Nothing.
    Idle,
    /// `instances` processes that do Postmark's transactions, each with its own directory of
    /// `files` files on tmpfs.
    Postmark { instances: u32, files: u32, seed: u64 },
    /// The kernel module: on each CPU allocate 1 KiB and free it through `call_rcu`, 2500 times per
    /// second.
    Membench,
    /// `clone()` of a child in new namespaces of each kind, in a loop, by `workers` processes.
    Clone { workers: u32 },
    /// A thread pinned to `producer_cpu` that creates and removes System V semaphore sets of
    /// `semaphores` semaphores (each removal frees the set through `call_rcu`), and on each of
    /// `reader_cpus` a thread in a loop of short system calls.
    SemChurn { producer_cpu: u32, reader_cpus: Vec<u32>, semaphores: u32 },
    /// `workers` threads, one per vCPU in turn, each of which creates and unlinks an empty file on
    /// tmpfs in a loop; unit `file`.
    FileChurn { workers: u32 },
    /// `threads` threads, one per vCPU in turn, each of which maps, indexes and unmaps the next of
    /// `files` files on tmpfs and merges what it found into a shared index; unit `file`.
    Psearchy { threads: u32, files: u32, seed: u64 },
    /// The real dbench program with `clients` clients on tmpfs.
    Dbench { clients: u32 },
    /// Apache, with a process per vCPU, and wrk on as many threads, which fetches a page over
    /// `connections` connections of the loopback interface, a new one for each request.
    Apache { connections: u32 },
    /// `threads` threads that never stop computing.
    Hog { threads: u32 },
    /// `[RP]`'s bursty processes: `min_ops..=max_ops` arithmetic operations, then
    /// `min_sleep_ms..=max_sleep_ms` asleep, uniformly at random from `seed`.
    Bursty {
        processes: u32,
        min_ops: u64,
        max_ops: u64,
        min_sleep_ms: u32,
        max_sleep_ms: u32,
        seed: u64,
    },
    /// Each of these CPUs is kept in a known state; needs the kernel module `reprieve_hold` for all
    /// but [`Held::User`]. With `graces`, CPU 0 asks for grace periods all the time. Unit `hold`.
    Hold { holds: Vec<Hold>, graces: bool },
    /// `threads` threads, each in turn in a section of `section_us` that it announces to the host
    /// (crate `hint`), and outside for `pause_us`; unit `section`. Figures: what the host answers.
    Hinted { threads: u32, section_us: u32, pause_us: u32 },
}

/// The needs of a workload in the guest's image besides the init.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// The program of Debian's package of the same name, with the list of file operations that it
    /// replays (25 MiB).
    Dbench,
    /// The web server with the modules that it needs to serve a file, and the program wrk.
    Apache,
    /// The kernel module `reprieve_hold`.
    Hold,
}

impl Program {
    pub fn name(self) -> &'static str {
        match self {
            Program::Dbench => "dbench",
            Program::Apache => "apache",
            Program::Hold => "reprieve_hold",
        }
    }

    /// Paths, in the packages and in the guest, of what comes from Debian packages and needs
    /// libraries.
    pub const fn debian_programs(self) -> &'static [&'static str] {
        match self {
            Program::Dbench => &["/usr/bin/dbench"],
            Program::Apache => &[
                "/usr/sbin/apache2",
                "/usr/bin/wrk",
                "/usr/lib/apache2/modules/mod_mpm_event.so",
                "/usr/lib/apache2/modules/mod_authz_core.so",
            ],
            Program::Hold => &[],
        }
    }

    /// Likewise, of their data.
    pub const fn debian_data(self) -> &'static [&'static str] {
        match self {
            Program::Dbench => &["/usr/share/dbench/client.txt"],
            _ => &[],
        }
    }
}

impl Workload {
    /// The program that this workload needs.
    pub fn program(&self) -> Option<Program> {
        match self {
            Workload::Dbench { .. } => Some(Program::Dbench),
            Workload::Apache { .. } => Some(Program::Apache),
            Workload::Hold { .. } => Some(Program::Hold),
            _ => None,
        }
    }

    /// Whether its guest needs memory that it shares with its host, for hints.
    pub fn needs_region(&self) -> bool {
        matches!(self, Workload::Hinted { .. })
    }
}

/// A CPU that stays in `held` for `hold_us` at a time, over and over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    pub cpu: u32,
    pub held: Held,
    pub hold_us: u32,
}

/// A state in which a CPU can be kept. For the states of the kernel, the module has a function of
/// the same name (`reprieve_hold_irqs_off`).
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
