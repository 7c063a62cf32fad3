// SPDX-License-Identifier: MIT OR Apache-2.0
//! Views of guard's statistics: a live view, and metrics for Prometheus. Both use the terminal
//! and the metrics server of [`reprieve_watch::show`].

mod prometheus;
mod terminal;
#[cfg(test)]
mod testing;

pub use terminal::run;
