// SPDX-License-Identifier: MIT OR Apache-2.0
//! The policies in force for each VM.

use crate::constants;
use crate::options::{Change, Policy, Treatment};
use reprieve_watch::vms::finder::Key;
use std::collections::BTreeSet;

/// The treatment of all VMs, and changes of it for some, in the order in which they were asked for:
/// the last that fits a VM and names a thing is in force.
pub struct Rules {
    all: Treatment,
    changes: Vec<Rule>,
}

/// The properties that tell a VM from others.
#[derive(Clone, Copy)]
pub struct Vm<'a> {
    pub key: Key,
    pub name: Option<&'a str>,
    /// The user who runs the VM; `None`: not known.
    pub user: Option<u32>,
}

/// A change for the VMs that had a name or a process ID when it was asked for, and for later ones
/// of that name. Any user may give a VM any name: later ones are of the same users.
struct Rule {
    asked: String,
    vms: BTreeSet<Key>,
    /// Users who ran VMs of that name.
    users: BTreeSet<u32>,
    change: Change,
}

impl Rule {
    fn fits(&self, vm: Vm<'_>) -> bool {
        let named = || vm.name == Some(self.asked.as_str());
        self.vms.contains(&vm.key)
            || (vm.user.is_some_and(|user| self.users.contains(&user)) && named())
    }

    /// Whether it fits all VMs that the other one fits.
    fn covers(&self, other: &Rule) -> bool {
        self.asked == other.asked
            && self.vms.is_superset(&other.vms)
            && self.users.is_superset(&other.users)
    }
}

impl Rules {
    pub fn new(all: Treatment) -> Rules {
        Rules { all, changes: Vec::new() }
    }

    /// Changes what is done for the VMs with this name or process ID, which are `chosen`; without
    /// one, for all. What the change does not name stays.
    pub fn set(&mut self, asked: Option<&str>, chosen: &[Vm<'_>], change: &Change) {
        let named = chosen.iter().filter(|vm| vm.name == asked);
        let new = asked.map(|asked| Rule {
            asked: asked.into(),
            vms: chosen.iter().map(|vm| vm.key).collect(),
            users: named.filter_map(|vm| vm.user).collect(),
            change: change.clone(),
        });
        for old in &mut self.changes {
            if new.as_ref().is_none_or(|new| new.covers(old)) {
                old.change.forget(change);
            }
        }
        self.changes.retain(|old| old.change != Change::default());
        match new {
            Some(new) => self.changes.push(new),
            None => self.all.change(change),
        }
    }

    /// Forgets the VMs that do not run any more.
    pub fn keep(&mut self, runs: impl Fn(Key) -> bool) {
        for rule in &mut self.changes {
            rule.vms.retain(|&key| runs(key));
        }
        self.changes.retain(|rule| !rule.vms.is_empty() || !rule.users.is_empty());
    }

    pub fn of(&self, vm: Vm<'_>) -> Treatment {
        let mut treatment = self.all.clone();
        for rule in self.changes.iter().filter(|rule| rule.fits(vm)) {
            treatment.change(&rule.change);
        }
        treatment
    }

    /// The treatment of VMs that no change names.
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
            Policy::Rescue => constants::DOES_RESCUE,
            Policy::Full => constants::DOES_EXTEND | constants::DOES_RESCUE,
        } as u32
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Weight;

    fn policies(policies: &[Policy]) -> Change {
        Change { policies: Some(policies.into()), ..Change::default() }
    }

    fn weight(weight: u32) -> Change {
        Change { weight: Some(Weight::Fixed(weight)), ..Change::default() }
    }

    fn weight_of(rules: &Rules, vm: Vm<'_>) -> u32 {
        match rules.of(vm).weight {
            Weight::Fixed(weight) => weight,
            Weight::Cgroup => 0,
        }
    }

    fn rules() -> Rules {
        Rules::new(Treatment { policies: vec![Policy::Full], weight: Weight::Cgroup })
    }

    fn vm(pid: u32, name: Option<&str>) -> Vm<'_> {
        Vm { key: Key { pid, start_time: 1 }, name, user: Some(107) }
    }

    const DB: Vm<'_> =
        Vm { key: Key { pid: 4711, start_time: 1 }, name: Some("db"), user: Some(107) };

    #[test]
    fn the_last_change_that_fits_counts() {
        let mut rules = rules();
        let policies_of = |rules: &Rules, vm| rules.of(vm).policies;
        rules.set(Some("db"), &[DB], &policies(&[Policy::Extend, Policy::Rescue]));
        rules.set(Some("4711"), &[DB], &policies(&[Policy::Plain]));
        assert_eq!(policies_of(&rules, vm(1, Some("db"))), [Policy::Extend, Policy::Rescue]);
        assert_eq!(policies_of(&rules, DB), [Policy::Plain]);
        assert_eq!(policies_of(&rules, vm(2, None)), [Policy::Full]);
        rules.set(Some("db"), &[DB], &policies(&[Policy::Extend]));
        assert_eq!(policies_of(&rules, DB), [Policy::Extend]);
        rules.set(None, &[DB], &policies(&[Policy::Rescue]));
        assert_eq!(policies_of(&rules, DB), [Policy::Rescue], "all, and no exception");
    }

    #[test]
    fn what_is_not_named_stays() {
        let mut rules = rules();
        rules.set(Some("db"), &[DB], &policies(&[Policy::Extend]));
        rules.set(Some("4711"), &[DB], &weight(10));
        let of =
            |policy, weight| Treatment { policies: vec![policy], weight: Weight::Fixed(weight) };
        assert_eq!(rules.of(DB), of(Policy::Extend, 10), "by name and by process ID");
        rules.set(None, &[DB], &weight(20));
        assert_eq!(rules.of(DB), of(Policy::Extend, 20), "its policy is not named");
        assert_eq!(rules.of(vm(2, None)).policies, [Policy::Full]);
        rules.set(Some("db"), &[DB], &weight(30));
        rules.set(None, &[DB], &policies(&[Policy::Rescue]));
        assert_eq!(rules.of(DB), of(Policy::Rescue, 30), "its weight is not named");
        assert_eq!(rules.changes.len(), 1, "what says nothing any more is gone");
    }

    #[test]
    fn a_weight_is_set_and_taken_back() {
        let mut rules = rules();
        rules.set(Some("db"), &[DB], &weight(300));
        assert_eq!((weight_of(&rules, DB), weight_of(&rules, vm(2, None))), (300, 0));
        rules.set(None, &[DB], &weight(50));
        assert_eq!(weight_of(&rules, DB), 50, "all, and no exception");
        let back = Change { weight: Some(Weight::Cgroup), ..Change::default() };
        rules.set(Some("db"), &[DB], &back);
        assert_eq!(rules.of(DB).weight, Weight::Cgroup);
    }

    #[test]
    fn what_is_set_for_a_vm_is_not_for_others_that_take_its_name_or_process_id() {
        let mut rules = rules();
        rules.set(Some("db"), &[DB], &weight(10));
        let again = vm(5000, Some("db"));
        let another = |pid, name| Vm { user: Some(1000), ..vm(pid, name) };
        assert_eq!(weight_of(&rules, again), 10, "started again");
        assert_eq!(weight_of(&rules, another(5001, Some("db"))), 0, "a name is anybody's");
        assert_eq!(weight_of(&rules, Vm { user: None, ..again }), 0, "unknown");
        rules.set(Some("4711"), &[DB], &weight(20));
        let later = Vm { key: Key { pid: 4711, start_time: 2 }, ..vm(0, Some("web")) };
        assert_eq!((weight_of(&rules, DB), weight_of(&rules, later)), (20, 0));
        assert_eq!(weight_of(&rules, vm(6000, Some("4711"))), 0, "it is no name");
        rules.keep(|key| key != DB.key);
        assert_eq!(rules.changes.len(), 1, "what is for its process only is gone");
        assert_eq!(weight_of(&rules, again), 10);
        // While it does not run, another user's VM of that name has something set.
        let other = another(5001, Some("db"));
        rules.set(Some("db"), &[other], &weight(20));
        assert_eq!((weight_of(&rules, again), weight_of(&rules, other)), (10, 20));
    }

    #[test]
    fn policies_add_up() {
        assert_eq!(bits(&[Policy::Plain]), 0);
        assert_eq!(
            bits(&[Policy::Extend, Policy::Rescue]) as usize,
            constants::DOES_EXTEND | constants::DOES_RESCUE
        );
        assert_eq!(bits(&[Policy::Full]), bits(&[Policy::Extend, Policy::Rescue]));
    }
}
