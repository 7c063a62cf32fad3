// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other work on this machine: a phase beside which it took too much is measured again.

use super::other_work::CpuTime;
use crate::progress::Progress;
use crate::record::{LOUD, Record};
use std::cell::Cell;

/// How often at most.
pub const MOST_AGAIN: u32 = 3;

pub struct Noise<'a> {
    progress: &'a dyn Progress,
    /// How often at most here.
    most: u32,
    before: Cell<Option<CpuTime>>,
    /// The share that other work has taken since, if the load has ended.
    share: Cell<Option<f64>>,
    /// The phase that is being measured, and how often it was.
    phase: Cell<(u32, u32)>,
    again: Cell<bool>,
}

impl<'a> Noise<'a> {
    pub fn new(progress: &'a dyn Progress, most: u32) -> Noise<'a> {
        let (before, share) = (Cell::new(None), Cell::new(None));
        let (phase, again) = (Cell::new((u32::MAX, 0)), Cell::new(false));
        Noise { progress, most, before, share, phase, again }
    }

    /// Looks at a record of the run when it comes, and adds to the end of a phase what other work
    /// took beside its load. Samples come when the load has ended; other work may then have what
    /// the run leaves.
    pub fn look(&self, record: &mut Record) {
        match record {
            Record::PhaseStart { phase, .. } => {
                if self.phase.get().0 != *phase {
                    self.phase.set((*phase, 0));
                }
                self.before.set(CpuTime::now());
            }
            Record::Sample { .. } => self.stop(),
            Record::PhaseEnd { host, .. } => {
                self.stop();
                host.other_busy = self.share.take();
                self.judge(host.other_busy);
            }
            _ => {}
        }
    }

    /// The load has ended.
    fn stop(&self) {
        if let Some(before) = self.before.take() {
            self.share.set(CpuTime::now().and_then(|after| after.other_since(before)));
        }
    }

    fn judge(&self, other_busy: Option<f64>) {
        let (phase, times) = self.phase.get();
        self.phase.set((phase, times + 1));
        let loud = other_busy.filter(|&share| share > LOUD);
        self.again.set(loud.is_some() && times < self.most);
        if let Some(share) = loud {
            let next =
                if self.again.get() { "it is measured again" } else { "its figures are marked" };
            self.progress.notice(&format!(
                "phase {phase}: other work took {:.0} % of the machine: {next}",
                100.0 * share
            ));
        }
    }

    /// Whether the phase that has just ended is to be measured again.
    pub fn again(&self) -> bool {
        self.again.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;

    #[test]
    fn a_loud_phase_is_measured_three_times_more_at_most() {
        let noise = Noise::new(&Silent, MOST_AGAIN);
        let start = |phase| {
            noise.look(&mut Record::PhaseStart {
                phase,
                variant: 0,
                repeat: 0,
                scenario: crate::plan::Scenario::Baseline,
            });
        };
        let verdict = |phase, share| {
            start(phase);
            noise.judge(share);
            noise.again()
        };
        assert!(!verdict(0, Some(0.1)) && !verdict(1, None));
        assert_eq!([0.11; 4].map(|share| verdict(2, Some(share))), [true, true, true, false]);
        assert!(verdict(3, Some(1.0)) && !verdict(3, Some(0.05)));
    }
}
