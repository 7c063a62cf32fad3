// SPDX-License-Identifier: MIT OR Apache-2.0
//! The figures of `watch` as metrics for Prometheus. `docs/watch.md` lists them.
//!
//! [`metrics`] turns a snapshot into text, [`server`] serves the latest one.

mod encode;
mod metrics;
mod server;

pub use metrics::{CONTENT_TYPE, text};
pub use server::{Error, Server};
