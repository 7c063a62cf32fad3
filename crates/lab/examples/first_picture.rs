// SPDX-License-Identifier: MIT OR Apache-2.0
//! Draws the README's picture; `make pictures` (scripts/pictures) runs it.
//!
//!     first_picture LOWWEIGHT.json GRACE.json >docs/pictures/first.svg
//!
//! The left half is the mean grace period of a guest: alone, overcommitted under the stock
//! scheduler, and under guard. The right half is that of a program: the runtime, then its peers.
//! Each half has a logarithmic axis of its own.

use maud::{Markup, PreEscaped, html};
use serde_json::Value;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A bar: what, mean grace period in ms, whether it is ours. `None`: the guest ran out of memory.
type Bar = (String, Option<f64>, bool);

const READERS: &str = "16 readers";
/// A half, in units of the picture.
const WIDTH: f64 = 440.0;
const NAMES: f64 = 150.0;
const FIGURES: f64 = 100.0;
const LINE: f64 = 22.0;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [vm, program] = &arguments[..] else {
        return Err("usage: first_picture LOWWEIGHT.json GRACE.json".into());
    };
    let json =
        |path: &String| -> Result<Value> { Ok(serde_json::from_slice(&std::fs::read(path)?)?) };
    let halves = [
        ("Grace period of a VM of low weight, mean", guest(&json(vm)?)?),
        ("Grace period of a program with 16 readers, mean", program_bars(&json(program)?)?),
    ];
    println!("{}", picture(&halves).into_string());
    Ok(())
}

/// Alone and stock from the variant under `eevdf`, guarded from that under `full`.
fn guest(summary: &Value) -> Result<Vec<Bar>> {
    let cell = |policy: &str, scenario: &str| -> Result<Option<f64>> {
        let variants = summary["variants"].as_array().ok_or("no variants")?;
        let named = |v: &&Value| v["variant"]["policy"] == policy;
        let variant = variants.iter().find(named).ok_or(format!("no policy {policy}"))?;
        let figure = |key: &str| {
            let mut rows = variant["rows"].as_array().into_iter().flatten();
            rows.find(|row| row["key"] == key)?[scenario]["value"].as_f64()
        };
        let (mean, died) = (figure("gp_mean"), figure("out_of_memory"));
        mean.or(died).ok_or(format!("{policy}: no {scenario}"))?;
        Ok(mean)
    };
    Ok(vec![
        ("alone".into(), cell("eevdf", "baseline")?, false),
        ("overcommitted".into(), cell("eevdf", "overcommit")?, false),
        ("with guard".into(), cell("full", "overcommit")?, true),
    ])
}

fn program_bars(grace: &Value) -> Result<Vec<Bar>> {
    let columns = grace["columns"].as_array().ok_or("no columns")?;
    let mean = columns.iter().position(|c| c["title"] == "mean").ok_or("no column mean")?;
    let rows = grace["rows"].as_array().ok_or("no rows")?;
    let shown = |row: &&Value| {
        row["group"] == READERS && (row["class"] == "peer" || row["subject"] == "restartable")
    };
    let bar = |row: &Value| {
        let value = row["figures"][mean]["value"].as_f64()?;
        let ours = row["class"] == "reprieve";
        let name = if ours { "Reprieve" } else { row["subject"].as_str()? };
        Some((name.to_owned(), Some(value), ours))
    };
    let mut bars: Vec<Bar> = rows.iter().filter(shown).filter_map(bar).collect();
    bars.sort_by(|a, b| {
        b.2.cmp(&a.2).then(a.1.partial_cmp(&b.1).unwrap_or(std::cmp::Ordering::Equal))
    });
    if bars.is_empty() { Err(format!("no row of {READERS}").into()) } else { Ok(bars) }
}

fn picture(halves: &[(&str, Vec<Bar>); 2]) -> Markup {
    let most = halves.iter().map(|(_, bars)| bars.len()).max().unwrap_or(0);
    let (width, height) = (2.0 * WIDTH + 20.0, LINE * (most as f64 + 2.0));
    html! {
        (PreEscaped("<!-- SPDX-License-Identifier: MIT OR Apache-2.0 -->"))
        svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {width} {height}"))
            font-family="sans-serif" font-size="13" {
            rect width=(width) height=(height) fill="#ffffff" {}
            @for (n, (title, bars)) in halves.iter().enumerate() {
                g transform=(format!("translate({} 0)", n as f64 * (WIDTH + 20.0))) {
                    text x="8" y="18" font-weight="bold" fill="#222222" { (title) }
                    @for (line, (name, ms, ours)) in bars.iter().enumerate() {
                        (bar(line, name, *ms, *ours, bars))
                    }
                }
            }
        }
    }
}

fn bar(line: usize, name: &str, ms: Option<f64>, ours: bool, all: &[Bar]) -> Markup {
    // The axis begins a half decade below the shortest, so that each bar can be seen.
    let shortest = all.iter().filter_map(|bar| bar.1).fold(f64::INFINITY, f64::min);
    let longest = all.iter().filter_map(|bar| bar.1).fold(0.0, f64::max);
    // A guest that ran out of memory waited for longer than all others.
    let died = all.iter().any(|bar| bar.1.is_none());
    let longest = if died { 10.0 * longest } else { longest };
    let from = shortest.log10() - 0.5;
    let room = WIDTH - NAMES - FIGURES;
    let length = ms.map_or(room, |ms| (ms.log10() - from) / (longest.log10() - from) * room);
    let y = LINE * (line as f64 + 1.4);
    let colour = if ours { "#1b7f4b" } else { "#9aa4ad" };
    html! {
        text x=(NAMES - 8.0) y=(y + 12.0) text-anchor="end" fill="#222222" { (name) }
        rect x=(NAMES) y=(y) width=(format!("{length:.1}")) height="15" rx="2" fill=(colour) {}
        text x=(format!("{:.1}", NAMES + length + 6.0)) y=(y + 12.0) fill="#222222" { (ms.map_or("out of memory".into(), figure)) }
    }
}

/// Two or three significant digits.
fn figure(ms: f64) -> String {
    match ms {
        ms if ms >= 10.0 => format!("{ms:.0} ms"),
        ms if ms >= 0.1 => format!("{ms:.1} ms"),
        ms => format!("{ms:.3} ms"),
    }
}
