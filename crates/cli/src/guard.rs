// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve guard`.

mod summary;

use crate::live::{Missing, address, announce, interval, open_more_files};
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use reprieve_guard::control::{self, Control};
use reprieve_guard::{self as guard, Backend, Options, Policy, Statistics, undo};
use reprieve_lab::args::one_of;
use reprieve_lab::signals::cancel_on_signal;
use reprieve_page::output::{print, print_json, tell};
use reprieve_page::plain;
use reprieve_watch::Which;
use reprieve_watch::show::prometheus;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;
use summary::summary;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct GuardArgs {
    #[command(subcommand)]
    command: Option<Command>,
    /// The policy for preempted vCPUs
    #[arg(long, default_value = Policy::default().name(), value_parser = one_of(&Policy::ALL, Policy::name))]
    policy: Policy,
    /// The scheduler: one of our own (Linux 7.1 or newer, with CONFIG_SCHED_CLASS_EXT),
    /// or the stock one
    #[arg(long, default_value = Backend::default().name(), value_parser = one_of(&Backend::ALL, Backend::name))]
    backend: Backend,
    /// The age of a grace period from which on a vCPU that holds it up may be ahead of its turn by
    /// twice that. It bounds no grace period
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = humantime::parse_duration)]
    max_hold: Duration,
    /// Only this VM: a name or the VMM's process ID (repeat for several; --dry-run or --backend
    /// eevdf)
    #[arg(long, value_name = "NAME|PID")]
    vm: Vec<String>,
    /// Change nothing: observe the VMs under the scheduler in force, and show what would have been
    /// done for them. Needs no sched_ext
    #[arg(long)]
    dry_run: bool,
    /// The share of each CPU that VMs have where ordinary or real-time threads would take all
    /// (sched-ext)
    #[arg(long, value_name = "PERCENT", default_value = "50%", value_parser = percent)]
    reserve: u8,
    /// Time between two lines of statistics
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// End after that long
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    length: Option<Duration>,
    /// Print statistics as lines of JSON; the first line says that guard schedules
    #[arg(long)]
    json: bool,
    /// Serve metrics at http://ADDR:PORT/metrics
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    prometheus: Option<SocketAddr>,
}

#[derive(Subcommand)]
enum Command {
    /// Change the policy of the guard that runs here for VMs, from now on
    Set {
        /// For this VM, as long as it runs: a name or the VMM's process ID [default: all VMs]
        #[arg(long, value_name = "NAME|PID")]
        vm: Option<String>,
        /// The policy for its preempted vCPUs
        #[arg(long, value_parser = one_of(&Policy::ALL, Policy::name))]
        policy: Policy,
    },
    /// Show what the guard that runs here does
    Show {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give back what a guard left when it was killed together with its supervisor
    Restore {
        /// Print what was given back as JSON
        #[arg(long)]
        json: bool,
    },
}

fn percent(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse();
    number.ok().filter(|n| *n <= 100).ok_or_else(|| "give 0% to 100%".into())
}

/// A line of `--json`.
fn print_event(event: &str, mut line: Value) -> Result<()> {
    line["event"] = event.into();
    print(&format!("{line}\n"))
}

pub fn main(args: &GuardArgs) -> Result<ExitCode> {
    match &args.command {
        Some(Command::Set { vm, policy }) => set(vm.as_deref(), *policy),
        Some(Command::Show { json: true }) => print_json(&control::statistics()?),
        Some(Command::Show { json: false }) => print(&summary(&control::statistics()?)),
        Some(Command::Restore { json }) => restore(*json),
        None => schedule(args),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Schedules until a signal, or the time of `--for`; fails if the kernel throws guard out.
fn schedule(args: &GuardArgs) -> Result<()> {
    let cancel = cancel_on_signal()?;
    open_more_files();
    let GuardArgs { backend, policy, dry_run, reserve, .. } = *args;
    let sched_ext = backend == Backend::SchedExt;
    let options = Options {
        backend,
        policy,
        max_hold: args.max_hold,
        vms: if args.vm.is_empty() { Which::All } else { Which::Named(args.vm.clone()) },
        dry_run,
        reserve,
        ..Options::default()
    };
    let listener = args.prometheus.map(prometheus::Server::listen).transpose()?;
    let mut guard = guard::start(&options)?;
    let control = sched_ext.then(Control::listen).transpose().unwrap_or_else(|error| {
        tell(format!("warning: `guard show` and `guard set` cannot reach it: {error}"));
        None
    });
    let server = listener.map(prometheus::Server::start).transpose()?;
    server.iter().for_each(announce);
    if sched_ext && guard::ticks_hidden() {
        tell(
            "kvm_intel hides when guests' ticks are due, so rescues come later; load it with preemption_timer=0",
        );
    }
    if args.json {
        let pid = std::process::id();
        let ready = json!({ "backend": backend, "policy": policy, "pid": pid, "dry_run": dry_run });
        print_event("ready", ready)?;
    } else {
        print(&match (sched_ext, dry_run) {
            (_, true) => "dry run: nothing is changed; Ctrl-C ends it\n".into(),
            (true, false) => format!(
                "ready: {} (sched-ext), {reserve} % of each CPU reserved for VMs; Ctrl-C gives all back\n",
                policy.name(),
            ),
            (false, false) => {
                "ready: slices (eevdf); Ctrl-C gives every vCPU its slice back\n".into()
            }
        })?;
    }
    let (mut last, mut prints, mut missing) = (None, args.json, Missing::of(&args.vm));
    let flag = cancel.flag();
    let each = |statistics: &Statistics| {
        if let Some(server) = &server {
            server.update(statistics.clone());
        }
        // Also without a place for its lines (a full disk), guard schedules on.
        if prints {
            if let Err(error) = print_event("statistics", json!(statistics)) {
                prints = false;
                tell(format!("no more statistics: {error:#}"));
            }
        }
        missing.note(statistics.vms.iter().map(|vm| (vm.pid, vm.name.as_str())));
        last = Some(statistics.clone());
        anyhow::Ok(())
    };
    let done = guard::run(&mut *guard, args.interval, args.length, &flag, control.as_ref(), each);
    flag.store(true, Ordering::Relaxed);
    drop(guard);
    done?;
    if let Some(missing_ones) = missing.text() {
        if dry_run && missing.is_all(&args.vm) {
            bail!(missing_ones);
        }
        tell(missing_ones);
    }
    match last.filter(|_| !args.json) {
        Some(last) => print(&summary(&last)),
        None => Ok(()),
    }
}

fn set(vm: Option<&str>, policy: Policy) -> Result<()> {
    let (vms, policy) = (control::set(vm, policy)?, policy.name());
    if vms.is_empty() {
        print(&format!("{policy}, for VMs that come\n"))?;
    }
    vms.iter().try_for_each(|vm| print(&format!("{}: {policy}\n", plain(vm))))
}

fn restore(json: bool) -> Result<()> {
    let restored = undo::restore()?;
    if json {
        print_json(&restored)?;
    } else {
        if let Some(pid) = restored.active {
            print(&format!("guard (process {pid}) or its supervisor is at work: left alone\n"))?;
        }
        print(&format!(
            "given back: slices of {} threads, what was reserved on {} CPUs\n",
            restored.threads, restored.cpus
        ))?;
    }
    if !restored.failed.is_empty() {
        bail!("not given back: {}", restored.failed.join("; "));
    }
    Ok(())
}
