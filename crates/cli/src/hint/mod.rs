// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve hint`.

mod region;

use crate::preload::{self, Library};
use anyhow::{Result, bail};
use clap::Subcommand;
use reprieve_page::output::tell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

#[derive(Subcommand)]
pub enum Command {
    /// Memory that a VM's guest shares with this host, for hints of the guest's programs
    #[command(subcommand)]
    Region(RegionCommand),
    /// Run a program whose pthread locks wait by what the scheduler does
    Run {
        /// The program and its arguments
        #[arg(
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "CMD"
        )]
        command: Vec<OsString>,
    },
    // Hidden: `hint run` and `doctor` run this command so, with the library preloaded.
    /// Whether the locks' library, preloaded into this command, replaces any
    #[command(hide = true)]
    Replaced,
}

#[derive(Subcommand)]
pub enum RegionCommand {
    /// On the host: make the file, and say what to add to the VM
    Create {
        /// The file, in memory best; libvirt wants it in /dev/shm
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Show what is in it: threads with hints, and what the host says of vCPUs
    Show {
        /// On the host: the file. Without it, in a guest: what the guest's host offers
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

const LOCKS: Library = Library {
    file: "libreprieve_locks.so",
    package: "reprieve-shim",
    variable: "REPRIEVE_LOCKS_LIBRARY",
    refused: &[
        preload::ADDRESS_SANITIZER,
        (
            "__tsan_init",
            "built with ThreadSanitizer, which does not know these locks, and would see races",
        ),
    ],
};

pub fn main(command: Command) -> Result<ExitCode> {
    match command {
        Command::Region(RegionCommand::Create { file }) => {
            region::create(&file).map(|()| ExitCode::SUCCESS)
        }
        Command::Region(RegionCommand::Show { file, json }) => {
            region::show(file.as_deref(), json).map(|()| ExitCode::SUCCESS)
        }
        Command::Run { command } => {
            check_tool(&command)?;
            preload::run(&LOCKS, &command, || {
                if !replaces_locks().unwrap_or(true) {
                    tell(NOT_REPLACED);
                }
                Ok(vec![])
            })
        }
        Command::Replaced => Ok(match replaced_here() {
            Some(true) => ExitCode::SUCCESS,
            Some(false) => ExitCode::from(NONE_REPLACED),
            None => ExitCode::FAILURE,
        }),
    }
}

/// Fails for tools of valgrind's that watch the C library's locks.
fn check_tool(command: &[OsString]) -> Result<()> {
    let is_valgrind = Path::new(&command[0]).file_name() == Some("valgrind".as_ref());
    let tool = |argument: &&OsString| *argument == "--tool=helgrind" || *argument == "--tool=drd";
    match command.iter().find(tool).filter(|_| is_valgrind) {
        Some(tool) => bail!(
            "valgrind {}: it does not know these locks, and would see races",
            tool.to_string_lossy()
        ),
        None => Ok(()),
    }
}

pub const NOT_REPLACED: &str = "the C library's locks are not laid out as the locks' library \
    expects, which replaces none";

/// The exit code of no other end of a command.
const NONE_REPLACED: u8 = 3;

/// Whether programs get other locks by `reprieve hint run`: a copy of this command says so, which
/// has the library preloaded.
pub fn replaces_locks() -> Result<bool> {
    let mut copy = std::process::Command::new(std::env::current_exe()?);
    copy.args(["hint", "replaced"]).env("LD_PRELOAD", LOCKS.find()?);
    copy.env("REPRIEVE_HINT_REGION", "off").stdin(Stdio::null()).stdout(Stdio::null());
    let status = copy.stderr(Stdio::null()).status()?;
    if status.success() || status.code() == Some(NONE_REPLACED.into()) {
        return Ok(status.success());
    }
    bail!("this command with the locks' library: {status}")
}

/// Whether the library replaces locks, if it is loaded.
fn replaced_here() -> Option<bool> {
    // SAFETY: a function of our own library, without arguments, of that type.
    unsafe {
        let function = libc::dlsym(libc::RTLD_DEFAULT, c"reprieve_locks_replaced".as_ptr());
        type Function = unsafe extern "C" fn() -> bool;
        std::mem::transmute::<*mut libc::c_void, Option<Function>>(function).map(|f| f())
    }
}
