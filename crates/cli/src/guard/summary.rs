// SPDX-License-Identifier: MIT OR Apache-2.0
//! guard's statistics as text: the events of each VM, or what a dry run would have done for it.

use reprieve_guard::{Backend, HeldUp, PutOff, Statistics, VmStatistics};
use reprieve_page::plain;
use reprieve_watch::show::activity;
use reprieve_watch::show::text::vcpus;

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn spent(total_ns: u64, max_ns: Option<u64>) -> String {
    let most = max_ns.map(|ns| format!(", {:.3} ms at most", ms(ns))).unwrap_or_default();
    format!("{:.1} ms in all{most}", ms(total_ns))
}

pub fn summary(statistics: &Statistics) -> String {
    let (policy, seconds) = (statistics.policy.name(), ms(statistics.elapsed_ns) / 1e3);
    let mut text = match (statistics.dry_run, statistics.backend) {
        (true, _) => format!("dry run of {policy} for {seconds:.1} s: nothing was changed\n"),
        (_, Backend::Eevdf) => String::new(),
        (_, Backend::SchedExt) => {
            format!("{policy} for {seconds:.1} s; {}\n", decisions(statistics))
        }
    };
    for vm in &statistics.vms {
        let (name, vcpus) = (plain(&vm.name), vcpus(vm.vcpus as usize));
        let ran = ms(vm.on_cpu_ns) / 1e3;
        text += &match (statistics.dry_run, statistics.backend) {
            (true, _) => format!("{name}: {vcpus}, {ran:.1} s on CPUs\n"),
            (_, Backend::Eevdf) => format!("{name}: {vcpus}, {} with short slices\n", vm.did.short),
            (_, Backend::SchedExt) => {
                format!("{name}: {vcpus}, weight {}, {ran:.1} s on CPUs\n{}", vm.weight, did(vm))
            }
        };
        if let Some(would) = &vm.would {
            text += &would.extend.as_deref().map_or(String::new(), put_off);
            text += &would.rescue.as_ref().map_or(String::new(), held_up);
        }
        text += &trouble("", vm.trouble.as_ref());
    }
    text
}

fn decisions(statistics: &Statistics) -> String {
    let (count, times) = (statistics.decisions, &statistics.decision_times);
    let mean = statistics.decisions_ns / count.max(1);
    let most = times
        .median_ns
        .zip(times.p99_ns)
        .map(|(median, p99)| format!(", {median} ns in the median; 99 % took {p99} ns at most"));
    format!("{count} decisions of {mean} ns on average{}", most.unwrap_or_default())
}

fn did(vm: &VmStatistics) -> String {
    let critical = vm.preempted.iter().filter(|of| activity::CRITICAL.contains(&of.class));
    let (avoided, suffered) =
        critical.fold((0, 0), |sum, of| (sum.0 + of.avoided, sum.1 + of.suffered));
    let mut text =
        format!("  preemptions in critical sections: {avoided} avoided, {suffered} suffered\n");
    if let Some(region) = &vm.region {
        text += &format!(
            "  sections that its programs announced: preemptions {} avoided, {} suffered\n",
            region.avoided, region.suffered,
        );
        text += &trouble("its programs are told nothing: ", region.trouble.as_ref());
    }
    for (what, granted) in vm.grants() {
        if granted.count + granted.refused > 0 {
            let spent = spent(granted.total_ns, Some(granted.max_ns));
            text += &format!(
                "  {what}: {} times, {spent}; {} refused\n",
                granted.count, granted.refused
            );
        }
    }
    text
}

fn trouble(what: &str, trouble: Option<&String>) -> String {
    trouble.map_or(String::new(), |trouble| format!("  {what}{}\n", plain(trouble)))
}

fn put_off(classes: &[PutOff]) -> String {
    let count: u64 = classes.iter().map(|of| of.count).sum();
    let all: u64 = classes.iter().map(|of| of.off_cpu_ns).sum();
    let mut text = format!(
        "  extend: {count} preemptions in critical sections would have been put off; the vCPUs were off their CPUs for {}\n",
        spent(all, None)
    );
    for of in classes {
        let spent = spent(of.off_cpu_ns, of.max_off_cpu_ns);
        text += &format!("    {}: {} times, {spent}\n", of.class.name(), of.count);
    }
    text
}

fn held_up(HeldUp { held, of }: &HeldUp) -> String {
    format!(
        "  rescue: {} grace periods (of {of} that began) were late while a preempted vCPU held them up: {} preemptions, {}\n",
        held.graces,
        held.count,
        spent(held.total_ns, Some(held.max_ns)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use reprieve_guard::{Did, Granted, Preempted, RegionStatistics, Times, Would};
    use reprieve_watch::model::{Class, Held};

    #[test]
    fn all_that_is_known_is_said_and_no_name_reaches_the_terminal() {
        let preempted = |class, suffered, avoided| Preempted { class, suffered, avoided };
        let put_off = |class, max_off_cpu_ns| PutOff {
            class,
            count: 3,
            off_cpu_ns: 6_000_000,
            max_off_cpu_ns,
        };
        let extended = Granted { count: 20, total_ns: 1_500_000, max_ns: 900_000, refused: 1 };
        let held = Held { graces: 2, count: 3, total_ns: 70_000_000, max_ns: 40_000_000 };
        let vm = VmStatistics {
            name: "db\u{1b}".into(),
            vcpus: 2,
            weight: 100,
            preempted: vec![preempted(Class::User, 50, 0), preempted(Class::Reader, 3, 10)],
            did: Did { extended, ..Did::default() },
            region: Some(RegionStatistics { suffered: 2, avoided: 40, trouble: None }),
            trouble: Some("left\u{1b}".into()),
            would: Some(Would {
                extend: Some(vec![
                    put_off(Class::Reader, Some(4_500_000)),
                    put_off(Class::Idle, None),
                ]),
                rescue: Some(HeldUp { held, of: 30 }),
            }),
            ..VmStatistics::default()
        };
        let new = VmStatistics { name: "new".into(), would: Some(Would::default()), ..vm.clone() };
        let new = VmStatistics { vcpus: 0, region: None, trouble: None, ..new };
        let mut statistics = Statistics {
            elapsed_ns: 2_000_000_000,
            vms: vec![vm, VmStatistics { did: Did::default(), ..new }],
            decisions: 4,
            decisions_ns: 400,
            decision_times: Times { median_ns: Some(90), p99_ns: Some(132), ..Times::default() },
            ..Statistics::default()
        };
        let did = "\
full for 2.0 s; 4 decisions of 100 ns on average, 90 ns in the median; 99 % took 132 ns at most
db?: 2 vCPUs, weight 100, 0.0 s on CPUs
  preemptions in critical sections: 10 avoided, 3 suffered
  sections that its programs announced: preemptions 40 avoided, 2 suffered
  extended: 20 times, 1.5 ms in all, 0.900 ms at most; 1 refused
";
        let would = "  extend: 6 preemptions in critical sections would have been put off; the vCPUs were off their CPUs for 12.0 ms in all
    reader: 3 times, 6.0 ms in all, 4.500 ms at most
    idle: 3 times, 6.0 ms in all
  rescue: 2 grace periods (of 30 that began) were late while a preempted vCPU held them up: 3 preemptions, 70.0 ms in all, 40.000 ms at most
  left?
";
        let no_more = "  preemptions in critical sections: 10 avoided, 3 suffered\n";
        let head = "new: its vCPUs are not known yet, ";
        let expected = format!("{did}{would}{head}weight 100, 0.0 s on CPUs\n{no_more}");
        assert_eq!(summary(&statistics), expected);
        statistics.dry_run = true;
        let did = "dry run of full for 2.0 s: nothing was changed\ndb?: 2 vCPUs, 0.0 s on CPUs\n";
        assert_eq!(summary(&statistics), format!("{did}{would}{head}0.0 s on CPUs\n"));
    }
}
