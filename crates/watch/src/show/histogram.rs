// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figures from a histogram: number, quantiles, sums and differences.

use crate::model::Histogram;

/// Number of durations in `histogram`.
pub fn count(histogram: &Histogram) -> u64 {
    histogram.counts.iter().fold(0, |sum: u64, n| sum.saturating_add(*n))
}

/// Upper bound of bucket `n`, in nanoseconds; the last has none.
pub fn bound(n: usize) -> Option<u64> {
    (n + 1 < Histogram::BUCKETS).then(|| 1000 << (n + 1))
}

/// The duration that the share `q` of all does not exceed, in nanoseconds: within its bucket by
/// linear interpolation, so good to a factor of two.
pub fn quantile(histogram: &Histogram, q: f64) -> Option<f64> {
    let wanted = count(histogram) as f64 * q;
    let mut below = 0.0;
    for (n, inside) in histogram.counts.iter().enumerate().filter(|(_, n)| **n > 0) {
        let inside = *inside as f64;
        if below + inside >= wanted {
            let low = if n == 0 { 0 } else { 1000u64 << n.min(Histogram::BUCKETS - 1) } as f64;
            let mut high = bound(n).map_or(histogram.max_ns as f64, |b| b as f64);
            // The maximum is of the total; it bounds what happened in an interval, too.
            if histogram.max_ns > 0 {
                high = high.min(histogram.max_ns as f64);
            }
            return Some(low + (high.max(low) - low) * ((wanted - below) / inside));
        }
        below += inside;
    }
    None
}

/// Adds `from` to `to`.
pub fn add(to: &mut Histogram, from: &Histogram) {
    if to.counts.len() < from.counts.len() {
        to.counts.resize(from.counts.len(), 0);
    }
    for (to, from) in to.counts.iter_mut().zip(&from.counts) {
        *to += from;
    }
    to.total_ns += from.total_ns;
    to.max_ns = to.max_ns.max(from.max_ns);
}

/// The samples that `later` has more than `earlier`, of totals.
pub fn difference(later: &Histogram, earlier: &Histogram) -> Histogram {
    let before = |i| earlier.counts.get(i).copied().unwrap_or(0);
    Histogram {
        counts: later.counts.iter().enumerate().map(|(i, n)| n.saturating_sub(before(i))).collect(),
        total_ns: later.total_ns.saturating_sub(earlier.total_ns),
        max_ns: later.max_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::testing::histogram;

    const MS: u64 = 1_000_000;

    #[test]
    fn quantiles_lie_in_their_bucket() {
        let all = histogram(&[3_000, 3_000, 3_000, 100 * MS]);
        let p50 = quantile(&all, 0.5).unwrap();
        assert!((2_000.0..=4_000.0).contains(&p50), "{p50}");
        let p99 = quantile(&all, 0.99).unwrap();
        assert!((65.536e6..=100e6).contains(&p99), "{p99}");
        assert_eq!(quantile(&Histogram::default(), 0.5), None);
    }

    #[test]
    fn more_buckets_than_there_are_do_no_harm() {
        let odd = Histogram { counts: vec![1; 200], total_ns: u64::MAX, max_ns: u64::MAX };
        assert!(quantile(&odd, 0.999).is_some());
        assert_eq!(count(&odd), 200);
    }
}
