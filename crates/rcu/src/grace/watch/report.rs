// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stall reports, as data and as text.

use crate::thread::id::DomainId;
use std::fmt::{Display, Formatter, Result};
use std::time::Duration;

/// A grace period that waits, and the readers it waits for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stall {
    /// The domain of the grace period.
    pub domain: DomainId,
    /// The longest time that any of these readers has been waited for. A lower bound: when a
    /// section began is not known.
    pub waiting: Duration,
    /// The readers, the one waited for longest first.
    pub laggards: Vec<Laggard>,
}

/// A reader that a grace period waits for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Laggard {
    /// Its thread id, as `gettid` gives it.
    pub thread: u32,
    /// Its name, as `pthread_setname_np` sets it. Empty if it is gone.
    pub name: String,
    /// How long it has been seen in its section (or, online, without a quiescent state): a lower
    /// bound.
    pub waiting: Duration,
    /// CPU time that it has used since then.
    pub ran: Option<Duration>,
    /// The thread's state when the report was made.
    pub state: State,
    /// The CPU that it runs on or ran on last.
    pub cpu: Option<u32>,
}

/// The state of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// The thread is on a CPU.
    Running,
    /// The thread is runnable, but has no CPU.
    Preempted,
    /// The thread waits in the kernel.
    #[non_exhaustive]
    Blocked {
        /// Number of the system call; negative for a page fault and the like.
        call: Option<i64>,
        /// The kernel's function, where the kernel tells.
        function: Option<String>,
    },
    /// A signal or a debugger stopped the thread.
    Stopped,
    /// The thread no longer exists. It ended inside a section, without its destructors (a bare
    /// `exit` system call, a bare thread), or with a guard leaked.
    #[non_exhaustive]
    Dead {
        /// Its section, its protected nodes and its place were given up: the grace period goes on.
        forgotten: bool,
        /// The thread leaked a guard ([`Guard`](crate::Guard), [`Qsbr`](crate::Qsbr)), whose
        /// references may still be in use: its section never ends.
        leaked: bool,
    },
    /// The system does not tell.
    Unknown,
}

impl Display for Stall {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (n, waiting) = (self.laggards.len(), seconds(self.waiting));
        let readers = if n == 1 { "reader" } else { "readers" };
        write!(f, "a grace period of {} has waited {waiting} for {n} {readers}", self.domain)?;
        self.laggards.iter().try_for_each(|laggard| write!(f, "\n{laggard}"))
    }
}

impl Display for Laggard {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "  thread {}", self.thread)?;
        if !self.name.is_empty() {
            write!(f, " ({})", self.name.escape_debug())?;
        }
        write!(f, ", in its section for {}", seconds(self.waiting))?;
        if let Some(ran) = self.ran {
            write!(f, " (ran {})", seconds(ran))?;
        }
        write!(f, ": {}", self.state)?;
        match self.cpu {
            Some(cpu) if self.state == State::Running => write!(f, " on CPU {cpu}"),
            Some(cpu) => write!(f, ", last on CPU {cpu}"),
            None => Ok(()),
        }
    }
}

impl Display for State {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            State::Running => f.write_str("running"),
            State::Preempted => f.write_str("preempted"),
            State::Blocked { call, function } => {
                f.write_str("blocked")?;
                match call {
                    Some(call @ 0..) => write!(f, " in system call {call}")?,
                    Some(_) => f.write_str(" outside of a system call")?,
                    None => {}
                }
                function.as_ref().map_or(Ok(()), |name| write!(f, " ({name})"))
            }
            State::Stopped => f.write_str("stopped"),
            State::Dead { forgotten: true, .. } => f.write_str("dead; its section is forgotten"),
            State::Dead { leaked: true, .. } => {
                f.write_str("dead, and it leaked a guard: its section never ends")
            }
            State::Dead { .. } => f.write_str("dead, and waited for"),
            State::Unknown => f.write_str("in an unknown state"),
        }
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}
