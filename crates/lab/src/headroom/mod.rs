// SPDX-License-Identifier: MIT OR Apache-2.0
//! The least memory in which a guest survives its load, alone and overcommitted, by bisection.
//!
//! A guest of `asym` dies when the garbage that waits for grace periods has taken all its memory:
//! the memory that it needs is a price of long grace periods. Each size is a boot of its own and a
//! phase without a warm-up; all are on the same host. Phases are a sample: close to the limit a
//! guest may survive one and not the next, so with more repeats the size that is found is larger.

mod table;

use crate::error::{Error, Result};
use crate::experiments::{Request, Size};
use crate::host::PlanHost;
use crate::plan::{Plan, Scenario};
use crate::policy::Policy;
use crate::process::Cancel;
use crate::progress::Progress;
use crate::record::HostInfo;
use crate::recorder::Recorder;
use crate::report::{self, stats};
use crate::run::{self, Around, Settings};
use crate::scheduler::Scheduler;
use reprieve_init::protocol::Measure;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// Raised when a field of [`Headroom`] changes its meaning or is removed.
pub const HEADROOM_SCHEMA: u32 = 2;

/// Name of the result in the run's directory.
pub const HEADROOM_FILE: &str = "headroom.json";

/// The smallest size to search, unless the user gives one: guests boot in it.
const LEAST_MIB: u64 = 128;

/// The sizes to search.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The smallest size. `None`: [`LEAST_MIB`].
    pub least_mib: Option<u64>,
    /// `None`: what the guest has in the experiment.
    pub most_mib: Option<u64>,
    /// The difference of two neighbouring sizes.
    pub step_mib: u64,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Headroom {
    pub schema: u32,
    pub experiment: String,
    /// The command line.
    pub command: String,
    /// `None` if no boot was complete.
    pub host: Option<HostInfo>,
    pub guest_kernel: String,
    /// Length of the phase to survive, ms.
    pub phase_ms: u64,
    /// Phases to survive at each size, each after a boot of its own.
    pub repeat: u32,
    pub least_mib: u64,
    pub most_mib: u64,
    /// The resolution.
    pub step_mib: u64,
    /// Whether everything was searched.
    pub complete: bool,
    pub conditions: Vec<Condition>,
}

/// A condition, and what was found about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    pub scenario: Scenario,
    pub policy: Policy,
    /// The least size in which all phases were survived; the next smaller one was tried as well,
    /// unless this is the smallest of all. `None`: it died in the largest.
    pub survives_mib: Option<u64>,
    /// Over that of the guest alone. `None` also if both survived the smallest size of all.
    pub to_alone: Option<f64>,
    /// Which bound `to_alone` is, if one of them did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_alone_bound: Option<stats::Bound>,
    /// In the order in which they were tried.
    pub boots: Vec<Boot>,
}

/// A boot, and whether its guest survived the phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Boot {
    pub memory_mib: u64,
    pub survived: bool,
    /// How long a guest that died had run, s.
    pub died_after_s: Option<f64>,
    /// The line of its console.
    pub why: Option<String>,
}

/// Searches for each of `request`'s policies, and for the guest alone, without its competitors.
/// What was found is returned, and written to the run's directory, also when the search fails.
pub fn run(
    request: &Request,
    sizes: Sizes,
    settings: &Settings,
    scheduler: Option<&dyn Scheduler>,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> (Option<Headroom>, Result<()>) {
    let mut search = match Search::new(request, sizes, settings, scheduler, progress, cancel) {
        Ok(search) => search,
        Err(error) => return (None, Err(error)),
    };
    let outcome = search.all();
    let found = search.found;
    if found.conditions.iter().all(|c| c.boots.is_empty()) {
        return (None, outcome);
    }
    let written = write(&found, &settings.out);
    (Some(found), outcome.and(written))
}

fn write(found: &Headroom, out: &Path) -> Result<()> {
    let mut json = serde_json::to_vec_pretty(found)
        .map_err(|e| Error::Other(format!("cannot encode {HEADROOM_FILE}: {e}")))?;
    json.push(b'\n');
    let path = out.join(HEADROOM_FILE);
    reprieve_page::write(&path, &json).map_err(Error::io(&path))
}

struct Search<'a> {
    settings: &'a Settings,
    around: Around<'a>,
    /// With all policies and the largest size.
    plan: Plan,
    found: Headroom,
}

impl<'a> Search<'a> {
    fn new(
        request: &Request,
        sizes: Sizes,
        settings: &'a Settings,
        scheduler: Option<&'a dyn Scheduler>,
        progress: &'a dyn Progress,
        cancel: &'a Cancel,
    ) -> Result<Search<'a>> {
        let results = settings.out.join(HEADROOM_FILE);
        if results.exists() {
            let text = format!("{} is there already: give another --out", results.display());
            return Err(Error::Usage(text));
        }
        let machine = run::machine(&settings.bed)?;
        let size = Size::new(request.scale, machine)?;
        let mut plan = request.plan(&machine)?;
        // Each repeat of a size is a boot of its own, which may fail for lack of memory as well.
        (plan.repeat, plan.boot_counts) = (1, true);
        let Sizes { least_mib, most_mib, step_mib } = sizes;
        let least = least_mib.unwrap_or(LEAST_MIB);
        let most = most_mib.unwrap_or(plan.subject.memory_mib);
        let bisection = Bisection::new(least, most, step_mib)?;
        plan.subject.memory_mib = most;
        size.check_memory(&plan)?;
        // Grace periods are not looked at, and the buffers for their records would be a part of the
        // memory that the guest is found to need.
        plan.measure =
            Measure { memory_ms: 1000, slow_ms: 1000, trace_kb: 64, callback_probe_hz: 0 };
        let condition = |scenario, policy: &Policy| Condition {
            scenario,
            policy: policy.clone(),
            survives_mib: None,
            to_alone: None,
            to_alone_bound: None,
            boots: vec![],
        };
        let mut conditions = vec![condition(Scenario::Baseline, &Policy::Eevdf)];
        conditions.extend(request.policies.iter().map(|p| condition(Scenario::Overcommit, p)));
        let found = Headroom {
            schema: HEADROOM_SCHEMA,
            experiment: plan.experiment.clone(),
            command: plan.command.clone(),
            host: None,
            guest_kernel: plan.variants[0].guest_kernel.clone(),
            phase_ms: plan.phase_ms,
            repeat: request.repeat,
            least_mib: bisection.size(0),
            most_mib: most,
            step_mib,
            complete: false,
            conditions,
        };
        let around = Around { watcher: None, scheduler, progress, cancel };
        Ok(Search { settings, around, plan, found })
    }

    fn all(&mut self) -> Result<()> {
        let (plans, settings, around) = ([self.plan.clone()], self.settings, self.around);
        let dirs = [settings.out.clone()];
        run::on_host(&plans, &dirs, settings, around, |host| {
            for index in 0..self.found.conditions.len() {
                self.condition(index, host)?;
            }
            self.found.complete = true;
            Ok(())
        })
    }

    fn condition(&mut self, index: usize, host: &mut PlanHost) -> Result<()> {
        let Headroom { least_mib, most_mib, step_mib, .. } = self.found;
        let mut bisection = Bisection::new(least_mib, most_mib, step_mib)?;
        while let Some(memory_mib) = bisection.next() {
            let survived = self.size(index, memory_mib, host)?;
            bisection.tried(survived);
        }
        self.found.conditions[index].survives_mib = bisection.found();
        let alone = self.found.conditions[0].survives_mib;
        let condition = &mut self.found.conditions[index];
        let ratio = match index {
            0 => alone.map(|_| (1.0, None)),
            _ => condition.survives_mib.zip(alone).and_then(|both| to_alone(both, least_mib)),
        };
        (condition.to_alone, condition.to_alone_bound) =
            ratio.map_or((None, None), |(value, bound)| (Some(value), bound));
        Ok(())
    }

    /// Whether the guest survives every repeat with that much memory; the first death decides.
    fn size(&mut self, index: usize, memory_mib: u64, host: &mut PlanHost) -> Result<bool> {
        for repeat in 0..self.found.repeat {
            let Condition { scenario, policy, .. } = &self.found.conditions[index];
            let name = match scenario {
                Scenario::Baseline => "alone".into(),
                Scenario::Overcommit => policy.to_string(),
            };
            let mut plan = self.plan.clone();
            plan.subject.memory_mib = memory_mib;
            plan.scenarios = vec![*scenario];
            plan.variants.retain(|variant| variant.policy == *policy);
            plan.variants.truncate(1);
            if plan.variants.is_empty() {
                // Alone is always under the stock scheduler, whether or not that is compared.
                plan.variants = self.plan.variants[..1].to_vec();
                plan.variants[0].policy = policy.clone();
            }
            if *scenario == Scenario::Baseline {
                plan.competitors.clear();
            }
            let dir = self.settings.out.join(format!("{name}-{memory_mib}-{}", repeat + 1));
            let logs = dir.join("logs");
            fs::create_dir_all(&logs).map_err(Error::io(&logs))?;
            let mut recorder = Recorder::create(dir.join("raw.jsonl"))?;
            host.execute(&plan, &logs, &mut recorder)?;
            let run = report::load(&dir)?;
            let boot = Boot::of(&run, memory_mib)?;
            let outcome = match boot.died_after_s {
                Some(after) => format!("out of memory after {after:.1} s"),
                None => "survived".into(),
            };
            self.around.progress.notice(&format!("{name}, {memory_mib} MiB: {outcome}"));
            let survived = boot.survived;
            self.found.host = Some(run.host);
            self.found.conditions[index].boots.push(boot);
            if !survived {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The first over the second size. In the smallest of all it is not known how much less would do.
fn to_alone((this, alone): (u64, u64), least: u64) -> Option<stats::Bounded> {
    let bounded = |mib| (mib as f64, (mib == least).then_some(stats::Bound::AtMost));
    stats::ratio(bounded(this), bounded(alone))
}

impl Boot {
    /// The outcome of a run of one phase.
    fn of(run: &report::Run, memory_mib: u64) -> Result<Boot> {
        let over = run.phases.iter().rev().find(|phase| phase.is_over());
        let phase = over
            .ok_or_else(|| Error::Other(format!("{}: its phase did not end", run.dir.display())))?;
        let death = phase.death.as_ref();
        Ok(Boot {
            memory_mib,
            survived: death.is_none(),
            died_after_s: death.map(|d| d.after_ns as f64 / 1e9),
            why: death.map(|d| d.line.clone()),
        })
    }
}

/// A search among sizes with a constant difference. The largest is tried first: if the guest dies
/// in it there is nothing to find.
#[derive(Clone, Debug)]
struct Bisection {
    least: u64,
    step: u64,
    /// Index of the largest size in which it died, plus one; all below are taken for deadly.
    from: u64,
    /// Index of the smallest size in which it survived; the number of sizes if there is none.
    to: u64,
    sizes: u64,
    trying: u64,
}

impl Bisection {
    /// Of `most`, `most - step`, and so on, not below `least`.
    fn new(least: u64, most: u64, step: u64) -> Result<Bisection> {
        if step == 0 || least == 0 || least > most {
            return Err(Error::Usage(format!(
                "--least {least}, --most {most}, --resolution {step}: give MiB, of which --least is no more than --most, and --resolution 1 or more"
            )));
        }
        let sizes = (most - least) / step + 1;
        let least = most - (sizes - 1) * step;
        Ok(Bisection { least, step, from: 0, to: sizes, sizes, trying: sizes - 1 })
    }

    fn size(&self, index: u64) -> u64 {
        self.least + index * self.step
    }

    /// The next size to try, if the search is not over.
    fn next(&mut self) -> Option<u64> {
        if self.from >= self.to {
            return None;
        }
        let largest = self.to == self.sizes;
        self.trying = if largest { self.sizes - 1 } else { (self.from + self.to - 1) / 2 };
        Some(self.size(self.trying))
    }

    /// What became of it.
    fn tried(&mut self, survived: bool) {
        if survived {
            self.to = self.trying;
        } else {
            self.from = self.trying + 1;
        }
    }

    /// The least size that is known to be survived.
    fn found(&self) -> Option<u64> {
        (self.to < self.sizes).then(|| self.size(self.to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found, and the sizes that were tried, of a guest that needs `needs`.
    fn search(least: u64, most: u64, step: u64, needs: u64) -> (Option<u64>, Vec<u64>) {
        let mut bisection = Bisection::new(least, most, step).unwrap();
        let mut tried = vec![];
        while let Some(size) = bisection.next() {
            tried.push(size);
            bisection.tried(size >= needs);
        }
        (bisection.found(), tried)
    }

    #[test]
    fn every_need_is_found_to_the_resolution() {
        for (least, most, step) in [(160, 512, 32), (160, 500, 32), (100, 100, 7), (1, 300, 1)] {
            for needs in 0..=most + 1 {
                let (found, tried) = search(least, most, step, needs);
                let sizes = || (0..).map(|i| most - i * step).take_while(|&size| size >= least);
                let expected = sizes().take_while(|&size| size >= needs).last();
                assert_eq!(found, expected, "{needs} of {least}..{most} by {step}");
                // Each size once, the largest first; the one below what was found as well.
                assert_eq!(tried[0], most);
                let mut once = tried.clone();
                once.sort_unstable();
                once.dedup();
                assert_eq!(once.len(), tried.len(), "{tried:?}");
                if let Some(found) = found.filter(|&found| found >= least + step) {
                    assert!(tried.contains(&(found - step)), "{needs}: {tried:?}");
                }
            }
        }
        assert!(search(160, 1536, 16, 600).1.len() <= 8);
    }

    #[test]
    fn sizes_at_the_end_of_the_search_bound_the_ratio() {
        use stats::Bound::{AtLeast, AtMost};
        assert_eq!(to_alone((480, 240), 160), Some((2.0, None)));
        assert_eq!(to_alone((480, 160), 160), Some((3.0, Some(AtLeast))));
        assert_eq!(to_alone((160, 320), 160), Some((0.5, Some(AtMost))));
        assert_eq!(to_alone((160, 160), 160), None);
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        for (least, most, step) in [(200, 100, 1), (0, 100, 1), (100, 200, 0)] {
            let error = Bisection::new(least, most, step).unwrap_err().to_string();
            assert!(error.contains("--resolution") && error.contains("--least"), "{error}");
        }
    }
}
