// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve doctor`: what this machine supports, what its guests use, and how to get what is
//! missing.

mod guest;
mod host;

use anyhow::Result;
use clap::Args;
use reprieve_page::output::{print, print_json, width};
use reprieve_page::plain_lines;
use serde::Serialize;
use std::process::ExitCode;

#[derive(Args)]
#[command(
    after_help = "Exits with 1 if something is missing that is not optional, or if a VM of --vm is \
                  not found or cannot be read."
)]
pub struct Options {
    /// Look at this VM as well: a name or the VMM's process ID (repeat for several)
    #[arg(long, value_name = "NAME|PID")]
    vm: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A feature that a part of Reprieve uses, or that a guest should use.
#[derive(Serialize)]
struct Check {
    name: &'static str,
    /// The part of Reprieve that uses it.
    used_by: &'static str,
    present: bool,
    /// Reprieve makes up for what is missing: there is nothing to do.
    optional: bool,
    detail: String,
    /// The remedy if it is missing.
    remedy: Option<String>,
}

#[derive(Serialize)]
struct Report {
    host: Vec<Check>,
    vms: Vec<guest::Report>,
}

/// Exits with 1 when something is missing that is not optional.
pub fn main(options: &Options) -> Result<ExitCode> {
    let mut vms = vec![];
    for query in &options.vm {
        vms.push(guest::examine(query)?);
    }
    let report = Report { host: host::checks(), vms };
    if options.json {
        print_json(&report)?;
    } else {
        print(&(plain_lines(&report.text()) + "\n"))?;
    }
    let all = report.host.iter().all(Check::fine);
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Report {
    /// The VMs; beside them, of the host only what is missing.
    fn text(&self) -> String {
        let shown = |check: &&Check| self.vms.is_empty() || !check.fine();
        let vms = self.vms.iter().map(|vm| vm.text() + "\n");
        vms.chain(self.host.iter().filter(shown).map(Check::text)).collect()
    }
}

impl Check {
    fn fine(&self) -> bool {
        self.present || self.optional
    }

    fn text(&self) -> String {
        let mark = if self.present { "yes" } else { "no" };
        let mut text = entry(mark, self.name, &self.detail);
        if let Some(remedy) = self.remedy.as_ref().filter(|_| !self.present) {
            text += &entry("", "", &format!("{}: {remedy}", self.used_by));
        }
        text
    }
}

/// A mark and a name, with the text wrapped beside them.
fn entry(mark: &str, name: &str, text: &str) -> String {
    const LEFT: usize = 30;
    let room = width().max(70) - LEFT;
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().filter(|l| l.len() + word.len() < room || l.is_empty());
        match last {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.into()),
        }
    }
    let mut out = format!("{mark:<7}{name:<23}{}\n", lines.remove(0));
    for line in lines {
        out += &format!("{:LEFT$}{line}\n", "");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_comes_first_and_the_host_only_where_it_lacks_something() {
        let check = |name, present| Check {
            name,
            used_by: "runtime",
            present,
            optional: false,
            detail: String::new(),
            remedy: None,
        };
        let host = || vec![check("rseq", true), check("sched_ext", false)];
        let text = Report { host: host(), vms: vec![guest::Report::example("db")] }.text();
        assert!(text.starts_with("VM db (pid 7") && text.contains("sched_ext"), "{text}");
        assert!(!text.contains("rseq"), "{text}");
        assert!(Report { host: host(), vms: vec![] }.text().contains("rseq"));
    }
}
