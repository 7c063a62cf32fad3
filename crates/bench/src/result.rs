// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of a benchmark: one table of figures with their spread. `--json` prints it as it is.

use crate::subject::Class;
use crate::table::next_seed;
use serde::Serialize;
use std::collections::BTreeMap;

/// The unit of a column's figures. In JSON: its abbreviation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
pub enum Unit {
    Nanoseconds,
    Microseconds,
    Milliseconds,
    /// 10^6 bytes.
    Megabytes,
    /// Operations per second, in thousands.
    KiloPerSecond,
    /// Operations per second, in millions.
    MegaPerSecond,
    Percent,
    /// How many of something, which says how much another figure is worth: not compared.
    Count,
}

impl From<Unit> for &'static str {
    fn from(unit: Unit) -> &'static str {
        unit.text()
    }
}

impl Unit {
    /// Its abbreviation; empty for a count.
    pub fn text(self) -> &'static str {
        match self {
            Unit::Nanoseconds => "ns",
            Unit::Microseconds => "us",
            Unit::Milliseconds => "ms",
            Unit::Megabytes => "MB",
            Unit::KiloPerSecond => "K/s",
            Unit::MegaPerSecond => "M/s",
            Unit::Percent => "%",
            Unit::Count => "",
        }
    }

    /// The nanoseconds of a unit of time.
    fn nanoseconds(self) -> f64 {
        match self {
            Unit::Microseconds => 1e3,
            Unit::Milliseconds => 1e6,
            _ => 1.0,
        }
    }
}

/// A measure.
#[derive(Clone, Debug, Serialize)]
pub struct Column {
    /// The name of the measure.
    pub title: String,
    /// The unit of its figures.
    pub unit: Unit,
    /// Whether more is better.
    pub more_is_better: bool,
}

/// A figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Median of the rounds, or of all rounds' samples together where the benchmark says so.
    pub value: f64,
    /// Smallest of the rounds.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Standard deviation of the rounds; `None` of one.
    pub sd: Option<f64>,
    /// All of them, in order.
    pub rounds: Vec<f64>,
    /// `value` divided by the best peer's; `None` without a peer, and for the best peer itself.
    pub to_best_peer: Option<f64>,
}

/// A subject's figures, by column; `None` where it does not take part.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Rows are compared within their group, e.g. `16 readers`. Empty if there is one group only.
    pub group: String,
    /// Its name.
    pub subject: String,
    /// The subject's part in ratios.
    pub class: Class,
    /// As many as there are columns.
    pub figures: Vec<Option<Figure>>,
}

/// The machine and the options of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Conditions {
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Their name.
    pub cpu: String,
    /// The kernel's release.
    pub kernel: String,
    /// Whether lookups restart, or why not.
    pub restartable: String,
    /// Whether readers run without fences.
    pub membarrier: bool,
    /// The C compiler of the liburcu loops.
    pub c_compiler: String,
    /// Load average over the last minute when it began: other work disturbs the figures.
    pub load: f64,
    /// Measured time that was asked for, in seconds.
    pub seconds: f64,
    /// Rounds over all subjects.
    pub rounds: usize,
}

/// The result of one benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Its name.
    pub bench: String,
    /// The benchmark's subject, in a sentence.
    pub title: String,
    pub conditions: Conditions,
    pub columns: Vec<Column>,
    pub rows: Vec<Row>,
    /// Remarks for a reader of the figures.
    pub notes: Vec<String>,
}

/// The median; 0 of nothing.
pub fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

/// The standard deviation of what these are samples of.
fn deviation(samples: &[f64]) -> Option<f64> {
    let n = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / n;
    let squares: f64 = samples.iter().map(|s| (s - mean).powi(2)).sum();
    (samples.len() > 1).then(|| (squares / (n - 1.0)).sqrt())
}

/// The smallest sample that at least a share `q` of them does not exceed; the mean of the middle
/// two for an even median.
fn quantile(samples: &[f64], q: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    if n == 0 {
        return 0.0;
    }
    if q == 0.5 && n % 2 == 0 {
        return (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0;
    }
    sorted[((n as f64 * q).ceil() as usize).clamp(1, n) - 1]
}

/// Samples of which a p99 is shown: of fewer it would be their maximum.
pub const FEWEST: u64 = 100;

/// A figure of single samples (times in nanoseconds).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    Mean,
    Median,
    P99,
    Max,
    /// How many there are.
    Samples,
}

impl Statistic {
    /// The title of its column.
    pub fn title(self) -> &'static str {
        match self {
            Statistic::Mean => "mean",
            Statistic::Median => "p50",
            Statistic::P99 => "p99",
            Statistic::Max => "max",
            Statistic::Samples => "samples",
        }
    }

    /// The statistic of these samples.
    fn of(self, samples: &[f64]) -> f64 {
        match self {
            Statistic::Mean => samples.iter().sum::<f64>() / samples.len().max(1) as f64,
            Statistic::Median => median(samples),
            Statistic::P99 => quantile(samples, 0.99),
            Statistic::Max => quantile(samples, 1.0),
            Statistic::Samples => samples.len() as f64,
        }
    }
}

/// The samples of all rounds. Beyond [`Pool::MOST`] those that give quantiles are a random choice
/// of all (Vitter's algorithm R), so that a long run does not fill the memory.
#[derive(Default)]
struct Pool {
    count: u64,
    sum: f64,
    max: f64,
    kept: Vec<f64>,
    seed: u64,
}

impl Pool {
    const MOST: usize = 1 << 16;

    fn add(&mut self, sample: f64) {
        self.count += 1;
        self.sum += sample;
        self.max = self.max.max(sample);
        if self.kept.len() < Pool::MOST {
            self.kept.push(sample);
            return;
        }
        self.seed = next_seed(self.seed);
        let at = (u128::from(self.seed) * u128::from(self.count)) >> 64;
        if let Some(kept) = self.kept.get_mut(at as usize) {
            *kept = sample;
        }
    }

    /// None for a p99 of too few.
    fn figure(&self, statistic: Statistic) -> Option<f64> {
        match statistic {
            Statistic::Mean => Some(self.sum / self.count.max(1) as f64),
            Statistic::Max => Some(self.max),
            Statistic::Samples => Some(self.count as f64),
            Statistic::P99 if self.count < FEWEST => None,
            Statistic::P99 | Statistic::Median => Some(statistic.of(&self.kept)),
        }
    }
}

/// Figures on their way into a table.
pub struct Recorder {
    columns: Vec<Column>,
    rows: Vec<(Row, Vec<Rounds>)>,
    /// By row and first column, with the columns that show them.
    pools: BTreeMap<(usize, usize), (Shown, Pool)>,
}

/// Columns, and the statistic that each shows of the same samples.
pub type Shown = &'static [(usize, Statistic)];

/// The rounds' figures, and what stands for all of them in place of their median.
#[derive(Clone, Default)]
struct Rounds {
    rounds: Vec<f64>,
    pooled: Option<f64>,
}

impl Recorder {
    /// A table without figures.
    pub fn new(columns: Vec<Column>) -> Recorder {
        Recorder { columns, rows: vec![], pools: BTreeMap::new() }
    }

    /// Adds a row without figures and returns its index.
    pub fn row(&mut self, group: &str, subject: &str, class: Class) -> usize {
        let rounds = vec![Rounds::default(); self.columns.len()];
        let (group, subject) = (group.to_owned(), subject.to_owned());
        self.rows.push((Row { group, subject, class, figures: vec![] }, rounds));
        self.rows.len() - 1
    }

    /// Adds one round's figure.
    pub fn add(&mut self, row: usize, column: usize, value: f64) {
        self.rows[row].1[column].rounds.push(value);
    }

    /// Adds one round's samples, in nanoseconds. The figures will be those of all rounds' samples
    /// together, with the spread of the rounds' own; a p99 of fewer than [`FEWEST`] is left out.
    pub fn add_samples(&mut self, row: usize, shown: Shown, samples: &[f64]) {
        for &(column, statistic) in shown {
            let unit = self.columns[column].unit.nanoseconds();
            self.add(row, column, statistic.of(samples) / unit);
        }
        let first = shown.first().map_or(0, |shown| shown.0);
        let (_, pool) = self.pools.entry((row, first)).or_insert((shown, Pool::default()));
        samples.iter().for_each(|&sample| pool.add(sample));
    }

    fn pool(&mut self) {
        for (&(row, _), (shown, pool)) in &self.pools {
            for &(column, statistic) in *shown {
                let rounds = &mut self.rows[row].1[column];
                match pool.figure(statistic) {
                    Some(value) => {
                        rounds.pooled = Some(value / self.columns[column].unit.nanoseconds());
                    }
                    None => *rounds = Rounds::default(),
                }
            }
        }
    }

    /// Adds rounds for each row and column, by group, subject and column.
    #[cfg(test)]
    pub fn fill(&mut self, figure: &dyn Fn(&str, &str, &str) -> Vec<f64>) {
        for (row, rounds) in &mut self.rows {
            for (column, rounds) in self.columns.iter().zip(rounds) {
                rounds.rounds = figure(&row.group, &row.subject, &column.title);
            }
        }
    }

    /// The table.
    pub fn finish(mut self) -> (Vec<Column>, Vec<Row>) {
        self.pool();
        let mut rows: Vec<Row> = self
            .rows
            .into_iter()
            .map(|(mut row, rounds)| {
                row.figures = rounds.iter().map(Rounds::figure).collect();
                row
            })
            .filter(|row| row.figures.iter().any(Option::is_some))
            .collect();
        for group in rows.chunk_by_mut(|a, b| a.group == b.group) {
            let columns = self.columns.iter().enumerate();
            for (i, column) in columns.filter(|(_, c)| c.unit != Unit::Count) {
                compare(group, i, column.more_is_better);
            }
        }
        (self.columns, rows)
    }
}

impl Rounds {
    fn figure(&self) -> Option<Figure> {
        let value = self.pooled.unwrap_or_else(|| median(&self.rounds));
        (!self.rounds.is_empty()).then(|| Figure {
            value,
            min: self.rounds.iter().copied().fold(f64::INFINITY, f64::min),
            max: self.rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            sd: deviation(&self.rounds),
            rounds: self.rounds.clone(),
            to_best_peer: None,
        })
    }
}

/// The row with the best figure of a column among those that are `meant`, and the figure. None if
/// it is 0, which nothing can be compared with.
pub fn best(
    rows: &[Row],
    column: usize,
    more_is_better: bool,
    meant: impl Fn(&Row) -> bool,
) -> Option<(usize, f64)> {
    let rows = rows.iter().enumerate().filter(|(_, r)| meant(r));
    let values = rows.filter_map(|(i, r)| Some((i, r.figures[column].as_ref()?.value)));
    let best = if more_is_better {
        values.max_by(|a, b| a.1.total_cmp(&b.1))
    } else {
        values.min_by(|a, b| a.1.total_cmp(&b.1))
    };
    best.filter(|b| b.1 > 0.0)
}

/// Fills in the ratios of one column of one group.
fn compare(rows: &mut [Row], column: usize, more_is_better: bool) {
    let best = best(rows, column, more_is_better, |r| r.class == Class::Peer);
    let Some((best, value)) = best else { return };
    for (i, row) in rows.iter_mut().enumerate().filter(|(_, r)| r.class != Class::Floor) {
        if let Some(figure) = row.figures[column].as_mut().filter(|_| i != best) {
            figure.to_best_peer = Some(figure.value / value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(more_is_better: bool) -> Column {
        Column { title: "t".into(), unit: Unit::Nanoseconds, more_is_better }
    }

    #[test]
    fn medians_and_quantiles() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((quantile(&hundred, 0.99), quantile(&hundred, 1.0)), (99.0, 100.0));
        assert_eq!(quantile(&[], 0.5), 0.0);
    }

    #[test]
    fn ratios_are_to_the_best_peer() {
        let subjects = [
            ("ours", Class::Reprieve),
            ("fast", Class::Peer),
            ("slow", Class::Peer),
            ("floor", Class::Floor),
            ("absent", Class::Peer),
        ];
        let mut recorder = Recorder::new(vec![column(false), column(true)]);
        for (subject, class) in subjects {
            recorder.row("", subject, class);
        }
        for (row, value) in [1.0, 2.0, 4.0, 0.5].into_iter().enumerate() {
            for round in [value, value, value * 3.0] {
                recorder.add(row, 0, round);
                recorder.add(row, 1, round);
            }
        }
        recorder.rows[1].1[0].pooled = Some(2.5);
        let (_, rows) = recorder.finish();
        assert_eq!(rows.len(), 4, "who has no figures has no row");
        let ratio =
            |row: usize, column: usize| rows[row].figures[column].as_ref().unwrap().to_best_peer;
        assert_eq!([ratio(0, 0), ratio(1, 0), ratio(2, 0)], [Some(0.4), None, Some(1.6)]);
        assert_eq!([ratio(0, 1), ratio(1, 1), ratio(2, 1)], [Some(0.25), Some(0.5), None]);
        let figure = rows[1].figures[0].as_ref().unwrap();
        assert_eq!((figure.value, figure.min, figure.max), (2.5, 2.0, 6.0));
        assert_eq!(figure.rounds, [2.0, 2.0, 6.0]);
        assert!((figure.sd.unwrap() - (16.0f64 / 3.0).sqrt()).abs() < 1e-9, "{figure:?}");
    }

    const SHOWN: Shown = &[
        (1, Statistic::Mean),
        (2, Statistic::Median),
        (3, Statistic::P99),
        (4, Statistic::Max),
        (5, Statistic::Samples),
    ];

    #[test]
    fn samples_of_all_rounds_are_taken_together_and_a_p99_takes_a_hundred() {
        let mut columns = vec![column(false); 6];
        for (column, unit) in [(1, Unit::Milliseconds), (3, Unit::Microseconds), (5, Unit::Count)] {
            columns[column].unit = unit;
        }
        let mut recorder = Recorder::new(columns);
        for (subject, count) in [("few", 49), ("enough", 50)] {
            let row = recorder.row("", subject, Class::Peer);
            for round in [1e6, 2e6] {
                recorder.add_samples(row, SHOWN, &vec![round; count]);
            }
        }
        let (_, rows) = recorder.finish();
        let values = |row: usize| {
            let figures = rows[row].figures[1..].iter();
            figures.map(|f| Some(f.as_ref()?.value)).collect::<Vec<_>>()
        };
        assert_eq!(values(0), [Some(1.5), Some(1.5e6), None, Some(2e6), Some(98.0)]);
        assert_eq!(values(1), [Some(1.5), Some(1.5e6), Some(2e3), Some(2e6), Some(100.0)]);
        let p99 = rows[1].figures[3].as_ref().unwrap();
        assert_eq!((p99.min, p99.max), (1e3, 2e3));
        let count = rows[0].figures[5].as_ref().unwrap();
        assert_eq!((count.min, count.max, count.to_best_peer), (49.0, 49.0, None));
    }

    /// The memory for a long run's samples is bounded, and its quantiles are right.
    #[test]
    fn many_samples_are_represented_by_some() {
        let mut pool = Pool::default();
        let count = 10 * Pool::MOST;
        (0..count).for_each(|sample| pool.add(sample as f64));
        assert_eq!(pool.kept.len(), Pool::MOST);
        let figure = |statistic| pool.figure(statistic).unwrap() / count as f64;
        assert_eq!(figure(Statistic::Samples), 1.0);
        assert!((figure(Statistic::Mean) - 0.5).abs() < 1e-5, "{}", figure(Statistic::Mean));
        assert!((figure(Statistic::P99) - 0.99).abs() < 0.002, "{}", figure(Statistic::P99));
        assert!((figure(Statistic::Median) - 0.5).abs() < 0.01, "{}", figure(Statistic::Median));
        assert_eq!(pool.figure(Statistic::Max), Some((count - 1) as f64));
    }
}
