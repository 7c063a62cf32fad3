// SPDX-License-Identifier: MIT OR Apache-2.0
//! Common parts of the output of all commands.
//!
//! - [`plain`] makes text from a guest, a process or a file harmless for a terminal.
//! - [`output`] prints results; a reader that has gone away is no error.
//! - [`write()`] replaces a file as a whole or not at all.
//!
//! This crate depends on no other crate of the workspace.

mod file;
pub mod output;
mod text;

pub use file::write;
pub use text::{plain, plain_lines, wrapped};
