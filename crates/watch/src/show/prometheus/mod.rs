// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figures as metrics for Prometheus: those of `watch` here, those of other crates by [`Figures`].
//! `docs/watch.md` lists the metrics.
//!
//! [`text`] turns figures into text, [`server`] serves the latest ones.

pub mod encode;
mod metrics;
pub mod names;
mod server;
pub mod testing;

pub use metrics::Served;
pub use server::{Error, Server};

use crate::model::Snapshot;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// How a page is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    /// Prometheus's own, which older readers and `promtool` want.
    Classic,
}

impl Format {
    /// The format for a request that accepts `accept`.
    pub fn accepted(accept: &str) -> Format {
        match accept.contains("application/openmetrics-text") {
            true => Format::OpenMetrics,
            false => Format::Classic,
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// A page in this format, from one in the OpenMetrics text format. The classic format names the
    /// series where OpenMetrics names the metric, and knows no `info`.
    pub fn of(self, page: &str) -> String {
        if self == Format::OpenMetrics {
            return page.into();
        }
        let (mut out, mut help) = (String::with_capacity(page.len()), None);
        for line in page.lines().filter(|line| *line != "# EOF") {
            if let Some(text) = line.strip_prefix("# HELP ") {
                help = text.split_once(' ').map(|(_, help)| help);
            } else if let Some((name, kind)) =
                line.strip_prefix("# TYPE ").and_then(|text| text.split_once(' '))
            {
                let (end, kind) = match kind {
                    "counter" => ("_total", kind),
                    "info" => ("_info", "gauge"),
                    _ => ("", kind),
                };
                let help = help.take().unwrap_or_default();
                out += &format!("# HELP {name}{end} {help}\n# TYPE {name}{end} {kind}\n");
            } else {
                out += line;
                out.push('\n');
            }
        }
        out
    }
}

/// The figures that a page shows.
pub trait Figures: Send + Sync {
    /// The metrics of these figures, after those in `served`, which they join.
    fn collector(&self, served: &mut Served) -> Box<dyn Collector>;
}

impl Figures for Snapshot {
    fn collector(&self, served: &mut Served) -> Box<dyn Collector> {
        Box::new(metrics::Page::new(self.clone(), served))
    }
}

/// The page for `figures` after those in `served`, in the OpenMetrics text format.
///
/// # Errors
/// When a figure cannot be written; never, as far as is known.
pub fn text(figures: &dyn Figures, served: &mut Served) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(figures.collector(served));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::testing::busy;

    fn classic() -> String {
        Format::Classic.of(&text(&busy(10), &mut Served::default()).unwrap())
    }

    #[test]
    fn the_classic_format_names_series() {
        let page = classic();
        for line in [
            "# TYPE reprieve_vm_info gauge",
            "# TYPE reprieve_vcpu_halted_seconds_total counter",
            "# TYPE reprieve_grace_period_seconds histogram",
            "# HELP reprieve_vm_vcpus vCPUs by what they are doing now",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} in\n{page}");
        }
        assert!(!page.contains("EOF") && !page.contains(" info\n"), "{page}");
        assert_eq!(
            Format::accepted("application/openmetrics-text;version=1.0.0"),
            Format::OpenMetrics
        );
        assert_eq!(Format::accepted("*/*"), Format::Classic);
    }

    /// Where Prometheus's own checker is installed.
    #[test]
    fn promtool_accepts_the_page_and_the_rules() {
        use std::io::Write as _;
        use std::process::{Command, Stdio};
        let promtool = |arguments: &[&str], input: &str| {
            let child = Command::new("promtool")
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn();
            let Ok(mut child) = child else { return eprintln!("promtool is not installed") };
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{output:?}");
        };
        promtool(&["check", "metrics"], &classic());
        let rules = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../packaging/prometheus/reprieve-watch.rules.yml"
        );
        promtool(&["check", "rules", rules], "");
    }
}
