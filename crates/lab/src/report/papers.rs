// SPDX-License-Identifier: MIT OR Apache-2.0
//! The figures of the papers, by experiment and key of our row.
//!
//! Source: Prasad, Gopinath, McKenney, "The RCU-Reader Preemption Problem in VMs", USENIX ATC 2017,
//! table 1 and section 4. Ratios that the paper states are its own; the others are the quotient of
//! its two figures. Its clone experiment has plots only, and `asym` and `dbench` are not from it.

use serde::{Deserialize, Serialize};

/// The paper's figures for a row, in the row's unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PaperFigure {
    pub baseline: Option<f64>,
    pub overcommit: Option<f64>,
    pub ratio: Option<f64>,
    /// How the paper's measure differs from the row's.
    pub note: Option<String>,
}

/// A figure of the paper, in the unit of our row.
struct Figure {
    key: &'static str,
    baseline: Option<f64>,
    overcommit: Option<f64>,
    /// As the paper states it.
    ratio: Option<f64>,
    /// How the paper's measure differs from the row's.
    note: Option<&'static str>,
}

const fn pair(key: &'static str, baseline: f64, overcommit: f64) -> Figure {
    Figure { key, baseline: Some(baseline), overcommit: Some(overcommit), ratio: None, note: None }
}

const fn ratio(key: &'static str, ratio: f64, note: Option<&'static str>) -> Figure {
    Figure { key, baseline: None, overcommit: None, ratio: Some(ratio), note }
}

const fn stated(mut figure: Figure, ratio: f64) -> Figure {
    figure.ratio = Some(ratio);
    figure
}

const fn noted(mut figure: Figure, note: &'static str) -> Figure {
    figure.note = Some(note);
    figure
}

const GP_CPU: &str = "the row includes time during which the hypervisor had preempted RCU's work, which lengthens the few grace periods that it hits; the median hardly does";

const POSTMARK: &[Figure] = &[
    stated(pair("gp_mean", 57.6, 125.9), 2.18),
    pair("gp_sd", 10.8, 114.3),
    pair("gp_max", 89.93, 2372.12),
    pair("gp_min", 5.62, 4.32),
    pair("gp_p90", 60.05, 251.36),
    pair("gp_p50", 59.99, 80.18),
    noted(stated(pair("gp_cpu", 633.85, 1833.54), 2.9), GP_CPU),
    ratio("fragmentation_mean", 1.325, None),
    ratio("throughput", 1.0 - 0.6673, Some("other effects of overcommit included")),
    ratio(
        "reader_preemptions",
        6.33,
        Some(
            "the paper counts preempted readers that lengthen a grace period; the row counts all preempted readers",
        ),
    ),
    ratio(
        "kernel_share",
        1.2371,
        Some(
            "the paper reports the guest's kernel CPU use; the row is its share of the CPU time that the guest used, without time stolen or idle",
        ),
    ),
];

const MEMBENCH: &[Figure] = &[
    stated(pair("gp_mean", 53.27, 69.39), 1.3026),
    pair("gp_sd", 13.4, 30.4),
    pair("gp_max", 87.66, 317.59),
    pair("gp_min", 8.88, 9.13),
    pair("gp_p90", 60.18, 109.98),
    pair("gp_p50", 59.94, 60.32),
    noted(pair("gp_cpu", 860.26, 1095.72), GP_CPU),
    ratio("memory_peak", 1.5, Some("+842 MB in the paper's 8 GB guest")),
    ratio("fragmentation_mean", 2.5532, None),
];

/// The paper's figures beside row `key` of `experiment`.
pub fn figure(experiment: &str, key: &str) -> Option<PaperFigure> {
    let table = match experiment {
        "postmark" => POSTMARK,
        "membench" => MEMBENCH,
        _ => return None,
    };
    let f = table.iter().find(|f| f.key == key)?;
    let quotient = || Some(f.overcommit? / f.baseline?);
    Some(PaperFigure {
        baseline: f.baseline,
        overcommit: f.overcommit,
        ratio: f.ratio.or_else(quotient),
        note: f.note.map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_belongs_to_a_row() {
        let known = super::super::rows::known();
        let keys: Vec<String> = known.into_iter().map(|m| m.info.key).collect();
        for f in POSTMARK.iter().chain(MEMBENCH) {
            assert!(keys.iter().any(|k| k == f.key), "{}", f.key);
        }
    }

    #[test]
    fn stated_ratios_agree_with_the_stated_figures() {
        for f in POSTMARK.iter().chain(MEMBENCH) {
            if let (Some(b), Some(o), Some(r)) = (f.baseline, f.overcommit, f.ratio) {
                assert!((o / b / r - 1.0).abs() < 0.01, "{}: {} against {r}", f.key, o / b);
            }
        }
        assert_eq!(
            figure("postmark", "throughput").unwrap().ratio.map(|r| (r * 1e4).round()),
            Some(3327.0)
        );
        for experiment in ["postmark", "membench"] {
            let note = figure(experiment, "gp_cpu").and_then(|f| f.note);
            assert!(note.unwrap().contains("preempted"));
        }
        assert!(figure("asym", "gp_mean").is_none());
    }
}
