// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which policies are in force for which VM.

use super::program::constants;
use crate::guard::{Change, Policy, Treatment};
use crate::watch::Which;

/// The last rule that fits a VM is the one for it; the first is for all.
pub struct Rules(Vec<(Which, Treatment)>);

impl Rules {
    pub fn new(all: Treatment) -> Rules {
        Rules(vec![(Which::All, all)])
    }

    /// Changes what is done for the VMs with this name or process ID, without one for all; what.
    pub fn set(&mut self, vm: Option<&str>, change: &Change) -> &Treatment {
        let which = vm.map_or(Which::All, |vm| Which::Named(vec![vm.into()]));
        let same = self.0.iter().position(|(other, _)| *other == which).unwrap_or(0);
        let mut treatment = self.0[same].1.clone();
        treatment.change(change);
        if which == Which::All {
            self.0.clear();
        }
        self.0.retain(|(other, _)| *other != which);
        self.0.push((which, treatment));
        &self.0[self.0.len() - 1].1
    }

    pub fn of(&self, pid: u32, name: Option<&str>) -> &Treatment {
        let fits = self.0.iter().rev().find(|(which, _)| which.wants(pid, name));
        &fits.unwrap_or(&self.0[0]).1
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

    fn policies(policies: &[Policy]) -> Change {
        Change { policies: Some(policies.into()), rescue_share: None }
    }

    #[test]
    fn the_last_rule_that_fits_counts() {
        let all = Treatment { policies: vec![Policy::Full], rescue_share: 40 };
        let mut rules = Rules::new(all.clone());
        rules.set(Some("db"), &policies(&[Policy::Extend, Policy::Rescue]));
        rules.set(Some("4711"), &policies(&[Policy::Plain]));
        let of = |rules: &Rules, pid, name| rules.of(pid, name).policies.clone();
        assert_eq!(of(&rules, 1, Some("db")), [Policy::Extend, Policy::Rescue]);
        assert_eq!(of(&rules, 4711, Some("db")), [Policy::Plain]);
        assert_eq!(*rules.of(2, None), all);
        rules.set(Some("db"), &policies(&[Policy::Quiesce]));
        assert_eq!(of(&rules, 4711, Some("db")), [Policy::Quiesce]);
        rules.set(None, &policies(&[Policy::Rescue]));
        assert_eq!(of(&rules, 4711, Some("db")), [Policy::Rescue], "all, and no exception");
    }

    #[test]
    fn what_is_not_named_stays() {
        let mut rules = Rules::new(Treatment { policies: vec![Policy::Full], rescue_share: 40 });
        let share = |share| Change { policies: None, rescue_share: Some(share) };
        rules.set(Some("db"), &share(10));
        rules.set(Some("db"), &policies(&[Policy::Rescue]));
        let db = Treatment { policies: vec![Policy::Rescue], rescue_share: 10 };
        assert_eq!(*rules.of(1, Some("db")), db);
        assert_eq!(rules.of(2, None).rescue_share, 40);
        rules.set(None, &share(20));
        let all = Treatment { policies: vec![Policy::Full], rescue_share: 20 };
        assert_eq!([rules.of(1, Some("db")), rules.of(2, None)], [&all, &all]);
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
