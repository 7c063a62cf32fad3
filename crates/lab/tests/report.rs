// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports from files of records: the figures are compared with ones worked out by hand, and
//! damaged or hostile files are refused.

mod report_common;

use report_common::*;
use reprieve_lab::dilation::Dilation;
use reprieve_lab::error::Error;
use reprieve_lab::plan::Scenario;
use reprieve_lab::protocol::{Better, Figure};
use reprieve_lab::record::{Death, Record};
use reprieve_lab::report::{self, Cell, Summary, stats::Bound};
use reprieve_lab::results;
use reprieve_lab::watcher::{Preempted, Totals, WatchOutcome};
use std::collections::BTreeMap;
use std::path::Path;

fn summary(dir: &Path) -> Summary {
    report::summarize(&report::load(dir).unwrap())
}

fn load_error(content: &[u8]) -> String {
    let scratch = Scratch::new();
    let dir = scratch.raw("run", content);
    let error = report::load(&dir).unwrap_err();
    assert!(matches!(error, Error::Format { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.starts_with(&dir.join("raw.jsonl").display().to_string()), "{text}");
    text
}

#[track_caller]
fn close(value: Option<f64>, expected: f64) {
    let value = value.expect("not measured");
    assert!(
        (value - expected).abs() <= 1e-9 * expected.abs().max(1.0),
        "{value} instead of {expected}"
    );
}

#[test]
fn figures_worked_out_by_hand() {
    let scratch = Scratch::new();
    let s = summary(&scratch.run("run", &small("membench")));
    assert!(s.complete && s.notices.is_empty(), "{:?}", s.notices);
    let of = |key: &str| {
        let row = s.variants[0].row(key).unwrap_or_else(|| panic!("no row {key}"));
        (
            row.baseline.as_ref().map(|c| c.value),
            row.overcommit.as_ref().map(|c| c.value),
            row.ratio,
        )
    };
    // Key, baseline, overcommit. Grace periods 2 4 6 8 and 10 20 30 ms.
    for (key, baseline, overcommit) in [
        ("gp_mean", 5.0, 20.0),
        ("gp_sd", (20.0f64 / 3.0).sqrt(), 10.0),
        ("gp_max", 8.0, 30.0),
        ("gp_min", 2.0, 10.0),
        ("gp_p90", 8.0, 30.0),
        ("gp_p50", 4.0, 20.0),
        ("gp_count", 4.0, 3.0),
        ("gp_cpu", 50.0, 200.0),
        ("gp_cpu_p50", 40.0, 200.0),
        ("memory_peak", 110.0, 150.0),
        ("memory_mean", 670.0 / 7.0, 120.0),
        // 300 to 290 and 310 to 305; 300 to 260 and 310 to 250.
        ("memory_growth", 10.0, 60.0),
        // 320 to 295; 310 to 250.
        ("memory_spike", 25.0, 60.0),
        ("slab_peak", 1.0, 1.0),
        ("fragmentation_mean", 45.0, 45.0),
        ("throughput", 200.0, 50.0),
        ("vcpu_preemptions", 0.0, 300.0),
        ("vcpu_wait", 0.0, 25.0),
        ("steal", 25.0, 25.0),
        // 0.5 in the kernel and 0.25 in programs of each second.
        ("kernel_share", 200.0 / 3.0, 200.0 / 3.0),
        ("host_cpu_subject", 50.0, 50.0),
        ("host_cpu.hog", 0.0, 50.0),
        ("work_per_cpu_second", 200.0, 50.0),
        ("host_other", 1.0, 1.0),
        ("trace_rate", 500.0, 500.0),
        ("longest_gap", 25.0, 25.0),
    ] {
        let (b, o, ratio) = of(key);
        close(b, baseline);
        close(o, overcommit);
        assert_eq!(ratio.is_some(), baseline != 0.0, "{key}");
    }
    close(of("gp_mean").2, 4.0);
    assert_eq!(of("callbacks_waiting"), (None, None, None), "what was not measured is absent");
    assert_eq!(s.metric("throughput").unwrap().unit, "pairs/s");

    let mean = s.variants[0].row("gp_mean").unwrap();
    let baseline = mean.baseline.as_ref().unwrap();
    assert_eq!(baseline.repeats, [Some(4.0), Some(8.0)]);
    let spread = baseline.spread.unwrap();
    assert_eq!((spread.min, spread.max), (4.0, 8.0));
    close(spread.cv, 8.0f64.sqrt() / 6.0);
    let paper = mean.paper.as_ref().unwrap();
    assert_eq!(
        (paper.baseline, paper.overcommit, paper.ratio),
        (Some(53.27), Some(69.39), Some(1.3026))
    );
}

#[test]
fn what_was_seen_from_outside_has_rows_of_its_own() {
    let scratch = Scratch::new();
    let mut records = small("postmark");
    let preempted = |count, ns| Preempted { count, ns };
    for r in &mut records {
        let Record::PhaseEnd { phase, host, .. } = r else { continue };
        // Phases 1 and 3 are overcommitted; the watcher of phase 3 failed.
        host.outside = Some(match phase {
            3 => WatchOutcome::Missing("this kernel has no BTF".into()),
            n => WatchOutcome::Seen(Box::new(Totals {
                classes: BTreeMap::from([
                    ("user".into(), preempted(10, 3_000_000)),
                    ("reader".into(), preempted(5, 1_000_000)),
                ]),
                readers: preempted(if *n == 1 { 12 } else { 2 }, 2_000_000),
                // From inside 2, 4, 6 and 8 ms alone.
                grace_periods: 2,
                grace_periods_ns: if *n == 1 { 33_000_000 } else { 11_000_000 },
                cost_ns: 20_000_000,
                ..Totals::default()
            })),
        });
    }
    let s = summary(&scratch.run("run", &records));
    let missing = "seen from outside: not available in 1 of 4 phases: this kernel has no BTF";
    assert_eq!(s.notices, [missing]);
    let of = |key: &str| s.variants[0].row(key).unwrap_or_else(|| panic!("no row {key}"));
    let value = |cell: &Option<report::Cell>| cell.as_ref().map(|cell| cell.value);
    // Phases last 2 s.
    for (key, baseline, overcommit) in [
        ("reader_preemptions", 1.0, 6.0),
        ("reader_preempted", 50.0, 50.0),
        ("critical_preemptions", 2.5, 2.5),
        ("critical_preemptions.reader", 2.5, 2.5),
        ("critical_preemptions.softirq", 0.0, 0.0),
        ("preempted.user", 75.0, 75.0),
        ("preempted.reader", 25.0, 25.0),
        ("gp_mean_outside", 5.5, 16.5),
        ("gp_difference", 10.0, -17.5),
        ("outside_cost", 1.0, 1.0),
        ("outside_lost", 0.0, 0.0),
    ] {
        close(value(&of(key).baseline), baseline);
        close(value(&of(key).overcommit), overcommit);
    }
    close(of("reader_preemptions").paper.as_ref().unwrap().ratio, 6.33);
    assert!(of("vcpu_preemptions").paper.is_none());
    assert!(s.variants[0].row("preempted.idle").is_none(), "a class that did not occur");
}

#[test]
fn what_a_program_measured_comes_first_and_keeps_its_order() {
    let mut records = small("guest-threads");
    let mut value = 0.0;
    for record in &mut records {
        if let Record::PhaseEnd { result, .. } = record {
            value += 1.0;
            let figure = |subject: &str, measure: &str, value| Figure {
                subject: subject.into(),
                group: "1 reader".into(),
                measure: measure.into(),
                unit: "ms".into(),
                value,
                at_least: false,
                better: Better::Lower,
            };
            result.figures = vec![
                figure("urcu memb", "mean", value * 2.0),
                // In the phases 1 and 4.
                Figure {
                    at_least: matches!(value, 1.0 | 4.0),
                    ..figure("urcu memb", "p99", value)
                },
                Figure { better: Better::Neither, ..figure("plain", "mean", value) },
            ];
        }
    }
    let scratch = Scratch::new();
    let s = summary(&scratch.run("run", &records));
    let first: Vec<_> =
        s.metrics[..3].iter().map(|m| (m.group.as_str(), m.label.as_str())).collect();
    let heading = "Programs, 1 reader: mean";
    assert_eq!(
        first,
        [(heading, "urcu memb"), (heading, "plain"), ("Programs, 1 reader: p99", "urcu memb")]
    );
    // Phases 1 and 3 are the baseline, 2 and 4 overcommitted: 2 and 6, 4 and 8.
    let row = s.variants[0].row("bench.mean.1_reader.urcu_memb").unwrap();
    close(row.baseline.as_ref().map(|c| c.value), 4.0);
    close(row.overcommit.as_ref().map(|c| c.value), 6.0);
    assert_eq!(row.baseline.as_ref().unwrap().repeats, [Some(2.0), Some(6.0)]);
    close(row.ratio, 1.5);
    let better: Vec<_> = s.metrics[..3].iter().map(|m| m.better).collect();
    assert_eq!(better, [Better::Lower, Better::Neither, Better::Lower]);
    // 1 or more and 3: the mean of the two is 2 or more; 2, and 4 or more: likewise.
    let row = s.variants[0].row("bench.p99.1_reader.urcu_memb").unwrap();
    let bound = |cell: &Option<Cell>| cell.as_ref().map(|c| (c.value, c.bound));
    assert_eq!(bound(&row.baseline), Some((2.0, Some(Bound::AtLeast))));
    assert_eq!(bound(&row.overcommit), Some((3.0, Some(Bound::AtLeast))));
}

#[test]
fn what_was_not_measured_is_a_dash() {
    let scratch = Scratch::new();
    let mut records = small("asym");
    for r in &mut records {
        match r {
            Record::Run { host, .. } => host.mode = "tcg".into(),
            Record::PhaseEnd { host, .. } => *host = Default::default(),
            _ => {}
        }
    }
    records.retain(|r| {
        !matches!(
            r,
            Record::Sample { sample: reprieve_init::protocol::Sample::GracePeriod(..), .. }
        )
    });
    let s = summary(&scratch.run("run", &records));
    let text = s.to_text(80);
    for label in [
        "GP mean, ms",
        "GP min, ms",
        "vCPU preemptions, 1/s",
        "vCPU wait share, %",
        "Steal seen by the guest, %",
        "Host CPU, hog, %",
    ] {
        let line = text
            .lines()
            .find(|l| l.trim_start().starts_with(label))
            .unwrap_or_else(|| panic!("{label}: {text}"));
        let figures: Vec<&str> = line.split_whitespace().rev().take(3).collect();
        assert_eq!(figures, ["-", "-", "-"], "{line}");
    }
}

/// Grace periods are 2 to 8 ms alone, 10 and 20 in the first overcommitted phase, 30 in the other.
#[test]
fn a_grace_period_that_had_not_ended_bounds_the_longest() {
    use reprieve_lab::protocol::Sample;
    let scratch = Scratch::new();
    let with = |name: &str, open: &[(u32, u64)]| {
        let mut records = small("postmark");
        for &(id, ms) in open {
            let is_end = |r: &Record| matches!(r, Record::PhaseEnd { phase, .. } if *phase == id);
            let at = records.iter().position(is_end).unwrap();
            let sample = Sample::OpenGracePeriod { start_ns: 7, open_ns: ms * 1_000_000 };
            records.insert(at, Record::Sample { phase: id, sample });
        }
        summary(&scratch.run(name, &records))
    };
    let longest = |s: &Summary| {
        let row = s.variants[0].row("gp_max").unwrap();
        let cells = [&row.baseline, &row.overcommit].map(|cell| cell.clone().unwrap());
        (cells.map(|cell| (cell.value, cell.bound)), row.ratio, row.ratio_bound)
    };
    let at_least = Some(Bound::AtLeast);

    let s = with("over", &[(3, 48)]);
    assert_eq!(longest(&s), ([(8.0, None), (48.0, at_least)], Some(6.0), at_least));
    let told = |s: &Summary, what: &str| s.notices.iter().any(|n| n.contains(what));
    assert!(told(&s, "overcommit, repeat 2: a grace period was in progress"), "{:?}", s.notices);
    assert!(s.to_text(80).contains(">= 48.0") && s.to_text(80).contains(">= 6.00"));
    let row = s.variants[0].row("gp_mean").unwrap();
    close(row.overcommit.as_ref().map(|c| c.value), 20.0);

    let s = with("both", &[(0, 16), (3, 48)]);
    assert_eq!(longest(&s), ([(16.0, at_least), (48.0, at_least)], None, None));
    let s = with("alone", &[(2, 60)]);
    let at_most = Some(Bound::AtMost);
    assert_eq!(longest(&s), ([(60.0, at_least), (30.0, None)], Some(0.5), at_most));
    // Longer than all of its phase, and not than all of the other repeat.
    let s = with("one", &[(1, 25)]);
    assert_eq!(longest(&s), ([(8.0, None), (30.0, None)], Some(3.75), None));
    assert!(told(&s, "repeat 1: a grace period was in progress") && s.notices.len() == 1);
    let s = with("young", &[(1, 19), (3, 30)]);
    assert!(s.notices.is_empty(), "{:?}", s.notices);
}

#[test]
fn grace_periods_of_the_beginning_of_a_phase_bound_the_longest() {
    let scratch = Scratch::new();
    let with = |name: &str, lost: u64, until_ms: Option<u64>| {
        let mut records = small("postmark");
        for record in &mut records {
            let Record::PhaseEnd { phase, result, host } = record else { continue };
            host.outside = Some(WatchOutcome::Seen(Box::new(Totals {
                grace_periods: 2,
                grace_periods_ns: 33_000_000,
                ..Totals::default()
            })));
            if *phase == 3 {
                result.cost.trace_lost = lost;
                result.cost.trace_until_ns = until_ms.map(|ms| ms * 1_000_000);
            }
        }
        let s = report::write(&scratch.run(name, &records)).unwrap();
        let row = |key: &str| s.variants[0].row(key).unwrap();
        // These are of the whole phase, and cannot be compared with a mean of its beginning.
        let difference = row("gp_difference");
        assert!(difference.baseline.is_some());
        assert_eq!(difference.overcommit.is_none(), !s.notices.is_empty(), "{name}");
        let longest = row("gp_max").overcommit.as_ref().map(|cell| (cell.value, cell.bound));
        (longest.unwrap(), s.notices)
    };
    let at_least = Some(Bound::AtLeast);
    let (longest, notices) = with("known", 9, Some(1_500));
    assert_eq!(longest, (30.0, at_least));
    let told = "overcommit: 9 trace events lost, since the guest's buffer was full: the rows of grace periods are those of the first 1.50 s of a phase of 2.00 s";
    assert!(notices.len() == 1 && notices[0].contains(told), "{notices:?}");
    // A run of an earlier version.
    let (longest, notices) = with("unknown", 9, None);
    assert_eq!(longest, (30.0, at_least));
    assert!(notices.len() == 1 && notices[0].contains("the beginning of a phase"), "{notices:?}");
    // The events were lost after the end of the phase.
    assert_eq!(with("after", 9, Some(2_000)), ((30.0, None), vec![]));
}

#[test]
fn a_machine_that_was_not_quiet_is_told() {
    let scratch = Scratch::new();
    let with = |name: &str, shares: [Option<f64>; 4]| {
        let mut records = small("membench");
        let hosts = records.iter_mut().filter_map(|r| match r {
            Record::PhaseEnd { host, .. } => Some(host),
            _ => None,
        });
        for (host, share) in hosts.zip(shares) {
            host.other_busy = share;
        }
        summary(&scratch.run(name, &records))
    };
    // Phases in the order baseline, overcommit, baseline, overcommit.
    let s = with("loud", [Some(0.01), Some(0.05), Some(0.03), Some(0.25)]);
    let row = s.variants[0].row("host_other").unwrap();
    close(row.baseline.as_ref().map(|c| c.value), 2.0);
    close(row.overcommit.as_ref().map(|c| c.value), 15.0);
    let text = s.to_text(200);
    let notice = "this machine was not quiet: something else used more than 5 % of its CPU time in 1 of 4 phases, up to 25 %; figures marked ? decide nothing";
    assert!(text.contains(notice) && text.contains("Other load on the machine, %"), "{text}");

    // No ratio is made of a figure that other work disturbed.
    let row = s.variants[0].row("gp_mean").unwrap();
    let (base, over) = (row.baseline.as_ref().unwrap(), row.overcommit.as_ref().unwrap());
    assert!(!base.disturbed && over.disturbed && row.ratio.is_none());
    let means = text.lines().find(|line| line.contains("GP mean, ms")).unwrap();
    assert_eq!(means.matches('?').count(), 1, "{text}");

    let s = with("quiet", [Some(0.05), None, Some(0.0), Some(f64::MIN)]);
    assert!(s.notices.is_empty(), "{:?}", s.notices);
    let s = with("unknown", [None; 4]);
    assert!(s.variants[0].row("host_other").is_none() && s.notices.is_empty());
}

#[test]
fn a_run_that_died_is_kept_and_marked() {
    let scratch = Scratch::new();
    let records = small("membench");
    let whole = lines(&records);
    // Cut in the last sample of the last phase.
    let cut = whole.find("\"phase_end\",\"phase\":3").unwrap() - 40;
    let dir = scratch.raw("run", &whole.as_bytes()[..cut]);
    let s = report::write(&dir).unwrap();
    assert!(!s.complete);
    let text = s.to_text(80);
    assert!(text.contains("INCOMPLETE") && text.contains("did not end"), "{text}");
    assert!(
        s.notices.iter().any(|n| n.contains("overcommit: 1 of 2 repeats missing")),
        "{:?}",
        s.notices
    );
    let mean = s.variants[0].row("gp_mean").unwrap();
    assert_eq!(mean.overcommit.as_ref().unwrap().repeats, [Some(15.0)], "only whole phases count");

    let failed = Record::End { complete: false, reason: Some("VM subject: went away".into()) };
    let s = summary(&scratch.run("failed", &[&records[..records.len() - 1], &[failed]].concat()));
    assert!(s.to_text(80).contains("went away"));

    // Nothing but the first record.
    let s = summary(&scratch.run("empty", &records[..1]));
    assert!(s.to_text(80).contains("INCOMPLETE"));
}

#[test]
fn every_length_of_a_torn_file_is_read_or_refused() {
    let scratch = Scratch::new();
    let whole = lines(&small("membench"));
    for cut in (0..whole.len()).step_by(7) {
        let dir = scratch.raw("run", &whole.as_bytes()[..cut]);
        match report::load(&dir) {
            // Only the last line feed may be missing from a whole run.
            Ok(run) => assert_eq!(run.complete, cut == whole.len() - 1, "cut at {cut}"),
            Err(e) => assert!(cut < whole.find('\n').unwrap(), "cut at {cut}: {e}"),
        }
    }
}

/// The guest ran out of memory in the first repeat of the overcommitted scenario.
#[test]
fn a_guest_without_memory_is_a_result() {
    let scratch = Scratch::new();
    let mut records = small("asym");
    let at = records.iter().position(|r| matches!(r, Record::PhaseEnd { phase: 1, .. })).unwrap();
    let line = "Kernel panic - not syncing: System is deadlocked on memory".to_string();
    let log = Some("logs/labhost.1/asym.1.log".into());
    records[at] =
        Record::PhaseDied { phase: 1, death: Death { after_ns: 1_500_000_000, line, log } };
    // The guest sends its samples at the end of a phase, so there are none, or not all.
    let with_samples = records.clone();
    records.retain(|r| !matches!(r, Record::Sample { phase: 1, .. }));
    let s = summary(&scratch.run("run", &records));
    assert!(s.complete);
    let row = |key: &str| s.variants[0].row(key).unwrap().clone();
    let survived = row("survived");
    assert_eq!(survived.baseline.unwrap().value, 100.0);
    let over = survived.overcommit.unwrap();
    assert_eq!((over.value, over.repeats), (50.0, vec![Some(0.0), Some(100.0)]));
    let died = row("out_of_memory");
    assert_eq!((died.baseline, died.overcommit.unwrap().value), (None, 1.5));
    // The other repeat still counts.
    let mean = row("gp_mean").overcommit.unwrap();
    assert_eq!((mean.value, mean.repeats), (30.0, vec![None, Some(30.0)]));
    let s_with = summary(&scratch.run("with_samples", &with_samples));
    let mean = s_with.variants[0].row("gp_mean").unwrap().overcommit.clone().unwrap();
    assert_eq!((mean.value, mean.repeats), (30.0, vec![None, Some(30.0)]));
    let told = "out of memory after 1.5 s: Kernel panic";
    let named = |n: &String| n.contains(told) && n.ends_with("memory (logs/labhost.1/asym.1.log)");
    assert!(s.notices.iter().any(named), "{:?}", s.notices);
    assert!(!s.notices.iter().any(|n| n.contains("missing")), "{:?}", s.notices);
    assert!(s.to_text(80).contains("Phases survived"));
    assert!(s.to_text(200).contains(told));

    // A death outside a phase is damage.
    let death = records
        [records.iter().position(|r| matches!(r, Record::PhaseDied { .. })).unwrap()]
    .clone();
    records.insert(records.len() - 1, death);
    let twice = scratch.run("twice", &records);
    assert!(report::load(&twice).unwrap_err().to_string().contains("phase 1"));
}

#[test]
fn dilated_time_is_part_of_the_conditions() {
    let scratch = Scratch::new();
    let mut records = small("membench");
    let Record::Run { host, .. } = &mut records[0] else { panic!() };
    host.mode = "nested".into();
    host.dilation = Dilation::new(10).unwrap();
    let s = summary(&scratch.run("run", &records));
    assert!(s.to_text(80).contains("time dilated 10x"), "{}", s.to_text(80));
    // Not in a file of an earlier version.
    let text = serde_json::to_string(&records[0]).unwrap().replace("\"dilation\":10,", "");
    let Record::Run { host, .. } = serde_json::from_str(&text).unwrap() else { panic!() };
    assert!(host.dilation.is_none());
}

/// A VM died in the middle of a phase, all were booted again, and the phase was measured anew under
/// its own number.
#[test]
fn a_phase_lost_to_a_crash_and_measured_again_counts_once() {
    let scratch = Scratch::new();
    let mut records = small("membench");
    let end = records.pop().unwrap();
    let guest = records.iter().find(|r| matches!(r, Record::Guest { .. })).cloned().unwrap();
    let mut lost = phase(4, 0, 1, Scenario::Baseline, &[500], &[30]);
    lost.pop();
    records.extend(lost);
    records.extend([guest]);
    records.extend(phase(4, 0, 1, Scenario::Baseline, &[16], &[300]));
    records.push(end);
    let s = summary(&scratch.run("run", &records));
    let baseline = s.variants[0].row("gp_mean").unwrap().baseline.clone().unwrap();
    assert_eq!((baseline.value, baseline.repeats), (7.0, vec![Some(4.0), Some(16.0)]));
    assert_eq!(s.guests.len(), summary(&scratch.run("whole", &small("membench"))).guests.len());
    assert!(s.complete);
}

/// Other work disturbed a phase: of all its tries the quietest counts, wherever the file ends.
#[test]
fn a_disturbed_phase_counts_with_its_quietest_try() {
    let scratch = Scratch::new();
    let tries = |shares: &[f64]| {
        let mut records = small("membench");
        let end = records.pop().unwrap();
        for (i, &share) in shares.iter().enumerate() {
            let mut one = phase(4, 0, 1, Scenario::Baseline, &[10 + i as u64], &[300]);
            let Some(Record::PhaseEnd { host, .. }) = one.last_mut() else { panic!() };
            host.other_busy = Some(share);
            records.extend(one);
        }
        (records, end)
    };
    let baseline = |name: &str, records: &[Record]| {
        let s = summary(&scratch.run(name, records));
        s.variants[0].row("gp_mean").unwrap().baseline.clone().unwrap()
    };
    for (name, shares, counts, disturbed) in
        [("last", &[0.4, 0.3, 0.1][..], 12.0, false), ("second", &[0.4, 0.2, 0.3, 0.5], 11.0, true)]
    {
        let (mut records, end) = tries(shares);
        records.push(end);
        let cell = baseline(name, &records);
        assert_eq!((cell.repeats[1], cell.disturbed), (Some(counts), disturbed), "{name}");
    }
    let (mut cut, _) = tries(&[0.4, 0.01]);
    cut.pop();
    assert_eq!(baseline("cut", &cut).repeats[1], Some(10.0));
    // A phase that nothing disturbed begins once.
    let (twice, _) = tries(&[0.1, 0.1]);
    assert!(report::load(&scratch.run("twice", &twice)).is_err());
}

/// No guest booted between the two tries: threads of the host have none, and a guest that dies of
/// its load in its boot has no record of it.
#[test]
fn a_phase_lost_is_measured_again_without_a_boot_on_record() {
    let scratch = Scratch::new();
    let mut records = small("asym");
    let end = records.pop().unwrap();
    let mut lost = phase(4, 0, 1, Scenario::Baseline, &[500], &[30]);
    lost.pop();
    records.extend(lost);
    records.push(Record::Notice { text: "the lab host is booted again: VM labhost: died".into() });
    records.extend(phase(4, 0, 1, Scenario::Baseline, &[16], &[300]));
    records.push(end);
    let s = summary(&scratch.run("told", &records));
    let baseline = s.variants[0].row("gp_mean").unwrap().baseline.clone().unwrap();
    assert_eq!((baseline.value, baseline.repeats), (7.0, vec![Some(4.0), Some(16.0)]));
    assert!(s.complete);
}

#[test]
fn damage_is_named_by_line() {
    let records = small("membench");
    let with = |line: usize, text: &str| {
        let whole = lines(&records);
        let mut all: Vec<&str> = whole.lines().collect();
        all[line - 1] = text;
        load_error((all.join("\n") + "\n").as_bytes())
    };
    let phase_0 =
        r#"{"record":"phase_start","phase":0,"variant":0,"repeat":1,"scenario":"baseline"}"#;
    for (line, text, message) in [
        (5, "{\"record\":\"sample\",", "line 5: not a record"),
        (5, "{\"record\":\"unheard_of\"}", "line 5: not a record"),
        (5, "\u{0}\u{0}\u{0}", "line 5: not a record"),
        (3, &lines(&records)[..lines(&records).find('\n').unwrap()], "line 3: a second run"),
        (3, "", "line 4: a sample outside its phase 0"),
        (12, phase_0, "line 12: phase 0 starts a second time"),
        (
            3,
            &phase_0.replace("\"repeat\":1", "\"repeat\":2"),
            "line 3: variant 0, repeat 2 is not in the plan",
        ),
        (
            3,
            &phase_0.replace("\"variant\":0", "\"variant\":1"),
            "line 3: variant 1, repeat 1 is not in the plan",
        ),
        (
            4,
            "{\"record\":\"end\",\"complete\":true,\"reason\":null}",
            "line 5: a record after the end",
        ),
    ] {
        let error = with(line, text);
        assert!(error.contains(message), "{error}");
    }
    let mut foreign = plan("membench", &["default"], 1);
    foreign.schema = 7;
    let error = load_error(lines(&[start(foreign)]).as_bytes());
    assert!(error.contains("line 1: written in schema 7, this program reads schema 3"), "{error}");
    assert!(load_error(b"{\"name\":\"package\"}\n").contains("not the start of a run"));
    assert!(load_error(b"PNG\n\x1a\xff\n").contains("line 1: not a record"));
    assert!(load_error(b"").contains("died before it recorded anything"));

    let missing = report::load(Path::new("/nonexistent")).unwrap_err();
    assert!(missing.to_string().starts_with("/nonexistent/raw.jsonl: "), "{missing}");
}

const HOSTILE: &str = "<script>document.title='owned'</script><img src=http://192.0.2.1/ onerror=alert(1)>\x1b[2J\" onload=\"x";

#[test]
fn text_from_guests_stays_text() {
    let scratch = Scratch::new();
    let mut records = small("membench");
    for r in &mut records {
        match r {
            Record::Run { plan, host, .. } => {
                plan.command = HOSTILE.into();
                plan.variants[0].label = HOSTILE.into();
                plan.experiment = HOSTILE.into();
                plan.competitors[0].name = HOSTILE.into();
                host.cpu_model = HOSTILE.into();
            }
            Record::Guest { info, .. } => {
                info.kernel = HOSTILE.into();
                info.cmdline = HOSTILE.into();
            }
            Record::PhaseEnd { result, .. } => result.unit = HOSTILE.into(),
            _ => {}
        }
    }
    records.insert(1, Record::Notice { text: HOSTILE.into() });
    let s = summary(&scratch.run("run", &records));
    let text = s.to_text(80);
    assert!(text.contains("document.title") && !text.contains('\x1b'), "{text}");
}

#[test]
fn policies_are_compared_with_the_stock_scheduler() {
    let scratch = Scratch::new();
    let policies = ["eevdf", "eevdf-slices=0.5ms", "full"];
    let mut plan = plan("churn", &policies, 2);
    for (variant, policy) in plan.variants.iter_mut().zip(policies) {
        variant.policy = policy.parse().unwrap();
    }
    assert_eq!(plan.guests(), [0, 0, 0], "one guest for all of them");
    let mut records = vec![start(plan), guest(0, "6.12")];
    // Milliseconds of the grace periods: alone and overcommitted, under each policy.
    let durations = [[[4, 4], [12, 8]], [[4, 4], [6, 6]], [[8, 8], [4, 4]]];
    let mut id = 0;
    for repeat in 0..2 {
        for (variant, durations) in durations.iter().enumerate() {
            for (s, scenario) in [Scenario::Baseline, Scenario::Overcommit].into_iter().enumerate()
            {
                let mut durations = durations[s];
                // The second repeat found a slower machine.
                durations.iter_mut().for_each(|ms| *ms *= u64::from(repeat) + 1);
                records.extend(phase(id, variant, repeat, scenario, &durations, &[300, 200]));
                id += 1;
            }
        }
    }
    records.push(Record::End { complete: true, reason: None });
    let s = summary(&scratch.run("run", &records));
    // Its own alone is slower: that does not make it better.
    close(s.variants[2].row("gp_mean").unwrap().ratio, 0.5);
    for text in [s.to_brief(80), s.to_text(80)] {
        let cells = |row: &str| {
            let line = text.lines().find(|line| line.starts_with(row)).unwrap();
            line[row.len()..].split_whitespace().map(String::from).collect::<Vec<_>>()
        };
        let rows = ["alone", "stock: eevdf ", "stock: eevdf-slices=0.5ms", "guard: full"];
        assert_eq!(
            rows.map(|row| cells(row).remove(0)),
            ["6.00", "15.0", "9.00", "6.00"],
            "{text}"
        );
        // Of the repeats.
        assert!(text.contains("4.00..8.00") && text.contains("10.0..20.0"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
    assert!(!s.to_brief(80).contains("GP p50") && s.to_text(80).matches("GP p50").count() == 3);
}

#[test]
fn tables_fit_the_terminal() {
    let scratch = Scratch::new();
    let long = "rcutree.jiffies_till_first_fqs=0 rcutree.jiffies_till_next_fqs=1 nohz_full=1";
    let mut records = vec![start(plan("membench", &["default", long], 1))];
    for (i, scenario) in [Scenario::Baseline, Scenario::Overcommit].into_iter().enumerate() {
        for variant in 0..2 {
            let id = (2 * i + variant) as u32;
            records.extend(phase(id, variant, 0, scenario, &[123, 4567], &[300, 200]));
        }
    }
    records.push(Record::End { complete: true, reason: None });
    let several = summary(&scratch.run("several", &records));
    let one = summary(&scratch.run("one", &small("postmark")));
    for width in [80, 132] {
        for text in [one.to_text(width), several.to_text(width)] {
            for line in text.lines().filter(|l| !l.contains(long)) {
                assert!(line.chars().count() <= width, "{width}: {line}\n{text}");
            }
        }
    }
    let text = several.to_text(80);
    assert!(text.contains(&format!("\nB  {long}\n")), "{text}");
    assert!(text.contains("\nB, alone ") && text.contains("\ndefault, alone "), "{text}");
    let text = one.to_text(80);
    let mean = text.lines().find(|l| l.contains("GP mean, ms")).unwrap();
    let figures: Vec<&str> = mean.split_whitespace().skip(3).collect();
    assert_eq!(figures, ["5.00", "20.0", "4.00", "57.6", "126", "2.18"]);
}

#[test]
fn the_summary_reads_back() {
    let scratch = Scratch::new();
    let dir = scratch.run("run", &small("membench"));
    let s = report::write(&dir).unwrap();
    let stored: Summary =
        serde_json::from_slice(&std::fs::read(dir.join("summary.json")).unwrap()).unwrap();
    assert_eq!((stored.schema, &stored.experiment), (4, &s.experiment));
    close(stored.variants[0].row("gp_mean").unwrap().ratio, 4.0);
    let mut files: Vec<_> =
        std::fs::read_dir(&dir).unwrap().map(|f| f.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["raw.jsonl", "summary.json"]);
}

/// A guest may send any number: the report may look odd, but there must be one, soon.
#[test]
fn absurd_figures_do_no_harm() {
    use reprieve_init::protocol::{Cpu, Fragmentation, GracePeriod, Memory, Sample};
    let scratch = Scratch::new();
    let huge = u64::MAX;
    let samples = [
        Sample::GracePeriod(GracePeriod { start_ns: 0, end_ns: huge, cpu_ns: huge }),
        Sample::GracePeriod(GracePeriod { start_ns: huge, end_ns: 0, cpu_ns: 0 }),
        Sample::OpenGracePeriod { start_ns: huge, open_ns: huge },
        Sample::Memory(Memory { t_ns: 0, free_kb: huge, slab_kb: huge, used_kb: huge }),
        Sample::Memory(Memory { t_ns: huge, free_kb: 0, slab_kb: 0, used_kb: 0 }),
        Sample::Fragmentation(Fragmentation { t_ns: huge, unusable: vec![f64::MAX; 64] }),
        Sample::Fragmentation(Fragmentation { t_ns: 0, unusable: vec![] }),
        Sample::Cpu(Cpu {
            t_ns: huge,
            steal: f64::MAX,
            kernel: -1.0,
            user: 0.0,
            idle: 0.0,
            callbacks: Some(huge),
        }),
    ];
    // Each alone, to have empty and one-point figures too, then all together.
    let sets = samples.iter().map(std::slice::from_ref).chain([&samples[..], &[]]);
    for (i, set) in sets.enumerate() {
        let mut records = small("dbench");
        records.retain(|r| !matches!(r, Record::Sample { .. }));
        for r in &mut records {
            if let Record::PhaseEnd { result, host, .. } = r {
                result.elapsed_ns = huge;
                result.operations = f64::MAX;
                host.cpu_ns.values_mut().for_each(|ns| *ns = huge);
            }
        }
        let at = records.iter().position(|r| matches!(r, Record::PhaseEnd { .. })).unwrap();
        records.splice(at..at, set.iter().map(|s| Record::Sample { phase: 0, sample: s.clone() }));
        let dir = scratch.run(&format!("run{i}"), &records);
        let s = report::write(&dir).unwrap();
        assert!(s.to_text(80).lines().count() > 20);
    }
}

#[test]
fn the_results_page_has_what_is_finished_and_names_what_is_not() {
    let scratch = Scratch::new();
    let runs = scratch.0.path().join("runs");
    scratch.run("runs/8-cpus/churn", &small("churn"));
    let mut loud = small("asym");
    let Some(Record::PhaseEnd { host, .. }) =
        loud.iter_mut().rfind(|r| matches!(r, Record::PhaseEnd { .. }))
    else {
        panic!()
    };
    host.other_busy = Some(0.5);
    scratch.run("runs/2-cpus/asym", &loud);
    let mut cut = small("dbench");
    cut.pop();
    scratch.run("runs/2-cpus/dbench", &cut);
    let out = runs.join("page");
    for (experiment, cpus) in [("churn", 8), ("asym", 2), ("dbench", 2)] {
        let run = runs.join(format!("{cpus}-cpus/{experiment}"));
        report::write(&run).unwrap();
        results::keep(&out, experiment, cpus, &run.join(report::SUMMARY_FILE)).unwrap();
    }
    results::write(&out).unwrap();
    let page = std::fs::read_to_string(out.join("lab.md")).unwrap();
    let part = |title: &str| {
        let part = page.split("\n## ").find(|part| part.starts_with(title));
        part.unwrap_or_else(|| panic!("{title}: {page}"))
    };
    // Baselines of 4 and 8 ms in the two repeats, and no other work.
    let alone = part("churn").lines().find(|l| l.contains("| alone |")).unwrap();
    assert!(alone.contains("| alone | 6.00 (4.00-8.00) |") && !alone.contains('?'), "{alone}");
    let over = part("asym").lines().find(|l| l.contains("| eevdf |")).unwrap();
    assert!(over.contains('?') && over.contains('('), "{over}");
    let open: Vec<_> = part("Not measured").lines().filter(|l| l.starts_with("| 2 |")).collect();
    let open: Vec<_> = open[0].split([' ', ',']).collect();
    assert!(open.contains(&"dbench") && !open.contains(&"asym"), "{open:?}");
}

/// `reprieve lab results --page-only` writes it again.
#[test]
fn the_published_page_is_that_of_the_published_cells() {
    let published = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../results"));
    let scratch = tempfile::tempdir().unwrap();
    let cells = scratch.path().join("cells");
    std::fs::create_dir(&cells).unwrap();
    for file in std::fs::read_dir(published.join("cells")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), cells.join(file.file_name())).unwrap();
    }
    results::write(scratch.path()).unwrap();
    let page = |directory: &Path| std::fs::read_to_string(directory.join("lab.md")).unwrap();
    let same = page(scratch.path()) == page(published);
    assert!(same, "write the page again: reprieve lab results --page-only");
}
