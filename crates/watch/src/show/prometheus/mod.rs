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
    /// Where Prometheus's own checker is installed.
    #[test]
    fn promtool_accepts_the_rules() {
        let rules = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../packaging/prometheus/reprieve-watch.rules.yml"
        );
        match std::process::Command::new("promtool").args(["check", "rules", rules]).output() {
            Ok(output) => assert!(output.status.success(), "{output:?}"),
            Err(_) => eprintln!("promtool is not installed"),
        }
    }
}
