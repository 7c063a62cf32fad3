// SPDX-License-Identifier: MIT OR Apache-2.0
//! The boot parameters of the guest with which its overcommitted grace periods are shortest, under
//! each policy.
//!
//! A round is a run of its own: the defaults, the best so far and the values of one parameter are
//! guests on the same host, measured in turn. What is best in the end is measured against the
//! defaults once more ([`Question::Confirm`]), since the best of many is often only lucky.

mod choice;

pub use choice::{Best, Figures, GuestSettings, Offers, Parameter, Tried, Verdict};

use crate::error::{Error, Result};
use crate::experiments::{self, Request, Size};
use crate::host::PlanHost;
use crate::plan::{Plan, Scenario, Variant};
use crate::policy::Policy;
use crate::process::Cancel;
use crate::progress::Progress;
use crate::record::HostInfo;
use crate::recorder::Recorder;
use crate::report;
use crate::run::{self, Around, Settings};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// Raised when a field of [`Search`] changes its meaning or is removed.
pub const SEARCH_SCHEMA: u32 = 1;

/// Name of the result in the run's directory.
pub const SEARCH_FILE: &str = "search.json";

/// The extent of a search.
#[derive(Clone, Debug)]
pub struct Scope {
    /// In the order of [`Parameter::ALL`], whatever the order here.
    pub parameters: Vec<Parameter>,
    /// The price that a value may have, in % of the defaults' figures.
    pub loss_percent: f64,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Search {
    pub schema: u32,
    pub experiment: String,
    /// The command line.
    pub command: String,
    /// `None` if no round was complete.
    pub host: Option<HostInfo>,
    /// As the user named it.
    pub guest_kernel: String,
    /// `None` until the first guest has booted.
    pub guest: Option<Offers>,
    pub phase_ms: u64,
    /// Repeats of each round.
    pub repeat: u32,
    pub loss_percent: f64,
    /// Whether everything was searched.
    pub complete: bool,
    pub rounds: Vec<Round>,
    /// For each policy.
    pub best: Vec<Best>,
}

/// The subject of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    Vary(Parameter),
    /// Whether the best is better than the defaults.
    Confirm,
}

/// A round, complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    pub question: Question,
    /// Its directory, in that of the results: a run as of `lab run`.
    pub dir: PathBuf,
    pub tried: Vec<Tried>,
}

impl Question {
    pub fn name(self) -> &'static str {
        match self {
            Question::Vary(parameter) => parameter.name(),
            Question::Confirm => "confirmation",
        }
    }
}

impl Search {
    /// The table of each round, whose run is in its directory below `out`, and what was found; for
    /// a terminal of `width` columns.
    ///
    /// # Errors
    /// As [`report::load`].
    pub fn to_text(&self, out: &Path, width: usize) -> Result<String> {
        let mut text = String::new();
        for Round { question, dir, tried } in &self.rounds {
            let summary = report::summarize(&report::load(&out.join(dir))?);
            text += &format!("{}: {}\n", question.name(), summary.to_brief(width));
            for Tried { settings, policy, verdict, .. } in tried {
                text += &format!("{settings}, {policy}: {}\n", verdict.name());
            }
            text += "\n";
        }
        Ok(text + &self.prescriptions())
    }

    /// A line about the best under each policy.
    fn prescriptions(&self) -> String {
        let line = |Best { policy, settings, confirmed }: &Best| match confirmed {
            Some(true) => format!("{policy}: boot the guest with {settings}\n"),
            Some(false) => format!(
                "{policy}: keep the defaults ({settings} looked better and was not, measured again)\n"
            ),
            None if !self.complete => format!("{policy}: not known, the search is incomplete\n"),
            None => format!(
                "{policy}: keep the defaults (nothing was better by more than the spread)\n"
            ),
        };
        self.best.iter().map(line).collect()
    }
}

/// Searches for each of `request`'s policies. What was found is returned, and written to the run's
/// directory after every round, also when the search fails.
pub fn run(
    request: &Request,
    scope: &Scope,
    settings: &Settings,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> (Option<Search>, Result<()>) {
    let around = Around { watch: false, progress, cancel };
    let mut searching = match Searching::new(request, scope, settings, around) {
        Ok(searching) => searching,
        Err(error) => return (None, Err(error)),
    };
    let outcome = searching.all();
    let found = searching.found;
    if found.rounds.is_empty() {
        return (None, outcome);
    }
    let written = write(&found, &settings.out);
    (Some(found), outcome.and(written))
}

/// Reads a search's result.
///
/// # Errors
/// [`Error::Io`] when the file cannot be read; [`Error::Format`] when it is not a search's result
/// of this schema.
pub fn load(path: &Path) -> Result<Search> {
    let wrong = |message: String| Error::Format { path: path.into(), message };
    let text = fs::read(path).map_err(Error::io(path))?;
    let value: serde_json::Value =
        serde_json::from_slice(&text).map_err(|e| wrong(format!("not JSON: {e}")))?;
    let schema = &value["schema"];
    if *schema != SEARCH_SCHEMA || value["rounds"].is_null() {
        return Err(wrong(format!(
            "not a {SEARCH_FILE} of schema {SEARCH_SCHEMA}, as `reprieve lab search` writes it"
        )));
    }
    serde_json::from_value(value).map_err(|e| wrong(format!("not a {SEARCH_FILE}: {e}")))
}

fn write(found: &Search, out: &Path) -> Result<()> {
    let mut json = serde_json::to_vec_pretty(found)
        .map_err(|e| Error::Other(format!("cannot encode {SEARCH_FILE}: {e}")))?;
    json.push(b'\n');
    let path = out.join(SEARCH_FILE);
    reprieve_page::write(&path, &json).map_err(Error::io(&path))
}

struct Searching<'a> {
    request: &'a Request,
    settings: &'a Settings,
    around: Around<'a>,
    parameters: Vec<Parameter>,
    size: Size,
    /// With the guest's defaults, under all policies.
    plan: Plan,
    found: Search,
}

impl<'a> Searching<'a> {
    fn new(
        request: &'a Request,
        scope: &Scope,
        settings: &'a Settings,
        around: Around<'a>,
    ) -> Result<Searching<'a>> {
        let results = settings.out.join(SEARCH_FILE);
        if results.exists() {
            let text = format!("{} is there already: give another --out", results.display());
            return Err(Error::Usage(text));
        }
        if request.repeat < 2 {
            let text = format!(
                "--repeat {}: one measurement has no spread, give 2 or more",
                request.repeat
            );
            return Err(Error::Usage(text));
        }
        if !(0.0..=100.0).contains(&scope.loss_percent) {
            return Err(Error::Usage(format!(
                "--max-loss {}: give a percentage of 0 to 100",
                scope.loss_percent
            )));
        }
        let machine = run::machine(&settings.bed)?;
        let size = Size::new(machine)?;
        let plan = request.plan(&machine)?;
        let asked = |parameter: &Parameter| scope.parameters.contains(parameter);
        let best = |policy: &Policy| Best {
            policy: policy.clone(),
            settings: GuestSettings::default(),
            confirmed: None,
        };
        let found = Search {
            schema: SEARCH_SCHEMA,
            experiment: plan.experiment.clone(),
            command: plan.command.clone(),
            host: None,
            guest_kernel: plan.variants[0].guest_kernel.clone(),
            guest: None,
            phase_ms: plan.phase_ms,
            repeat: plan.repeat,
            loss_percent: scope.loss_percent,
            complete: false,
            rounds: vec![],
            best: request.policies.iter().map(best).collect(),
        };
        let parameters = Parameter::ALL.into_iter().filter(asked).collect();
        Ok(Searching { request, settings, around, parameters, size, plan, found })
    }

    /// The largest round that can come, for the memory of the host.
    fn largest(&self) -> Result<Plan> {
        let models = experiments::PREEMPTION_MODELS.iter().map(ToString::to_string).collect();
        let vcpus = self.plan.subject.vcpus;
        let most = Offers { vcpus, preempt_models: models, ..Offers::default() };
        let values = self.parameters.iter().map(|p| p.values(&most));
        let values = values.max_by_key(Vec::len).unwrap_or_default();
        let mut guests = vec![GuestSettings::default()];
        // Values of any parameter weigh the same; one more for the best so far.
        let other = values.iter().map(|v| GuestSettings::default().with(Parameter::SchedQs, v));
        guests.extend(other.chain([GuestSettings::default().with(Parameter::NohzFull, "1")]));
        let plan = self.plan_of(&guests, &self.request.policies);
        self.size.check_memory(&plan)?;
        Ok(plan)
    }

    fn all(&mut self) -> Result<()> {
        let (plans, settings, around) = ([self.largest()?], self.settings, self.around);
        let dirs = [settings.out.clone()];
        run::on_host(&plans, &dirs, settings, around, |host| {
            self.request.shorten(&mut self.plan, host.dilation());
            self.found.phase_ms = self.plan.phase_ms;
            let offers = self.look(host)?;
            self.found.guest = Some(offers.clone());
            for parameter in self.parameters.clone() {
                for (best, policies) in choice::groups(&self.found.best) {
                    let guests = choice::guests(&best, parameter, &offers);
                    if !parameter.values(&offers).is_empty() {
                        self.round(Question::Vary(parameter), &guests, &best, &policies, host)?;
                    }
                }
            }
            for (best, policies) in choice::groups(&self.found.best) {
                if !best.is_default() {
                    let guests = [GuestSettings::default(), best];
                    self.round(Question::Confirm, &guests, &guests[0], &policies, host)?;
                }
            }
            self.found.complete = true;
            Ok(())
        })
    }

    /// Boots the guest once, to see what its kernel offers.
    fn look(&self, host: &mut PlanHost) -> Result<Offers> {
        let dir = self.settings.out.join("guest");
        let logs = dir.join("logs");
        fs::create_dir_all(&logs).map_err(Error::io(&logs))?;
        let plan = experiments::calibration(&self.found.guest_kernel);
        let mut recorder = Recorder::create(dir.join("raw.jsonl"))?;
        host.execute(&plan, &logs, &mut recorder)?;
        let run = report::load(&dir)?;
        let guest = run.guests.into_iter().find(|guest| guest.variant.is_some());
        let info = guest.ok_or_else(|| Error::Other("the guest did not boot".into()))?.info;
        Ok(Offers {
            release: info.kernel,
            vcpus: self.plan.subject.vcpus,
            preempt: info.preempt,
            preempt_models: info.preempt_models,
        })
    }

    /// A round as a plan: each of `guests` under each of `policies`.
    fn plan_of(&self, guests: &[GuestSettings], policies: &[Policy]) -> Plan {
        let mut plan = self.plan.clone();
        let kernel = &self.found.guest_kernel;
        let each = guests.iter().flat_map(|guest| policies.iter().map(move |p| (guest, p)));
        plan.variants = each
            .map(|(guest, policy)| Variant {
                label: format!("{guest}, {policy}"),
                guest_kernel: kernel.clone(),
                // Checked after the boot, unlike other parameters.
                preempt: guest.get(Parameter::Preempt).cloned(),
                guest_args: guest.words(Some(Parameter::Preempt)).join(" "),
                policy: policy.clone(),
            })
            .collect();
        plan
    }

    /// Measures `guests`, of which the first has the defaults, and judges all against `best`. What
    /// is better becomes the best under its policy.
    fn round(
        &mut self,
        question: Question,
        guests: &[GuestSettings],
        best: &GuestSettings,
        policies: &[Policy],
        host: &mut PlanHost,
    ) -> Result<()> {
        let number = self.found.rounds.len() + 1;
        let name = question.name();
        let under = policies.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let text = format!("round {number}: {name} under {under}, beside {best}");
        self.around.progress.notice(&text);
        let place = PathBuf::from(format!("{number}-{}", name.trim_start_matches("rcutree.")));
        let dir = self.settings.out.join(&place);
        let logs = dir.join("logs");
        fs::create_dir_all(&logs).map_err(Error::io(&logs))?;
        let plan = self.plan_of(guests, policies);
        let mut recorder = Recorder::create(dir.join("raw.jsonl"))?;
        host.execute(&plan, &logs, &mut recorder)?;
        let summary = report::write(&dir)?;
        let each = guests.iter().flat_map(|guest| policies.iter().map(move |p| (guest, p)));
        let mut tried: Vec<Tried> = each
            .zip(&summary.variants)
            .map(|((guest, policy), variant)| Tried {
                policy: policy.clone(),
                settings: guest.clone(),
                alone: figures(variant, Scenario::Baseline),
                overcommitted: figures(variant, Scenario::Overcommit),
                verdict: Verdict::Yardstick,
            })
            .collect();
        let loss = self.found.loss_percent / 100.0;
        let yardsticks = tried.clone();
        for candidate in &mut tried {
            if candidate.settings.is_default() || candidate.settings == *best {
                continue;
            }
            let of = |settings: &GuestSettings| {
                let same = |t: &&Tried| t.settings == *settings && t.policy == candidate.policy;
                yardsticks.iter().find(same)
            };
            let both = of(best).zip(of(&GuestSettings::default()));
            candidate.verdict = both.map_or(Verdict::Missing, |(best, defaults)| {
                choice::judge(candidate, best, defaults, loss)
            });
            let Tried { settings, policy, verdict, .. } = &*candidate;
            self.around.progress.notice(&format!("{settings}, {policy}: {}", verdict.name()));
        }
        for best in self.found.best.iter_mut().filter(|best| policies.contains(&best.policy)) {
            let winner = choice::winner(&tried, &best.policy);
            match (question, winner) {
                (Question::Confirm, winner) => best.confirmed = Some(winner.is_some()),
                (Question::Vary(_), Some(winner)) => best.settings = winner.settings.clone(),
                (Question::Vary(_), None) => {}
            }
        }
        self.found.host = Some(summary.host);
        self.found.rounds.push(Round { question, dir: place, tried });
        write(&self.found, &self.settings.out)
    }
}

fn figures(variant: &report::VariantSummary, scenario: Scenario) -> Figures {
    let cell = |key| variant.row(key).and_then(|row| row.cell(scenario)).cloned();
    Figures { gp_mean: cell("gp_mean"), gp_max: cell("gp_max"), throughput: cell("throughput") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(complete: bool, confirmed: Option<bool>) -> Search {
        let settings = GuestSettings::default().with(Parameter::FirstFqs, "0");
        Search {
            schema: SEARCH_SCHEMA,
            experiment: "churn".into(),
            command: "reprieve lab search".into(),
            host: None,
            guest_kernel: "deb:6.12".into(),
            guest: None,
            phase_ms: 2500,
            repeat: 2,
            loss_percent: 5.0,
            complete,
            rounds: vec![],
            best: vec![Best { policy: Policy::Eevdf, settings, confirmed }],
        }
    }

    #[test]
    fn only_what_was_confirmed_is_prescribed() {
        for (complete, confirmed, said) in [
            (true, Some(true), "boot the guest with rcutree.jiffies_till_first_fqs=0"),
            (true, Some(false), "keep the defaults (rcutree.jiffies_till_first_fqs=0 looked"),
            (true, None, "keep the defaults (nothing"),
            (false, None, "not known"),
        ] {
            let text = search(complete, confirmed).prescriptions();
            assert!(text.starts_with(&format!("eevdf: {said}")), "{text}");
            assert_eq!(text.contains("boot the guest"), confirmed == Some(true), "{text}");
        }
    }

    #[test]
    fn a_result_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let found = search(true, Some(true));
        write(&found, dir.path()).unwrap();
        let path = dir.path().join(SEARCH_FILE);
        assert_eq!(load(&path).unwrap(), found);
        for (content, said) in
            [("{}", "schema 1"), ("[", "not JSON"), ("{\"schema\": 2}", "schema 1")]
        {
            std::fs::write(&path, content).unwrap();
            let error = load(&path).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("search.json"), "{error}");
        }
    }
}
