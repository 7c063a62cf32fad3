// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `reprieve` command. Results go to standard output, progress to standard error; it exits with 0, 1 (failed) or 2 (bad usage).

mod lab;
mod output;
mod progress;
mod signals;

use clap::{Parser, Subcommand};
use reprieve_lab::error::Error;
use std::io::Write;
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "reprieve",
    version,
    about = "Grace periods that do not wait for preempted readers"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// RCU-reader preemption in real VMs: run, report, compare
    #[command(subcommand)]
    Lab(lab::Command),
}

fn main() -> ExitCode {
    let Command::Lab(command) = Cli::parse().command;
    match lab::main(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed standard error must not turn the exit status into a panic's.
            let _ = writeln!(std::io::stderr(), "reprieve: {error:#}");
            match error.downcast_ref() {
                Some(Error::Usage(_)) => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}
