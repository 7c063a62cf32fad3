// SPDX-License-Identifier: MIT OR Apache-2.0
//! The next try, and the choice of what to keep: a coordinate search. Each round varies one
//! parameter of the best settings so far. A value is kept if it shortens overcommitted grace
//! periods by more than the repeats differ, and costs the guest no more than the user allows.

use crate::policy::Policy;
use crate::report::{Bound, Cell};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A boot parameter of the guest's kernel. In the order of the rounds: what later ones do depends
/// on whether the scan for quiescent states can see user mode from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Parameter {
    #[serde(rename = "nohz_full")]
    NohzFull,
    #[serde(rename = "rcutree.jiffies_till_first_fqs")]
    FirstFqs,
    #[serde(rename = "rcutree.jiffies_till_next_fqs")]
    NextFqs,
    #[serde(rename = "rcutree.jiffies_till_sched_qs")]
    SchedQs,
    #[serde(rename = "rcutree.kthread_prio")]
    KthreadPrio,
    #[serde(rename = "rcutree.rcu_normal_wake_from_gp")]
    WakeFromGp,
    #[serde(rename = "preempt")]
    Preempt,
}

impl Parameter {
    pub const ALL: [Parameter; 7] = [
        Parameter::NohzFull,
        Parameter::FirstFqs,
        Parameter::NextFqs,
        Parameter::SchedQs,
        Parameter::KthreadPrio,
        Parameter::WakeFromGp,
        Parameter::Preempt,
    ];

    /// As on the kernel's command line.
    pub fn name(self) -> &'static str {
        match self {
            Parameter::NohzFull => "nohz_full",
            Parameter::FirstFqs => "rcutree.jiffies_till_first_fqs",
            Parameter::NextFqs => "rcutree.jiffies_till_next_fqs",
            Parameter::SchedQs => "rcutree.jiffies_till_sched_qs",
            Parameter::KthreadPrio => "rcutree.kthread_prio",
            Parameter::WakeFromGp => "rcutree.rcu_normal_wake_from_gp",
            Parameter::Preempt => "preempt",
        }
    }

    /// The values to try, in ticks where they are times.
    pub fn values(self, guest: &Offers) -> Vec<String> {
        let ticks = |all: &[u32]| all.iter().map(ToString::to_string).collect();
        match self {
            // A single CPU keeps the time, so it is never tickless.
            Parameter::NohzFull => match guest.vcpus {
                0 | 1 => vec![],
                2 => vec!["1".into()],
                n => vec![format!("1-{}", n - 1)],
            },
            // Beside the defaults: 1 and 1 at 250 ticks per second, and 25 for the last.
            Parameter::FirstFqs => ticks(&[0, 2, 3]),
            Parameter::NextFqs => ticks(&[2, 4]),
            Parameter::SchedQs => ticks(&[5, 10, 50]),
            // Any real-time priority is before all ordinary threads.
            Parameter::KthreadPrio => vec!["1".into()],
            // The kthread wakes who waits for a grace period, instead of a callback.
            Parameter::WakeFromGp => vec!["1".into()],
            Parameter::Preempt => {
                let others =
                    guest.preempt_models.iter().filter(|m| Some(*m) != guest.preempt.as_ref());
                others.cloned().collect()
            }
        }
    }
}

/// The parameters that the guest's kernel offers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Offers {
    pub release: String,
    pub vcpus: u32,
    /// Its default.
    pub preempt: Option<String>,
    pub preempt_models: Vec<String>,
}

/// The parameters that are given to a guest. Empty: the kernel's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GuestSettings(BTreeMap<Parameter, String>);

impl GuestSettings {
    pub fn with(&self, parameter: Parameter, value: &str) -> GuestSettings {
        let mut all = self.clone();
        all.0.insert(parameter, value.into());
        all
    }

    pub fn is_default(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, parameter: Parameter) -> Option<&String> {
        self.0.get(&parameter)
    }

    /// As words of the kernel's command line, without those in `except`.
    pub fn words(&self, except: Option<Parameter>) -> Vec<String> {
        let kept = self.0.iter().filter(|(parameter, _)| Some(**parameter) != except);
        kept.map(|(parameter, value)| format!("{}={value}", parameter.name())).collect()
    }
}

impl fmt::Display for GuestSettings {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.is_default() {
            true => f.write_str("defaults"),
            false => f.write_str(&self.words(None).join(" ")),
        }
    }
}

/// The guests of a round about `parameter`: the yardsticks first, which are the defaults and
/// `best`, then `best` with each value that it does not have already.
pub fn guests(best: &GuestSettings, parameter: Parameter, offers: &Offers) -> Vec<GuestSettings> {
    let mut all = vec![GuestSettings::default()];
    let candidates = parameter.values(offers).into_iter().map(|v| best.with(parameter, &v));
    for settings in std::iter::once(best.clone()).chain(candidates) {
        if !all.contains(&settings) {
            all.push(settings);
        }
    }
    all
}

/// The policies whose best settings are the same: one round serves them all.
pub fn groups(best: &[Best]) -> Vec<(GuestSettings, Vec<Policy>)> {
    let mut groups: Vec<(GuestSettings, Vec<Policy>)> = vec![];
    for Best { policy, settings, .. } in best {
        match groups.iter_mut().find(|(known, _)| known == settings) {
            Some((_, policies)) => policies.push(policy.clone()),
            None => groups.push((settings.clone(), vec![policy.clone()])),
        }
    }
    groups
}

/// The best settings under a policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    pub policy: Policy,
    pub settings: GuestSettings,
    /// Whether they were better than the defaults in a run of their own, too. `None`: not tried, or
    /// the defaults themselves.
    pub confirmed: Option<bool>,
}

impl Best {
    /// The guest's kernel command line, if there is something to prescribe.
    pub fn prescription(&self) -> Option<String> {
        (self.confirmed == Some(true)).then(|| self.settings.to_string())
    }
}

/// A guest that was measured, under one policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    pub policy: Policy,
    pub settings: GuestSettings,
    pub alone: Figures,
    pub overcommitted: Figures,
    pub verdict: Verdict,
}

/// `None`: not measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Grace periods, ms.
    pub gp_mean: Option<Cell>,
    pub gp_max: Option<Cell>,
    /// In the workload's unit per second.
    pub throughput: Option<Cell>,
}

impl Figures {
    fn is_disturbed(&self) -> bool {
        let all = [&self.gp_mean, &self.gp_max, &self.throughput];
        all.into_iter().flatten().any(|cell| cell.disturbed)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The defaults or the best so far, measured again.
    Yardstick,
    /// Better than the best so far.
    Better,
    /// Worse, or better by less than the repeats differ.
    NotBetter,
    /// Better, at too high a price for the guest.
    TooDear,
    /// A repeat is missing: the guest ran out of memory.
    Missing,
    /// Other work disturbed a figure that decides.
    Disturbed,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Yardstick => "yardstick",
            Verdict::Better => "better",
            Verdict::NotBetter => "not better",
            Verdict::TooDear => "too dear",
            Verdict::Missing => "figures missing",
            Verdict::Disturbed => "disturbed",
        }
    }
}

/// Judges `candidate` against the best so far and the defaults of the same run. `loss`: the share
/// of the defaults' throughput that it may cost, and by which it may lengthen the grace periods of
/// a guest that is alone.
pub fn judge(candidate: &Tried, best: &Tried, defaults: &Tried, loss: f64) -> Verdict {
    let figures = [candidate, best, defaults].map(|t| [&t.alone, &t.overcommitted]);
    if figures.iter().flatten().any(|figures| figures.is_disturbed()) {
        return Verdict::Disturbed;
    }
    let shorter = || {
        let at_least = |cell: &Option<Cell>| {
            cell.as_ref().is_some_and(|cell| cell.bound == Some(Bound::AtLeast))
        };
        // A phase that did not end is not in the mean.
        if at_least(&candidate.overcommitted.gp_max) || at_least(&candidate.alone.gp_max) {
            return Some(false);
        }
        let (_, longest) = range(&candidate.overcommitted.gp_mean)?;
        let (shortest, _) = range(&best.overcommitted.gp_mean)?;
        Some(longest < shortest)
    };
    let kept = |this: &Option<Cell>, default: &Option<Cell>| {
        Some(this.as_ref()?.value >= (1.0 - loss) * default.as_ref()?.value)
    };
    let affordable = || {
        let alone = candidate.alone.gp_mean.as_ref()?.value;
        let limit = (1.0 + loss) * defaults.alone.gp_mean.as_ref()?.value;
        Some(
            alone <= limit
                && kept(&candidate.alone.throughput, &defaults.alone.throughput)?
                && kept(&candidate.overcommitted.throughput, &defaults.overcommitted.throughput)?,
        )
    };
    match (shorter(), affordable()) {
        (None, _) | (_, None) => Verdict::Missing,
        (Some(false), _) => Verdict::NotBetter,
        (Some(true), Some(false)) => Verdict::TooDear,
        (Some(true), Some(true)) => Verdict::Better,
    }
}

/// The least and the greatest of the repeats, if all were measured.
fn range(cell: &Option<Cell>) -> Option<(f64, f64)> {
    let repeats = cell.as_ref()?.repeats.iter().copied().collect::<Option<Vec<f64>>>()?;
    let least = repeats.iter().copied().reduce(f64::min)?;
    Some((least, repeats.iter().copied().reduce(f64::max)?))
}

/// The best under `policy` after a round: of the values that are better, the one with the shortest
/// overcommitted grace periods.
pub fn winner<'a>(tried: &'a [Tried], policy: &Policy) -> Option<&'a Tried> {
    let better = tried.iter().filter(|t| t.policy == *policy && t.verdict == Verdict::Better);
    let mean = |t: &Tried| t.overcommitted.gp_mean.as_ref().map_or(f64::INFINITY, |c| c.value);
    better.min_by(|a, b| mean(a).total_cmp(&mean(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers() -> Offers {
        Offers {
            release: "6.12".into(),
            vcpus: 2,
            preempt: Some("voluntary".into()),
            preempt_models: ["none", "voluntary", "full"].map(String::from).into(),
        }
    }

    fn cell(repeats: &[f64]) -> Option<Cell> {
        let value = repeats.iter().sum::<f64>() / repeats.len() as f64;
        let repeats = repeats.iter().copied().map(Some).collect();
        Some(Cell { value, bound: None, repeats, spread: None, disturbed: false })
    }

    /// With grace periods of `gp` ms overcommitted and `alone` ms alone.
    fn tried(gp: &[f64], alone: f64, throughput: f64) -> Tried {
        let figures = |gp: &[f64]| Figures {
            gp_mean: cell(gp),
            gp_max: cell(gp),
            throughput: cell(&[throughput]),
        };
        Tried {
            policy: Policy::Eevdf,
            settings: GuestSettings::default(),
            alone: figures(&[alone]),
            overcommitted: figures(gp),
            verdict: Verdict::Yardstick,
        }
    }

    #[test]
    fn a_round_has_both_yardsticks_and_each_other_value() {
        let none = GuestSettings::default();
        let shown = |all: Vec<GuestSettings>| {
            all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(shown(guests(&none, Parameter::NohzFull, &offers())), "defaults; nohz_full=1");
        let best = none.with(Parameter::Preempt, "full").with(Parameter::NohzFull, "1");
        assert_eq!(
            shown(guests(&best, Parameter::Preempt, &offers())),
            "defaults; nohz_full=1 preempt=full; nohz_full=1 preempt=none"
        );
        assert_eq!(guests(&best, Parameter::NextFqs, &offers()).len(), 4);
        // Nothing to try: a kernel that shows no models, a guest of one vCPU.
        let poor = Offers { vcpus: 1, ..Offers::default() };
        for parameter in [Parameter::Preempt, Parameter::NohzFull] {
            assert!(parameter.values(&poor).is_empty());
        }
        assert_eq!(Parameter::NohzFull.values(&Offers { vcpus: 8, ..poor }), ["1-7"]);
    }

    #[test]
    fn policies_share_a_round_while_their_best_is_the_same() {
        let best = |policy: &str, settings: GuestSettings| Best {
            policy: policy.parse().unwrap(),
            settings,
            confirmed: None,
        };
        let (none, one) =
            (GuestSettings::default(), GuestSettings::default().with(Parameter::FirstFqs, "0"));
        let all = [best("eevdf", none.clone()), best("full", one.clone()), best("plain", none)];
        let found = groups(&all);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].1, ["eevdf", "plain"].map(|p| p.parse::<Policy>().unwrap()));
        assert_eq!((&found[1].0, found[1].1.len()), (&one, 1));
    }

    #[test]
    fn only_a_difference_beyond_the_spread_counts() {
        let default = tried(&[10.0, 12.0], 5.0, 100.0);
        let judge = |t: &Tried| super::judge(t, &default, &default, 0.05);
        assert_eq!(judge(&tried(&[9.0, 9.9], 5.0, 100.0)), Verdict::Better);
        // A repeat is within those of the yardstick, whatever the mean says.
        assert_eq!(judge(&tried(&[2.0, 10.0], 5.0, 100.0)), Verdict::NotBetter);
        assert_eq!(judge(&tried(&[13.0, 14.0], 5.0, 100.0)), Verdict::NotBetter);
        // A repeat that did not end is in no mean.
        let mut open = tried(&[9.0, 9.9], 5.0, 100.0);
        if let Some(longest) = &mut open.overcommitted.gp_max {
            longest.bound = Some(Bound::AtLeast);
        }
        assert_eq!(judge(&open), Verdict::NotBetter);
        // Shorter grace periods that the guest pays for.
        assert_eq!(judge(&tried(&[9.0, 9.9], 5.0, 94.0)), Verdict::TooDear);
        assert_eq!(judge(&tried(&[9.0, 9.9], 5.3, 100.0)), Verdict::TooDear);
        assert_eq!(judge(&tried(&[9.0, 9.9], 5.2, 96.0)), Verdict::Better);
    }

    #[test]
    fn the_yardstick_of_a_price_is_the_defaults_and_that_of_a_gain_the_best() {
        let default = tried(&[20.0, 21.0], 5.0, 100.0);
        let best = tried(&[10.0, 11.0], 5.2, 96.0);
        // Cheap beside the best, and too dear beside the defaults: prices do not add up unseen.
        let next = tried(&[9.0, 9.5], 5.4, 93.0);
        assert_eq!(judge(&next, &best, &default, 0.05), Verdict::TooDear);
        let worse = tried(&[15.0, 16.0], 5.0, 100.0);
        assert_eq!(judge(&worse, &best, &default, 0.05), Verdict::NotBetter);
    }

    #[test]
    fn a_guest_that_died_is_no_improvement() {
        let default = tried(&[10.0, 12.0], 5.0, 100.0);
        let mut dead = tried(&[1.0, 1.0], 5.0, 100.0);
        dead.overcommitted.gp_mean.as_mut().unwrap().repeats[1] = None;
        assert_eq!(judge(&dead, &default, &default, 0.05), Verdict::Missing);
        let mut dead = tried(&[1.0, 1.0], 5.0, 100.0);
        dead.alone = Figures::default();
        assert_eq!(judge(&dead, &default, &default, 0.05), Verdict::Missing);
    }

    #[test]
    fn the_shortest_of_several_better_values_wins() {
        let better = |gp: f64, verdict| Tried { verdict, ..tried(&[gp], 5.0, 100.0) };
        let all = [
            better(1.0, Verdict::TooDear),
            better(9.0, Verdict::Better),
            better(8.0, Verdict::Better),
            Tried { policy: "full".parse().unwrap(), ..better(7.0, Verdict::Better) },
        ];
        let found = winner(&all, &Policy::Eevdf).unwrap();
        assert_eq!(found.overcommitted.gp_mean, cell(&[8.0]));
        assert!(winner(&all[..1], &Policy::Eevdf).is_none());
    }

    #[test]
    fn nothing_is_prescribed_without_evidence() {
        let settings = GuestSettings::default().with(Parameter::NextFqs, "2");
        let best =
            |confirmed| Best { policy: Policy::Eevdf, settings: settings.clone(), confirmed };
        assert_eq!(best(None).prescription(), None);
        assert_eq!(best(Some(false)).prescription(), None);
        let line = "rcutree.jiffies_till_next_fqs=2";
        assert_eq!(best(Some(true)).prescription().as_deref(), Some(line));
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(json, "{\"rcutree.jiffies_till_next_fqs\":\"2\"}");
        assert_eq!(serde_json::from_str::<GuestSettings>(&json).unwrap(), settings);
    }
}
