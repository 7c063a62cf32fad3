// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers that tests of several commands need.

#![allow(dead_code)] // Not every test program needs all of this.

use std::os::unix::process::CommandExt;
use std::path::Path;
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

/// The command, for which `directory` is `/run`: a guard of this test's own has its lock there.
pub fn with_run(directory: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind \"$0\" /run && exec \"$@\""]);
    command.arg(directory).arg(env!("CARGO_BIN_EXE_reprieve"));
    command
}
