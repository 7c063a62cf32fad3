// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything needed to repeat a run.

use crate::costs::Costs;
use crate::record::HostInfo;
use crate::report::format::plain;
use crate::report::summary::Summary;
use maud::{Markup, html};
use reprieve_page::plain_lines;

pub fn section(s: &Summary) -> Markup {
    let plan = serde_json::to_string_pretty(&s.plan).unwrap_or_default();
    html! {
        section class="run-settings" {
            h2 { "Settings" }
            pre { (plain(&s.plan.command)) }
            div class="scroll" {
                table class="settings" {
                    tbody {
                        (line("Started", &s.started))
                        (line("Page made by", concat!("reprieve lab ", env!("CARGO_PKG_VERSION"))))
                        (line("Warm-up, phase", &format!("{} s, {} s", s.plan.warmup_ms as f64 / 1e3, s.plan.phase_ms as f64 / 1e3)))
                        (line("Seed", &s.plan.seed.to_string()))
                        (host(&s.host, "Host"))
                        @for guest in &s.guests {
                            @let info = &guest.info;
                            tr {
                                th scope="row" { "Guest " (plain(&guest.vm)) }
                                td {
                                    "Linux " (plain(&info.kernel)) ", " (info.cpus) " vCPUs, " (info.memory_kb / 1024) " MiB"
                                    @if let Some(preempt) = &info.preempt { ", preempt=" (plain(preempt)) }
                                    @if let Some(hz) = info.hz { ", HZ=" (hz) }
                                    ", clock " (plain(&info.clocksource))
                                    ", up in " (guest.boot_ms as f64 / 1e3) " s"
                                    br; code { (plain(&info.cmdline)) }
                                }
                            }
                        }
                    }
                }
            }
            @if let Some(costs) = &s.costs { (bed(costs)) }
            details {
                summary { "The whole plan" }
                pre { (plain_lines(&plan)) }
            }
        }
    }
}

fn line(name: &str, value: &str) -> Markup {
    html! { tr { th scope="row" { (name) } td { (plain(value)) } } }
}

/// The costs of switches, exits and interrupts, as shares of a slice.
fn bed(costs: &Costs) -> Markup {
    let us = |ns: Option<u64>| ns.map_or("-".into(), |ns| format!("{:.2}", ns as f64 / 1e3));
    let percent = |share: Option<f64>| share.map_or("-".into(), |s| format!("{s:.2}"));
    html! {
        h3 { "Costs of this bed" }
        div class="scroll" {
            table class="settings" {
                thead { tr {
                    th {} th { "here, us" } th { "% of a slice" } th { "hardware, us" } th { "% of a slice" }
                } }
                tbody {
                    @for row in costs.rows() {
                        tr {
                            th scope="row" { (row.label) }
                            td { (us(row.measured.map(|m| m.ns))) }
                            td { (percent(row.share())) }
                            td { (us(row.hardware.map(|h| h.ns))) }
                            td { (percent(row.hardware_share())) }
                        }
                    }
                }
            }
        }
        p class="soft" {
            "Lower quartiles, by the host's clock. "
            @if let Some(ns) = costs.slice_ns { "The stock scheduler's slice: " (ns as f64 / 1e6) " ms. " }
            "Hardware: " (costs.sources().join("; ")) "."
        }
    }
}

fn host(host: &HostInfo, name: &str) -> Markup {
    html! {
        tr {
            th scope="row" { (name) }
            td {
                (plain(&host.mode)) " (" (plain(&host.why)) "); Linux " (plain(&host.kernel)) ", " (host.cpus) " CPUs ("
                (plain(&host.cpu_model)) "), " (host.memory_kb / 1024) " MiB, QEMU " (plain(&host.qemu))
                @if host.mode == "nested" { "; time " (host.dilation.to_string()) }
                @if let Some(ns) = host.base_slice_ns { "; slice " (ns as f64 / 1e6) " ms" }
            }
        }
        // A single level: a lab host runs on a machine, not in another lab host.
        @if let Some(outer) = &host.outer {
            tr {
                th scope="row" { "Carried by" }
                td {
                    "Linux " (plain(&outer.kernel)) ", " (outer.cpus) " CPUs (" (plain(&outer.cpu_model)) "), "
                    (outer.memory_kb / 1024) " MiB, QEMU " (plain(&outer.qemu))
                }
            }
        }
    }
}
