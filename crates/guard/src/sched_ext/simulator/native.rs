// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler's side of the simulator: its functions, and the entries of its maps.

use super::super::program::types;
use super::kernel::TaskStruct;

#[link(name = "guard_native", kind = "static")]
unsafe extern "C" {
    pub safe fn guard_init() -> i32;
    pub safe fn guard_select_cpu(task: &TaskStruct, prev: i32, flags: u64) -> i32;
    pub safe fn guard_enqueue(task: &TaskStruct, flags: u64);
    pub safe fn guard_dequeue(task: &TaskStruct, flags: u64);
    pub safe fn guard_dispatch(cpu: i32, prev: Option<&TaskStruct>);
    pub safe fn guard_yield(from: &TaskStruct, to: Option<&TaskStruct>) -> bool;
    pub safe fn guard_runnable(task: &TaskStruct, flags: u64);
    pub safe fn guard_running(task: &TaskStruct);
    pub safe fn guard_tick(task: &TaskStruct);
    pub safe fn guard_stopping(task: &TaskStruct, runnable: bool);
    pub safe fn guard_quiescent(task: &TaskStruct, flags: u64);
    pub safe fn guard_update_idle(cpu: i32, idle: bool);

    pub safe fn native_load(settings: &types::settings);
    pub safe fn native_add_vcpu(tid: u32, slot: u32);
    pub safe fn native_timer(cpu: u32);
    pub safe fn native_tick(tid: u32);
    pub safe fn native_turn(count: u64) -> u64;
    pub safe fn native_debt(weight: u64, runnable: u64, ran: u64) -> u64;
    pub safe fn look_at_rcu(now: u64) -> i32;
}

/// Looks at entries of maps.
macro_rules! entries {
    ($($name:ident, $native:ident;)*) => {
        unsafe extern "C" {
            $(safe fn $native(index: u32) -> *mut types::$name;)*
        }
        $(pub fn $name<R>(index: usize, look: impl FnOnce(&mut types::$name) -> R) -> R {
            // SAFETY: nobody else uses the entry while the scheduler does not run.
            look(unsafe { &mut *$native(index as u32) })
        })*
    };
}

entries! { vcpu, native_vcpu; vm, native_vm; guest, native_guest; group, native_group; }
