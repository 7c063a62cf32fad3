// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve lab headroom`.

use super::run::{command_line, default_out};
use crate::args::{DEFAULT_KERNEL, HostArgs};
use crate::error::Error;
use crate::experiments::{Options, PREEMPTION_MODELS, Request};
use crate::headroom::{self, Sizes};
use crate::host_scheduler::HostScheduler;
use crate::plan::Scale;
use crate::policy::{self, Policy};
use crate::progress;
use crate::run::Settings;
use crate::signals::cancel_on_signal;
use anyhow::{Result, anyhow};
use clap::Args;
use clap::builder::PossibleValuesParser;
use reprieve_page::output::{print, print_json};
use std::path::PathBuf;
use std::time::Duration;

/// The experiment whose guest dies of its garbage.
const EXPERIMENT: &str = "asym";

#[derive(Args)]
pub struct HeadroomArgs {
    #[command(flatten)]
    host: HostArgs,
    /// Schedulers of the host, as `lab run` takes them (list; also separated by commas)
    #[arg(long, default_value = policy::DEFAULT, value_delimiter = ',')]
    policy: Vec<Policy>,
    /// Length of the phase to survive
    #[arg(long, value_parser = humantime::parse_duration, default_value = "30s")]
    phase: Duration,
    /// Phases to survive in each size, each after a boot of its own
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// Smallest size to try, MiB [default: 128]
    #[arg(long, value_name = "MIB")]
    least: Option<u64>,
    /// Largest size to try, MiB [default: what the guest has in `lab run asym`]
    #[arg(long, value_name = "MIB")]
    most: Option<u64>,
    /// Difference between two sizes, MiB
    #[arg(long, value_name = "MIB", default_value_t = 32)]
    resolution: u64,
    /// Kernel of the guest: deb:VERSION or the path of a vmlinuz
    #[arg(long, default_value = DEFAULT_KERNEL)]
    guest_kernel: String,
    /// Preemption model of the guest
    #[arg(long, value_parser = PossibleValuesParser::new(PREEMPTION_MODELS))]
    preempt: Option<String>,
    /// More kernel parameters of the guest
    #[arg(long, allow_hyphen_values = true, default_value = "")]
    guest_args: String,
    /// Directory for the results [default: lab-results/headroom-TIME]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn main(args: HeadroomArgs) -> Result<()> {
    let request = Request {
        experiment: EXPERIMENT.into(),
        scale: Scale::Quick,
        repeat: args.repeat,
        guest_kernels: vec![args.guest_kernel],
        preempt: vec![args.preempt],
        guest_args: vec![args.guest_args],
        policies: args.policy,
        phase: Some(args.phase),
        warmup: Some(Duration::ZERO),
        options: Options::default(),
        command: command_line(),
    };
    let sizes = Sizes { least_mib: args.least, most_mib: args.most, step_mib: args.resolution };
    let out = args.out.unwrap_or_else(|| default_out("headroom"));
    let settings = Settings { bed: args.host.bed(), out };
    let cancel = cancel_on_signal()?;
    let progress = progress::for_stderr();
    let (found, outcome) =
        headroom::run(&request, sizes, &settings, Some(&HostScheduler), &*progress, &cancel);
    progress.finish();
    if let Some(found) = &found {
        match args.json {
            true => print_json(found)?,
            false => print(&found.to_text())?,
        }
    }
    outcome.map_err(|error| match error {
        Error::Cancelled => anyhow!("interrupted; the sizes tried so far are kept"),
        error => error.into(),
    })
}
