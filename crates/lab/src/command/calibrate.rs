// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve lab calibrate`.

use crate::args::{DEFAULT_KERNEL, HostArgs};
use crate::costs::{Cost, Costs};
use crate::host::log_directory;
use crate::progress::{Lines, Progress};
use crate::run::{self, Settings};
use crate::signals::cancel_on_signal;
use anyhow::Result;
use clap::Args;
use reprieve_page::output::{print, print_json};
use serde_json::json;

#[derive(Args)]
pub struct CalibrateArgs {
    #[command(flatten)]
    host: HostArgs,
    /// Kernel of the guest: deb:VERSION or the path of a vmlinuz
    #[arg(long, default_value = DEFAULT_KERNEL)]
    guest_kernel: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn main(args: CalibrateArgs) -> Result<()> {
    let cancel = cancel_on_signal()?;
    let progress = Lines::default();
    let out = log_directory()?;
    let settings = Settings { bed: args.host.bed(), out: out.path().into() };
    let measured = run::calibrate(&args.guest_kernel, &settings, &progress, &cancel);
    if measured.is_err() && !cancel.is_set() {
        let kept = out.keep();
        progress.notice(&format!("console logs: {}", kept.display()));
    }
    let (host, costs) = measured?;
    if args.json {
        let rows = costs.rows();
        let rows: Vec<_> = rows.iter().map(row).collect();
        return print_json(&json!({ "host": host, "slice_ns": costs.slice_ns, "costs": rows }));
    }
    print(&format!(
        "{} host of {} CPUs, Linux {}, time {}; lower quartiles, by the host's clock\n\n{}\nHardware: {}\n",
        host.mode,
        host.cpus,
        host.kernel,
        host.dilation,
        Costs::to_text(&costs),
        costs.sources().join("; ")
    ))
}

fn row(cost: &Cost) -> serde_json::Value {
    json!({
        "key": cost.key, "label": cost.label,
        "ns": cost.measured.map(|m| m.ns), "count": cost.measured.map(|m| m.count),
        "slice_percent": cost.share(),
        "hardware_ns": cost.hardware.map(|h| h.ns), "hardware_slice_percent": cost.hardware_share(),
        "hardware_source": cost.hardware.map(|h| h.source),
    })
}
