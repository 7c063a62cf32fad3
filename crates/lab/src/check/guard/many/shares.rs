// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether VMs that always want more had what their weights are worth.
//!
//! A fair scheduler may have given each vCPU its turn a little earlier or later at either end of
//! what is measured. The vCPUs of a VM come in turn together, since they have the same virtual
//! time: so a VM's time may be off by one turn of all its vCPUs, and by no more, however long is
//! measured. A turn is a slice and an extension, or what turns took in the mean, where that is
//! more: in an emulated machine timers are late.

/// A VM's weight, and the CPU time and turns that it had.
#[derive(Clone, Copy)]
pub struct Had {
    pub weight: u64,
    pub vcpus: u64,
    pub used_ns: u64,
    pub turns: u64,
}

/// Percent of what all had.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    pub percent: f64,
    pub due: f64,
    pub tolerance: f64,
}

impl Share {
    pub fn right(&self) -> bool {
        (self.percent - self.due).abs() <= self.tolerance
    }
}

/// The shares of `all`; a turn is `turn_ns` long at most where timers are on time.
pub fn shares(all: &[Had], turn_ns: u64) -> Vec<Share> {
    let used = all.iter().map(|had| had.used_ns).sum::<u64>().max(1) as f64;
    let weight = all.iter().map(|had| had.weight).sum::<u64>().max(1) as f64;
    let share = |had: &Had| {
        let turn = (had.used_ns / had.turns.max(1)).max(turn_ns);
        Share {
            percent: 100.0 * had.used_ns as f64 / used,
            due: 100.0 * had.weight as f64 / weight,
            tolerance: 100.0 * (had.vcpus * turn) as f64 / used,
        }
    };
    all.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn had(weight: u64, used_ms: u64) -> Had {
        Had { weight, vcpus: 10, used_ns: used_ms * MS, turns: used_ms }
    }

    #[test]
    fn a_turn_of_all_vcpus_is_no_gain() {
        let right = |all: &[Had]| shares(all, 2 * MS).iter().map(Share::right).collect::<Vec<_>>();
        assert_eq!(right(&[had(100, 1000), had(200, 2000)]), [true, true]);
        assert_eq!(right(&[had(100, 1019), had(200, 1981)]), [true, true]);
        assert_eq!(right(&[had(100, 1021), had(200, 1979)]), [false, false]);
        assert_eq!(right(&[had(100, 979), had(200, 2021)]), [false, false]);
    }

    #[test]
    fn late_timers_make_turns_longer() {
        let late = Had { turns: 100, ..had(100, 1050) };
        assert!(shares(&[late, had(200, 1950)], 2 * MS)[0].right());
        assert!(!shares(&[had(100, 1050), had(200, 1950)], 2 * MS)[0].right());
    }
}
