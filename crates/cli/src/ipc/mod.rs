// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve ipc`: programs on Reprieve's System V IPC, and what they have made.

mod objects;
mod past;
mod run;

use anyhow::Result;
use clap::{Args, Subcommand};
use objects::Wanted;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum Command {
    /// Run a program on Reprieve's System V IPC
    Run {
        #[command(flatten)]
        place: Place,
        /// End each process that goes past the library to the kernel's IPC, with SIGSYS
        #[arg(long)]
        strict: bool,
        /// The program and its arguments
        #[arg(
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "CMD"
        )]
        command: Vec<OsString>,
    },
    /// List semaphore sets, message queues and shared memory segments, as ipcs does
    Ls {
        #[command(flatten)]
        place: Place,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove objects, as ipcrm does
    Rm {
        #[command(flatten)]
        place: Place,
        /// sem:ID, msg:ID or shm:ID; or a key, sem:0xKEY
        #[arg(value_name = "OBJECT", required_unless_present = "all")]
        objects: Vec<Wanted>,
        /// Remove all that there are
        #[arg(long, conflicts_with = "objects")]
        all: bool,
        /// Print JSON: the objects that were removed
        #[arg(long)]
        json: bool,
    },
    /// Show one object: owner, times, values, who waits
    Stat {
        #[command(flatten)]
        place: Place,
        /// sem:ID, msg:ID or shm:ID; or a key, sem:0xKEY
        #[arg(value_name = "OBJECT")]
        object: Wanted,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub struct Place {
    /// The namespace's directory. The default is REPRIEVE_IPC_DIR, or a directory of the user's
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub fn main(command: Command) -> Result<ExitCode> {
    match command {
        Command::Run { place, strict, command } => run::run(place.dir, strict, &command),
        Command::Ls { place, json } => objects::list(place.dir, json),
        Command::Rm { place, objects, all, json } => {
            objects::remove(place.dir, (!all).then_some(&objects[..]), json)
        }
        Command::Stat { place, object, json } => objects::show(place.dir, object, json),
    }
}
