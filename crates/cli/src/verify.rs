// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve verify`, for a terminal and for users' CI. A file that cannot be examined counts as
//! failed.

use anyhow::Result;
use reprieve_page::output;
use reprieve_page::plain;
use reprieve_verify::Report;
use serde::Serialize;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Larger files are refused.
const LARGEST: u64 = 4 << 30;

#[derive(clap::Args)]
#[command(
    after_help = "Exits with 0 if every file keeps the rules, 1 if an instruction breaks one or a file cannot be examined, 2 for bad usage.\n\
                  Shows: all control flow stays in the section `reprieve_restart`, no system call, x87 or MMX register is in it, stores go to the stack or the result only, \
                  and it is armed before it reads. Does not show: how large stack arrays and results are."
)]
pub struct Options {
    /// Linked programs or shared objects for x86-64, not stripped
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print a JSON array, one object per file
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Outcome<'a> {
    file: &'a Path,
    clean: bool,
    #[serde(flatten)]
    report: Option<Report>,
    error: Option<String>,
}

pub fn main(options: &Options) -> Result<ExitCode> {
    let outcomes: Vec<Outcome<'_>> = options.files.iter().map(|file| examine(file)).collect();
    if options.json {
        output::print_json(&outcomes)?;
    } else {
        output::print(&text(&outcomes))?;
    }
    Ok(if outcomes.iter().all(|o| o.clean) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn examine(file: &Path) -> Outcome<'_> {
    let result = read(file)
        .map_err(|e| e.to_string())
        .and_then(|bytes| reprieve_verify::verify(&bytes).map_err(|e| e.to_string()));
    match result {
        Ok(report) => {
            Outcome { file, clean: report.findings.is_empty(), report: Some(report), error: None }
        }
        Err(error) => Outcome { file, clean: false, report: None, error: Some(error) },
    }
}

fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    // The open of a pipe would wait for somebody who writes to it.
    let file = std::fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(file)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    if file.take(LARGEST + 1).read_to_end(&mut bytes)? as u64 > LARGEST {
        return Err(std::io::Error::other("more than 4 GiB"));
    }
    Ok(bytes)
}

/// Names of files and of what is in them may hold anything: a line is a line, without control
/// characters.
fn text(outcomes: &[Outcome<'_>]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let lines = match (&outcome.report, &outcome.error) {
            (Some(r), _) if outcome.clean => vec![format!(
                "clean: {} functions, {} instructions, {} bytes",
                r.functions, r.instructions, r.bytes
            )],
            (Some(r), _) => r.lines(),
            (None, error) => vec![error.clone().unwrap_or_default()],
        };
        for line in lines {
            text += &plain(&format!("{}: {line}", outcome.file.display()));
            text.push('\n');
        }
    }
    text
}
