// SPDX-License-Identifier: MIT OR Apache-2.0
//! Manual pages and shell completions, made from the definition of the arguments.

use anyhow::{Context as _, Result};
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell that is to complete `reprieve`
    shell: Shell,
}

#[derive(Args)]
pub struct ManualArgs {
    /// The directory for the pages
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

/// Prints the completions of a shell.
pub fn completions<C: CommandFactory>(args: &CompletionsArgs) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut C::command(), "reprieve", &mut script);
    reprieve_page::output::print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for the command and for each of its subcommands.
pub fn manual<C: CommandFactory>(args: &ManualArgs) -> Result<ExitCode> {
    let what = || format!("--out {}", args.out.display());
    fs::create_dir_all(&args.out).with_context(what)?;
    let mut command = C::command().disable_help_subcommand(true);
    // Pages of a version have no commit: builds from one source are the same.
    command = command.version(env!("CARGO_PKG_VERSION"));
    command.build();
    clap_mangen::generate_to(command, &args.out).with_context(what)?;
    Ok(ExitCode::SUCCESS)
}

/// The names of all commands that `--help` shows, as their pages are called.
#[cfg(test)]
fn names(command: &clap::Command, prefix: &str, all: &mut Vec<String>) {
    let name = match prefix {
        "" => command.get_name().to_owned(),
        prefix => format!("{prefix}-{}", command.get_name()),
    };
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        names(sub, &name, all);
    }
    all.push(name);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;

    #[test]
    fn each_command_that_help_shows_has_a_page_with_its_options() {
        let out = tempfile::tempdir().unwrap();
        manual::<Cli>(&ManualArgs { out: out.path().into() }).unwrap();
        let (mut wanted, mut found) = (vec![], vec![]);
        names(&Cli::command(), "", &mut wanted);
        for entry in fs::read_dir(out.path()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            found.push(name.strip_suffix(".1").unwrap().to_owned());
        }
        wanted.sort();
        found.sort();
        assert_eq!(found, wanted);
        let guard = fs::read_to_string(out.path().join("reprieve-guard.1")).unwrap();
        assert!(guard.contains(r"\-\-dry\-run"), "{guard}");
    }
}
