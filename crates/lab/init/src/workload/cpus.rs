// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPUs that were added to the guest since it booted: a kernel leaves it to user space to take them
//! into use.

use crate::sys::Result;
use std::fs;
use std::path::Path;

const CPUS: &str = "/sys/devices/system/cpu";

/// Takes all CPUs of the guest into use.
pub fn use_all() -> Result<()> {
    use_all_below(Path::new(CPUS))
}

fn use_all_below(cpus: &Path) -> Result<()> {
    // A kernel without CPU hotplug has no such files.
    for cpu in fs::read_dir(cpus).into_iter().flatten().flatten() {
        let online = cpu.path().join("online");
        let is_off = fs::read_to_string(&online).is_ok_and(|state| state.trim() == "0");
        if is_off && cpu.file_name().as_encoded_bytes().starts_with(b"cpu") {
            fs::write(&online, "1").map_err(|e| format!("{}: {e}", online.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::use_all_below;
    use std::fs;

    #[test]
    fn those_that_are_off_are_taken_into_use() {
        let cpus = std::env::temp_dir().join(format!("reprieve-cpus-{}", std::process::id()));
        for (cpu, state) in [("cpu0", None), ("cpu1", Some("1\n")), ("cpu2", Some("0\n"))] {
            fs::create_dir_all(cpus.join(cpu)).unwrap();
            if let Some(state) = state {
                fs::write(cpus.join(cpu).join("online"), state).unwrap();
            }
        }
        fs::write(cpus.join("online"), "0\n").unwrap();
        use_all_below(&cpus).unwrap();
        let state = |cpu: &str| fs::read_to_string(cpus.join(cpu).join("online")).ok();
        let states = ["cpu0", "cpu1", "cpu2"].map(state);
        fs::remove_dir_all(&cpus).unwrap();
        assert_eq!(states, [None, Some("1\n".into()), Some("1".into())]);
    }
}
