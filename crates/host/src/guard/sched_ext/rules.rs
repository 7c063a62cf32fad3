// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which policies are in force for which VM.

use super::program::constants;
use crate::guard::Policy;
use crate::watch::Which;

/// The last rule that fits a VM is the one for it.
pub struct Rules(Vec<(Which, Vec<Policy>)>);

impl Rules {
    pub fn new(policy: Policy) -> Rules {
        Rules(vec![(Which::All, vec![policy])])
    }

    /// `policies` for the VMs with this name or process ID, without one for all.
    pub fn set(&mut self, vm: Option<&str>, policies: &[Policy]) {
        let which = vm.map_or(Which::All, |vm| Which::Named(vec![vm.into()]));
        if which == Which::All {
            self.0.clear();
        }
        self.0.retain(|(other, _)| *other != which);
        self.0.push((which, policies.to_vec()));
    }

    pub fn of(&self, pid: u32, name: Option<&str>) -> &[Policy] {
        let fits = self.0.iter().rev().find(|(which, _)| which.wants(pid, name));
        fits.map_or(&[], |(_, policies)| policies)
    }
}

/// The scheduler's bits for `policies` together.
pub fn bits(policies: &[Policy]) -> u32 {
    policies.iter().fold(0, |bits, policy| {
        bits | match policy {
            Policy::Plain => 0,
            Policy::Extend => constants::DOES_EXTEND,
            Policy::Quiesce => constants::DOES_QUIESCE,
            Policy::Rescue => constants::DOES_RESCUE,
            // Elsewhere `quiesce` does not shorten grace periods: only who asks for it gets it.
            Policy::Full => {
                constants::DOES_EXTEND | constants::DOES_QUIESCE_TRACKED | constants::DOES_RESCUE
            }
        } as u32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rule_that_fits_counts() {
        let mut rules = Rules::new(Policy::Full);
        rules.set(Some("db"), &[Policy::Extend, Policy::Rescue]);
        rules.set(Some("4711"), &[Policy::Plain]);
        assert_eq!(rules.of(1, Some("db")), [Policy::Extend, Policy::Rescue]);
        assert_eq!(rules.of(4711, Some("db")), [Policy::Plain]);
        assert_eq!(rules.of(2, None), [Policy::Full]);
        rules.set(Some("db"), &[Policy::Quiesce]);
        assert_eq!(rules.of(4711, Some("db")), [Policy::Quiesce]);
        rules.set(None, &[Policy::Rescue]);
        assert_eq!(rules.of(4711, Some("db")), [Policy::Rescue], "all of them, and no exception");
    }

    #[test]
    fn policies_add_up() {
        assert_eq!(bits(&[Policy::Plain]), 0);
        assert_eq!(
            bits(&[Policy::Extend, Policy::Rescue]) as usize,
            constants::DOES_EXTEND | constants::DOES_RESCUE
        );
        assert_eq!(bits(&[Policy::Full]) & bits(&[Policy::Quiesce]), 0, "of trackers only");
    }
}
