// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve-dev`: the `reprieve` command, and the checks of `watch` and `guard`. `make install`
//! leaves it out.

use clap::{Parser, Subcommand};
use reprieve_cli::{exit, run};
use reprieve_lab::check::{self, guard::player};
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "reprieve, and checks of it")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check that `reprieve watch` sees what guests really do, and that `reprieve guard` does what
    /// it promises
    Check(Box<check::CheckArgs>),
    /// Play a VM with many vCPUs, for `check guard-share`
    Play(player::PlayArgs),
    /// `guard` with such VMs
    GuardPlayers(player::GuardArgs),
    #[command(flatten)]
    Shipped(Box<reprieve_cli::Command>),
}

fn main() -> ExitCode {
    let done = |()| ExitCode::SUCCESS;
    exit(match Cli::parse().command {
        Command::Check(args) => check::main(&args).map(done),
        Command::Play(args) => player::play(&args).map(done),
        Command::GuardPlayers(args) => player::guard(&args).map(done),
        Command::Shipped(command) => run(*command),
    })
}
