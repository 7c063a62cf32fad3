// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boots a VM again when its boot crashes or hangs.
//!
//! QEMU's emulation of several CPUs sometimes does either. A hang cannot be told from a slow
//! machine: each attempt after a hang gets twice the time, up to the limit of a slow machine. A
//! slow machine then boots its VM in a later attempt, and a hang costs a quick machine little.

use super::{Config, Vm};
use crate::error::{Error, Result};
use crate::images::Qemu;
use crate::limit::scaled;
use crate::process::Cancel;
use std::time::Duration;

/// Crashes that end the attempts; and the least number of attempts that hang.
pub const TRIES: u32 = 3;

/// The rest of the attempts to boot one VM.
#[derive(Debug)]
pub struct Attempts {
    limit: Duration,
    longest: Duration,
    crashes: u32,
    hangs: u32,
}

impl Attempts {
    /// `limit`: of the first attempt. An ordinary machine never reaches it.
    pub fn new(limit: Duration) -> Attempts {
        Attempts { limit, longest: scaled(limit), crashes: 0, hangs: 0 }
    }

    /// The limit of the next attempt.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Attempts that failed.
    pub fn failed(&self) -> u32 {
        self.crashes + self.hangs
    }

    /// Counts an attempt that failed with `error`.
    ///
    /// # Errors
    /// `error`, when another attempt would not help or none is left.
    pub fn again(&mut self, error: Error) -> Result<Error> {
        let left = match &error {
            Error::Timeout { .. } => {
                self.hangs += 1;
                let left = self.hangs < TRIES || self.limit < self.longest;
                self.limit = self.longest.min(self.limit * 2);
                left
            }
            // A program that fails is the proof of a lab host: nested, KVM sometimes fails, too.
            Error::Died { .. } | Error::Program { .. } => {
                self.crashes += 1;
                self.crashes < TRIES
            }
            _ => false,
        };
        if left { Ok(error) } else { Err(error) }
    }
}

impl Vm {
    /// [`Vm::boot`], again and again. `config` gets the number of the attempt, from 1 on: each
    /// needs a console log of its own. `failed` hears of each attempt that is repeated.
    pub fn boot_with_retries(
        config: impl Fn(u32) -> Config,
        qemu: &Qemu,
        limit: Duration,
        cancel: &Cancel,
        mut failed: impl FnMut(u32, &Error) -> Result<()>,
    ) -> Result<Vm> {
        let mut attempts = Attempts::new(limit);
        loop {
            let attempt = attempts.failed() + 1;
            match Vm::boot(&config(attempt), qemu, attempts.limit(), cancel) {
                Ok(vm) => return Ok(vm),
                Err(error) => failed(attempt, &attempts.again(error)?)?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(100);

    fn hang() -> Error {
        Error::Timeout { what: "booting".into(), after: LIMIT, log: None }
    }

    fn crash() -> Error {
        let vm = "vm".to_string();
        Error::Died { vm, message: String::new(), detail: String::new(), log: None }
    }

    #[test]
    fn a_slow_machine_gets_twice_the_time_until_its_limit() {
        let mut attempts = Attempts { longest: 20 * LIMIT, ..Attempts::new(LIMIT) };
        let mut limits = vec![attempts.limit()];
        while attempts.again(hang()).is_ok() {
            limits.push(attempts.limit());
        }
        assert_eq!(limits, [1, 2, 4, 8, 16, 20].map(|n| n * LIMIT));
    }

    #[test]
    fn three_hangs_or_crashes_are_enough_on_an_ordinary_machine() {
        for error in [hang, crash] {
            let mut attempts = Attempts { longest: LIMIT, ..Attempts::new(LIMIT) };
            assert!(attempts.again(error()).is_ok());
            assert!(attempts.again(error()).is_ok());
            assert_eq!(attempts.limit(), LIMIT);
            assert!(attempts.again(error()).is_err());
        }
    }

    #[test]
    fn what_is_neither_is_not_repeated() {
        let mut attempts = Attempts::new(LIMIT);
        assert!(attempts.again(Error::Cancelled).is_err());
        assert!(attempts.again(Error::Usage("no such CPU".into())).is_err());
        assert_eq!(attempts.failed(), 0);
    }
}
