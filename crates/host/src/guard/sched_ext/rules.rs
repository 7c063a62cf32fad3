// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which policies are in force for which VM.

use super::program::constants;
use crate::guard::{Change, Policy, Treatment};
use crate::watch::Which;

/// What is done for all VMs, and changes of it for some, in the order in which they were asked for:
/// the last that fits a VM and names a thing is in force.
pub struct Rules {
    all: Treatment,
    changes: Vec<(Which, Change)>,
}

impl Rules {
    pub fn new(all: Treatment) -> Rules {
        Rules { all, changes: Vec::new() }
    }

    /// Changes what is done for the VMs with this name or process ID, without one for all. What the
    /// change does not name stays.
    pub fn set(&mut self, vm: Option<&str>, change: &Change) {
        let which = vm.map_or(Which::All, |vm| Which::Named(vec![vm.into()]));
        for (other, old) in &mut self.changes {
            if which == Which::All || *other == which {
                old.forget(change);
            }
        }
        self.changes.retain(|(_, old)| *old != Change::default());
        match which {
            Which::All => self.all.change(change),
            Which::Named(_) => self.changes.push((which, change.clone())),
        }
    }

    pub fn of(&self, pid: u32, name: Option<&str>) -> Treatment {
        let mut treatment = self.all.clone();
        for (_, change) in self.changes.iter().filter(|(which, _)| which.wants(pid, name)) {
            treatment.change(change);
        }
        treatment
    }

    /// What is done for VMs that no change names.
    pub fn all(&self) -> &Treatment {
        &self.all
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
    use crate::guard::Weight;

    fn policies(policies: &[Policy]) -> Change {
        Change { policies: Some(policies.into()), ..Change::default() }
    }

    fn share(share: u8) -> Change {
        Change { rescue_share: Some(share), ..Change::default() }
    }

    fn rules() -> Rules {
        let weight = Weight::Cgroup;
        Rules::new(Treatment { policies: vec![Policy::Full], rescue_share: 40, weight })
    }

    #[test]
    fn the_last_change_that_fits_counts() {
        let mut rules = rules();
        rules.set(Some("db"), &policies(&[Policy::Extend, Policy::Rescue]));
        rules.set(Some("4711"), &policies(&[Policy::Plain]));
        let of = |rules: &Rules, pid, name| rules.of(pid, name).policies;
        assert_eq!(of(&rules, 1, Some("db")), [Policy::Extend, Policy::Rescue]);
        assert_eq!(of(&rules, 4711, Some("db")), [Policy::Plain]);
        assert_eq!(of(&rules, 2, None), [Policy::Full]);
        rules.set(Some("db"), &policies(&[Policy::Quiesce]));
        assert_eq!(of(&rules, 4711, Some("db")), [Policy::Quiesce]);
        rules.set(None, &policies(&[Policy::Rescue]));
        assert_eq!(of(&rules, 4711, Some("db")), [Policy::Rescue], "all, and no exception");
    }

    #[test]
    fn what_is_not_named_stays() {
        let mut rules = rules();
        rules.set(Some("db"), &policies(&[Policy::Extend]));
        rules.set(Some("4711"), &share(10));
        let weight = Weight::Cgroup;
        let both = Treatment { policies: vec![Policy::Extend], rescue_share: 10, weight };
        assert_eq!(rules.of(4711, Some("db")), both, "by name and by process ID");
        rules.set(None, &share(20));
        let db = Treatment { policies: vec![Policy::Extend], rescue_share: 20, weight };
        assert_eq!(rules.of(4711, Some("db")), db, "its policy is not named");
        assert_eq!(rules.of(2, None).policies, [Policy::Full]);
        rules.set(Some("db"), &share(30));
        rules.set(None, &policies(&[Policy::Rescue]));
        let db = Treatment { policies: vec![Policy::Rescue], rescue_share: 30, weight };
        assert_eq!(rules.of(1, Some("db")), db, "its share is not named");
        assert_eq!(rules.changes.len(), 1, "what says nothing any more is gone");
    }

    #[test]
    fn a_weight_is_set_and_taken_back() {
        let mut rules = rules();
        let weight = |weight| Change { weight: Some(weight), ..Change::default() };
        let fixed = Weight::Fixed(300);
        rules.set(Some("db"), &weight(fixed));
        rules.set(Some("db"), &share(30));
        let policies = vec![Policy::Full];
        let db = Treatment { policies, rescue_share: 30, weight: fixed };
        assert_eq!(rules.of(1, Some("db")), db, "the weight is not named");
        assert_eq!(rules.of(2, None).weight, Weight::Cgroup);
        rules.set(None, &weight(Weight::Fixed(50)));
        assert_eq!(rules.of(1, Some("db")).weight, Weight::Fixed(50), "all, and no exception");
        rules.set(Some("db"), &weight(Weight::Cgroup));
        assert_eq!(rules.of(1, Some("db")).weight, Weight::Cgroup);
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
