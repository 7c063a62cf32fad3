// SPDX-License-Identifier: MIT OR Apache-2.0
//! Side-by-side benchmarks: the same work by this project's runtime and by its peers, in one
//! process and one run.
//!
//! # How it is measured
//! - **Interleaved.** A run goes round over all subjects several times (`schedule.rs`), so that
//!   whatever else the machine does hits all alike. A figure is the median of the rounds, and its
//!   spread is shown with it.
//! - **Same work.** One table (`table.rs`), one generator of keys, one loop in Rust and the same in
//!   C (`peer/`, `c/`); two rows without any protection show what that loop costs, in either
//!   language.
//! - **Checked.** A freed node is poisoned before its memory goes back; readers check each value
//!   they get; at the end all garbage has been freed. A subject that fails is an error, not a
//!   figure (`readers.rs`).
//! - **Time.** Short operations run in batches that take some 100 us, so that reading the clock
//!   does not count; with several readers it is their CPU time that is divided by their operations.
//! - **Nothing is tuned.** Every subject runs with its defaults, and what a benchmark does beyond
//!   is said in its module.

mod bench;
mod clock;
mod compute;
mod error;
mod hash;
mod locks;
mod machine;
mod neighbour;
mod options;
mod peer;
mod processes;
mod readers;
mod report;
mod result;
mod schedule;
mod subject;
mod summary;
mod sysv;
mod table;
mod threads;

pub use bench::{Bench, run};
pub use error::{Error, Result};
pub use options::{Neighbour, Options};
pub use report::{summary_text, text};
pub use result::{Column, Conditions, Figure, Outcome, Row, Unit};
pub use subject::{Class, FAMILIES, NO_URCU, URCU};
pub use summary::{Line, Peer, Summary, Target, run_all};
