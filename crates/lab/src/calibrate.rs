// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures [`Costs`] in the bed in use, with a guest that is otherwise idle.

use crate::costs::{Costs, Measured};
use crate::error::Result;
use crate::limit::scaled;
use crate::process::Cancel;
use crate::vm::{Accel, Vm, allowed_cpus};
use reprieve_init::protocol::{BASE_SLICE_FILE, Command, Cost, Event};
use std::time::Duration;

/// Time for each cost. Switches come a few hundred times per second.
const EXIT: Duration = Duration::from_millis(100);
const SWITCH: Duration = Duration::from_millis(800);

/// How long a guest may take for one.
const LIMIT: Duration = Duration::from_secs(120);

/// All costs together take about this long.
pub const ESTIMATE: Duration = Duration::from_millis(1000);

/// Measures all costs with `vm`, a guest of two or more vCPUs without work, whose vCPUs are pinned
/// as in `pin` before and after.
pub fn measure(vm: &mut Vm, accel: Accel, pin: &[Vec<u32>], cancel: &Cancel) -> Result<Costs> {
    let vcpus = vm.threads().vcpus().len();
    // An emulated guest never leaves its VM: there is none.
    let vm_exit = match accel {
        Accel::Kvm => ask(vm, Cost::Exit, EXIT, cancel)?,
        Accel::Tcg => None,
    };
    let vcpu_switch = if vcpus < 2 {
        None
    } else {
        vm.threads().pin(&vec![vec![0]; vcpus], &[])?;
        let switch = ask(vm, Cost::Switch, SWITCH, cancel);
        let all: Vec<u32> = (0..allowed_cpus().len() as u32).collect();
        let before = |i: usize| pin.get(i).filter(|cpus| !cpus.is_empty()).unwrap_or(&all).clone();
        vm.threads().pin(&(0..vcpus).map(before).collect::<Vec<_>>(), &[])?;
        switch?
    };
    Ok(Costs { vcpu_switch, vm_exit, slice_ns: base_slice_ns() })
}

fn ask(vm: &mut Vm, cost: Cost, time: Duration, cancel: &Cancel) -> Result<Option<Measured>> {
    let mut found = None;
    let command = Command::Calibrate { cost, duration_ms: time.as_millis() as u64 };
    vm.call(&command, scaled(LIMIT), cancel, |event| {
        if let Event::Cost { ns, count } = event {
            found = Some(Measured { ns, count });
        }
        Ok(())
    })?;
    Ok(found)
}

/// The slice of this machine's stock scheduler, if debugfs shows it.
pub fn base_slice_ns() -> Option<u64> {
    std::fs::read_to_string(BASE_SLICE_FILE).ok()?.trim().parse().ok()
}
