// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `reprieve` command. Results go to standard output, progress to standard error; it exits with 0, 1 (failed) or 2 (bad usage).

mod lab;
mod output;
mod progress;
mod signals;
mod verify;

use crate::output::harmless;
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
    /// Check that restartable code in ELF files never leaves its section
    Verify(verify::Options),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Lab(command) => lab::main(command).map(|()| ExitCode::SUCCESS),
        Command::Verify(options) => verify::main(&options),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            // A closed standard error must not turn the exit status into a panic's.
            let _ = writeln!(std::io::stderr(), "reprieve: {}", harmless(&format!("{error:#}")));
            match error.downcast_ref() {
                Some(Error::Usage(_)) => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}
