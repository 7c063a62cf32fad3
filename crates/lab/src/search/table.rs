// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of a search as a table: a row for everything that was tried, and the prescriptions.

use super::{Best, Search, Tried};
use crate::report::Cell;
use crate::report::stats::Bound;
use comfy_table::{CellAlignment, Table, presets};

/// Columns with figures.
const FIGURES: std::ops::Range<usize> = 3..7;

impl Search {
    /// The table for a terminal; ends with a line feed.
    pub fn to_text(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header([
            "round",
            "policy",
            "guest's parameters",
            "overcommitted: mean / max",
            "alone: mean / max",
            "throughput: overcommitted",
            "alone",
            "",
        ]);
        for round in &self.rounds {
            for tried in &round.tried {
                let same = |t: &&Tried| t.settings.is_default() && t.policy == tried.policy;
                let defaults = round.tried.iter().find(same);
                let to_defaults = |of: fn(&Tried) -> &Option<Cell>| {
                    let both = of(tried).as_ref().zip(defaults.and_then(|d| of(d).as_ref()));
                    both.map_or("-".into(), |(this, default)| {
                        format!("{:.2}", this.value / default.value)
                    })
                };
                table.add_row([
                    round.question.name().trim_start_matches("rcutree.").into(),
                    tried.policy.to_string(),
                    tried.settings.to_string(),
                    times(&tried.overcommitted.gp_mean, &tried.overcommitted.gp_max),
                    times(&tried.alone.gp_mean, &tried.alone.gp_max),
                    to_defaults(|t| &t.overcommitted.throughput),
                    to_defaults(|t| &t.alone.throughput),
                    tried.verdict.name().into(),
                ]);
            }
        }
        for column in FIGURES {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let host = self.host.as_ref().map_or(String::new(), |host| {
            format!(
                "{} host of {} CPUs, Linux {}, time {}; ",
                host.mode, host.cpus, host.kernel, host.dilation
            )
        });
        let guest = self.guest.as_ref().map_or(&self.guest_kernel, |guest| &guest.release);
        let mark = if self.complete { "" } else { " (INCOMPLETE)" };
        let found: String = self.best.iter().map(|best| self.prescription(best)).collect();
        format!(
            "{}{mark}: the guest's parameters with the shortest overcommitted grace periods, {} x {} s each\n{host}guest {guest}\ngrace periods in ms, the mean's repeats in parentheses; throughput over the defaults' of the same round\n\n{table}\n\n{found}",
            self.experiment,
            self.repeat,
            self.phase_ms as f64 / 1000.0,
        )
    }

    /// A line about the best under a policy.
    fn prescription(&self, Best { policy, settings, confirmed }: &Best) -> String {
        match confirmed {
            Some(true) => format!("{policy}: boot the guest with {settings}\n"),
            Some(false) => format!(
                "{policy}: keep the defaults ({settings} looked better and was not, measured again)\n"
            ),
            None if !self.complete => format!("{policy}: not known, the search is incomplete\n"),
            None => format!(
                "{policy}: keep the defaults (nothing was better by more than the spread)\n"
            ),
        }
    }
}

/// `6.1 (5.9-6.3) / 43`.
fn times(mean: &Option<Cell>, max: &Option<Cell>) -> String {
    let Some(mean) = mean else { return "-".into() };
    let spread = mean.spread.map_or(String::new(), |s| format!(" ({:.2}-{:.2})", s.min, s.max));
    let max = max
        .as_ref()
        .map_or("-".into(), |max| format!("{}{:.1}", Bound::mark(max.bound), max.value));
    format!("{:.2}{spread} / {max}", mean.value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::report::Spread;
    use crate::search::{
        Figures, GuestSettings, Parameter, Question, Round, SEARCH_SCHEMA, Verdict,
    };

    fn search(complete: bool, confirmed: Option<bool>) -> Search {
        let cell = |value| Cell {
            value,
            bound: None,
            repeats: vec![Some(value - 1.0), Some(value + 1.0)],
            spread: Some(Spread { min: value - 1.0, max: value + 1.0, cv: None }),
            disturbed: false,
        };
        let figures = |gp, throughput| Figures {
            gp_mean: Some(cell(gp)),
            gp_max: Some(cell(2.0 * gp)),
            throughput: Some(cell(throughput)),
        };
        let settings = GuestSettings::default().with(Parameter::FirstFqs, "0");
        let tried = |settings: GuestSettings, throughput, verdict| Tried {
            policy: Policy::Eevdf,
            settings,
            alone: figures(5.0, throughput),
            overcommitted: Figures { gp_max: None, ..figures(10.0, throughput) },
            verdict,
        };
        let round = Round {
            question: Question::Vary(Parameter::FirstFqs),
            dir: "1-jiffies_till_first_fqs".into(),
            tried: vec![
                tried(GuestSettings::default(), 200.0, Verdict::Yardstick),
                tried(settings.clone(), 190.0, Verdict::Better),
            ],
        };
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
            rounds: vec![round],
            best: vec![Best { policy: Policy::Eevdf, settings, confirmed }],
        }
    }

    #[test]
    fn everything_that_was_tried_has_a_row() {
        let text = search(true, Some(true)).to_text();
        let rows: Vec<String> =
            text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let first = "jiffies_till_first_fqs eevdf";
        for row in [
            format!(
                "{first} defaults 10.00 (9.00-11.00) / - 5.00 (4.00-6.00) / 10.0 1.00 1.00 yardstick"
            ),
            format!(
                "{first} rcutree.jiffies_till_first_fqs=0 10.00 (9.00-11.00) / - 5.00 (4.00-6.00) / 10.0 0.95 0.95 better"
            ),
            "eevdf: boot the guest with rcutree.jiffies_till_first_fqs=0".into(),
        ] {
            assert!(rows.contains(&row), "{row}\n{text}");
        }
        assert!(text.contains("2 x 2.5 s") && !text.contains("INCOMPLETE"), "{text}");
    }

    #[test]
    fn only_what_was_confirmed_is_prescribed() {
        for (complete, confirmed, said) in [
            (true, Some(false), "keep the defaults (rcutree.jiffies_till_first_fqs=0 looked"),
            (true, None, "keep the defaults (nothing"),
            (false, None, "not known"),
        ] {
            let text = search(complete, confirmed).to_text();
            assert!(text.contains(said) && !text.contains("boot the guest"), "{text}");
        }
    }

    #[test]
    fn a_result_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let found = search(true, Some(true));
        crate::search::write(&found, dir.path()).unwrap();
        let path = dir.path().join(crate::search::SEARCH_FILE);
        assert_eq!(crate::search::load(&path).unwrap(), found);
        for (content, said) in
            [("{}", "schema 1"), ("[", "not JSON"), ("{\"schema\": 2}", "schema 1")]
        {
            std::fs::write(&path, content).unwrap();
            let error = crate::search::load(&path).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("search.json"), "{error}");
        }
    }
}
