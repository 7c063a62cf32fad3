// SPDX-License-Identifier: MIT OR Apache-2.0
//! The signals that end a run: Ctrl-C (SIGINT), SIGTERM, and SIGHUP unless `nohup` had it ignored.

use crate::process::Cancel;
use anyhow::Result;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A [`Cancel`] that SIGINT, SIGTERM and SIGHUP set. A second SIGINT ends the program at once, and
/// its VMs with it; a SIGHUP after a SIGINT (a terminal that closes) does not. A SIGHUP that was
/// ignored when the program began stays so.
pub fn cancel_on_signal() -> Result<Cancel> {
    let cancel = Cancel::default();
    let interrupted = Arc::new(AtomicBool::new(false));
    // The order matters: no SIGINT is caught that sets nothing, and the first one finds
    // `interrupted` unset.
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        if signal != libc::SIGHUP || !ignored(signal) {
            signal_hook::flag::register(signal, cancel.flag())?;
        }
    }
    signal_hook::flag::register_conditional_shutdown(libc::SIGINT, 1, interrupted.clone())?;
    signal_hook::flag::register(libc::SIGINT, interrupted)?;
    Ok(cancel)
}

fn ignored(signal: libc::c_int) -> bool {
    // SAFETY: zeroes are a valid `sigaction`; the call only reads the signal's disposition into it.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut now) == 0
            && now.sa_sigaction == libc::SIG_IGN
    }
}
