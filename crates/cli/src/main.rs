// SPDX-License-Identifier: MIT OR Apache-2.0
//! See `lib.rs`.

use clap::Parser;
use reprieve_cli::{Cli, exit, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    exit(run(Cli::parse().command))
}
