// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks of the guest.

use crate::error::{Error, Result};
use crate::kernel::types::Types;
use crate::memory::{Memory, printable};

/// Length of a task's name with its end, bytes (`TASK_COMM_LEN`).
pub const COMM_LEN: usize = 16;

/// More than a `task_struct` has, bytes. The offsets of its fields are the guest's word.
const BYTES_MOST: u64 = 1 << 20;

/// Offsets in `struct task_struct`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskOffsets {
    /// Number of the thread (`pid_t`); 0 for an idle task.
    pub pid: u32,
    /// 16 bytes.
    pub comm: u32,
    /// `rcu_read_lock_nesting` (i32); `None`: RCU readers leave no trace in this kernel.
    pub rcu_nesting: Option<u32>,
}

/// A task at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Kernel address of its `task_struct`.
    pub address: u64,
    /// Number of the thread; 0 for an idle task.
    pub pid: i32,
    /// Name, printable.
    pub comm: String,
    /// Depth of RCU readers it is in; `None` if the kernel does not count.
    pub rcu_nesting: Option<i32>,
}

impl Task {
    /// Whether it is a CPU's idle task.
    pub fn is_idle(&self) -> bool {
        self.pid == 0
    }

    pub(crate) fn read(memory: &Memory, offsets: &TaskOffsets, address: u64) -> Result<Task> {
        let at =
            |offset: u32| address.checked_add(offset.into()).ok_or(Error::NotMapped { address });
        let comm: [u8; COMM_LEN] = memory.array(at(offsets.comm)?)?;
        Ok(Task {
            address,
            pid: memory.i32(at(offsets.pid)?)?,
            comm: printable(comm.split(|&b| b == 0).next().unwrap_or_default()),
            rcu_nesting: offsets.rcu_nesting.map(|o| memory.i32(at(o)?)).transpose()?,
        })
    }
}

/// The offset of a field of `task_struct`, if it can be one.
pub(crate) fn task_offset(offset: u64) -> Option<u32> {
    (offset < BYTES_MOST).then_some(offset as u32)
}

impl TaskOffsets {
    pub(crate) fn new(types: &Types) -> Result<TaskOffsets> {
        let offset = |field: &str| -> Result<u32> {
            let offset = types.offset_of("task_struct", field)?;
            task_offset(offset)
                .ok_or_else(|| Error::corrupt("task_struct", format!("{field} at {offset}")))
        };
        Ok(TaskOffsets {
            pid: offset("pid")?,
            comm: offset("comm")?,
            rcu_nesting: offset("rcu_read_lock_nesting").ok(),
        })
    }
}
