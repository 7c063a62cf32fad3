// SPDX-License-Identifier: MIT OR Apache-2.0
//! The experiments: a guest alone on its host, then the same guest on an overcommitted host, on stock kernels.

pub mod error;
pub mod execute;
pub mod experiments;
pub mod host;
pub mod images;
pub mod outside;
pub mod plan;
pub mod process;
pub mod progress;
pub mod record;
pub mod recorder;
pub mod report;
pub mod run;
pub mod vm;

pub use reprieve_init::protocol;
