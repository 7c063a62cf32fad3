// SPDX-License-Identifier: MIT OR Apache-2.0
//! guard in the lab has no more rights than its systemd unit leaves it. So the unit's list is long
//! enough.

use anyhow::{Context as _, Result};
use reprieve_watch::capabilities;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

const UNIT: &str = include_str!("../../../packaging/systemd/reprieve-guard.service");

/// Leaves the command the capabilities that guard's unit names, and no way to get others.
pub fn confine(command: &mut Command) -> Result<()> {
    let kept = kept(UNIT)?;
    let confine = move || {
        for capability in (0..64u32).filter(|capability| !kept.contains(capability)) {
            let capability = libc::c_ulong::from(capability);
            // SAFETY: no memory is passed.
            let done = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
            let error = io::Error::last_os_error();
            // The kernel has no such capability, nor any after it.
            if done != 0 && error.raw_os_error() == Some(libc::EINVAL) {
                break;
            }
            if done != 0 {
                return Err(error);
            }
        }
        // SAFETY: no memory is passed.
        match unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: it only makes system calls, and reads what was allocated before.
    unsafe { command.pre_exec(confine) };
    Ok(())
}

fn kept(unit: &str) -> Result<Vec<u32>> {
    let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let names = line.context("guard's unit has no CapabilityBoundingSet=")?;
    let number =
        |name: &str| capabilities::number(name).with_context(|| format!("{name} in guard's unit"));
    names.split_whitespace().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_says_which_rights_guard_keeps() {
        assert!(kept(UNIT).unwrap().contains(&39));
        assert!(kept("[Service]").is_err() && kept("CapabilityBoundingSet=CAP_NONE").is_err());
    }

    #[test]
    fn a_confined_program_has_those_rights_only() {
        // SAFETY: no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            return;
        }
        let mut command = Command::new("cat");
        command.arg("/proc/self/status");
        confine(&mut command).unwrap();
        let output = command.output().unwrap();
        let status = String::from_utf8(output.stdout).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:")).unwrap();
        let left = u64::from_str_radix(line.trim(), 16).unwrap();
        let unit = kept(UNIT).unwrap().iter().fold(0, |all, number| all | 1 << number);
        assert_eq!(left & !unit, 0, "{left:x}");
        assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    }
}
