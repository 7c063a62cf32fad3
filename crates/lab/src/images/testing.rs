// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers of this folder's tests.

use super::Context;
use crate::process::Cancel;
use crate::progress::Silent;
use std::sync::OnceLock;

/// A context that is never cancelled and shows no progress.
pub fn context() -> Context<'static> {
    static CANCEL: OnceLock<Cancel> = OnceLock::new();
    Context { cancel: CANCEL.get_or_init(Cancel::default), progress: &Silent }
}
