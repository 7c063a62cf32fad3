// SPDX-License-Identifier: MIT OR Apache-2.0
//! Statistics over raw values.
//!
//! Percentiles are exact and by *nearest rank*: the p-th percentile of n values is the one at rank
//! ceil(p/100 * n) in ascending order, so it is always a value that occurred. Of two repeats that
//! would be the smaller one: the median over a few of them is another ([`Distribution::median`]).
//! The standard deviation is that of a sample (n - 1).

use serde::{Deserialize, Serialize};

/// At least one finite value.
#[derive(Clone, Debug)]
pub struct Distribution {
    sorted: Vec<f64>,
    mean: f64,
    sd: Option<f64>,
}

impl Distribution {
    /// `None` without values. Values that are not finite are left out.
    pub fn new(values: impl IntoIterator<Item = f64>) -> Option<Distribution> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        if sorted.is_empty() {
            return None;
        }
        sorted.sort_unstable_by(f64::total_cmp);
        let n = sorted.len() as f64;
        let mean = sorted.iter().sum::<f64>() / n;
        let sd = (sorted.len() > 1)
            .then(|| (sorted.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt());
        Some(Distribution { sorted, mean, sd })
    }

    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// `None` for a single value.
    pub fn sd(&self) -> Option<f64> {
        self.sd
    }

    pub fn min(&self) -> f64 {
        self.sorted[0]
    }

    pub fn max(&self) -> f64 {
        self.sorted[self.sorted.len() - 1]
    }

    /// The `p`-th percentile, 0 to 100, by nearest rank.
    pub fn percentile(&self, p: f64) -> f64 {
        let n = self.sorted.len();
        let rank = (p / 100.0 * n as f64).ceil() as usize;
        self.sorted[rank.clamp(1, n) - 1]
    }

    /// The middle value, or the mean of the two in the middle.
    pub fn median(&self) -> f64 {
        let n = self.sorted.len();
        f64::midpoint(self.sorted[(n - 1) / 2], self.sorted[n / 2])
    }

    /// The values in ascending order.
    pub fn sorted(&self) -> &[f64] {
        &self.sorted
    }
}

/// The side on which the true figure lies, where only a bound of it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtLeast,
    AtMost,
}

impl Bound {
    /// Before a figure that is a bound.
    pub fn mark(bound: Option<Bound>) -> &'static str {
        match bound {
            None => "",
            Some(Bound::AtLeast) => ">= ",
            Some(Bound::AtMost) => "<= ",
        }
    }
}

/// A figure, and which bound it is if it is one.
pub type Bounded = (f64, Option<Bound>);

/// `over` over `under`. `None` if that is no number, or if the bounds allow any.
pub fn ratio(over: Bounded, under: Bounded) -> Option<Bounded> {
    let value = Some(over.0 / under.0).filter(|value| value.is_finite())?;
    let inverse = under.1.map(|bound| match bound {
        Bound::AtLeast => Bound::AtMost,
        Bound::AtMost => Bound::AtLeast,
    });
    match (over.1, inverse) {
        (Some(one), Some(other)) if one != other => None,
        (one, other) => Some((value, one.or(other))),
    }
}

/// How far repeats of one measurement lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub min: f64,
    pub max: f64,
    /// Coefficient of variation: standard deviation over mean. Absent when the mean is 0.
    pub cv: Option<f64>,
}

/// `None` for fewer than two values: one repeat has no spread.
pub fn spread(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
    let d = Distribution::new(values)?;
    let sd = d.sd()?;
    let cv = (d.mean() != 0.0).then(|| sd / d.mean().abs());
    Some(Spread { min: d.min(), max: d.max(), cv })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_computed() {
        // Mean 5, squared deviations 9+1+1+1+0+0+4+16 = 32, 32/7 = 4.571, root 2.1381.
        let d = Distribution::new([9.0, 4.0, 2.0, 4.0, 5.0, 4.0, 7.0, 5.0]).unwrap();
        assert_eq!((d.count(), d.mean(), d.min(), d.max()), (8, 5.0, 2.0, 9.0));
        assert!((d.sd().unwrap() - 2.138_089_935).abs() < 1e-9);
        // Ascending: 2 4 4 4 5 5 7 9. p50: rank 4; p90: rank ceil(7.2) = 8; p12.5: rank 1; p13:
        // rank 2.
        assert_eq!([50.0, 90.0, 12.5, 13.0].map(|p| d.percentile(p)), [4.0, 9.0, 2.0, 4.0]);
        assert_eq!((d.percentile(0.0), d.percentile(100.0)), (2.0, 9.0));
    }

    #[test]
    fn nearest_rank_of_the_textbook_example() {
        let d = Distribution::new([15.0, 20.0, 35.0, 40.0, 50.0]).unwrap();
        assert_eq!(
            [5.0, 30.0, 40.0, 50.0, 100.0].map(|p| d.percentile(p)),
            [15.0, 20.0, 20.0, 35.0, 50.0]
        );
    }

    #[test]
    fn few_values() {
        assert!(Distribution::new([]).is_none());
        assert!(Distribution::new([f64::NAN, f64::INFINITY]).is_none());
        let one = Distribution::new([3.0]).unwrap();
        assert_eq!((one.mean(), one.sd(), one.percentile(99.0)), (3.0, None, 3.0));
        assert_eq!(one.median(), 3.0);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_two() {
        let median = |values: &[f64]| Distribution::new(values.iter().copied()).unwrap().median();
        assert_eq!(median(&[9.0, 1.0]), 5.0);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[9.0, 1.0, 4.0, 2.0]), 3.0);
    }

    #[test]
    fn a_ratio_of_bounds_is_a_bound_or_nothing() {
        use Bound::{AtLeast, AtMost};
        for (over, under, expected) in [
            (None, None, Some(None)),
            (Some(AtLeast), None, Some(Some(AtLeast))),
            (Some(AtMost), None, Some(Some(AtMost))),
            (None, Some(AtLeast), Some(Some(AtMost))),
            (None, Some(AtMost), Some(Some(AtLeast))),
            (Some(AtLeast), Some(AtMost), Some(Some(AtLeast))),
            (Some(AtLeast), Some(AtLeast), None),
            (Some(AtMost), Some(AtMost), None),
        ] {
            let of = ratio((6.0, over), (3.0, under));
            assert_eq!(of, expected.map(|bound| (2.0, bound)), "{over:?} over {under:?}");
        }
        assert_eq!(ratio((6.0, None), (0.0, None)), None);
    }

    #[test]
    fn spread_of_repeats() {
        // Mean 7, deviations -1 0 1, sd 1.
        let s = spread([6.0, 7.0, 8.0]).unwrap();
        assert_eq!((s.min, s.max), (6.0, 8.0));
        assert!((s.cv.unwrap() - 1.0 / 7.0).abs() < 1e-12);
        assert_eq!(spread([6.0]), None);
        assert_eq!(spread([0.0, 0.0]).unwrap().cv, None);
    }
}
