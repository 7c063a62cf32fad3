// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve bench`.

use crate::output::{print, print_json, width};
use crate::progress;
use crate::signals::cancel_on_signal;
use anyhow::Result;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use reprieve_bench::{Bench, FAMILIES, Options, text, write_html};
use reprieve_lab::progress::{Progress, Silent};
use std::io::{IsTerminal, stderr};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args)]
pub struct BenchArgs {
    /// What to measure
    #[arg(value_parser = names())]
    name: Bench,
    /// Peers to run beside (list)
    #[arg(long, value_delimiter = ',', default_values_t = FAMILIES.map(str::to_owned))]
    against: Vec<String>,
    /// Measured time of the whole run; warming up and cleaning up come on top
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Rounds over all subjects; each figure is their median. The default is the benchmark's
    #[arg(long)]
    rounds: Option<usize>,
    /// Numbers of reader threads (list); in `callbacks`, of registering threads. The default is the benchmark's
    #[arg(long, value_delimiter = ',')]
    readers: Vec<usize>,
    /// Write a page with the table and a chart
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The names of the benchmarks, with what each measures.
fn names() -> impl TypedValueParser<Value = Bench> {
    let known = Bench::ALL.map(|bench| PossibleValue::new(bench.name()).help(bench.title()));
    PossibleValuesParser::new(known).try_map(|name| {
        Bench::ALL.into_iter().find(|bench| bench.name() == name).ok_or("no such benchmark")
    })
}

pub fn main(args: BenchArgs) -> Result<()> {
    let bench = args.name;
    let cancel = cancel_on_signal()?;
    let readers =
        if args.readers.is_empty() { bench.default_readers().into() } else { args.readers };
    let options = Options {
        against: args.against,
        // What is not a number of seconds is out of the range that `run` checks.
        length: Duration::try_from_secs_f64(args.seconds).unwrap_or_default(),
        rounds: args.rounds.unwrap_or(bench.default_rounds()),
        readers,
        cancel: cancel.flag(),
    };
    // A line per sample is of use to nobody but a terminal.
    let progress: Box<dyn Progress> =
        if stderr().is_terminal() { progress::for_stderr() } else { Box::new(Silent) };
    let outcome = reprieve_bench::run(bench, &options, &|what, done| {
        progress.remaining(options.length.mul_f64(1.0 - done));
        progress.step(&format!("{} ({:.0} %)", what, done * 100.0));
    });
    progress.finish();
    let outcome = outcome?;
    if let Some(path) = &args.html {
        write_html(&outcome, path)?;
    }
    if args.json { print_json(&outcome) } else { print(&text(&outcome, width())) }
}
