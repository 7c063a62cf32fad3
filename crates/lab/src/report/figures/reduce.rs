// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reduces the number of points in charts: long runs must not make huge reports, and every spike
//! must stay visible.

/// A point: x, y.
pub type Point = (f64, f64);

/// At most `2 * buckets` of `points` (ascending in x): the lowest and the highest of each of
/// `buckets` equal stretches of x, in their order. Returned as they are when they are that few.
pub fn extremes(points: &[Point], buckets: usize) -> Vec<Point> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return vec![] };
    let span = last.0 - first.0;
    if points.len() <= 2 * buckets || buckets == 0 || span <= 0.0 {
        return points.to_vec();
    }
    let bucket =
        |p: &Point| ((p.0 - first.0) / span * buckets as f64).min(buckets as f64 - 1.0) as usize;
    let mut kept = Vec::with_capacity(2 * buckets);
    for group in points.chunk_by(|a, b| bucket(a) == bucket(b)) {
        let index = |better: fn(f64, f64) -> bool| {
            (1..group.len())
                .fold(0, |best, i| if better(group[i].1, group[best].1) { i } else { best })
        };
        let (low, high) = (index(|a, b| a < b), index(|a, b| a > b));
        kept.push(group[low.min(high)]);
        if low != high {
            kept.push(group[low.max(high)]);
        }
    }
    kept
}

/// The cumulative distribution of `sorted` as (value, percent of the values that are not above it),
/// as steps in at most about `2 * steps` points. The largest values are all kept, since the tail is
/// the interesting part.
pub fn cumulative(sorted: &[f64], steps: usize) -> Vec<Point> {
    let n = sorted.len();
    let tail = n.saturating_sub(steps / 4);
    let stride = (n / steps.max(1)).max(1);
    let mut points: Vec<Point> = vec![];
    let mut percent = 0.0;
    for i in (0..n).filter(|i| i % stride == stride - 1 || *i >= tail) {
        points.push((sorted[i], percent));
        percent = 100.0 * (i + 1) as f64 / n as f64;
        points.push((sorted[i], percent));
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spikes_survive() {
        let mut points: Vec<Point> = (0..100_000).map(|i| (f64::from(i), 5.0)).collect();
        points[777].1 = 90.0;
        points[99_998].1 = -3.0;
        let kept = extremes(&points, 300);
        assert!(kept.len() <= 600, "{}", kept.len());
        assert!(kept.contains(&(777.0, 90.0)) && kept.contains(&(99_998.0, -3.0)));
        assert!(kept.windows(2).all(|w| w[0].0 < w[1].0));
    }

    #[test]
    fn few_points_stay() {
        let points = [(0.0, 1.0), (1.0, 3.0), (1.0, 2.0)];
        assert_eq!(extremes(&points, 2), points);
        assert_eq!(extremes(&[], 2), []);
    }

    #[test]
    fn cumulative_steps() {
        assert_eq!(
            cumulative(&[1.0, 2.0, 4.0, 4.0], 100),
            [
                (1.0, 0.0),
                (1.0, 25.0),
                (2.0, 25.0),
                (2.0, 50.0),
                (4.0, 50.0),
                (4.0, 75.0),
                (4.0, 75.0),
                (4.0, 100.0)
            ]
        );
        let many: Vec<f64> = (0..50_000).map(f64::from).collect();
        let points = cumulative(&many, 200);
        assert!(points.len() < 520, "{}", points.len());
        assert_eq!(points.last(), Some(&(49_999.0, 100.0)));
    }
}
