// SPDX-License-Identifier: MIT OR Apache-2.0
//! The frequency of an emulated guest's time-stamp counter.
//!
//! QEMU emulates it with this machine's counter. A guest's kernel measures its frequency against
//! other clocks while it boots, and is wrong by factors if its vCPU loses its CPU meanwhile: its
//! clock then runs too fast or too slow until it ends. So it is told.
//!
//! The counter itself is not dilated, so it looks faster by as much, to the guests of a lab host as
//! well. Faster than any that Linux expects: see [`processor`].

use crate::dilation::Dilation;
use std::sync::OnceLock;

/// By this machine's other clocks.
fn khz() -> Option<u64> {
    static KHZ: OnceLock<Option<u64>> = OnceLock::new();
    *KHZ.get_or_init(counter::khz)
}

/// QEMU's `-cpu` for a guest under KVM.
///
/// Linux keeps an eighth of the counter's frequency, in Hz, in 32 bits where it sets its timer to a
/// reading of the counter. From 34 GHz on that overflows: the timer expires too early, and the
/// kernel sets it again for the rest, 15 to 20 times for each tick. (`setup_APIC_timer` in
/// `arch/x86/kernel/apic/apic.c`.) Then the guest has to take the local APIC's own count instead.
pub fn processor() -> &'static str {
    processor_for(khz())
}

fn processor_for(khz: Option<u64>) -> &'static str {
    const MOST_KHZ: u64 = (1 << 32) * 8 / 1000;
    if khz.is_some_and(|khz| khz > MOST_KHZ) { "host,tsc-deadline=off" } else { "host" }
}

/// The kernel parameters that tell it, or nothing where it is not known. Otherwise each CPU of a
/// guest would measure its delay loop, by the counter, and compare the counter with another CPU's:
/// seconds for each CPU where many share one of this machine. A jiffy is Debian's, of 4 ms.
pub fn kernel_parameters(dilation: Dilation) -> String {
    // The guest's other clocks are slowed, the counter is not.
    khz().map_or_else(String::new, |khz| {
        let khz = khz * u64::from(dilation.factor());
        format!("tsc_early_khz={khz} lpj={} tsc=reliable", khz * 4)
    })
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::time::{Duration, Instant};

    /// For how long it is measured.
    const WINDOW: Duration = Duration::from_millis(50);
    /// How often both clocks are read, to find a pair that nothing came between.
    const TRIES: usize = 100;

    pub fn khz() -> Option<u64> {
        let (begin, first) = read();
        std::thread::sleep(WINDOW);
        let (end, last) = read();
        let ns = u64::try_from((end - begin).as_nanos()).ok()?;
        last.checked_sub(first)?.checked_mul(1_000_000)?.checked_div(ns)
    }

    /// Both clocks at the same time, as far as that is possible.
    fn read() -> (Instant, u64) {
        let pair = || {
            let before = Instant::now();
            // SAFETY: every x86-64 processor has it.
            let count = unsafe { std::arch::x86_64::_rdtsc() };
            (before.elapsed(), before, count)
        };
        let nearest = (0..TRIES).map(|_| pair()).min_by_key(|&(took, ..)| took);
        let (took, before, count) = nearest.unwrap_or_else(pair);
        (before + took / 2, count)
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod counter {
    pub fn khz() -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_is_too_fast_sets_no_timer() {
        assert_eq!(processor_for(None), "host");
        assert_eq!(processor_for(Some(3_000_000)), "host");
        assert_eq!(processor_for(Some(34_000_000)), "host");
        assert_eq!(processor_for(Some(34_400_000)), "host,tsc-deadline=off");
    }

    #[test]
    fn a_dilated_guests_counter_looks_faster() {
        let khz = |n| -> Option<u64> {
            let parameters = kernel_parameters(Dilation::new(n).unwrap());
            let khz = parameters.split(' ').find_map(|p| p.strip_prefix("tsc_early_khz="));
            khz.map(|khz| khz.parse().unwrap())
        };
        if let Some(once) = khz(1) {
            assert!(once > 0);
            assert_eq!(khz(10), Some(10 * once));
        }
    }
}
