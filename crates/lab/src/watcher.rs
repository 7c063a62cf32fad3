// SPDX-License-Identifier: MIT OR Apache-2.0
//! What watching the guest under test from outside shows: a program on its host reads its memory.
//!
//! The guest's own figures come from probes inside it, which cost it time and cannot see that their
//! CPU was taken away. A watcher on the host sees what a vCPU did at that moment. A run does not
//! need a watcher. Where none can work (not root, no BTF, a guest that cannot be read), the record
//! and the table give the reason.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Counts and times of one VM, summed over its vCPUs; they never decrease.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Preemptions that have ended, by what the vCPU was doing: `user`, `kernel`, `reader`,
    /// `no-preempt`, `spinning`, `irqs-off`, `softirq`, `hardirq`, `idle`, `unknown`.
    pub classes: BTreeMap<String, Preempted>,
    /// The preemptions of any class that hit an RCU read-side section.
    pub readers: Preempted,
    /// Preemptions that hit a section that a program of the guest announced to the host.
    #[serde(default)]
    pub announced: Preempted,
    /// Grace periods that ended and whose duration is known.
    pub grace_periods: u64,
    pub grace_periods_ns: u64,
    /// Grace periods too short for both ends to be seen.
    pub grace_periods_unseen: u64,
    /// CPU time of the host that watching took.
    pub cost_ns: u64,
    /// Events that were lost, and so are missing in the figures above.
    pub lost: u64,
}

/// How often a vCPU lost its CPU, and for how long in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preempted {
    pub count: u64,
    pub ns: u64,
}

/// The result of watching during a phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchOutcome {
    Seen(Box<Totals>),
    /// Nothing was seen, for this reason.
    Missing(String),
}

impl Preempted {
    fn plus(self, other: Preempted) -> Preempted {
        Preempted { count: self.count + other.count, ns: self.ns + other.ns }
    }

    fn since(self, earlier: Preempted) -> Preempted {
        Preempted {
            count: self.count.saturating_sub(earlier.count),
            ns: self.ns.saturating_sub(earlier.ns),
        }
    }
}

impl Totals {
    /// The difference to an `earlier` reading.
    pub fn since(&self, earlier: &Totals) -> Totals {
        let before = |class| earlier.classes.get(class).copied().unwrap_or_default();
        let classes = self.classes.iter();
        Totals {
            classes: classes
                .map(|(class, now)| (class.clone(), now.since(before(class))))
                .collect(),
            readers: self.readers.since(earlier.readers),
            announced: self.announced.since(earlier.announced),
            grace_periods: self.grace_periods.saturating_sub(earlier.grace_periods),
            grace_periods_ns: self.grace_periods_ns.saturating_sub(earlier.grace_periods_ns),
            grace_periods_unseen: self
                .grace_periods_unseen
                .saturating_sub(earlier.grace_periods_unseen),
            cost_ns: self.cost_ns.saturating_sub(earlier.cost_ns),
            lost: self.lost.saturating_sub(earlier.lost),
        }
    }

    /// All preemptions.
    pub fn preempted(&self) -> Preempted {
        self.classes.values().fold(Preempted::default(), |sum, class| sum.plus(*class))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_a_difference_of_totals() {
        let totals = |user: u64, readers: u64| Totals {
            classes: BTreeMap::from([("user".into(), Preempted { count: user, ns: 10 * user })]),
            readers: Preempted { count: readers, ns: readers },
            grace_periods: user,
            ..Totals::default()
        };
        let phase = totals(5, 3).since(&totals(2, 3));
        assert_eq!(phase.preempted(), Preempted { count: 3, ns: 30 });
        assert_eq!(phase.readers, Preempted::default());
        assert_eq!(phase.grace_periods, 3);
        // A class that did not occur before the phase.
        assert_eq!(totals(5, 0).since(&Totals::default()).preempted().count, 5);
    }
}
