// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve watch`.

use crate::live::{Missing, address, announce, colour, interactive, interval, open_more_files};
use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};
use reprieve_lab::process::Cancel;
use reprieve_lab::signals::cancel_on_signal;
use reprieve_page::output::{print, print_to_reader, tell, width};
use reprieve_watch::show::recording::{Recorded, Writer};
use reprieve_watch::show::{self, Source, lines, prometheus, summary, terminal, trace};
use reprieve_watch::{Options, Watch, Which};
use std::io::{BufWriter, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct WatchArgs {
    #[command(subcommand)]
    command: Option<Command>,
    /// Watch this VM only: a name or the VMM's process ID (repeat for several). A VM that does not
    /// run yet is waited for
    #[arg(long, value_name = "NAME|PID")]
    vm: Vec<String>,
    /// Time between two snapshots
    #[arg(long, default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Watch for that long, then print a summary
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    length: Option<Duration>,
    /// Print each snapshot as a line of JSON
    #[arg(long)]
    json: bool,
    /// Serve metrics at http://ADDR:PORT/metrics
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    prometheus: Option<SocketAddr>,
    /// Record events and snapshots to a new file, for `watch trace`
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Print the time lines of a recording as a trace in JSON, for ui.perfetto.dev
    Trace {
        /// The recording of `watch --record`
        file: PathBuf,
    },
}

/// Exits with 1 if the time of `--for` passed and no VM or process was seen.
pub fn main(args: WatchArgs) -> Result<ExitCode> {
    if let Some(Command::Trace { file }) = &args.command {
        return print_trace(file);
    }
    let cancel = cancel_on_signal()?;
    open_more_files();
    // Opening the port and the file needs the user's rights, which the collector gives up.
    let listener = args.prometheus.map(prometheus::Server::listen).transpose()?;
    let writer = args.record.as_deref().map(Writer::create).transpose()?;
    let vms = if args.vm.is_empty() { Which::All } else { Which::Named(args.vm.clone()) };
    let watch = Watch::start(&Options {
        vms,
        interval: args.interval,
        events: args.record.is_some(),
        confine: true,
        ..Options::default()
    });
    let mut watch = match (watch, &args.record) {
        (Ok(watch), _) => watch,
        (Err(error), None) => return Err(error.into()),
        (Err(error), Some(path)) => {
            // Only its first line is in it.
            let _ = std::fs::remove_file(path);
            return Err(error.into());
        }
    };
    let Some(writer) = writer else { return present(&args, &cancel, listener, &mut watch) };
    let mut recorded = Recorded::new(watch, writer);
    let shown = present(&args, &cancel, listener, &mut recorded);
    // The view's error is the cause, if both fail.
    let finished = recorded.finish();
    let code = shown?;
    finished?;
    Ok(code)
}

/// A reader that has gone away is no error.
fn print_trace(file: &Path) -> Result<ExitCode> {
    match trace::write(file, BufWriter::new(std::io::stdout().lock())) {
        Ok(true) => tell("warning: the recording was cut off; the trace ends there"),
        Err(trace::Error::Io(error)) if error.kind() == ErrorKind::BrokenPipe => {}
        other => _ = other?,
    }
    Ok(ExitCode::SUCCESS)
}

fn present(
    args: &WatchArgs,
    cancel: &Cancel,
    listener: Option<TcpListener>,
    source: &mut dyn Source,
) -> Result<ExitCode> {
    if interactive() && !args.json && args.length.is_none() && listener.is_none() {
        if cancel.is_set() {
            return Ok(ExitCode::SUCCESS);
        }
        terminal::run(source, args.interval, colour(), &args.vm).map_err(plain)?;
        return Ok(ExitCode::SUCCESS);
    }
    let server = listener.map(prometheus::Server::start).transpose()?;
    if let Some(server) = &server {
        announce(server);
    }
    let (mut seen, mut last) = (summary::Seen::default(), None);
    let quiet = server.is_some() || args.length.is_some();
    let (mut gone, mut missing) = (false, Missing::of(&args.vm));
    show::drive(source, args.interval, args.length, &cancel.flag(), |snapshot| {
        if let Some(server) = &server {
            server.update(snapshot.clone());
        }
        let read = if args.json {
            print_to_reader(&(serde_json::to_string(&snapshot)? + "\n"))?
        } else {
            quiet || print_to_reader(&lines::text(last.as_ref(), &snapshot))?
        };
        if !read && server.is_none() && args.record.is_none() {
            // Nobody is left to watch for.
            gone = true;
            cancel.set();
        }
        missing.note(snapshot.vms.iter().map(|vm| (vm.pid, vm.name.as_str())));
        if args.length.is_some() {
            seen.note(&snapshot);
        }
        last = Some(snapshot);
        Ok(())
    })
    .map_err(plain)?;
    if args.length.is_some() && !args.json {
        print(&seen.text(width()))?;
    }
    missing.text().into_iter().for_each(tell);
    let nothing = args.length.is_some() && seen.is_empty() && !gone;
    Ok(if nothing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn plain(error: show::SourceError) -> anyhow::Error {
    anyhow!(error)
}
