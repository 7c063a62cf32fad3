// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time limits, on machines of any speed.
//!
//! Every wait for a guest or a program ends, after a limit that an ordinary machine never reaches.
//! On one that is much slower (emulated twice, or shared with much other work) set
//! `REPRIEVE_TIMEOUT_FACTOR`: it multiplies all these limits, those of the guests' init and of the
//! program in a lab host included.

use reprieve_init::protocol::TIMEOUT_FACTOR;
use std::sync::OnceLock;
use std::time::Duration;

/// The environment variable.
pub const VARIABLE: &str = "REPRIEVE_TIMEOUT_FACTOR";

/// A day for a limit of a minute; more would overflow deadlines.
const MAX_FACTOR: u32 = 1440;

/// The factor of all limits: 1 unless the user says otherwise.
pub fn factor() -> u32 {
    static FACTOR: OnceLock<u32> = OnceLock::new();
    *FACTOR.get_or_init(|| parse(std::env::var(VARIABLE).ok().as_deref()))
}

fn parse(value: Option<&str>) -> u32 {
    value.and_then(|v| v.trim().parse().ok()).unwrap_or(1).clamp(1, MAX_FACTOR)
}

/// `limit` on this machine.
pub fn scaled(limit: Duration) -> Duration {
    limit.saturating_mul(factor())
}

/// Tells a guest's init of the factor: a parameter that the kernel does not know becomes a variable
/// of init's environment.
pub fn kernel_parameter() -> String {
    match factor() {
        1 => String::new(),
        n => format!("{TIMEOUT_FACTOR}={n}"),
    }
}

/// Tells a program in a lab host of the factor.
pub fn environment() -> Vec<(String, String)> {
    vec![(VARIABLE.into(), factor().to_string())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_factors_change_nothing() {
        assert_eq!(parse(Some(" 20\n")), 20);
        for odd in [None, Some(""), Some("0"), Some("-3"), Some("2.5"), Some("fast")] {
            assert_eq!(parse(odd), 1, "{odd:?}");
        }
        assert_eq!(parse(Some("4000000000")), MAX_FACTOR);
    }
}
