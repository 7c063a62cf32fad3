// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve lab`.

mod inside;
mod results;
mod run;

use crate::args::DEFAULT_KERNEL;
use crate::experiments;
use crate::images::Images;
use crate::progress::Lines;
use crate::report;
use crate::signals::cancel_on_signal;
use anyhow::Result;
use clap::Subcommand;
use reprieve_page::output::{print, print_json, width};
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub enum Command {
    /// Show the experiments
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run experiments; a list option given several times makes one column per combination
    Run(Box<run::RunArgs>),
    /// Print the tables of a run
    Report {
        /// The directory of a `lab run`
        dir: PathBuf,
        /// Print the summary as JSON
        #[arg(long)]
        json: bool,
    },
    /// The matrix of experiments, hosts' sizes and policies, and its page; goes on where it ended
    Results(Box<results::ResultsArgs>),
    /// Fetch everything that runs with these guest kernels need, so that they work without network
    Fetch {
        #[arg(default_values_t = [DEFAULT_KERNEL.to_string()])]
        kernels: Vec<String>,
    },
    // Hidden: the command runs itself with these two in a lab host.
    /// Carry out a plan inside a lab host
    #[command(hide = true)]
    Execute {
        #[arg(long)]
        plan: String,
        /// First phase to measure
        #[arg(long, default_value_t = 0)]
        from: u32,
        /// The costs of the bed are known
        #[arg(long)]
        calibrated: bool,
        #[arg(long)]
        images: String,
        /// Directory for console logs
        #[arg(long)]
        logs: PathBuf,
    },
    /// Prove that KVM works inside a lab host
    #[command(hide = true)]
    Probe {
        #[arg(long)]
        images: String,
    },
}

pub fn main(command: Command) -> Result<()> {
    match command {
        Command::List { json } => list(json),
        Command::Run(args) => run::main(*args),
        Command::Report { dir, json } => report(&dir, json),
        Command::Results(args) => results::main(*args),
        Command::Fetch { kernels } => fetch(&kernels),
        Command::Execute { plan, from, calibrated, images, logs } => {
            inside::execute(&plan, from, calibrated, &images, &logs)
        }
        Command::Probe { images } => inside::probe(&images),
    }
}

fn list(json: bool) -> Result<()> {
    if json {
        let all = experiments::ALL.iter().map(|e| {
            json!({
                "name": e.name, "guest": e.summary, "competitors": e.competition, "source": e.source,
            })
        });
        return print_json(&all.collect::<Vec<_>>());
    }
    let mut text = String::new();
    for e in experiments::ALL {
        let (name, guest, source) = (e.name, e.summary, e.source);
        text += &format!("{name:<13}{guest} ({source})\n{:13}against {}\n", "", e.competition);
    }
    print(&text)
}

fn report(dir: &Path, json: bool) -> Result<()> {
    let summary = report::summarize(&report::load(dir)?);
    if json { print_json(&summary) } else { print(&summary.to_text(width())) }
}

fn fetch(kernels: &[String]) -> Result<()> {
    let (cancel, progress) = (cancel_on_signal()?, Lines::default());
    Ok(Images::open(&cancel, &progress)?.fetch(kernels)?)
}
