// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `watch` sees as metrics, for the Prometheus that a fleet already has. `docs/watch.md` lists them.
//!
//! [`metrics`] turns a snapshot into text, [`server`] gives out the latest.

mod metrics;
mod server;

pub use metrics::{CONTENT_TYPE, text};
pub use server::{Error, Server};
