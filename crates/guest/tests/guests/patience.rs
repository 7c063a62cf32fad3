// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits without a limit: a test waits for an event for as long as the machine needs. A test that
//! hangs is ended from outside; the notes printed here then say what it waited for.

use reprieve_lab::error::Error;
use reprieve_lab::images::Qemu;
use reprieve_lab::process::Cancel;
use reprieve_lab::vm::{Config, Vm};
use std::time::{Duration, Instant};

/// For calls of the lab that take a limit: longer than any test may run.
pub const NO_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Time between two notes about the same wait.
const NOTE: Duration = Duration::from_secs(60);

/// Time between two looks at what is waited for.
const PAUSE: Duration = Duration::from_millis(20);

/// Time for the first attempt to boot a guest.
const BOOT: Duration = Duration::from_secs(180);

/// A wait in progress.
pub struct Wait {
    what: String,
    start: Instant,
    notes: u32,
}

impl Wait {
    pub fn new(what: &str) -> Wait {
        Wait { what: what.into(), start: Instant::now(), notes: 0 }
    }

    /// Sleeps until the next look. Prints a note once a minute; `state` is what the last look saw.
    pub fn pause(&mut self, state: impl FnOnce() -> String) {
        if self.start.elapsed() >= NOTE * (self.notes + 1) {
            self.notes += 1;
            let (what, waited) = (&self.what, self.start.elapsed().as_secs());
            eprintln!("has waited {waited} s for {what}: {}", state());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Waits until `is` returns true.
#[allow(dead_code)] // Not every test program needs all of this.
pub fn wait_for(what: &str, mut is: impl FnMut() -> bool) {
    let mut wait = Wait::new(what);
    while !is() {
        wait.pause(String::new);
    }
}

/// Option for the kernel of an emulated guest. Without it, a kernel panics at its start if the
/// timer of a busy machine's emulation fires too late: "IO-APIC + timer doesn't work".
#[allow(dead_code)] // Not every test program needs it.
pub const NO_TIMER_CHECK: &str = "no_timer_check";

/// Boots a guest under emulation, again when its boot crashes or hangs.
pub fn boot(config: &Config, qemu: &Qemu) -> Vm {
    let again = |attempt, error: &Error| {
        eprintln!("boot {attempt}: {error}: tries again");
        Ok(())
    };
    Vm::boot_with_retries(|_| config.clone(), qemu, BOOT, &Cancel::default(), again)
        .unwrap_or_else(|error| panic!("{error}"))
}
