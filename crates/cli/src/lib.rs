// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `reprieve` command. Results go to standard output, progress to standard error; it exits with
//! 0, 1 (failed) or 2 (bad usage).
//!
//! `main.rs` is the command, `dev.rs` the same command with the project's own checks.

mod bench;
mod doctor;
mod guard;
mod hint;
mod ipc;
mod live;
mod manual;
mod preload;
mod verify;
mod watch;

use anyhow::Result;
use clap::{Parser, Subcommand};
use reprieve_lab::command as lab;
use reprieve_lab::error::Error;
use reprieve_page::output::{tell, with_causes};
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "reprieve",
    version = env!("REPRIEVE_VERSION"),
    about = "Grace periods that do not wait for preempted readers"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// RCU-reader preemption in real VMs
    #[command(subcommand)]
    Lab(lab::Command),
    /// Check that restartable code in ELF files never leaves its section
    Verify(verify::Options),
    /// The runtime beside its peers, in one run
    Bench(bench::BenchArgs),
    /// Programs on Reprieve's System V IPC: run them, see and remove what they have made
    #[command(subcommand)]
    Ipc(ipc::Command),
    /// Show what this machine supports, and how to get what is missing
    Doctor(doctor::Options),
    /// Show which critical sections of this host's VMs are preempted, and which vCPUs hold up their
    /// grace periods, live
    Watch(watch::WatchArgs),
    /// Schedule this host's VMs with regard to their critical sections and grace periods
    Guard(guard::GuardArgs),
    /// Critical-section hints of programs, and what the scheduler says back
    #[command(subcommand)]
    Hint(hint::Command),
    /// Print what a shell needs to complete this command
    Completions(manual::CompletionsArgs),
    /// Write manual pages of all commands
    Manual(manual::ManualArgs),
}

pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Lab(command) => lab::main(command).map(|()| ExitCode::SUCCESS),
        Command::Verify(options) => verify::main(&options),
        Command::Ipc(command) => ipc::main(command),
        Command::Doctor(options) => doctor::main(&options),
        Command::Watch(args) => watch::main(args),
        Command::Guard(args) => guard::main(&args),
        Command::Hint(command) => hint::main(command),
        Command::Completions(args) => manual::completions::<Cli>(&args),
        Command::Manual(args) => manual::manual::<Cli>(&args),
        Command::Bench(args) => bench::main(args).map(|()| ExitCode::SUCCESS),
    }
}

/// Prints the error, if any, and returns the exit status.
pub fn exit(result: Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) => {
            tell(with_causes(&error));
            if bad_usage(&error) { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn bad_usage(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Usage(_)))
        || matches!(error.downcast_ref(), Some(reprieve_bench::Error::Usage(_)))
        || matches!(error.downcast_ref(), Some(reprieve_guard::Error::Option { .. }))
}
