// SPDX-License-Identifier: MIT OR Apache-2.0
//! Common parts of the pages and tables of all commands.
//!
//! - [`document`] puts a body into an HTML page that needs no other file and may ask for none.
//! - [`plain`] makes text from a guest, a process or a file harmless for a terminal.
//! - [`output`] prints results; a reader that has gone away is no error.
//! - [`write()`] replaces a file as a whole or not at all.
//!
//! This crate depends on no other crate of the workspace.

mod file;
mod html;
pub mod output;
mod text;

pub use file::write;
pub use html::{Page, document};
pub use text::{plain, plain_lines};
