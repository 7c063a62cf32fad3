// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a VM waits for CPUs, and why.

use super::activity::VmActivity;
use super::text::{percent, plain};

/// A VM that waits for less of the time that it wants a CPU does not wait.
const WAITS: f64 = 0.01;

/// The verdict on a VM by what it did.
pub fn verdict(activity: &VmActivity) -> String {
    let Some(share) = activity.all.ready_share().filter(|share| *share >= WAITS) else {
        return "hardly waits for a CPU".into();
    };
    let why = match activity.takers.first() {
        _ if activity.all.throttled_share().is_some_and(|share| share >= 0.5) => {
            ", mostly since its quota (cpu.max) is used up".into()
        }
        Some(taker) => format!(", most of it taken by {}", plain(&taker.name)),
        None => String::new(),
    };
    format!("waits for a CPU {} of the time that it wants one{why}", percent(share))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::testing::busy;

    #[test]
    fn the_cause_is_named() {
        let (first, second) = (busy(1), busy(2));
        let mut activity = VmActivity::between(Some(&first), second.time_ns, &second.vms[0]);
        assert_eq!((activity.takers[0].count, activity.takers[0].total_ns), (100, 300_000_000));
        let said = verdict(&activity);
        assert_eq!(
            said,
            "waits for a CPU 44 % of the time that it wants one, most of it taken by web-1"
        );
        activity.all.throttled_ns = activity.all.ready_ns();
        assert!(verdict(&activity).ends_with("since its quota (cpu.max) is used up"));
        assert_eq!(verdict(&VmActivity::default()), "hardly waits for a CPU");
    }
}
