// SPDX-License-Identifier: MIT OR Apache-2.0
//! The charts: a line per subject, a dot per figure on a logarithmic axis, a bar from the smallest
//! to the largest round.
//!
//! In a benchmark without groups there is a panel per unit and a colour per column; with groups
//! (numbers of readers) a panel per column and a colour per group. Drawn with stand-in colours that
//! are then replaced by CSS variables, so that the page decides on them, for light and for dark.

use crate::error::{Error, Result};
use crate::report::{heading, number};
use crate::result::{Figure, Outcome, Row};
use crate::summary::Line;
use plotters::coord::combinators::BindKeyPoints;
use plotters::prelude::*;

const COLOURS: usize = 7;
const VARIABLES: [&str; 3 + COLOURS] =
    ["--ink", "--grid", "--axis", "--s0", "--s1", "--s2", "--s3", "--s4", "--s5", "--s6"];
const WIDTH: u32 = 1500;
const TEXT: u32 = 27;

/// A chart with its legend.
pub struct Panel {
    pub title: String,
    /// Number of the colour, and name.
    pub series: Vec<(usize, String)>,
    pub svg: String,
}

/// Figures of one colour, by subject.
type Series<'a> = Vec<(&'a str, Range)>;

/// A figure with its spread, on one scale.
#[derive(Clone, Copy)]
struct Range {
    value: f64,
    min: f64,
    max: f64,
}

impl From<&Figure> for Range {
    fn from(f: &Figure) -> Range {
        Range { value: f.value, min: f.min, max: f.max }
    }
}

/// The contents of a panel.
struct Plot<'a> {
    title: String,
    /// Their names, from top to bottom.
    subjects: Vec<&'a str>,
    series: Vec<(String, Series<'a>)>,
    /// Numbers of the series' colours; they repeat.
    colours: &'static [usize],
    /// Whether a subject has a dot of each colour. The dots then lie side by side.
    abreast: bool,
    /// Room for the subjects' names.
    names: u32,
    /// A vertical line through the whole panel.
    reference: Option<f64>,
    /// Vertical strokes, each at a subject.
    limits: Series<'a>,
}

/// A chart per unit or column of a benchmark.
pub fn panels(outcome: &Outcome) -> Result<Vec<Panel>> {
    let mut subjects: Vec<&str> = vec![];
    for row in &outcome.rows {
        if !subjects.contains(&row.subject.as_str()) {
            subjects.push(&row.subject);
        }
    }
    let mut groups: Vec<&str> = outcome.rows.iter().map(|r| r.group.as_str()).collect();
    groups.dedup();
    let series = |column: usize, of: &dyn Fn(&Row) -> bool| -> Series<'_> {
        let rows = outcome.rows.iter().filter(|r| of(r));
        rows.filter_map(|r| Some((r.subject.as_str(), r.figures[column].as_ref()?.into())))
            .collect()
    };
    let plot = |title, series: Vec<(String, Series<'_>)>| {
        let shown = |subject: &&&str| {
            series.iter().any(|(_, s)| s.iter().any(|(name, _)| *name == **subject))
        };
        let subjects = subjects.iter().filter(shown).copied().collect();
        let (reference, limits) = (None, vec![]);
        let colours = &[0, 1, 2, 3, 4, 5, 6];
        panel(Plot {
            title,
            subjects,
            series,
            colours,
            abreast: true,
            names: 330,
            reference,
            limits,
        })
    };
    let charted = || outcome.columns.iter().enumerate().filter(|(_, c)| c.charted);
    let mut panels = vec![];
    if groups.len() > 1 {
        for (i, column) in charted() {
            let lines = groups.iter().map(|&g| (g.to_owned(), series(i, &|r| r.group == g)));
            panels.push(plot(heading(&column.title, column.unit), lines.collect())?);
        }
    } else {
        let mut units: Vec<_> = charted().map(|(_, c)| c.unit).collect();
        units.dedup();
        for unit in units {
            let columns = charted().filter(|(_, c)| c.unit == unit);
            let lines: Vec<_> =
                columns.map(|(i, c)| (c.title.clone(), series(i, &|_| true))).collect();
            panels.push(plot(unit.text().to_owned(), lines)?);
        }
    }
    Ok(panels)
}

/// The ratios of a summary, on a scale on which less is better: those of rates are inverted. The
/// strictest limit of a line is a stroke. `None` without ratios.
pub fn ratios(lines: &[Line]) -> Result<Option<Panel>> {
    let mut subjects: Vec<&str> = vec![];
    let mut series = ["target reached", "target missed", "no target"].map(|n| (n.into(), vec![]));
    let mut limits: Series<'_> = vec![];
    for line in lines {
        let Some(peer) = &line.peer else { continue };
        let turned = |ratio: f64| if line.more_is_better { ratio.recip() } else { ratio };
        let (min, max) = (turned(peer.ratio_min), turned(peer.ratio_max));
        let ratio = Range { value: turned(peer.ratio), min: min.min(max), max: max.max(min) };
        let of = match line.reached() {
            Some(true) => 0,
            Some(false) => 1,
            None => 2,
        };
        subjects.push(&line.measure);
        series[of].1.push((line.measure.as_str(), ratio));
        let limit = line.targets.iter().filter_map(|t| t.limit);
        let limit = limit.map(|limit| turned(limit / peer.value)).fold(f64::INFINITY, f64::min);
        if limit.is_finite() {
            limits.push((&line.measure, Range { value: limit, min: limit, max: limit }));
        }
    }
    if subjects.is_empty() {
        return Ok(None);
    }
    let title = "Ratio to the best peer (of rates the other way round): left of 1 is better; a bar spans the rounds, a stroke is the target".to_owned();
    let series = series.into();
    let reference = Some(1.0);
    // The last is grey.
    let colours = &[0, 1, 6];
    panel(Plot { title, subjects, series, colours, abreast: false, names: 520, reference, limits })
        .map(Some)
}

fn panel(plot: Plot<'_>) -> Result<Panel> {
    let mut svg = String::new();
    let size = (WIDTH, 110 + 46 * plot.subjects.len() as u32);
    draw(&mut svg, size, &plot).map_err(|e| Error::Chart(e.to_string()))?;
    let svg = themed(&svg, size, &plot.title);
    let colours = plot.colours.iter().copied().cycle();
    let series = colours.zip(plot.series).map(|(colour, (name, _))| (colour, name)).collect();
    Ok(Panel { title: plot.title, series, svg })
}

fn colour(variable: usize) -> RGBColor {
    RGBColor(0, 0, variable as u8)
}

/// The axis from a little below the smallest figure to a little above the largest.
fn range(plot: &Plot<'_>) -> std::ops::Range<f64> {
    let positive = || {
        let all = plot.series.iter().flat_map(|(_, s)| s).chain(&plot.limits);
        let ends = all.flat_map(|(_, f)| [f.value, f.min, f.max]);
        ends.chain(plot.reference).filter(|v| *v > 0.0)
    };
    let low = positive().fold(f64::INFINITY, f64::min);
    let high = positive().fold(0.0, f64::max);
    if low.is_finite() { low / 1.4..high * 1.4 } else { 0.1..1.0 }
}

fn draw(
    svg: &mut String,
    size: (u32, u32),
    plot: &Plot<'_>,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let range = range(plot);
    let count = plot.subjects.len();
    let root = SVGBackend::with_string(svg, size).into_drawing_area();
    let key_points = decades(&range);
    let mut chart = ChartBuilder::on(&root)
        .margin(20)
        .set_label_area_size(LabelAreaPosition::Left, plot.names)
        .set_label_area_size(LabelAreaPosition::Bottom, 56)
        .build_cartesian_2d(
            range.clone().log_scale().with_key_points(key_points),
            0.0..count as f64 + 1.0,
        )?;
    let label = |y: &f64| {
        let row = y.round();
        let known = (y - row).abs() < 1e-6 && row >= 1.0 && row <= count as f64;
        if known { plot.subjects[count - row as usize].to_owned() } else { String::new() }
    };
    let ink = colour(0);
    let style = TextStyle::from(("sans-serif", TEXT).into_font()).color(&ink);
    chart
        .configure_mesh()
        .y_labels(count + 2)
        .y_label_formatter(&label)
        .x_label_formatter(&|v| number(*v))
        .label_style(style)
        .axis_style(colour(2).stroke_width(2))
        .bold_line_style(colour(1).stroke_width(1))
        .light_line_style(TRANSPARENT)
        .draw()?;
    let upright = |x: f64, from: f64, to: f64, width: u32| {
        PathElement::new([(x, from), (x, to)], ink.stroke_width(width))
    };
    if let Some(x) = plot.reference {
        chart.draw_series([upright(x, 0.0, count as f64 + 1.0, 2)])?;
    }
    let height = |subject: &str| {
        let row = plot.subjects.iter().position(|s| *s == subject).unwrap_or(0);
        (count - row) as f64
    };
    for (subject, limit) in plot.limits.iter().filter(|(_, f)| f.value > 0.0) {
        let y = height(subject);
        chart.draw_series([upright(limit.value, y - 0.3, y + 0.3, 4)])?;
    }
    let each = if plot.abreast { plot.series.len() as f64 } else { 1.0 };
    for (i, (_, figures)) in plot.series.iter().enumerate() {
        let ink = colour(3 + plot.colours[i % plot.colours.len()]);
        let place = if plot.abreast { i as f64 } else { 0.0 };
        let offset = ((each - 1.0) / 2.0 - place) * (0.7 / each);
        for (subject, figure) in figures.iter().filter(|(_, f)| f.value > 0.0) {
            let y = height(subject) + offset;
            let bar = [(figure.min.max(range.start), y), (figure.max, y)];
            chart.draw_series([PathElement::new(bar, ink.stroke_width(3))])?;
            chart.draw_series([Circle::new((figure.value, y), 6, ink.filled())])?;
        }
    }
    root.present()?;
    drop(chart);
    drop(root);
    Ok(())
}

/// Round numbers in `range`.
fn decades(range: &std::ops::Range<f64>) -> Vec<f64> {
    let steps: &[f64] =
        if (range.end / range.start).log10() < 2.2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let powers = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let all = powers.flat_map(|p| steps.iter().map(move |s| s * 10f64.powi(p)));
    all.filter(|v| range.contains(v)).collect()
}

/// Fits a plotters drawing into the page.
fn themed(svg: &str, size: (u32, u32), description: &str) -> String {
    let mut body = svg.split_once('>').map_or("", |(_, body)| body).to_owned();
    for (i, name) in VARIABLES.iter().enumerate() {
        body = body.replace(&format!("=\"#0000{i:02X}\""), &format!("=\"var({name})\""));
    }
    let label = description.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
    format!(
        "<svg class=\"chart\" role=\"img\" aria-label=\"{label}\" viewBox=\"0 0 {} {}\">{body}",
        size.0, size.1
    )
}
