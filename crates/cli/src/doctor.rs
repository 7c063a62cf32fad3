// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve doctor`: what this machine supports, and what each missing thing would take.

use crate::output::{print, print_json};
use anyhow::Result;
use clap::Args;
use reprieve::Restartable;
use serde::Serialize;
use std::fs::OpenOptions;
use std::process::ExitCode;

#[derive(Args)]
pub struct Options {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One thing that a part of Reprieve uses.
#[derive(Serialize)]
struct Check {
    name: &'static str,
    /// Which part uses it.
    used_by: &'static str,
    present: bool,
    detail: String,
    /// What to do where it is missing.
    remedy: Option<&'static str>,
}

/// Exits with 1 when something is missing.
pub fn main(options: &Options) -> Result<ExitCode> {
    let checks = [restartable(), membarrier(), kvm()];
    if options.json {
        print_json(&checks)?;
    } else {
        let mut text = String::new();
        for check in &checks {
            let mark = if check.present { "yes" } else { "no " };
            text += &format!("{mark}  {:<22} {}\n", check.name, check.detail);
            if let Some(remedy) = check.remedy.filter(|_| !check.present) {
                text += &format!("     {:<22} {}: {remedy}\n", "", check.used_by);
            }
        }
        print(&text)?;
    }
    let all = checks.iter().all(|check| check.present);
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn restartable() -> Check {
    let support = reprieve::support().restartable;
    Check {
        name: "restartable sections",
        used_by: "runtime",
        present: support == Restartable::Yes,
        detail: format!("{support} (proven by a self-test)"),
        remedy: Some("lookups use plain sections, which grace periods wait for"),
    }
}

fn membarrier() -> Check {
    let present = reprieve::support().membarrier;
    Check {
        name: "membarrier",
        used_by: "runtime",
        present,
        detail: if present { "readers need no fence" } else { "readers execute a fence" }.into(),
        remedy: Some("Linux 4.14 or newer; let the sandbox's filter pass membarrier(2)"),
    }
}

fn kvm() -> Check {
    let device = "/dev/kvm";
    let (present, detail) = match OpenOptions::new().read(true).write(true).open(device) {
        Ok(_) => (
            true,
            format!("{device} opens; `reprieve lab run` proves whether it runs stock kernels"),
        ),
        Err(error) => (false, format!("{device}: {error}")),
    };
    Check {
        name: "KVM",
        used_by: "lab",
        present,
        detail,
        remedy: Some("nothing to do: the lab boots a host of its own, which has it"),
    }
}
