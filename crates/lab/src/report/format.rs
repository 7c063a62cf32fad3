// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats numbers and text from guests, for all renderings alike.

use super::stats::{Bound, Bounded};
use super::summary::Cell;

pub use reprieve_page::plain;

/// Shown where nothing was measured.
pub const NONE: &str = "-";

/// About three significant digits, thousands apart: `0.042`, `6.91`, `13.9`, `126`, `2,372`.
pub fn number(value: f64) -> String {
    let size = value.abs();
    let digits = match size {
        s if !s.is_finite() => return NONE.into(),
        0.0 => 0,
        // Rounding can carry into the next power of ten: 9.996 is 10.0, not 10.00.
        s if s < 0.0995 => 3,
        s if s < 9.995 => 2,
        s if s < 99.95 => 1,
        _ => 0,
    };
    if size > 0.0 && size < 0.0005 {
        return format!("{value:.0e}");
    }
    let text = format!("{value:.digits$}");
    if size < 999.5 { text } else { thousands(&text) }
}

pub fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| NONE.into(), number)
}

/// After a figure that was measured beside other work.
pub const DISTURBED: &str = "?";

/// A figure of ours: `126`, `>= 126` where it is a bound, `126?` where other work disturbed it.
pub fn cell(cell: Option<&Cell>) -> String {
    let Some(cell) = cell else { return NONE.into() };
    let doubt = if cell.disturbed { DISTURBED } else { "" };
    format!("{}{}{doubt}", Bound::mark(cell.bound), number(cell.value))
}

/// A ratio of such figures.
pub fn bounded_ratio(of: Option<Bounded>) -> String {
    let mark = Bound::mark(of.and_then(|(_, bound)| bound));
    format!("{mark}{}", ratio(of.map(|(value, _)| value)))
}

/// A ratio, with two decimals as in the papers.
pub fn ratio(value: Option<f64>) -> String {
    match value {
        Some(v) if v.is_finite() && v.abs() < 99.995 => format!("{v:.2}"),
        other => optional(other),
    }
}

fn thousands(text: &str) -> String {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |d| ("-", d));
    let mut out = String::from(sign);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// `label, unit`, or the label alone.
pub fn with_unit(label: &str, unit: &str) -> String {
    if unit.is_empty() { plain(label) } else { format!("{}, {}", plain(label), plain(unit)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.00004, "4e-5"),
            (0.0421, "0.042"),
            (0.5, "0.50"),
            (6.908, "6.91"),
            (9.996, "10.0"),
            (13.94, "13.9"),
            (125.9, "126"),
            (999.7, "1,000"),
            (2372.12, "2,372"),
            (-1234567.0, "-1,234,567"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(number(value), text, "{value}");
        }
        assert_eq!(ratio(Some(2.184)), "2.18");
        assert_eq!(ratio(Some(1234.5)), "1,234");
        assert_eq!(ratio(None), "-");
    }
}
