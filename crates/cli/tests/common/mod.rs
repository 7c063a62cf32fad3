// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers that tests of several commands need.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has the command end when the thread that starts it does, which has to wait for it: a test that
/// is killed would leave it behind. It gets SIGTERM, so that it ends what it started.
pub fn ends_with_test(command: &mut Command) -> &mut Command {
    let test = std::process::id();
    // SAFETY: only async-signal-safe calls (prctl, getppid, raise) between fork and exec.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            // The test may have ended before the call above.
            if libc::getppid() as u32 != test {
                libc::raise(libc::SIGTERM);
            }
            Ok(())
        })
    }
}
