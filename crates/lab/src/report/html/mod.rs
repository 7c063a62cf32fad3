// SPDX-License-Identifier: MIT OR Apache-2.0
//! `report.html`: one file that needs nothing else.
//!
//! No script, no font, no image, no link: the style is inside, the figures are inline SVG, and the
//! page's own content security policy forbids every request. Text that came from a guest or a file
//! is data: it goes through maud, which escapes it, and through [`plain`], which takes control
//! characters out.

mod settings;
mod tables;

use super::figures::chart::Colour;
use super::figures::{self, Quantity, SCENARIOS, Scales};
use super::format::plain;
use super::load::Run;
use super::policies;
use super::summary::{Summary, VariantSummary, scenario_name};
use super::table;
use crate::error::Result;
use maud::{Markup, PreEscaped, html};
use reprieve_page::{Page, document};

const STYLE: &str = include_str!("style.css");

/// A variant of a run on the page.
struct Item<'a> {
    /// The name of it everywhere on the page.
    title: String,
    /// Short, for charts: `A`, `B`; empty when there is but one.
    letter: String,
    run: &'a Run,
    summary: &'a Summary,
    variant: usize,
}

/// The page of a run.
pub fn page(run: &Run, summary: &Summary) -> Result<String> {
    let items = items(run, summary);
    let title = format!("{} - Reprieve lab", plain(&summary.experiment));
    let mut sections = vec![];
    for item in &items {
        sections.push(section(item, items.len() > 1)?);
    }
    let overview = overview(&items)?;
    let spread = spread(&items)?;
    let body = html! {
        (heading(summary))
        (overview)
        @if items.len() > 1 { (spread) }
        @for section in &sections { (section) }
        @if items.len() == 1 { (spread) }
        (definitions(&items))
        (settings::section(summary))
    };
    Ok(document(Page { title: &title, style: STYLE, body }))
}

fn items<'a>(run: &'a Run, summary: &'a Summary) -> Vec<Item<'a>> {
    let several = summary.variants.len() > 1;
    let item = |(variant, v): (usize, &VariantSummary)| {
        let letter = if several { table::letter(variant) } else { String::new() };
        Item { title: plain(&v.variant.label), letter, run, summary, variant }
    };
    summary.variants.iter().enumerate().map(item).collect()
}

fn heading(s: &Summary) -> Markup {
    html! {
        header {
            h1 { (plain(&s.experiment)) ": a guest alone, then on an overcommitted host" }
            p class="soft" { (plain(&s.started)) ", " (table::scale(&s.plan)) ", " (table::conditions(s)) }
            @if !s.complete {
                div class="warn incomplete" {
                    strong { "Incomplete run" }
                    ": " (plain(s.incomplete_reason.as_deref().unwrap_or("no reason recorded")))
                    ". The figures are those measured until then."
                }
            }
            @if !s.notices.is_empty() {
                div class="warn notices" {
                    strong { "Notices" }
                    ul { @for notice in &s.notices { li { (plain(notice)) } } }
                }
            }
        }
    }
}

/// Comparisons of variants with each other; nothing for a single one.
fn overview(items: &[Item]) -> Result<Markup> {
    if items.len() < 2 {
        return Ok(html! {});
    }
    let mut distributions = vec![];
    for quantity in [Quantity::GracePeriods, Quantity::CallbackLatencies] {
        for (scenario, chart) in figures::comparison_charts(items[0].run, 0..items.len(), quantity)?
        {
            distributions.push((
                format!("{}, {}", quantity_title(quantity), scenario_name(scenario)),
                chart,
            ));
        }
    }
    Ok(html! {
        h2 { "Side by side" }
        (tables::side_by_side(items))
        (policies::tables(items.iter().map(|i| (i.letter.as_str(), i.title.as_str(), &i.summary.variants[i.variant]))))
        @if !distributions.is_empty() {
            h3 { "Distributions" }
            ul class="legend" {
                @for (i, item) in items.iter().enumerate() {
                    li { (swatch(Colour::series(i))) strong { (item.letter) } " " (item.title) }
                }
            }
            div class="pair" { @for (title, chart) in &distributions { (figure(title, chart)) } }
        }
    })
}

/// How far the repeats lie apart.
fn spread(items: &[Item]) -> Result<Markup> {
    if items.iter().all(|i| i.run.plan.repeat < 2) {
        return Ok(html! { p class="soft" { "One repeat, so no spread is known." } });
    }
    let rows: Vec<(String, &Summary, usize)> =
        items.iter().map(|i| (i.letter.clone(), i.summary, i.variant)).collect();
    let chart = figures::spread_chart(&rows)?;
    Ok(html! {
        h3 { "Spread of the repeats" }
        (scenario_legend())
        div class="pair" {
            @if let Some(chart) = chart { (figure("Mean grace period of each repeat", &chart)) }
            (tables::repeats(items))
        }
    })
}

/// Table and figures of one variant.
fn section(item: &Item, several: bool) -> Result<Markup> {
    let (run, variant) = (item.run, item.variant);
    let scales = Scales::of(run);
    let mut by_time = vec![];
    for scenario in SCENARIOS {
        let name = scenario_name(scenario);
        if let Some(chart) = figures::memory_chart(run, variant, scenario, &scales)? {
            by_time.push((0, format!("Memory in use above the lowest seen, {name}"), chart));
        }
        if let Some(chart) = figures::duration_chart(run, variant, scenario, &scales)? {
            by_time.push((1, format!("Grace periods by when they began, {name}"), chart));
        }
    }
    by_time.sort_by_key(|(row, ..)| *row);
    let mut distributions = vec![];
    for quantity in [Quantity::GracePeriods, Quantity::CallbackLatencies] {
        if let Some(chart) = figures::distribution_chart(run, variant, quantity)? {
            distributions.push((quantity_title(quantity), chart));
        }
    }
    let repeats = run.plan.repeat > 1;
    Ok(html! {
        section {
            h2 { @if several { (item.letter) ": " } (item.title) }
            (tables::full(item))
            @if !by_time.is_empty() {
                h3 { "Against time" }
                (scenario_legend())
                @if repeats { p class="soft" { "The first repeat; the others faintly behind it." } }
                div class="pair" { @for (_, title, chart) in &by_time { (figure(title, chart)) } }
            }
            @if !distributions.is_empty() {
                h3 { "Distributions" }
                (scenario_legend())
                @if repeats { p class="soft" { "All repeats together; each alone faintly behind." } }
                div class="pair" { @for (title, chart) in &distributions { (figure(title, chart)) } }
            }
        }
    })
}

fn quantity_title(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::GracePeriods => "Grace-period durations, cumulative",
        Quantity::CallbackLatencies => "Callback latency, cumulative",
    }
}

fn figure(title: &str, chart: &str) -> Markup {
    html! { figure { figcaption { (title) } (PreEscaped(chart)) } }
}

fn scenario_legend() -> Markup {
    html! {
        ul class="legend" {
            @for scenario in SCENARIOS { li { (swatch(figures::colour(scenario))) (scenario_name(scenario)) } }
        }
    }
}

fn swatch(colour: Colour) -> Markup {
    html! { i class=(format!("c-{}", colour.variable().trim_start_matches('-'))) {} }
}

fn definitions(items: &[Item]) -> Markup {
    let notes = items.first().map(|i| &i.summary.variants[i.variant].rows).into_iter().flatten();
    let notes: Vec<(String, &str)> = notes
        .filter_map(|r| {
            Some((table::label(items[0].summary, r), r.paper.as_ref()?.note.as_deref()?))
        })
        .collect();
    html! {
        h2 { "What the figures mean" }
        p {
            "GP: grace period, from its start to its end inside the guest. Figures are over the samples of all repeats together; "
            "percentiles are exact, by nearest rank. Ratio: overcommit over baseline. A dash: not measured. "
            ">= or <=: a bound, since a grace period that was in progress at the end of a phase was older than all that ended, or since wrk leaves the slowest requests out. "
            "Growth: the most that free memory fell below where it stood when the phase began; largest spike: below any earlier level of the phase. "
            "Unusable for huge pages: the kernel's unusable free space index at order 9. "
            "cv: standard deviation of the repeats' figures over their mean."
        }
        @if !notes.is_empty() {
            p { "The paper: Prasad, Gopinath, McKenney, The RCU-Reader Preemption Problem in VMs, USENIX ATC 2017; 64 CPUs, Linux 4.5." }
            ul { @for (label, note) in &notes { li { (label) ": " (note) } } }
        }
    }
}
