// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's CPU time by kind, from the first line of `/proc/stat`.

/// Ticks since boot, over all CPUs. Guests' time is part of `user` already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// Programs, niced or not.
    pub user: u64,
    /// System calls, interrupts and softirqs.
    pub kernel: u64,
    /// With waiting for I/O.
    pub idle: u64,
    /// Taken by the hypervisor.
    pub steal: u64,
}

/// Shares of the time between two readings, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    pub user: f64,
    pub kernel: f64,
    pub idle: f64,
    pub steal: f64,
}

/// Reads `/proc/stat`'s text; `None` if its first line is not the sum of all CPUs.
pub fn parse(text: &str) -> Option<CpuTimes> {
    let values = text.lines().next()?.strip_prefix("cpu ")?;
    let values: Option<Vec<u64>> = values.split_whitespace().map(|v| v.parse().ok()).collect();
    let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = values?[..] else {
        return None;
    };
    Some(CpuTimes {
        user: user.checked_add(nice)?,
        kernel: system.checked_add(irq)?.checked_add(softirq)?,
        idle: idle.checked_add(iowait)?,
        steal,
    })
}

/// `None` if no time has passed. Single counters may step back a little; that counts as no time.
pub fn shares(before: &CpuTimes, after: &CpuTimes) -> Option<Shares> {
    let part = |get: fn(&CpuTimes) -> u64| get(after).saturating_sub(get(before)) as f64;
    let (user, kernel) = (part(|t| t.user), part(|t| t.kernel));
    let (idle, steal) = (part(|t| t.idle), part(|t| t.steal));
    let total = user + kernel + idle + steal;
    (total > 0.0).then(|| Shares {
        user: user / total,
        kernel: kernel / total,
        idle: idle / total,
        steal: steal / total,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        let before = parse("cpu  8 0 248 111 0 0 16 0 0 0\ncpu0 1 2 3\n").unwrap();
        let after = parse("cpu  108 0 298 131 0 10 16 20 0 0\n").unwrap();
        let s = shares(&before, &after).unwrap();
        assert_eq!((s.user, s.kernel, s.idle, s.steal), (0.5, 0.3, 0.1, 0.1));
        assert_eq!(shares(&after, &after), None);
        // Counters that run backwards, as idle time does on some kernels.
        assert!(shares(&after, &before).is_none());
    }

    #[test]
    fn files_of_stock_guests_are_understood() {
        for text in [
            include_str!("testdata/6.1.stat"),
            include_str!("testdata/6.12.stat"),
            include_str!("testdata/7.3.stat"),
        ] {
            let times = parse(text).unwrap();
            assert!(times.kernel > 100 && times.idle > 100 && times.user < 100, "{times:?}");
        }
    }

    #[test]
    fn odd_text_is_refused() {
        assert_eq!(parse(""), None);
        assert_eq!(parse("cpu0 1 2 3 4 5 6 7 8\n"), None);
        assert_eq!(parse("cpu  1 2 3\n"), None);
        assert_eq!(parse("cpu  1 2 3 4 5 6 7 x\n"), None);
        let most = u64::MAX;
        assert_eq!(parse(&format!("cpu  {most} 1 0 0 0 0 0 0\n")), None);
    }
}
