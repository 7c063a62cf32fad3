// SPDX-License-Identifier: MIT OR Apache-2.0
//! A chart as an SVG fragment of an HTML page.
//!
//! Charts are drawn at twice the size at which they are shown, since plotters places everything on
//! whole pixels. Colours are drawn as stand-ins and then replaced by CSS variables, so that the
//! page decides on them, for light and for dark.

use super::reduce::Point;
use crate::error::{Error, Result};
use crate::report::format;
use plotters::coord::combinators::BindKeyPoints;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;
use std::ops::Range;

/// Width and height of a chart in its own units.
const SIZE: (u32, u32) = (1200, 660);
const TEXT: u32 = 38;

/// CSS variables by stand-in: entry i is drawn as `#0000ii`.
const COLOURS: [&str; 12] = [
    "--ink",
    "--grid",
    "--axis",
    "--baseline",
    "--overcommit",
    "--s0",
    "--s1",
    "--s2",
    "--s3",
    "--s4",
    "--s5",
    "--s6",
];

/// A colour of the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Colour(u8);

impl Colour {
    pub const INK: Colour = Colour(0);
    const GRID: Colour = Colour(1);
    const AXIS: Colour = Colour(2);
    pub const BASELINE: Colour = Colour(3);
    pub const OVERCOMMIT: Colour = Colour(4);

    /// The colour of the i-th of several series; they repeat after seven.
    pub fn series(i: usize) -> Colour {
        Colour(5 + (i % 7) as u8)
    }

    /// The name of its CSS variable.
    pub fn variable(self) -> &'static str {
        COLOURS[usize::from(self.0)]
    }

    fn rgb(self) -> RGBColor {
        RGBColor(0, 0, self.0)
    }
}

#[derive(Clone, Copy)]
pub enum Mark {
    /// Connected points.
    Line,
    Dots,
    /// For a few points.
    BigDots,
}

pub struct Series {
    pub points: Vec<Point>,
    pub colour: Colour,
    pub mark: Mark,
    /// 0 to 1.
    pub opacity: f64,
}

/// An axis: its label with the unit, and its range.
pub struct Axis {
    pub label: String,
    pub range: Range<f64>,
}

/// A chart with linear axes. `description` is for screen readers.
pub fn linear(description: &str, x: &Axis, y: &Axis, series: &[Series]) -> Result<String> {
    draw(description, SIZE, |root| {
        let chart = builder(root).build_cartesian_2d(x.range.clone(), y.range.clone())?;
        finish(chart, x, y, series, 6, tick)
    })
}

/// A chart of rows: `names` from the top, the first at y = `names.len()`, the last at y = 1.
pub fn rows(description: &str, x: &Axis, names: &[String], series: &[Series]) -> Result<String> {
    let count = names.len();
    let y = Axis { label: String::new(), range: 0.0..count as f64 + 1.0 };
    let name = |v: f64| {
        let row = v.round();
        let known = (v - row).abs() < 1e-6 && row >= 1.0 && row <= count as f64;
        if known { names[count - row as usize].clone() } else { String::new() }
    };
    let height = 180 + 60 * u32::try_from(count).unwrap_or(60).min(60);
    draw(description, (SIZE.0, height), |root| {
        let chart = builder(root).build_cartesian_2d(x.range.clone(), y.range.clone())?;
        finish(chart, x, &y, series, count + 2, name)
    })
}

/// A chart with a logarithmic x axis, whose range must lie above 0.
pub fn logarithmic(description: &str, x: &Axis, y: &Axis, series: &[Series]) -> Result<String> {
    draw(description, SIZE, |root| {
        let chart = builder(root).build_cartesian_2d(
            x.range.clone().log_scale().with_key_points(decades(&x.range)),
            y.range.clone(),
        )?;
        finish(chart, x, y, series, 6, tick)
    })
}

type Root<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn<T> = std::result::Result<T, DrawingAreaErrorKind<std::io::Error>>;

fn builder<'a, 'b>(root: &'b Root<'a>) -> ChartBuilder<'b, 'b, SVGBackend<'a>>
where
    'a: 'b,
{
    let mut builder = ChartBuilder::on(root);
    builder
        .margin_top(24)
        .margin_right(36)
        .margin_left(8)
        .margin_bottom(6)
        .set_label_area_size(LabelAreaPosition::Left, 140)
        .set_label_area_size(LabelAreaPosition::Bottom, 96);
    builder
}

fn finish<X>(
    mut chart: ChartContext<SVGBackend, Cartesian2d<X, plotters::coord::types::RangedCoordf64>>,
    x: &Axis,
    y: &Axis,
    series: &[Series],
    y_labels: usize,
    y_tick: impl Fn(f64) -> String,
) -> Drawn<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    const INK: RGBColor = RGBColor(0, 0, Colour::INK.0);
    let text = |size| TextStyle::from(("sans-serif", size).into_font()).color(&INK);
    chart
        .configure_mesh()
        .x_desc(&x.label)
        .y_desc(&y.label)
        .x_labels(7)
        .y_labels(y_labels)
        .x_label_formatter(&|v| tick(*v))
        .y_label_formatter(&|v| y_tick(*v))
        .label_style(text(TEXT))
        .axis_desc_style(text(TEXT))
        .axis_style(Colour::AXIS.rgb().stroke_width(2))
        .bold_line_style(Colour::GRID.rgb().stroke_width(2))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for s in series {
        let colour = s.colour.rgb().mix(s.opacity);
        match s.mark {
            Mark::Line if s.points.len() > 1 => {
                let path = PathElement::new(s.points.clone(), colour.stroke_width(3));
                chart.draw_series(std::iter::once(path))?;
            }
            _ => {
                let radius = if matches!(s.mark, Mark::BigDots) { 13 } else { 5 };
                let dots = s.points.iter().map(|&p| Circle::new(p, radius, colour.filled()));
                chart.draw_series(dots)?;
            }
        }
    }
    Ok(())
}

/// Round numbers in `range`: 1, 2 and 5 of each power of ten, or fewer of each where that would be
/// too many to read.
fn decades(range: &Range<f64>) -> Vec<f64> {
    let steps: &[f64] = match (range.end / range.start).log10() {
        span if span < 2.2 => &[1.0, 2.0, 5.0],
        span if span < 3.6 => &[1.0, 3.0],
        _ => &[1.0],
    };
    let powers = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let all = powers.flat_map(|p| steps.iter().map(move |s| s * 10f64.powi(p)));
    all.filter(|v| range.contains(v)).collect()
}

/// Axis ticks are round numbers: no zeroes at their end.
fn tick(value: f64) -> String {
    let text = if value.abs() < 1e-9 { "0".into() } else { format::number(value) };
    if text.contains('.') && !text.contains('e') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn draw(
    description: &str,
    size: (u32, u32),
    content: impl FnOnce(&Root) -> Drawn<()>,
) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        content(&root)
            .and_then(|()| root.present())
            .map_err(|e| Error::Other(format!("cannot draw \"{description}\": {e}")))?;
    }
    Ok(themed(&svg, size, description))
}

/// Fits a plotters drawing into the page. What stems from text is escaped already, so its quotes
/// cannot be taken for those of attributes.
fn themed(svg: &str, size: (u32, u32), description: &str) -> String {
    let body = svg.split_once('>').map_or("", |(_, body)| body);
    let mut body = body
        .replace(" opacity=\"1\"", "")
        .replace(" stroke=\"none\" stroke-width=\"1\"", "")
        .replace(" stroke=\"none\"", "")
        .replace(" font-family=\"sans-serif\"", "");
    for (i, name) in COLOURS.iter().enumerate() {
        body = body.replace(&format!("=\"#0000{i:02X}\""), &format!("=\"var({name})\""));
    }
    let label = description.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
    format!(
        "<svg class=\"chart\" role=\"img\" aria-label=\"{label}\" viewBox=\"0 0 {} {}\">{body}",
        size.0, size.1
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_take_their_colours_from_the_page() {
        let axis = |label: &str| Axis { label: label.into(), range: 0.0..10.0 };
        let series = Series {
            points: vec![(1.0, 2.0), (3.0, 4.0)],
            colour: Colour::OVERCOMMIT,
            mark: Mark::Line,
            opacity: 1.0,
        };
        let svg = linear("a \"b\" <c>", &axis("time, s"), &axis("<y>"), &[series]).unwrap();
        assert!(svg.contains("stroke=\"var(--overcommit)\""), "{svg}");
        assert!(svg.contains("aria-label=\"a &quot;b&quot; &lt;c>\""), "{svg}");
        assert!(svg.contains("&lt;y&gt;") && !svg.contains("=\"#"), "{svg}");
        assert!(svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn logarithmic_ticks() {
        assert_eq!(decades(&(3.6..31.0)), [5.0, 10.0, 20.0]);
        assert_eq!(decades(&(0.9..300.0)), [1.0, 3.0, 10.0, 30.0, 100.0]);
        assert_eq!(decades(&(0.02..900.0)), [0.1, 1.0, 10.0, 100.0]);
    }

    #[test]
    fn ticks_have_no_idle_zeroes() {
        for (value, text) in
            [(0.0, "0"), (20.0, "20"), (2.5, "2.5"), (0.1, "0.1"), (1000.0, "1,000")]
        {
            assert_eq!(tick(value), text);
        }
    }
}
