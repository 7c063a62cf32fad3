// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scheduling policies of the host, as `--policy` names them.
//!
//! | policy | what is in force during a phase | needs of the host's kernel |
//! |---|---|---|
//! | `eevdf` | the stock scheduler, untouched | nothing |
//! | `eevdf-slice=TIME` | the stock scheduler; the tested guest's vCPUs have slices of TIME, as an administrator can set by hand | custom slices (Linux 6.12) |
//! | `eevdf-slices=TIME` | the same for the vCPUs of all VMs | custom slices |
//! | `eevdf-owed`, `eevdf-owed=LATE` | the stock scheduler; `reprieve guard --backend eevdf` shortens the slices of vCPUs that owe a grace period older than LATE | custom slices |
//! | `plain`, `extend`, `rescue`, `full` | the scheduler of `reprieve guard` | sched_ext |
//! | `full-slice=TIME`, `full-late=TIME`, `full-share=PERCENT` and the like | the same with `--slice TIME`, `--late TIME`, `--rescue-share PERCENT` | sched_ext |

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The policy that every run has unless the user asks for another, and that the others are compared
/// with.
pub const DEFAULT: &str = "eevdf";

/// Policies of `guard`'s own scheduler.
pub const GUARDED: [&str; 4] = ["plain", "extend", "rescue", "full"];

/// Slices that the kernel takes; it silently clamps others.
pub const SLICES: std::ops::RangeInclusive<Duration> =
    Duration::from_micros(100)..=Duration::from_millis(100);

/// The range that `guard --late` takes.
const LATE: std::ops::RangeInclusive<Duration> =
    Duration::from_micros(500)..=Duration::from_secs(1);

const SLICE: &str = "eevdf-slice";
const SLICES_OF_ALL: &str = "eevdf-slices";
const OWED: &str = "eevdf-owed";

/// A scheduling policy of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Policy {
    Eevdf,
    /// Custom slices of the tested guest's vCPUs.
    Slice(Duration),
    /// Custom slices of all VMs.
    Slices(Duration),
    /// `guard --backend eevdf`; grace periods are late from this age on (`None`: its default).
    Owed(Option<Duration>),
    /// A policy of `guard`'s scheduler, one of [`GUARDED`], and the option that it has.
    Guard(String, Option<GuardOption>),
}

/// An option of `guard` that is not at its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardOption {
    Slice(Duration),
    Late(Duration),
    /// `--rescue-share`, in percent.
    Share(u8),
}

impl GuardOption {
    /// For the command line of `guard`.
    pub fn argument(self) -> String {
        match self {
            GuardOption::Slice(time) => format!("--slice={}us", time.as_micros()),
            GuardOption::Late(time) => format!("--late={}us", time.as_micros()),
            GuardOption::Share(percent) => format!("--rescue-share={percent}%"),
        }
    }
}

impl fmt::Display for GuardOption {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let ms = |time: &Duration| time.as_nanos() as f64 / 1e6;
        match self {
            GuardOption::Slice(time) => write!(f, "slice={}ms", ms(time)),
            GuardOption::Late(time) => write!(f, "late={}ms", ms(time)),
            GuardOption::Share(percent) => write!(f, "share={percent}%"),
        }
    }
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
            Policy::Slice(_) | Policy::Slices(_) | Policy::Owed(_) => Need::CustomSlices,
            Policy::Guard(..) => Need::SchedExt,
        }
    }
}

/// The names, for messages and help.
pub fn names() -> String {
    format!(
        "{DEFAULT}, {SLICE}=TIME, {SLICES_OF_ALL}=TIME, {OWED}, {OWED}=TIME, {}, each of the last four with \
         -slice=TIME, -late=TIME or -share=PERCENT",
        GUARDED.join(", ")
    )
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Policy> {
        let all = text.split_once("-slices=").filter(|(name, _)| *name == DEFAULT);
        if let Some((name, time)) = all.or_else(|| text.split_once("-slice=")) {
            let slice = parse_time(time).filter(|slice| SLICES.contains(slice));
            match slice {
                Some(slice) if all.is_some() => return Ok(Policy::Slices(slice)),
                Some(slice) if name == DEFAULT => return Ok(Policy::Slice(slice)),
                Some(slice) if GUARDED.contains(&name) => {
                    return Ok(Policy::Guard(name.into(), Some(GuardOption::Slice(slice))));
                }
                Some(_) => {}
                None => {
                    return Err(Error::Usage(format!(
                        "--policy {text}: give a slice of 0.1ms to 100ms in whole microseconds, as in {SLICE}=0.5ms"
                    )));
                }
            }
        }
        let late = |time| {
            parse_time(time).filter(|late| LATE.contains(late)).ok_or_else(|| {
                Error::Usage(format!(
                    "--policy {text}: give an age of 0.5ms to 1000ms in whole microseconds, as in {OWED}=3ms"
                ))
            })
        };
        if let Some(time) = text.strip_prefix(OWED).and_then(|rest| rest.strip_prefix('=')) {
            return Ok(Policy::Owed(Some(late(time)?)));
        }
        let guarded =
            |option: &str| text.split_once(option).filter(|(name, _)| GUARDED.contains(name));
        if let Some((name, time)) = guarded("-late=") {
            return Ok(Policy::Guard(name.into(), Some(GuardOption::Late(late(time)?))));
        }
        if let Some((name, percent)) = guarded("-share=") {
            let number = percent.strip_suffix('%').unwrap_or(percent).parse();
            let share = number.ok().filter(|n| *n <= 100).ok_or_else(|| {
                Error::Usage(format!("--policy {text}: give 0% to 100%, as in full-share=25%"))
            })?;
            return Ok(Policy::Guard(name.into(), Some(GuardOption::Share(share))));
        }
        match text {
            DEFAULT => Ok(Policy::Eevdf),
            OWED => Ok(Policy::Owed(None)),
            _ if GUARDED.contains(&text) => Ok(Policy::Guard(text.into(), None)),
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
            Policy::Slice(slice) => write!(f, "{SLICE}={}ms", slice.as_nanos() as f64 / 1e6),
            Policy::Slices(slice) => {
                write!(f, "{SLICES_OF_ALL}={}ms", slice.as_nanos() as f64 / 1e6)
            }
            Policy::Owed(Some(late)) => write!(f, "{OWED}={}ms", late.as_nanos() as f64 / 1e6),
            Policy::Owed(None) => f.write_str(OWED),
            Policy::Guard(name, None) => f.write_str(name),
            Policy::Guard(name, Some(option)) => write!(f, "{name}-{option}"),
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
        for name in [
            "eevdf",
            "eevdf-slice=0.5ms",
            "eevdf-slices=0.5ms",
            "eevdf-owed=2.5ms",
            "plain",
            "full",
            "full-slice=4ms",
            "rescue-late=5ms",
            "full-share=25%",
        ] {
            assert_eq!(name.parse::<Policy>().unwrap().to_string(), name);
        }
        assert_eq!(
            "eevdf-slice=500us".parse::<Policy>().unwrap(),
            Policy::Slice(Duration::from_micros(500))
        );
        let json = serde_json::to_string(&Policy::Slice(Duration::from_millis(3))).unwrap();
        assert_eq!(json, "\"eevdf-slice=3ms\"");
        assert_eq!(serde_json::from_str::<Policy>(&json).unwrap().to_string(), "eevdf-slice=3ms");
    }

    #[test]
    fn other_words_are_refused_with_what_there_is() {
        for bad in ["", "fair", "eevdf-slice", "EEVDF", "full ", "fast-slice=1ms", "eevdf-late=1ms"]
        {
            let error = bad.parse::<Policy>().unwrap_err().to_string();
            assert!(error.contains("eevdf-owed") && error.contains("rescue"), "{bad}: {error}");
        }
        for bad in ["0", "0.5", "1s", "0.01ms", "101ms", "-1ms", "1e9ms", "infms", "ms"] {
            let error = format!("eevdf-slice={bad}").parse::<Policy>().unwrap_err().to_string();
            assert!(error.contains("0.1ms to 100ms"), "{bad}: {error}");
        }
        for bad in ["101%", "-1%", "%", "a"] {
            let error = format!("full-share={bad}").parse::<Policy>().unwrap_err().to_string();
            assert!(error.contains("0% to 100%"), "{bad}: {error}");
        }
        for bad in ["eevdf-owed=0.1ms", "full-late=2s"] {
            let error = bad.parse::<Policy>().unwrap_err().to_string();
            assert!(error.contains("0.5ms to 1000ms"), "{bad}: {error}");
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
