// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve bench`.

use anyhow::Result;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use reprieve_bench::{Bench, Neighbour, Options, Summary, run, run_all, summary_text, text};
use reprieve_lab::signals::cancel_on_signal;
use reprieve_page::output::{print, print_json, width_or};
use std::io::{IsTerminal, Write as _, stderr};
use std::time::Duration;

#[derive(Args)]
pub struct BenchArgs {
    /// The benchmark to measure, or all
    #[arg(value_parser = names())]
    name: Name,
    /// Peers to run beside (list); the default is all. `semop`, `msg`, `shm` and `txn` run
    /// beside the kernel's calls
    #[arg(long, value_delimiter = ',')]
    against: Vec<String>,
    /// Measured time of the whole run; warming up and cleaning up come on top. The default is 60,
    /// for `all` 480
    #[arg(long)]
    seconds: Option<f64>,
    /// Rounds over all subjects; each figure is their median. The default is the benchmark's
    #[arg(long)]
    rounds: Option<usize>,
    /// Numbers of reader threads (list); in `callbacks`, of registering threads; in `locks`,
    /// of all; in `semop`, of processes; in `txn`, of clients. The default is the benchmark's
    #[arg(long, value_delimiter = ',')]
    readers: Vec<usize>,
    /// In `grace`: beside nothing, another process's membarriers, or those of 64 threads that a
    /// cgroup limits to 2 % of a CPU (list)
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = neighbours())]
    #[arg(default_values = Neighbour::ALL.map(Neighbour::name))]
    neighbour: Vec<Neighbour>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The choice of what to measure: one benchmark, or all.
#[derive(Clone, Copy)]
struct Name(Option<Bench>);

/// The names of the benchmarks, with what each measures.
fn names() -> impl TypedValueParser<Value = Name> {
    let all = PossibleValue::new("all").help("all of them, and how they compare with the targets");
    let one = |bench: Bench| PossibleValue::new(bench.name()).help(bench.title());
    PossibleValuesParser::new(Bench::NAMED.into_iter().map(one).chain([all]))
        .map(|name| Name(Bench::NAMED.into_iter().find(|bench| bench.name() == name)))
}

fn neighbours() -> impl TypedValueParser<Value = Neighbour> {
    let named = |name: &str| Neighbour::ALL.into_iter().find(|n| n.name() == name);
    PossibleValuesParser::new(Neighbour::ALL.map(Neighbour::name))
        .try_map(move |name| named(&name).ok_or("no such neighbour"))
}

pub fn main(args: BenchArgs) -> Result<()> {
    let cancel = cancel_on_signal()?;
    let seconds = args.seconds.unwrap_or(if args.name.0.is_some() { 60.0 } else { 480.0 });
    // A value that is not a number of seconds is out of the range that is checked.
    let length = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let options = |bench: Bench, length: Duration| Options {
        against: match &args.against[..] {
            [] => bench.families().iter().map(|&family| family.to_owned()).collect(),
            named => named.to_vec(),
        },
        length,
        rounds: args.rounds.unwrap_or(bench.default_rounds()),
        readers: match &args.readers[..] {
            [] => bench.default_readers().into(),
            readers => readers.into(),
        },
        neighbours: args.neighbour.clone(),
        cancel: cancel.flag(),
    };
    let told = |what: &str, done: f64| show_progress(&format!("{what} ({:.0} %)", done * 100.0));
    match args.name.0 {
        Some(bench) => {
            let outcome = run(bench, &options(bench, length), &told);
            show_progress("");
            let outcome = outcome?;
            if args.json { print_json(&outcome) } else { print(&text(&outcome, width_or(0))) }
        }
        None => {
            let (summary, result) = run_all(length, &options, &told);
            show_progress("");
            // The benchmarks that ended before an error are shown.
            if !summary.benches.is_empty() {
                show_all(&args, &summary)?;
            }
            Ok(result?)
        }
    }
}

/// A terminal shows one line, which the next one replaces.
fn show_progress(line: &str) {
    let mut stderr = stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{line}");
    }
}

fn show_all(args: &BenchArgs, summary: &Summary) -> Result<()> {
    if args.json {
        return print_json(summary);
    }
    let width = width_or(0);
    let mut parts: Vec<_> = summary.benches.iter().map(|bench| text(bench, width)).collect();
    // A page begins with the summary. A terminal shows its end.
    let at = if width == 0 { 0 } else { parts.len() };
    parts.insert(at, summary_text(summary, width));
    print(&parts.join("\n"))
}
