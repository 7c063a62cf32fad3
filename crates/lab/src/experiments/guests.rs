// SPDX-License-Identifier: MIT OR Apache-2.0
//! The VMs that several experiments have, as guests under test or as competitors.

use super::{Options, Size};
use crate::plan::{CpuControl, VmPlan};
use reprieve_init::protocol::Workload;

/// Files per process: the paper's 128 K files over 32 instances of Postmark.
const FILES: u32 = 4096;

/// A VM whose vCPUs may each run on all of `cpus` (anywhere, when empty).
pub fn vm(name: &str, vcpus: u32, cpus: &[u32], memory_mib: u64, workload: Workload) -> VmPlan {
    let pin = if cpus.is_empty() { Vec::new() } else { vec![cpus.to_vec(); vcpus as usize] };
    let (name, pin_other, cgroup) = (name.into(), Vec::new(), CpuControl::default());
    VmPlan { name, vcpus, memory_mib, pin, pin_other, cgroup, workload }
}

/// The guest that does Postmark's transactions, a process per vCPU.
pub fn postmark(vcpus: u32, cpus: &[u32], size: &Size, options: &Options) -> VmPlan {
    let workload = Workload::Postmark { instances: vcpus, files: FILES, seed: options.seed };
    vm("postmark", vcpus, cpus, size.work_memory(vcpus), workload)
}

/// The guest whose kernel module allocates objects and frees them through `call_rcu`.
pub fn membench(vcpus: u32, cpus: &[u32], size: &Size) -> VmPlan {
    vm("membench", vcpus, cpus, size.work_memory(vcpus), Workload::Membench)
}

/// The paper's VM3 and VM4: one in each half.
pub fn bursty_pair(size: &Size, options: &Options) -> Vec<VmPlan> {
    let vcpus = size.bursty_vcpus();
    let mut pair = Vec::new();
    for (i, half) in size.halves().iter().enumerate() {
        let load = bursty(vcpus, options.seed.wrapping_add(1 + i as u64));
        let name = format!("bursty{}", i + 1);
        pair.push(vm(&name, vcpus, half, size.small_memory(vcpus), load));
    }
    pair
}

/// The paper's bursty competitor: 0.1 to 10 M arithmetic operations, then 1 to 200 ms asleep.
pub fn bursty(processes: u32, seed: u64) -> Workload {
    Workload::Bursty {
        processes,
        min_ops: 100_000,
        max_ops: 10_000_000,
        min_sleep_ms: 1,
        max_sleep_ms: 200,
        seed,
    }
}

/// Three VMs that never stop computing, each with as many vCPUs as the guest under test: it gets
/// about a quarter of the CPUs.
pub fn hogs(vcpus: u32, cpus: &[u32], size: &Size) -> Vec<VmPlan> {
    some_hogs(3, vcpus, cpus, size)
}

/// A number of VMs that never stop computing.
pub fn some_hogs(count: u32, vcpus: u32, cpus: &[u32], size: &Size) -> Vec<VmPlan> {
    (1..=count)
        .map(|i| {
            let hog = Workload::Hog { threads: vcpus };
            vm(&format!("hog{i}"), vcpus, cpus, size.small_memory(vcpus), hog)
        })
        .collect()
}

/// `asym`: vCPU 1 produces garbage, vCPU 0 shares its CPU with the hogs.
pub fn asym(size: &Size, options: &Options) -> (VmPlan, Vec<VmPlan>) {
    let vcpus = options.vcpus.unwrap_or(2);
    let rest = size.all().len() as u32 - 1;
    let cpu = |vcpu: u32| if vcpu == 0 { 0 } else { 1 + (vcpu - 1) % rest };
    let subject = VmPlan {
        name: "asym".into(),
        vcpus,
        memory_mib: size.garbage_memory(2).max(size.work_memory(vcpus)),
        pin: (0..vcpus).map(|vcpu| vec![cpu(vcpu)]).collect(),
        pin_other: vec![1],
        cgroup: CpuControl::default(),
        workload: Workload::SemChurn {
            producer_cpu: 1,
            reader_cpus: (0..vcpus).filter(|&vcpu| vcpu != 1).collect(),
            semaphores: 512,
        },
    };
    let mut others = hogs(2, &[0], size);
    for hog in &mut others {
        hog.pin_other = vec![0];
    }
    (subject, others)
}

/// `churn`: a guest that creates and removes files.
pub fn churn(size: &Size, options: &Options) -> VmPlan {
    let vcpus = size.vcpus(options);
    let load = Workload::FileChurn { workers: vcpus };
    vm("churn", vcpus, &size.all(), size.work_memory(vcpus), load)
}

/// Limits `vm` to half of the CPUs that it has a vCPU for.
pub fn limited(mut vm: VmPlan) -> VmPlan {
    vm.cgroup.max_percent = Some(vm.vcpus * 100 / 2);
    vm
}
