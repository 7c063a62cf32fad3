// SPDX-License-Identifier: MIT OR Apache-2.0
//! How large the VMs of an experiment are on a given machine.
//!
//! From 8 CPUs on the VMs have the proportions of [RP]'s test bed, which had 64: two halves, each
//! shared by one VM with a vCPU per CPU and a bursty VM with a vCPU per four CPUs. On fewer CPUs a
//! half would have VMs of one vCPU, whose RCU never waits for another vCPU. There the halves are
//! merged: two VMs with a vCPU per CPU and the bursty VMs share all CPUs. That is more
//! overcommitted than in the paper; the report shows it.

use super::Options;
use crate::error::{Error, Result};
use crate::plan::{Plan, VmPlan};

/// The CPUs and the memory that VMs may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    pub cpus: u32,
    /// Memory that VMs may take, MiB.
    pub memory_mib: u64,
}

/// From this number on, CPUs are split into halves.
const SPLIT_CPUS: u32 = 8;

/// Memory of QEMU itself per VM, MiB.
const VMM_MIB: u64 = 96;

/// The most vCPUs that QEMU's machine `pc` takes.
pub const MAX_VCPUS: u32 = 255;

#[derive(Clone, Debug)]
pub struct Size {
    machine: Machine,
    /// CPUs in use.
    cpus: u32,
}

impl Size {
    pub fn new(machine: Machine) -> Result<Size> {
        if machine.cpus < 2 {
            return Err(Error::Usage(format!(
                "{} CPU: an experiment needs 2 or more, else RCU has no other CPU to wait for",
                machine.cpus
            )));
        }
        Ok(Size { machine, cpus: machine.cpus.min(MAX_VCPUS) })
    }

    /// All CPUs in use.
    pub fn all(&self) -> Vec<u32> {
        (0..self.cpus).collect()
    }

    /// vCPUs of a guest under test that takes as many as the user says: else one per CPU.
    pub fn vcpus(&self, options: &Options) -> u32 {
        options.vcpus.unwrap_or(self.cpus)
    }

    /// The two halves of the CPUs; both are all CPUs on a small machine.
    pub fn halves(&self) -> [Vec<u32>; 2] {
        if self.cpus < SPLIT_CPUS {
            return [self.all(), self.all()];
        }
        let half = self.cpus / 2;
        [(0..half).collect(), (half..2 * half).collect()]
    }

    /// The lower half of the CPUs, on machines of any size.
    pub fn lower(&self) -> Vec<u32> {
        (0..self.cpus / 2).collect()
    }

    /// vCPUs of a bursty VM: one per four CPUs of its half.
    pub fn bursty_vcpus(&self) -> u32 {
        (self.halves()[0].len() as u32 / 4).max(1)
    }

    /// A quarter of the CPUs, rounded up.
    pub fn quarter(&self) -> u32 {
        self.cpus.div_ceil(4)
    }

    /// Memory of a VM that works on memory: 256 MiB per vCPU (the paper's 8 GB for 32).
    pub fn work_memory(&self, vcpus: u32) -> u64 {
        (256 * u64::from(vcpus)).max(512)
    }

    /// Memory of a VM that makes garbage as fast as it can: the paper's is too little for a vCPU of
    /// today's speed, whose garbage of one long grace period would fill it, and a guest that runs
    /// out of memory alone cannot be compared. On a machine without that much it may, which is then
    /// a result.
    pub fn garbage_memory(&self, vcpus: u32) -> u64 {
        let work = self.work_memory(vcpus);
        let room = |times: &u64| self.machine.memory_mib >= 2 * times * work;
        [16, 8, 4, 2].into_iter().find(room).unwrap_or(1) * work
    }

    /// Memory of a VM that only computes.
    pub fn small_memory(&self, vcpus: u32) -> u64 {
        128 + 16 * u64::from(vcpus)
    }

    /// Memory of all VMs of `plan` with their VMMs, MiB.
    pub fn memory_of(plan: &Plan) -> u64 {
        let guests = plan.guests().iter().enumerate().filter(|(i, guest)| i == *guest).count();
        let with_vmm = |vm: &VmPlan| vm.memory_mib.saturating_add(VMM_MIB);
        let subjects = with_vmm(&plan.subject).saturating_mul(guests as u64);
        plan.competitors.iter().map(with_vmm).fold(subjects, u64::saturating_add)
    }

    pub fn check_memory(&self, plan: &Plan) -> Result<()> {
        let (need, have) = (Size::memory_of(plan), self.machine.memory_mib);
        if need <= have {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "the VMs of {} need {need} MiB and there are {have} MiB for them: free some, or ask for fewer combinations",
            plan.experiment
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ALL, Options, Request, Weights, find};
    use super::*;
    use crate::dilation::Dilation;
    use crate::policy::Policy;
    use reprieve_init::protocol::Workload;
    use std::time::Duration;

    fn request(experiment: &str) -> Request {
        Request {
            experiment: experiment.into(),
            repeat: 1,
            guest_kernels: vec!["deb:6.12".into()],
            preempt: vec![None],
            guest_args: vec![String::new()],
            policies: vec![Policy::Eevdf],
            phase: None,
            warmup: None,
            options: Options::default(),
            command: "test".into(),
        }
    }

    const LARGE: Machine = Machine { cpus: 64, memory_mib: 200 << 10 };

    /// (vCPUs, first CPU, last CPU) by name.
    fn shape(plan: &Plan) -> Vec<(String, u32, u32, u32)> {
        let vms = [&plan.subject].into_iter().chain(&plan.competitors);
        let mut shape: Vec<_> = vms
            .map(|vm| {
                let cpus = &vm.pin[0];
                (vm.name.clone(), vm.vcpus, cpus[0], cpus[cpus.len() - 1])
            })
            .collect();
        shape.sort();
        shape
    }

    #[test]
    fn vms_have_the_papers_proportions() {
        let own = |v: &[(&str, u32, u32, u32)]| -> Vec<_> {
            v.iter().map(|&(n, a, b, c)| (n.to_string(), a, b, c)).collect()
        };
        let one = own(&[
            ("bursty1", 8, 0, 31),
            ("bursty2", 8, 32, 63),
            ("membench", 32, 32, 63),
            ("postmark", 32, 0, 31),
        ]);
        for name in ["postmark", "membench"] {
            let plan = request(name).plan(&LARGE).unwrap();
            assert_eq!((plan.subject.name.as_str(), plan.subject.memory_mib), (name, 8192));
            assert_eq!(shape(&plan), one);
        }
        let plan = request("clone").plan(&LARGE).unwrap();
        assert_eq!(shape(&plan), own(&[("clone", 64, 0, 63), ("hog", 16, 0, 31)]));
    }

    #[test]
    fn every_experiment_fits_every_machine() {
        for cpus in [2, 3, 4, 7, 8, 16, 33, 64, 128, 256, 1024] {
            for experiment in ALL {
                let machine = Machine { cpus, memory_mib: 1 << 20 };
                let plan = request(experiment.name).plan(&machine).unwrap();
                let traces = u64::from(plan.measure.trace_kb) * u64::from(plan.subject.vcpus);
                assert!(traces / 1024 <= plan.subject.memory_mib / 4, "{plan:?}");
                for vm in plan.competitors.iter().chain([&plan.subject]) {
                    assert!(vm.vcpus > 0 && vm.memory_mib >= 128, "{vm:?}");
                    let pinned = vm.pin.iter().flatten().chain(&vm.pin_other);
                    assert!(pinned.copied().all(|cpu| cpu < cpus), "{cpus}: {vm:?}");
                    assert!(vm.pin.is_empty() || vm.pin.len() == vm.vcpus as usize, "{vm:?}");
                    assert!(vm.vcpus <= MAX_VCPUS, "{vm:?}");
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_a_reason() {
        let error = |request: Request, machine| match request.plan(&machine) {
            Err(Error::Usage(text)) => text,
            other => panic!("{other:?}"),
        };
        let small = Machine { cpus: 2, memory_mib: 8 << 10 };
        assert!(error(request("churn"), Machine { cpus: 1, ..small }).contains("1 CPU"));
        let tight = Machine { memory_mib: 512, ..small };
        assert!(error(request("membench"), tight).contains("512 MiB"));
        assert!(find("postmrk").err().unwrap().to_string().contains("postmark"));
        let twice = Request {
            guest_args: vec!["nohz_full=1".into(), " nohz_full=1 ".into()],
            ..request("churn")
        };
        assert!(error(twice, small).contains("twice"));
        let none = Request { repeat: 0, ..request("churn") };
        assert!(error(none, small).contains("--repeat"));
    }

    #[test]
    fn odd_weights_and_vcpus_are_refused_in_one_line() {
        for text in ["10", "0:100", "10:", ":100", "10:100:1", "10001:100", "-1:100", "a:b"] {
            let error = text.parse::<Weights>().unwrap_err().to_string();
            assert!(error.contains("10:100") && !error.contains('\n'), "{error}");
        }
        let machine = Machine { cpus: 2, memory_mib: 16 << 10 };
        let error = |experiment: &str, options: Options| {
            let request = Request { options, ..request(experiment) };
            request.plan(&machine).unwrap_err().to_string()
        };
        let vcpus = |n| Options { vcpus: Some(n), ..Options::default() };
        assert!(error("postmark", vcpus(8)).contains("--vcpus 8"));
        assert!(error("churn", vcpus(1)).contains("--vcpus 1"));
    }

    #[test]
    fn the_user_says_how_many_vcpus_and_what_they_weigh() {
        let plan = |experiment: &str, cpus, options: Options| {
            let machine = Machine { cpus, memory_mib: 16 << 10 };
            Request { options, ..request(experiment) }.plan(&machine).unwrap()
        };
        let eight = Options { vcpus: Some(8), ..Options::default() };
        for name in ["asym", "churn", "psearchy", "apache", "dbench"] {
            let plan = plan(name, 4, eight.clone());
            assert_eq!((plan.subject.vcpus, plan.subject.pin.len()), (8, 8), "{name}");
            let producer = name != "asym" || plan.subject.pin[2..].iter().all(|p| p[0] > 0);
            assert!(producer && !plan.needs_cgroups(), "{:?}", plan.subject.pin);
        }
        let weights = |plan: &Plan| plan.vms().map(|vm| vm.cgroup.weight).collect::<Vec<_>>();
        let low = plan("lowweight", 2, Options::default());
        assert_eq!(weights(&low), [10, 100, 100, 100]);
        assert!(low.needs_cgroups() && !low.limits());
        let given = Options { weights: "300:7".parse().ok(), ..Options::default() };
        assert_eq!(weights(&plan("lowweight", 2, given)), [300, 7, 7, 7]);
        let quota = plan("quota", 8, Options::default());
        assert_eq!(quota.subject.cgroup.max_percent, Some(400));
        assert!(quota.needs_cgroups() && quota.limits());
    }

    /// As `crowd` promises.
    #[test]
    fn a_crowd_has_8_to_16_vcpus_per_cpu() {
        for cpus in [2, 8, 16] {
            let machine = Machine { cpus, memory_mib: 64 << 10 };
            let plan = request("crowd").plan(&machine).unwrap();
            let sleeps = |vm: &&VmPlan| matches!(vm.workload, Workload::Bursty { .. });
            let all: u32 = plan.vms().map(|vm| vm.vcpus).sum();
            let bursty: u32 = plan.vms().filter(sleeps).map(|vm| vm.vcpus).sum();
            assert_eq!(bursty, 16);
            let least = all - bursty;
            assert!(least >= 8 * cpus && all <= 16 * cpus, "{least} to {all} on {cpus}");
        }
    }

    #[test]
    fn a_guest_that_makes_garbage_has_what_there_is_room_for() {
        let memory = |memory_mib| {
            let size = Size::new(Machine { cpus: 2, memory_mib }).unwrap();
            size.garbage_memory(2)
        };
        assert_eq!([16 << 10, 4 << 10, 2 << 10].map(memory), [8192, 2048, 1024]);
    }

    #[test]
    fn quick_phases_are_short_where_time_is_dilated() {
        let machine = Machine { cpus: 2, memory_mib: 16 << 10 };
        let lengths = |request: Request, n: u32| {
            let mut plan = request.plan(&machine).unwrap();
            request.shorten(&mut plan, Dilation::new(n).unwrap());
            (plan.warmup_ms, plan.phase_ms)
        };
        assert_eq!(lengths(request("churn"), 1), (6_000, 15_000));
        assert_eq!(lengths(request("churn"), 10), (2_000, 4_000));
        assert_eq!(lengths(request("dbench"), 10), (3_000, 4_000));
        let given = Request { phase: Some(Duration::from_secs(30)), ..request("churn") };
        assert_eq!(lengths(given, 10), (2_000, 30_000));
    }

    #[test]
    fn variants_are_named_by_what_differs() {
        let machine = Machine { cpus: 2, memory_mib: 16 << 10 };
        let plan = request("churn").plan(&machine).unwrap();
        assert_eq!(plan.variants[0].label, "default");
        let many = Request {
            guest_kernels: vec!["deb:6.1".into(), "deb:6.12".into()],
            guest_args: vec!["".into(), "rcutree.jiffies_till_first_fqs=0".into()],
            preempt: vec![Some("full".into())],
            ..request("churn")
        };
        let plan = many.plan(&machine).unwrap();
        let labels: Vec<_> = plan.variants.iter().map(|v| v.label.as_str()).collect();
        let last = "6.12, rcutree.jiffies_till_first_fqs=0";
        assert_eq!(
            labels,
            ["6.1, defaults", "6.1, rcutree.jiffies_till_first_fqs=0", "6.12, defaults", last]
        );
        assert_eq!(plan.variants[3].kernel_args(), "preempt=full rcutree.jiffies_till_first_fqs=0");
    }
}
