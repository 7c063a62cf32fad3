// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve lab search`.

use super::run::{command_line, default_out};
use crate::args::{DEFAULT_KERNEL, HostArgs, one_of};
use crate::error::Error;
use crate::experiments::{Options, Request};
use crate::policy::{self, Policy};
use crate::progress::Lines;
use crate::run::Settings;
use crate::search::{self, Parameter, Scope};
use crate::signals::cancel_on_signal;
use anyhow::{Result, anyhow};
use clap::Args;
use reprieve_page::output::{print, print_json, width};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args)]
pub struct SearchArgs {
    /// The experiment whose guest is measured, as `lab list` shows it
    #[arg(long, default_value = "churn")]
    experiment: String,
    #[command(flatten)]
    host: HostArgs,
    /// Schedulers of the host, as `lab run` takes them; each has a best of its own (list; also
    /// separated by commas)
    #[arg(long, default_value = policy::DEFAULT, value_delimiter = ',')]
    policy: Vec<Policy>,
    /// Parameters to vary [default: all] (list; also separated by commas)
    #[arg(long, value_parser = one_of(&Parameter::ALL, Parameter::name), value_delimiter = ',')]
    parameter: Vec<Parameter>,
    /// Measurements of each guest in a round; their range is the spread
    #[arg(long, default_value_t = 3)]
    repeat: u32,
    /// The most that a value may cost, in % of the defaults' throughput and grace periods alone
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    max_loss: f64,
    /// Kernel of the guest: deb:VERSION or the path of a vmlinuz
    #[arg(long, default_value = DEFAULT_KERNEL)]
    guest_kernel: String,
    /// Length of a measured phase [default: that of `lab run`]
    #[arg(long, value_parser = humantime::parse_duration)]
    phase: Option<Duration>,
    /// Length of the discarded warm-up [default: that of `lab run`]
    #[arg(long, value_parser = humantime::parse_duration)]
    warmup: Option<Duration>,
    /// Directory for the results [default: lab-results/search-TIME]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn main(args: SearchArgs) -> Result<()> {
    let request = Request {
        experiment: args.experiment,
        repeat: args.repeat,
        guest_kernels: vec![args.guest_kernel],
        preempt: vec![None],
        guest_args: vec![String::new()],
        policies: args.policy,
        phase: args.phase,
        warmup: args.warmup,
        options: Options::default(),
        command: command_line(),
    };
    let parameters =
        if args.parameter.is_empty() { Parameter::ALL.to_vec() } else { args.parameter };
    let scope = Scope { parameters, loss_percent: args.max_loss };
    let out = args.out.unwrap_or_else(|| default_out("search"));
    let settings = Settings { bed: args.host.bed(), out };
    let cancel = cancel_on_signal()?;
    let progress = Lines::default();
    let (found, outcome) = search::run(&request, &scope, &settings, &progress, &cancel);
    if let Some(found) = &found {
        match args.json {
            true => print_json(found)?,
            false => print(&found.to_text(&settings.out, width())?)?,
        }
    }
    outcome.map_err(|error| match error {
        Error::Cancelled => anyhow!("interrupted; complete rounds are kept"),
        error => error.into(),
    })
}
