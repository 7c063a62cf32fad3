// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve lab run`.

use crate::args::{DEFAULT_KERNEL, HostArgs};
use crate::error::Error;
use crate::experiments::{Options, PREEMPTION_MODELS, Request, Weights};
use crate::policy::{self, Policy};
use crate::progress::Lines;
use crate::run::{self, Around, Outcome, Settings};
use crate::signals::cancel_on_signal;
use anyhow::{Result, anyhow};
use clap::Args;
use clap::builder::PossibleValuesParser;
use reprieve_page::output::{print, print_json, width};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

#[derive(Args)]
pub struct RunArgs {
    /// Experiments, as `lab list` shows them
    #[arg(required = true)]
    experiment: Vec<String>,
    #[command(flatten)]
    host: HostArgs,
    /// Runs of each combination
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// Kernel of the guest under test: deb:VERSION or the path of a vmlinuz (list)
    #[arg(long, default_values_t = [DEFAULT_KERNEL.to_string()])]
    guest_kernel: Vec<String>,
    /// Preemption model of the guest under test (list)
    #[arg(long, value_parser = PossibleValuesParser::new(PREEMPTION_MODELS))]
    preempt: Vec<String>,
    /// More kernel parameters of the guest under test, one string per combination (list)
    #[arg(long, allow_hyphen_values = true)]
    guest_args: Vec<String>,
    /// Schedulers of the host, compared on the same guests: eevdf,
    /// eevdf-slices=TIME, plain, full (list; also separated by commas)
    #[arg(long, default_value = policy::DEFAULT, value_delimiter = ',')]
    policy: Vec<Policy>,
    /// Length of a measured phase, e.g. 100s as in [RP] [default: 15s, where time is dilated 4s]
    #[arg(long, value_parser = humantime::parse_duration)]
    phase: Option<Duration>,
    /// Length of the discarded warm-up [default: 6s, where time is dilated 2s]
    #[arg(long, value_parser = humantime::parse_duration)]
    warmup: Option<Duration>,
    /// apache, asym, churn, dbench, psearchy and the like: vCPUs of the tested guest [default: one
    /// per CPU; asym: 2]
    #[arg(long, value_name = "N")]
    vcpus: Option<u32>,
    /// cpu.weight of the tested VM and of each other, as in 10:100 [default: the experiment's]
    #[arg(long, value_name = "TESTED:OTHERS")]
    weights: Option<Weights>,
    /// Seed of everything random
    #[arg(long, default_value_t = Options::default().seed)]
    seed: u64,
    /// Directory for the results [default: lab-results/EXPERIMENT-TIME]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print all figures, also where guests or policies are compared
    #[arg(long, short)]
    verbose: bool,
    /// Print the summaries as JSON instead of tables
    #[arg(long)]
    json: bool,
}

pub fn main(args: RunArgs) -> Result<()> {
    let requests = requests(&args);
    let out = args.out.unwrap_or_else(|| default_out(&args.experiment.join("+")));
    if out.to_str().is_none() {
        return Err(Error::Usage(format!("--out {}: give a name in UTF-8", out.display())).into());
    }
    let settings = Settings { bed: args.host.bed(), out };
    let cancel = cancel_on_signal()?;
    let progress = Lines::default();
    let mut outcomes: Vec<Outcome> = Vec::new();
    let ran =
        run::run(&requests, &settings, Around { progress: &progress, cancel: &cancel }, &mut |o| {
            outcomes.push(o)
        });
    if args.json {
        let all: Vec<_> = outcomes.iter().map(|o| &o.summary).collect();
        print_json(&all)?;
    } else {
        for outcome in &outcomes {
            let (summary, dir) = (&outcome.summary, outcome.dir.display());
            let brief = !args.verbose && summary.variants.len() > 1;
            let text = if brief { summary.to_brief(width()) } else { summary.to_text(width()) };
            print(&format!("{text}\nall figures: reprieve lab report {dir}\n\n"))?;
        }
    }
    ran.map_err(|error| match error {
        Error::Cancelled if outcomes.is_empty() => {
            anyhow!("interrupted before anything was measured")
        }
        Error::Cancelled => anyhow!("interrupted; what was measured so far is kept"),
        error => error.into(),
    })
}

/// A request for each experiment.
fn requests(args: &RunArgs) -> Vec<Request> {
    let options = Options { vcpus: args.vcpus, weights: args.weights, seed: args.seed };
    let preempt = args.preempt.iter().cloned().map(Some).collect();
    let request = Request {
        experiment: String::new(),
        repeat: args.repeat,
        guest_kernels: args.guest_kernel.clone(),
        preempt: one_if_empty(preempt),
        guest_args: one_if_empty(args.guest_args.clone()),
        policies: args.policy.clone(),
        phase: args.phase,
        warmup: args.warmup,
        options,
        command: command_line(),
    };
    let named = |experiment: &String| Request { experiment: experiment.clone(), ..request.clone() };
    args.experiment.iter().map(named).collect()
}

/// A list option that was not given stands for one combination, the default.
fn one_if_empty<T: Default>(list: Vec<T>) -> Vec<T> {
    if list.is_empty() { vec![T::default()] } else { list }
}

/// The command line of this process, as a shell would need it.
pub fn command_line() -> String {
    let words = std::env::args().skip(1);
    quoted(&std::iter::once("reprieve".into()).chain(words).collect::<Vec<_>>())
}

/// `words` as a shell would need them. (An argument cannot contain a zero byte.)
fn quoted(words: &[String]) -> String {
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
}

/// A new directory for the results of `what`.
pub fn default_out(what: &str) -> PathBuf {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let stamp: String = now.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    Path::new("lab-results").join(format!("{what}-{stamp}"))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_command_line_can_be_given_to_a_shell() {
        let words = ["reprieve", "lab", "--guest-args", "", "nohz_full=1 quiet", "it's"];
        let line = quoted(&words.map(String::from));
        assert_eq!(shlex::split(&line).unwrap(), words);
        assert!(line.starts_with("reprieve lab --guest-args "), "{line}");
    }
}
