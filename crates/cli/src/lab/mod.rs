// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve lab`.

mod check;
mod inside;
mod outside;

use crate::output::{print, print_json, width};
use crate::progress;
use crate::signals::cancel_on_signal;
use anyhow::{Result, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use outside::Outside;
use reprieve_lab::error::Error;
use reprieve_lab::experiments::{self, Options, POLICIES, Request};
use reprieve_lab::host::Mode;
use reprieve_lab::images::Images;
use reprieve_lab::outside::Watcher;
use reprieve_lab::plan::Scale;
use reprieve_lab::protocol::Namespace;
use reprieve_lab::report::{self, REPORT_FILE};
use reprieve_lab::run::{self, Outcome, Settings};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

#[derive(Subcommand)]
pub enum Command {
    /// Show the experiments
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run experiments; a list option given several times makes one column per combination
    Run(Box<RunArgs>),
    /// Render runs again, or compare several
    Report {
        /// Result directories of `lab run`
        #[arg(required = true)]
        dirs: Vec<PathBuf>,
        /// Where the comparison of several runs goes
        #[arg(long, default_value = "lab-results/comparison")]
        out: PathBuf,
        /// Print the summaries as JSON
        #[arg(long)]
        json: bool,
    },
    /// Check that `reprieve watch` sees what guests really do
    Check(Box<check::CheckArgs>),
    /// Show, fetch or remove the kernels and images that the lab keeps
    Images {
        #[command(subcommand)]
        action: Option<ImagesAction>,
        /// Print JSON
        #[arg(long, global = true)]
        json: bool,
    },
    /// Carry out a plan inside a lab host
    #[command(hide = true)]
    Execute {
        #[arg(long)]
        plan: String,
        /// First phase to measure
        #[arg(long, default_value_t = 0)]
        from: u32,
        #[arg(long)]
        images: String,
        #[arg(long)]
        no_watch: bool,
    },
    /// Prove that KVM works inside a lab host
    #[command(hide = true)]
    Probe {
        #[arg(long)]
        images: String,
    },
}

#[derive(Subcommand)]
pub enum ImagesAction {
    /// Fetch everything that runs with these guest kernels need
    Fetch {
        #[arg(default_values_t = [DEFAULT_KERNEL.to_string()])]
        kernels: Vec<String>,
    },
    /// Remove everything that was fetched and built
    Clean,
}

const DEFAULT_KERNEL: &str = "deb:6.12";

#[derive(Args)]
pub struct RunArgs {
    /// Experiments, as `lab list` shows them
    #[arg(required = true)]
    experiment: Vec<String>,
    /// Where the VMs run: this machine under KVM or TCG, or a lab host (a VM that has KVM)
    #[arg(long, value_enum, default_value = "auto")]
    host: HostArg,
    /// Sizes: short phases, this machine's size, or the paper's test bed exactly
    #[arg(long, value_enum, default_value = "quick")]
    scale: ScaleArg,
    /// Runs of each combination
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// Kernel of the guest under test: deb:VERSION or the path of a vmlinuz (list)
    #[arg(long, default_values_t = [DEFAULT_KERNEL.to_string()])]
    guest_kernel: Vec<String>,
    /// Kernel of the lab host: deb:VERSION or a path
    #[arg(long)]
    host_kernel: Option<String>,
    /// Preemption model of the guest under test (list)
    #[arg(long, value_enum)]
    preempt: Vec<PreemptArg>,
    /// More kernel parameters of the guest under test, one string per combination (list)
    #[arg(long, allow_hyphen_values = true)]
    guest_args: Vec<String>,
    /// Scheduler of the host (list)
    #[arg(long, default_values_t = [POLICIES[0].to_string()], value_parser = clap::builder::PossibleValuesParser::new(POLICIES))]
    policy: Vec<String>,
    /// Length of a measured phase, e.g. 30s, instead of the scale's
    #[arg(long, value_parser = humantime::parse_duration)]
    phase: Option<Duration>,
    /// Length of the discarded warm-up, instead of the scale's
    #[arg(long, value_parser = humantime::parse_duration)]
    warmup: Option<Duration>,
    /// membench: pairs of allocation and call_rcu per second per CPU; 0 for as many as it can
    #[arg(long, default_value_t = Options::default().rate)]
    rate: u32,
    /// membench: bytes per allocation
    #[arg(long, default_value_t = Options::default().object_bytes)]
    object_bytes: u32,
    /// clone: namespaces of each child [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    namespaces: Vec<NamespaceArg>,
    /// Seed of everything random
    #[arg(long, default_value_t = Options::default().seed)]
    seed: u64,
    /// Do not look into the guest under test from outside
    #[arg(long)]
    no_watch: bool,
    /// Directory for the results [default: lab-results/EXPERIMENT-TIME]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print the summaries as JSON instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum HostArg {
    Auto,
    Kvm,
    Nested,
    Tcg,
}

impl HostArg {
    fn mode(self) -> Mode {
        match self {
            HostArg::Auto => Mode::Auto,
            HostArg::Kvm => Mode::Kvm,
            HostArg::Nested => Mode::Nested,
            HostArg::Tcg => Mode::Tcg,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum ScaleArg {
    Quick,
    Machine,
    Paper,
}

#[derive(Clone, Copy, ValueEnum)]
enum PreemptArg {
    None,
    Voluntary,
    Full,
    Lazy,
}

#[derive(Clone, Copy, ValueEnum)]
enum NamespaceArg {
    Cgroup,
    Ipc,
    Mnt,
    Net,
    Pid,
    Time,
    User,
    Uts,
}

pub fn main(command: Command) -> Result<()> {
    match command {
        Command::List { json } => list(json),
        Command::Run(args) => run(*args),
        Command::Report { dirs, out, json } => report(&dirs, &out, json),
        Command::Check(args) => check::main(&args),
        Command::Images { action, json } => images(action, json),
        Command::Execute { plan, from, images, no_watch } => {
            inside::execute(&plan, from, &images, !no_watch)
        }
        Command::Probe { images } => inside::probe(&images),
    }
}

fn list(json: bool) -> Result<()> {
    if json {
        let all = experiments::ALL.iter().map(|e| {
            json!({
                "name": e.name(), "guest": e.summary(), "competitors": e.competition(), "source": e.source(),
            })
        });
        return print_json(&all.collect::<Vec<_>>());
    }
    let mut text = String::new();
    for e in experiments::ALL {
        let (name, guest, source) = (e.name(), e.summary(), e.source());
        text += &format!("{name:<10}{guest} ({source})\n{:10}against {}\n", "", e.competition());
    }
    print(&text)
}

fn run(args: RunArgs) -> Result<()> {
    let command = std::env::args()
        .skip(1)
        .fold("reprieve".to_string(), |line, arg| format!("{line} {}", quoted(&arg)));
    let none_if_empty =
        |list: Vec<String>| if list.is_empty() { vec![String::new()] } else { list };
    let preempt = match args.preempt.is_empty() {
        true => vec![None],
        false => args
            .preempt
            .iter()
            .map(|p| p.to_possible_value().map(|v| v.get_name().into()))
            .collect(),
    };
    let mut options = Options {
        rate: args.rate,
        object_bytes: args.object_bytes,
        seed: args.seed,
        ..Options::default()
    };
    if !args.namespaces.is_empty() {
        options.namespaces = args.namespaces.iter().map(|n| n.into()).collect();
    }
    let guest_args = none_if_empty(args.guest_args);
    let request = |experiment: &String| Request {
        experiment: experiment.clone(),
        scale: match args.scale {
            ScaleArg::Quick => Scale::Quick,
            ScaleArg::Machine => Scale::Machine,
            ScaleArg::Paper => Scale::Paper,
        },
        repeat: args.repeat,
        guest_kernels: args.guest_kernel.clone(),
        preempt: preempt.clone(),
        guest_args: guest_args.clone(),
        policies: args.policy.clone(),
        phase: args.phase,
        warmup: args.warmup,
        options: options.clone(),
        command: command.clone(),
    };
    let requests: Vec<Request> = args.experiment.iter().map(request).collect();
    let out = args.out.unwrap_or_else(|| default_out(&args.experiment));
    if out.to_str().is_none() {
        return Err(Error::Usage(format!("--out {}: give a name in UTF-8", out.display())).into());
    }
    let settings = Settings { mode: args.host.mode(), host_kernel: args.host_kernel, out };
    let cancel = cancel_on_signal()?;
    let progress = progress::for_stderr();
    let mut outcomes: Vec<Outcome> = Vec::new();
    let watcher: Option<&dyn Watcher> = if args.no_watch { None } else { Some(&Outside) };
    let ran =
        run::run(&requests, &settings, watcher, &*progress, &cancel, &mut |o| outcomes.push(o));
    progress.finish();
    if args.json {
        let all: Vec<_> = outcomes.iter().map(|o| &o.summary).collect();
        print_json(&all)?;
    } else {
        for outcome in &outcomes {
            let report = outcome.dir.join(REPORT_FILE);
            print(&format!(
                "{}\nreport: {}\n\n",
                outcome.summary.to_text(width()),
                report.display()
            ))?;
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

fn report(dirs: &[PathBuf], out: &Path, json: bool) -> Result<()> {
    let (summaries, text) = match dirs {
        [dir] => {
            let summary = report::write(dir)?;
            let text = summary.to_text(width());
            (vec![summary], text)
        }
        dirs => {
            let summaries = report::compare(dirs, out)?;
            let text = report::comparison_text(dirs, &summaries, width());
            (summaries, text)
        }
    };
    if json {
        return print_json(&summaries);
    }
    let place = if dirs.len() == 1 { &dirs[0] } else { out };
    print(&format!("{text}\nreport: {}\n", place.join(REPORT_FILE).display()))
}

fn images(action: Option<ImagesAction>, json: bool) -> Result<()> {
    let cancel = cancel_on_signal()?;
    let progress = progress::for_stderr();
    let images = Images::open(&cancel, &*progress)?;
    match action {
        Some(ImagesAction::Fetch { kernels }) => {
            images.fetch(&kernels)?;
        }
        Some(ImagesAction::Clean) => {
            let freed = images.clean()?;
            progress.finish();
            return print(&format!(
                "removed {} MiB from {}\n",
                freed >> 20,
                images.root().display()
            ));
        }
        None => {}
    }
    let items = images.list()?;
    progress.finish();
    if json {
        return print_json(&items);
    }
    let mut text = format!("{}\n", images.root().display());
    for item in &items {
        text += &format!("{:>7} MiB  {:<50}  {}\n", item.bytes >> 20, item.name, item.what);
    }
    let all = items.iter().map(|i| i.bytes).sum::<u64>();
    print(&(text + &format!("{:>7} MiB  in all\n", all >> 20)))
}

fn default_out(experiments: &[String]) -> PathBuf {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let stamp: String = now.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    Path::new("lab-results").join(format!("{}-{stamp}", experiments.join("+")))
}

/// `arg` as a shell would need it.
fn quoted(arg: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@".contains(c);
    if !arg.is_empty() && arg.chars().all(plain) {
        return arg.into();
    }
    format!("'{}'", arg.replace('\'', "'\\''"))
}

impl From<&NamespaceArg> for Namespace {
    fn from(arg: &NamespaceArg) -> Namespace {
        match arg {
            NamespaceArg::Cgroup => Namespace::Cgroup,
            NamespaceArg::Ipc => Namespace::Ipc,
            NamespaceArg::Mnt => Namespace::Mnt,
            NamespaceArg::Net => Namespace::Net,
            NamespaceArg::Pid => Namespace::Pid,
            NamespaceArg::Time => Namespace::Time,
            NamespaceArg::User => Namespace::User,
            NamespaceArg::Uts => Namespace::Uts,
        }
    }
}
