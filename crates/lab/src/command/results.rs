// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve lab results`.

use super::run::command_line;
use crate::args::DEFAULT_KERNEL;
use crate::progress::Lines;
use crate::results::{self, Matrix};
use crate::run::Around;
use crate::signals::cancel_on_signal;
use anyhow::Result;
use clap::Args;
use reprieve_page::output::print;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args)]
pub struct ResultsArgs {
    /// Experiments to measure [default: all] (list; also separated by commas)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    experiment: Vec<String>,
    /// CPUs of the lab hosts: 2, 8, 16, 32 [default: all] (list; also separated by commas)
    #[arg(long, value_name = "N", value_delimiter = ',')]
    host_cpus: Vec<u32>,
    /// Runs of each combination [default: 3; from 16 CPUs on 1]
    #[arg(long)]
    repeat: Option<u32>,
    /// Length of a measured phase [default: that of `lab run`]
    #[arg(long, value_parser = humantime::parse_duration)]
    phase: Option<Duration>,
    /// Length of the discarded warm-up [default: that of `lab run`]
    #[arg(long, value_parser = humantime::parse_duration)]
    warmup: Option<Duration>,
    /// Kernel of the guests: deb:VERSION or the path of a vmlinuz
    #[arg(long, default_value = DEFAULT_KERNEL)]
    guest_kernel: String,
    /// Directory of the runs, with all records
    #[arg(long, value_name = "DIR", default_value = "lab-results/matrix")]
    runs: PathBuf,
    /// Directory for lab.md and the summaries of finished cells, which are kept
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
    /// Measure nothing: only write the page
    #[arg(long)]
    page_only: bool,
}

pub fn main(args: ResultsArgs) -> Result<()> {
    let matrix = Matrix {
        experiments: args.experiment,
        sizes: args.host_cpus,
        repeat: args.repeat,
        phase: args.phase,
        warmup: args.warmup,
        guest_kernel: args.guest_kernel,
        runs: args.runs,
        out: args.out,
        command: command_line(),
    };
    matrix.check()?;
    let mut ran = Ok(());
    if !args.page_only {
        let cancel = cancel_on_signal()?;
        let progress = Lines::default();
        let around = Around { progress: &progress, cancel: &cancel };
        ran = matrix.run(around, &mut || results::write(&matrix.out));
    }
    results::write(&matrix.out)?;
    print(&format!("results: {}\n", matrix.out.join("lab.md").display()))?;
    Ok(ran?)
}
