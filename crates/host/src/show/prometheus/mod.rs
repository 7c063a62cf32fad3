// SPDX-License-Identifier: MIT OR Apache-2.0
//! The figures of `watch` and `guard` as metrics for Prometheus. `docs/watch.md` and
//! `docs/guard-statistics.md` list them.
//!
//! [`text`] turns figures into text, [`server`] serves the latest ones.

mod encode;
mod guard;
mod metrics;
mod names;
mod server;
#[cfg(test)]
mod testing;

pub use server::{Error, Server};

use crate::guard::Statistics;
use crate::watch::model::Snapshot;
use metrics::Served;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::sync::Arc;

/// Of [`text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a page shows.
#[derive(Clone, Debug)]
pub enum Figures {
    Watch(Arc<Snapshot>),
    Guard(Arc<Statistics>),
}

impl From<Snapshot> for Figures {
    fn from(snapshot: Snapshot) -> Figures {
        Figures::Watch(Arc::new(snapshot))
    }
}

impl From<Statistics> for Figures {
    fn from(statistics: Statistics) -> Figures {
        Figures::Guard(Arc::new(statistics))
    }
}

/// The page for `figures`, in the OpenMetrics text format.
pub fn text(figures: impl Into<Figures>) -> Result<String, std::fmt::Error> {
    text_after(figures, &mut Served::default())
}

/// The page for `figures` after those in `served`, which it joins.
fn text_after(figures: impl Into<Figures>, served: &mut Served) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::default();
    match figures.into() {
        Figures::Watch(snapshot) => {
            registry.register_collector(Box::new(metrics::Page::new(snapshot, served)));
        }
        Figures::Guard(all) => {
            registry.register_collector(Box::new(guard::Page::new(all, served)));
        }
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}
