// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve lab`.

use crate::progress::{self, Messages};
use anyhow::{Context as _, Result, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use reprieve_lab::error::Error;
use reprieve_lab::execute::{self, Context};
use reprieve_lab::experiments::{self, Options, POLICIES, Request};
use reprieve_lab::host::{self, Message, Mode};
use reprieve_lab::images::{ImageSet, Images};
use reprieve_lab::plan::{Plan, Scale};
use reprieve_lab::process::Cancel;
use reprieve_lab::protocol::Namespace;
use reprieve_lab::report;
use reprieve_lab::run::{self, Outcome, Settings};
use reprieve_lab::vm::Accel;
use std::io::IsTerminal;
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
        #[arg(long)]
        images: String,
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
        Command::Images { action, json } => images(action, json),
        Command::Execute { plan, images } => execute(&plan, &images),
        Command::Probe { images } => probe(&images),
    }
}

fn list(json: bool) -> Result<()> {
    if json {
        let all = experiments::ALL.iter().map(|e| {
            serde_json::json!({
                "name": e.name(), "guest": e.summary(), "competitors": e.competition(), "source": e.source(),
            })
        });
        println!("{}", serde_json::to_string_pretty(&all.collect::<Vec<_>>())?);
        return Ok(());
    }
    for e in experiments::ALL {
        println!(
            "{:<10}{} [{}]\n{:10}against {}",
            e.name(),
            e.summary(),
            e.source(),
            "",
            e.competition()
        );
    }
    Ok(())
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
    let settings = Settings {
        mode: match args.host {
            HostArg::Auto => Mode::Auto,
            HostArg::Kvm => Mode::Kvm,
            HostArg::Nested => Mode::Nested,
            HostArg::Tcg => Mode::Tcg,
        },
        host_kernel: args.host_kernel,
        out,
    };
    let cancel = cancel_on_signal()?;
    let progress = progress::for_stderr();
    let mut outcomes: Vec<Outcome> = Vec::new();
    let ran = run::run(&requests, &settings, &*progress, &cancel, &mut |o| outcomes.push(o));
    progress.finish();
    if args.json {
        let all: Vec<_> = outcomes.iter().map(|o| &o.summary).collect();
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        for outcome in &outcomes {
            print!("{}", outcome.summary.to_text(width()));
            println!("\nreport: {}\n", outcome.dir.join("report.html").display());
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
        println!("{}", serde_json::to_string_pretty(&summaries)?);
        return Ok(());
    }
    let place = if dirs.len() == 1 { &dirs[0] } else { out };
    print!("{text}");
    println!("\nreport: {}", place.join("report.html").display());
    Ok(())
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
            println!("removed {} MiB from {}", freed >> 20, images.root().display());
            return Ok(());
        }
        None => {}
    }
    let items = images.list()?;
    progress.finish();
    if json {
        println!("{}", serde_json::to_string_pretty(&items)?);
        return Ok(());
    }
    println!("{}", images.root().display());
    for item in &items {
        println!("{:>7} MiB  {:<44}  {}", item.bytes >> 20, item.name, item.what);
    }
    println!("{:>7} MiB  in all", items.iter().map(|i| i.bytes).sum::<u64>() >> 20);
    Ok(())
}

/// Inside a lab host: KVM on this machine, messages instead of results.
fn execute(plan: &str, images: &str) -> Result<()> {
    let plan: Plan = serde_json::from_str(plan).context("--plan")?;
    let images: ImageSet = serde_json::from_str(images).context("--images")?;
    let logs = tempfile::tempdir().context("log directory")?;
    // The logs get the names they have in here in the results' directory outside, so errors must name them without a directory of here.
    std::env::set_current_dir(logs.path()).context("log directory")?;
    let cancel = cancel_on_signal()?;
    let context = Context {
        images: &images,
        accel: Accel::Kvm,
        logs: Path::new("logs"),
        boot_limit: run::BOOT_LIMIT,
        progress: &Messages,
        cancel: &cancel,
    };
    std::fs::create_dir(context.logs).context("log directory")?;
    let info = host::info("kvm", "inside a lab host", &images.qemu.version);
    let ran = execute::execute(&plan, info, &context, &mut |record| {
        Messages::send(&Message::Record { record }).map_err(Error::io("standard output"))
    });
    for entry in context.logs.read_dir()?.flatten() {
        let text = std::fs::read(entry.path()).unwrap_or_default();
        let text =
            String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_MAX)..]).into_owned();
        let name = entry.file_name().to_string_lossy().into_owned();
        Messages::send(&Message::Log { name, text })?;
    }
    Ok(ran?)
}

/// Bytes of a guest's console that leave the lab host.
const LOG_MAX: usize = 64 << 10;

fn probe(images: &str) -> Result<()> {
    let images: ImageSet = serde_json::from_str(images).context("--images")?;
    let logs = tempfile::tempdir().context("log directory")?;
    Ok(host::prove_kvm(&images, logs.path(), &cancel_on_signal()?)?)
}

/// A [`Cancel`] that SIGINT, SIGTERM and SIGHUP set; a second one ends the program at once (its VMs die with it).
fn cancel_on_signal() -> Result<Cancel> {
    let cancel = Cancel::default();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // The order matters: the first signal finds the flag unset.
        signal_hook::flag::register_conditional_shutdown(signal, 1, cancel.flag())?;
        signal_hook::flag::register(signal, cancel.flag())?;
    }
    Ok(cancel)
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

/// Columns of standard output.
fn width() -> usize {
    let columns = console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
    columns.filter(|_| std::io::stdout().is_terminal()).unwrap_or(100)
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
