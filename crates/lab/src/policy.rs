// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scheduling policies of the host, as `--policy` names them.
//!
//! | policy | what is in force during a phase | needs of the host's kernel |
//! |---|---|---|
//! | `eevdf` | the stock scheduler, untouched | nothing |
//! | `eevdf-slices=TIME` | the stock scheduler; the vCPUs of all VMs have slices of TIME, as an administrator can set by hand | custom slices (Linux 6.12) |
//! | `plain`, `full` | the scheduler of `reprieve guard` | sched_ext |

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The policy that every run has unless the user asks for another, and that the others are compared
/// with.
pub const DEFAULT: &str = "eevdf";

/// Policies of `guard`'s own scheduler.
pub const GUARDED: [&str; 2] = ["plain", "full"];

/// Slices that the kernel takes; it silently clamps others.
pub const SLICE_LENGTHS: std::ops::RangeInclusive<Duration> =
    Duration::from_micros(100)..=Duration::from_millis(100);

const SLICES: &str = "eevdf-slices";

/// A scheduling policy of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Policy {
    Eevdf,
    /// Custom slices of all VMs.
    Slices(Duration),
    /// A policy of `guard`'s scheduler, one of [`GUARDED`].
    Guard(String),
}

/// The demands of a policy on the host's kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    #[default]
    Nothing,
    CustomSlices,
    SchedExt,
}

impl Policy {
    pub fn need(&self) -> Need {
        match self {
            Policy::Eevdf => Need::Nothing,
            Policy::Slices(_) => Need::CustomSlices,
            Policy::Guard(_) => Need::SchedExt,
        }
    }
}

/// The names, for messages and help.
pub fn names() -> String {
    format!("{DEFAULT}, {SLICES}=TIME, {}", GUARDED.join(", "))
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Policy> {
        if let Some(time) = text.strip_prefix(SLICES).and_then(|rest| rest.strip_prefix('=')) {
            let slice = parse_time(time).filter(|slice| SLICE_LENGTHS.contains(slice));
            return slice.map(Policy::Slices).ok_or_else(|| {
                Error::Usage(format!(
                    "--policy {text}: give a slice of 0.1ms to 100ms in whole microseconds, as in {SLICES}=0.5ms"
                ))
            });
        }
        match text {
            DEFAULT => Ok(Policy::Eevdf),
            _ if GUARDED.contains(&text) => Ok(Policy::Guard(text.into())),
            _ => Err(Error::Usage(format!("there is no policy {text:?}; there are: {}", names()))),
        }
    }
}

/// `0.5ms`, `500us`: with a decimal fraction, which `humantime` does not take. Whole microseconds,
/// as guard is told.
pub fn parse_time(text: &str) -> Option<Duration> {
    let (number, unit_ns) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e6),
        None => (text.strip_suffix("us")?, 1e3),
    };
    let plain = number.chars().all(|c| c.is_ascii_digit() || c == '.');
    let value: f64 = number.parse().ok().filter(|_| plain)?;
    let ns = (value * unit_ns).round() as u64;
    (ns % 1000 == 0).then_some(Duration::from_nanos(ns))
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Policy::Eevdf => f.write_str(DEFAULT),
            Policy::Slices(slice) => write!(f, "{SLICES}={}ms", slice.as_nanos() as f64 / 1e6),
            Policy::Guard(name) => f.write_str(name),
        }
    }
}

impl TryFrom<String> for Policy {
    type Error = Error;

    fn try_from(text: String) -> Result<Policy> {
        text.parse()
    }
}

impl From<Policy> for String {
    fn from(policy: Policy) -> String {
        policy.to_string()
    }
}

impl Need {
    /// Whether a lab host can meet this, as far as its kernel package tells: `sched_ext` from its
    /// configuration, if it came with one.
    ///
    /// # Errors
    /// [`Error::Usage`] with what is missing and what to do.
    pub fn check_lab_host(self, release: &str, sched_ext: Option<bool>) -> Result<()> {
        let lacks = match self {
            Need::SchedExt if sched_ext == Some(false) => {
                "sched_ext (CONFIG_SCHED_CLASS_EXT), which this --policy needs"
            }
            Need::CustomSlices if version(release).is_some_and(|v| v < (6, 12)) => {
                "custom slices (Linux 6.12), which this --policy needs"
            }
            _ => return Ok(()),
        };
        Err(Error::Usage(format!(
            "the lab host's kernel {release} has no {lacks}: leave --host-kernel out, and the lab takes one that has"
        )))
    }
}

/// Major and minor version of a kernel release, if it begins with them.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_shown() {
        for name in ["eevdf", "eevdf-slices=0.5ms", "plain", "full"] {
            assert_eq!(name.parse::<Policy>().unwrap().to_string(), name);
        }
        assert_eq!(
            "eevdf-slices=500us".parse::<Policy>().unwrap(),
            Policy::Slices(Duration::from_micros(500))
        );
        let json = serde_json::to_string(&Policy::Slices(Duration::from_millis(3))).unwrap();
        assert_eq!(json, "\"eevdf-slices=3ms\"");
        assert_eq!(serde_json::from_str::<Policy>(&json).unwrap().to_string(), "eevdf-slices=3ms");
    }

    #[test]
    fn other_words_are_refused_with_what_there_is() {
        for bad in
            ["", "fair", "eevdf-slices", "eevdf-slice=1ms", "EEVDF", "full ", "full-slices=1ms"]
        {
            let error = bad.parse::<Policy>().unwrap_err().to_string();
            assert!(error.contains("eevdf-slices") && error.contains("full"), "{bad}: {error}");
        }
        for bad in ["0", "0.5", "1s", "0.01ms", "101ms", "-1ms", "1e9ms", "infms", "ms"] {
            let error = format!("eevdf-slices={bad}").parse::<Policy>().unwrap_err().to_string();
            assert!(error.contains("0.1ms to 100ms"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_lab_host_that_cannot_is_refused_before_it_boots() {
        let error = Need::SchedExt.check_lab_host("6.12.1", Some(false)).unwrap_err();
        assert!(error.to_string().contains("CONFIG_SCHED_CLASS_EXT"), "{error}");
        let error = Need::CustomSlices.check_lab_host("6.1.0-30-amd64", None).unwrap_err();
        assert!(error.to_string().contains("Linux 6.12"), "{error}");
        for (need, release, ext) in [
            (Need::SchedExt, "7.3.4+deb13", Some(true)),
            (Need::SchedExt, "own", None),
            (Need::CustomSlices, "6.12.0", Some(false)),
            (Need::CustomSlices, "own", None),
            (Need::Nothing, "5.10.0", Some(false)),
        ] {
            need.check_lab_host(release, ext).unwrap();
        }
    }
}
