// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report of a dry run of the scheduler: what took place, and would have been put off or
//! rescued.

use reprieve_guard::{HeldUp, PutOff, Statistics, Would};
use reprieve_page::plain;
use reprieve_watch::show::text::vcpus;

/// By VM.
pub fn summary(statistics: &Statistics) -> String {
    let mut text = format!(
        "dry run of {} for {:.1} s: nothing was changed\n",
        statistics.policy.name(),
        statistics.elapsed_ns as f64 / 1e9,
    );
    for vm in &statistics.vms {
        text += &format!(
            "{}: {}, {:.1} s on CPUs\n",
            plain(&vm.name),
            vcpus(vm.vcpus as usize),
            vm.on_cpu_ns as f64 / 1e9,
        );
        if let Some(would) = &vm.would {
            text += &of_vm(would);
        }
        if let Some(trouble) = &vm.trouble {
            text += &format!("  {}\n", plain(trouble));
        }
    }
    text
}

fn of_vm(would: &Would) -> String {
    let mut text = String::new();
    if let Some(extend) = &would.extend {
        text += &put_off(extend);
    }
    if let Some(rescue) = &would.rescue {
        text += &held_up(rescue);
    }
    text
}

fn put_off(classes: &[PutOff]) -> String {
    let count: u64 = classes.iter().map(|of| of.count).sum();
    let all: u64 = classes.iter().map(|of| of.off_cpu_ns).sum();
    let mut text =
        format!("  extend: {count} preemptions in critical sections would have been put off");
    if count > 0 {
        text += &format!("; the vCPUs were off their CPUs for {:.1} ms in all", ms(all));
    }
    text += "\n";
    for of in classes {
        text += &format!(
            "    {}: {} times, {:.1} ms in all",
            of.class.name(),
            of.count,
            ms(of.off_cpu_ns),
        );
        if let Some(longest) = of.max_off_cpu_ns {
            text += &format!(", {:.3} ms at most", ms(longest));
        }
        text += "\n";
    }
    text
}

fn held_up(rescue: &HeldUp) -> String {
    let mut text = format!(
        "  rescue: {} grace periods (of {} that began) were late while a preempted vCPU held them up",
        rescue.graces, rescue.of,
    );
    if rescue.count > 0 {
        text += &format!(
            ": {} preemptions, {:.1} ms in all, {:.3} ms at most",
            rescue.count,
            ms(rescue.total_ns),
            ms(rescue.max_ns),
        );
    }
    text + "\n"
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use reprieve_guard::{Backend, Policy, VmStatistics};
    use reprieve_watch::model::Class;

    fn summary_of(would: Would) -> String {
        let vm = VmStatistics { name: "db\u{1b}".into(), vcpus: 2, ..VmStatistics::default() };
        let statistics = Statistics {
            elapsed_ns: 2_000_000_000,
            dry_run: true,
            vms: vec![VmStatistics { would: Some(would), ..vm }],
            ..Statistics::new(Backend::SchedExt, Policy::Full)
        };
        summary(&statistics)
    }

    #[test]
    fn it_says_what_would_have_been_done() {
        let put_off = |class, count, max_off_cpu_ns| PutOff {
            class,
            count,
            off_cpu_ns: count * 2_000_000,
            max_off_cpu_ns,
        };
        let text = summary_of(Would {
            extend: Some(vec![
                put_off(Class::Reader, 3, Some(4_500_000)),
                put_off(Class::Idle, 1, None),
            ]),
            rescue: Some(HeldUp {
                graces: 2,
                of: 30,
                count: 3,
                total_ns: 70_000_000,
                max_ns: 40_000_000,
            }),
        });
        for line in [
            "dry run of full for 2.0 s: nothing was changed",
            "  extend: 4 preemptions in critical sections would have been put off; the vCPUs were off their CPUs for 8.0 ms in all",
            "    reader: 3 times, 6.0 ms in all, 4.500 ms at most",
            "    idle: 1 times, 2.0 ms in all",
            "  rescue: 2 grace periods (of 30 that began) were late while a preempted vCPU held them up: 3 preemptions, 70.0 ms in all, 40.000 ms at most",
            "db?: 2 vCPUs, 0.0 s on CPUs",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn a_vm_in_its_first_seconds_does_not_have_no_vcpus() {
        let statistics = Statistics {
            vms: vec![VmStatistics { name: "new".into(), ..VmStatistics::default() }],
            ..Statistics::new(Backend::SchedExt, Policy::Full)
        };
        let text = summary(&statistics);
        assert!(text.contains("new: its vCPUs are not known yet, 0.0 s"), "{text}");
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let text = summary_of(Would::default());
        for word in ["extend", "rescue"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
    }
}
