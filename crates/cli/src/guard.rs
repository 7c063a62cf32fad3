// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve guard`.

mod would;

use crate::live::{Missing, address, announce, interval, open_more_files};
use anyhow::{Result, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use reprieve_guard::control::{self, Control};
use reprieve_guard::{
    self as guard, self, Backend, Granted, Options, Policy, RegionStatistics, Statistics,
    VmStatistics, undo,
};
use reprieve_lab::signals::cancel_on_signal;
use reprieve_page::output::{print, print_json, tell};
use reprieve_page::plain;
use reprieve_watch::Which;
use reprieve_watch::show::{activity, prometheus};
use serde::Serialize;
use serde_json::json;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct GuardArgs {
    #[command(subcommand)]
    command: Option<Command>,
    /// The policy for preempted vCPUs
    #[arg(long, default_value = Policy::default().name(), value_parser = named(Policy::ALL, Policy::name))]
    policy: Policy,
    /// The scheduler: one of our own (Linux 7.1 or newer, with CONFIG_SCHED_CLASS_EXT),
    /// or the stock one
    #[arg(long, default_value = Backend::default().name(), value_parser = named(Backend::ALL, Backend::name))]
    backend: Backend,
    /// The age of a grace period from which on vCPUs that hold it up are rescued whatever they have
    /// used, and get further ahead of their turns. It bounds no grace period
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
    Set(SetArgs),
    /// Show what the guard that runs here does
    Show(ShowArgs),
    /// Give back what a guard left when it was killed together with its supervisor
    Restore(RestoreArgs),
}

#[derive(Args)]
struct SetArgs {
    /// For this VM, as long as it runs: a name or the VMM's process ID [default: all VMs]
    #[arg(long, value_name = "NAME|PID")]
    vm: Option<String>,
    /// The policy for its preempted vCPUs
    #[arg(long, value_parser = named(Policy::ALL, Policy::name))]
    policy: Policy,
}

#[derive(Args)]
struct ShowArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct RestoreArgs {
    /// Print what was given back as JSON
    #[arg(long)]
    json: bool,
}

/// One of `all` by its name.
fn named<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let find = move |asked: String| all.into_iter().find(|&one| name(one) == asked);
    PossibleValuesParser::new(all.map(name)).try_map(move |asked| find(asked).ok_or("no such name"))
}

fn percent(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse();
    number.ok().filter(|n| *n <= 100).ok_or_else(|| "give 0% to 100%".into())
}

/// A line of `--json`.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    /// Guard schedules from now on.
    Ready {
        backend: Backend,
        policy: Policy,
        pid: u32,
        dry_run: bool,
    },
    Statistics(&'a Statistics),
}

fn print_line(line: &Line) -> Result<()> {
    print(&(serde_json::to_string(line)? + "\n"))
}

/// Schedules until a signal, or the time of `--for`. Exits with 1 if the kernel throws it out.
pub fn main(args: &GuardArgs) -> Result<ExitCode> {
    match &args.command {
        Some(Command::Set(args)) => return set(args),
        Some(Command::Show(args)) => return show(args),
        Some(Command::Restore(args)) => return restore(args.json),
        None => (),
    }
    let cancel = cancel_on_signal()?;
    open_more_files();
    let options = Options {
        backend: args.backend,
        policy: args.policy,
        max_hold: args.max_hold,
        vms: if args.vm.is_empty() { Which::All } else { Which::Named(args.vm.clone()) },
        dry_run: args.dry_run,
        reserve: args.reserve,
        ..Options::default()
    };
    let listener = args.prometheus.map(prometheus::Server::listen).transpose()?;
    let mut guard = guard::start(&options)?;
    let control = (args.backend == Backend::SchedExt).then(Control::listen);
    let control = control.and_then(|control| {
        let warn = |error| {
            tell(format!("warning: `guard show` and `guard set` cannot reach it: {error}"));
        };
        control.map_err(warn).ok()
    });
    let server = listener.map(prometheus::Server::start).transpose()?;
    if let Some(server) = &server {
        announce(server);
    }
    if args.backend == Backend::SchedExt && guard::ticks_hidden() {
        tell(
            "kvm_intel hides when guests' ticks are due, so rescues come later; load it with preemption_timer=0",
        );
    }
    let (backend, policy) = (args.backend, args.policy);
    if args.json {
        let (pid, dry_run) = (std::process::id(), args.dry_run);
        print_line(&Line::Ready { backend, policy, pid, dry_run })?;
    } else {
        print(&match (backend, args.dry_run) {
            (_, true) => "dry run: nothing is changed; Ctrl-C ends it\n".into(),
            (Backend::SchedExt, false) => format!(
                "ready: {} ({}), {} % of each CPU reserved for VMs; Ctrl-C gives all back\n",
                policy.name(),
                backend.name(),
                options.reserve
            ),
            (Backend::Eevdf, false) => {
                "ready: slices (eevdf); Ctrl-C gives every vCPU its slice back\n".into()
            }
        })?;
    }
    let mut last: Option<Statistics> = None;
    let mut prints = args.json;
    let mut missing = Missing::of(&args.vm);
    let (flag, length) = (cancel.flag(), args.length);
    let done =
        guard::run(&mut *guard, args.interval, length, &flag, control.as_ref(), |statistics| {
            if let Some(server) = &server {
                server.update(statistics.clone());
            }
            // Also without a place for its lines (a full disk), guard schedules on.
            if prints {
                if let Err(error) = print_line(&Line::Statistics(statistics)) {
                    prints = false;
                    tell(format!("no more statistics: {error:#}"));
                }
            }
            missing.note(statistics.vms.iter().map(|vm| (vm.pid, vm.name.as_str())));
            last = Some(statistics.clone());
            anyhow::Ok(())
        });
    flag.store(true, Ordering::Relaxed);
    drop(guard);
    done?;
    if let Some(missing_ones) = missing.text() {
        if args.dry_run && missing.is_all(&args.vm) {
            bail!(missing_ones);
        }
        tell(missing_ones);
    }
    if let (false, Some(last)) = (args.json, &last) {
        print(&match last.backend {
            Backend::SchedExt => summary(last),
            Backend::Eevdf => slices(last),
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

fn set(args: &SetArgs) -> Result<ExitCode> {
    let (vms, policy) = (control::set(args.vm.as_deref(), args.policy)?, args.policy.name());
    if vms.is_empty() {
        print(&format!("{policy}, for VMs that come\n"))?;
    }
    for vm in vms {
        print(&format!("{}: {policy}\n", plain(&vm)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(args: &ShowArgs) -> Result<ExitCode> {
    let statistics = control::statistics()?;
    if args.json { print_json(&statistics) } else { print(&summary(&statistics)) }?;
    Ok(ExitCode::SUCCESS)
}

fn restore(json: bool) -> Result<ExitCode> {
    let restored = undo::restore()?;
    if json {
        print_json(&json!({
            "threads": restored.threads, "cpus": restored.cpus, "active": restored.active, "failed": restored.failed,
        }))?;
    } else {
        if let Some(pid) = restored.active {
            print(&format!("guard (process {pid}) or its supervisor is at work: left alone\n"))?;
        }
        print(&format!(
            "given back: slices of {} threads, what was reserved on {} CPUs\n",
            restored.threads, restored.cpus
        ))?;
    }
    if restored.failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    bail!("not given back: {}", restored.failed.join("; "))
}

/// The vCPUs with short slices, by VM.
fn slices(statistics: &Statistics) -> String {
    let vm = |vm: &VmStatistics| {
        let name = plain(&vm.name);
        let trouble = vm.trouble.iter().map(|trouble| format!("{name}: {}\n", plain(trouble)));
        let short = format!("{name}: {} of {} vCPUs had short slices\n", vm.short, vm.vcpus);
        trouble.fold(short, |text, line| text + &line)
    };
    statistics.vms.iter().map(vm).collect()
}

/// The statistics, of what was done or would have been, by VM.
fn summary(statistics: &Statistics) -> String {
    if statistics.dry_run {
        return would::summary(statistics);
    }
    let seconds = |ns: u64| ns as f64 / 1e9;
    let mut text = format!(
        "{} for {:.1} s; {} decisions of {} ns on average{}\n",
        statistics.policy.name(),
        seconds(statistics.elapsed_ns),
        statistics.decisions,
        statistics.decisions_ns / statistics.decisions.max(1),
        times(statistics),
    );
    for vm in &statistics.vms {
        let critical = |class| activity::CRITICAL.contains(&class);
        let those = vm.preempted.iter().filter(|preempted| critical(preempted.class));
        let (avoided, suffered) =
            those.fold((0, 0), |sum, p| (sum.0 + p.avoided, sum.1 + p.suffered));
        text += &format!(
            "{}: {} vCPUs, weight {}, {:.1} s on CPUs; preemptions in critical sections: {avoided} avoided, {suffered} suffered\n",
            plain(&vm.name),
            vm.vcpus,
            vm.weight,
            seconds(vm.on_cpu_ns),
        );
        if let Some(region) = &vm.region {
            text += &announced(region);
        }
        for (what, granted) in vm.grants() {
            text += &grants(what, granted);
        }
        if let Some(trouble) = &vm.trouble {
            text += &format!("  {}\n", plain(trouble));
        }
    }
    text
}

/// How long most decisions took.
fn times(statistics: &Statistics) -> String {
    let times = &statistics.decision_times;
    let both = times.median_ns.zip(times.p99_ns);
    both.map_or(String::new(), |(median, p99)| {
        format!(", {median} ns in the median; 99 % took {p99} ns at most")
    })
}

/// The announcements of the guest's programs.
fn announced(region: &RegionStatistics) -> String {
    let mut text = format!(
        "  sections that its programs announced: preemptions {} avoided, {} suffered\n",
        region.avoided, region.suffered,
    );
    if let Some(trouble) = &region.trouble {
        text += &format!("  its programs are told nothing: {}\n", plain(trouble));
    }
    text
}

/// A line, if there were any.
fn grants(what: &str, granted: &Granted) -> String {
    if granted.count + granted.refused == 0 {
        return String::new();
    }
    format!(
        "  {what}: {} times, {:.1} ms in all, {:.3} ms at most; {} refused\n",
        granted.count,
        granted.total_ns as f64 / 1e6,
        granted.max_ns as f64 / 1e6,
        granted.refused,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use reprieve_guard::{Preempted, Times};
    use reprieve_watch::model::Class;

    #[test]
    fn the_summary_counts_critical_sections_only() {
        let preempted = |class, suffered, avoided| Preempted { class, suffered, avoided };
        let vm = VmStatistics {
            name: "db\u{1b}".into(),
            vcpus: 2,
            weight: 100,
            preempted: vec![
                preempted(Class::User, 50, 0),
                preempted(Class::Reader, 3, 10),
                preempted(Class::Softirq, 1, 7),
            ],
            extended: Granted { count: 20, total_ns: 1_500_000, max_ns: 900_000, refused: 1 },
            region: Some(RegionStatistics { suffered: 2, avoided: 40, trouble: None }),
            ..VmStatistics::default()
        };
        let statistics = Statistics {
            elapsed_ns: 2_000_000_000,
            vms: vec![vm],
            decisions: 4,
            decisions_ns: 400,
            decision_times: Times { median_ns: Some(90), p99_ns: Some(132), ..Times::default() },
            ..Statistics::new(Backend::SchedExt, Policy::Full)
        };
        let text = summary(&statistics);
        assert!(text.contains("17 avoided, 4 suffered"), "{text}");
        let decisions = "4 decisions of 100 ns on average, 90 ns in the median; 99 % took 132 ns";
        assert!(text.contains(decisions), "{text}");
        assert!(
            text.contains("extended: 20 times, 1.5 ms in all, 0.900 ms at most; 1 refused"),
            "{text}"
        );
        assert!(text.contains("announced: preemptions 40 avoided, 2 suffered"), "{text}");
        assert!(!text.contains("rescued") && !text.contains('\u{1b}'), "{text}");
    }
}
