// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recordings of events and snapshots, in a file that `zcat` and `jq` can read.
//!
//! gzip, inside it a line of JSON each: first a [`Header`], then events as they came and a snapshot
//! now and then ([`Line`]). The writer completes a compressed block every second, so of a recording
//! that was cut off (a crash, a full disk, `kill -9`) everything but the last second is readable.
//! Neither side keeps more than a line and the compressor's window in memory.

mod read;
mod write;

pub use read::Reader;
pub use write::{Recorded, Writer};

use crate::model::{Event, Snapshot};
use serde::{Deserialize, Serialize};

/// The format that this version writes. It reads the same only; fields may be added within one
/// version.
pub const VERSION: u32 = 2;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// `reprieve-watch`.
    pub format: String,
    pub version: u32,
    /// The program that wrote it.
    pub by: String,
    /// Where it was written.
    pub host: String,
    pub kernel: String,
}

impl Header {
    pub const FORMAT: &'static str = "reprieve-watch";
}

/// Every other line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    Event(Event),
    Snapshot(Box<Snapshot>),
}

/// Why a recording cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("{path} is not a recording of `reprieve watch --record`: {why}")]
    Format { path: String, why: String },
}
