// SPDX-License-Identifier: MIT OR Apache-2.0
//! All experiments.

use super::Experiment;
use super::guests::*;
use reprieve_init::protocol::Workload;

/// Apache's connections per vCPU: enough that no worker waits for a client.
const CONNECTIONS: u32 = 16;

/// `cpu.weight` of `lowweight`, of 100.
const WEIGHT: u32 = 10;

/// Psearchy's threads per vCPU, and the files of its corpus, of 34 KiB on average.
const INDEXERS: u32 = 4;
const CORPUS: u32 = 1024;

/// VMs with a vCPU per CPU in `crowd`, and the vCPUs of a bursty VM there.
const HOGS: u32 = 7;
const BURSTY: u32 = 8;

/// Threads per vCPU in `guest-threads`: far more than [ECS]'s two VMs, so that who loses its CPU
/// lacks it for long. A quarter of the time is in sections.
const PER_VCPU: u32 = 16;
const SECTION_US: u32 = 50;
const PAUSE_US: u32 = 150;

/// In the order in which `lab list` shows them.
pub static ALL: &[Experiment] = &[
    // Figure 2.
    Experiment {
        name: "postmark",
        summary: "Postmark's transactions on tmpfs, a process per vCPU",
        competition: "a membench VM and two bursty VMs",
        source: "[RP] experiment 1",
        vms: |size, options| {
            let [lower, upper] = size.halves();
            let vcpus = lower.len() as u32;
            let mut others = vec![membench(vcpus, &upper, size)];
            others.extend(bursty_pair(size, options));
            (postmark(vcpus, &lower, size, options), others)
        },
    },
    // Figure 3.
    Experiment {
        name: "membench",
        summary: "kernel threads that allocate 1 KiB and free it through call_rcu, 2500 times per second per CPU",
        competition: "a Postmark VM and two bursty VMs",
        source: "[RP] experiment 1",
        vms: |size, options| {
            let [lower, upper] = size.halves();
            let vcpus = upper.len() as u32;
            let mut others = vec![postmark(vcpus, &lower, size, options)];
            others.extend(bursty_pair(size, options));
            (membench(vcpus, &upper, size), others)
        },
    },
    // Figure 4.
    Experiment {
        name: "clone",
        summary: "clone() of children in new namespaces, in a loop on every vCPU",
        competition: "CPU hogs on half of the CPUs",
        source: "[RP] experiment 2",
        vms: |size, _| {
            let all = size.all();
            let vcpus = all.len() as u32;
            let load = Workload::Clone { workers: vcpus };
            let subject = vm("clone", vcpus, &all, size.work_memory(vcpus), load);
            // The paper: 16 hogs in a VM of 16 vCPUs on 32 of the 64 CPUs.
            let hogs = size.quarter();
            let load = Workload::Hog { threads: hogs };
            let hog = vm("hog", hogs, &size.lower(), size.small_memory(hogs), load);
            (subject, vec![hog])
        },
    },
    // Under symmetric overcommit the producer of garbage is preempted as often as the reader for
    // which its grace periods wait, so memory does not grow. Here the producer has a CPU to itself:
    // while a grace period waits for the other vCPU, garbage piles up.
    Experiment {
        name: "asym",
        summary: "vCPU 1 frees 64 KiB at a time through call_rcu; others do short system calls",
        competition: "three hog VMs, all on the CPU of vCPU 0",
        source: "ours",
        vms: asym,
    },
    // A VM of little weight (a burstable or best-effort VM). vCPU 0 gets a small part of its CPU
    // and is off it for many slices at a time, while the garbage of vCPU 1 waits for it.
    Experiment {
        name: "lowweight",
        summary: "asym in a VM of cpu.weight 10",
        competition: "three hog VMs of cpu.weight 100, all on the CPU of vCPU 0",
        source: "ours",
        vms: |size, options| {
            let (mut subject, others) = asym(size, options);
            subject.name = "lowweight".into();
            subject.cgroup.weight = WEIGHT;
            (subject, others)
        },
    },
    // The real Apache, and its client, both in the guest.
    Experiment {
        name: "apache",
        summary: "Apache and wrk, a page of 300 bytes over the loopback interface, a connection per request",
        competition: "three hog VMs",
        source: "[ECS], MOSBENCH",
        vms: |size, options| {
            let (all, vcpus) = (size.all(), size.vcpus(options));
            let load = Workload::Apache { connections: CONNECTIONS * vcpus };
            let subject = vm("apache", vcpus, &all, size.work_memory(vcpus), load);
            (subject, hogs(vcpus, &all, size))
        },
    },
    Experiment {
        name: "dbench",
        summary: "the dbench program, one client per vCPU, on tmpfs",
        competition: "three hog VMs",
        source: "[IPC]",
        vms: |size, options| {
            let (all, vcpus) = (size.all(), size.vcpus(options));
            let load = Workload::Dbench { clients: vcpus };
            // Each client keeps about 25 MiB of files, on top of the program's 24 MiB load file.
            let memory = size.work_memory(vcpus) + 128;
            (vm("dbench", vcpus, &all, memory, load), hogs(vcpus, &all, size))
        },
    },
    Experiment {
        name: "churn",
        summary: "a file created and removed on tmpfs, in a loop on every vCPU",
        competition: "three hog VMs",
        source: "ours",
        vms: |size, options| {
            let subject = churn(size, options);
            let others = hogs(subject.vcpus, &size.all(), size);
            (subject, others)
        },
    },
    // A VM that has used up its quota is off all CPUs until the next period begins, whatever its
    // vCPUs were doing, also alone on its host.
    Experiment {
        name: "quota",
        summary: "churn under a cpu.max of half of its CPUs, also alone",
        competition: "three hog VMs",
        source: "Kubernetes' CPU limits",
        vms: |size, options| {
            let subject = limited(churn(size, options));
            let others = hogs(subject.vcpus, &size.all(), size);
            (subject, others)
        },
    },
    Experiment {
        name: "quota-asym",
        summary: "asym under a cpu.max of half of its CPUs, also alone",
        competition: "three hog VMs, all on the CPU of vCPU 0",
        source: "Kubernetes' CPU limits",
        vms: |size, options| {
            let (subject, others) = asym(size, options);
            (limited(subject), others)
        },
    },
    // A vCPU waits for long until its turn comes. Per CPU there are a vCPU of `churn` and seven of
    // hog VMs. On 2 CPUs the two bursty VMs add up to eight, on larger hosts fewer.
    Experiment {
        name: "crowd",
        summary: "churn as one of many: 8 to 16 runnable vCPUs per CPU",
        competition: "seven hog VMs, and two bursty VMs of 8 vCPUs",
        source: "ours",
        vms: |size, options| {
            let all = size.all();
            let mut others = some_hogs(HOGS, all.len() as u32, &all, size);
            others.extend((1..=2).map(|i| {
                let load = bursty(BURSTY, options.seed.wrapping_add(i));
                vm(&format!("bursty{i}"), BURSTY, &all, size.small_memory(BURSTY), load)
            }));
            (churn(size, options), others)
        },
    },
    // Threads of one address space wait for each other at its lock and at those of the index: a
    // preempted vCPU stops others here as well, not only grace periods.
    Experiment {
        name: "psearchy",
        summary: "files on tmpfs mapped and indexed by four threads per vCPU",
        competition: "three hog VMs",
        source: "MOSBENCH",
        vms: |size, options| {
            let (all, vcpus) = (size.all(), size.vcpus(options));
            let (threads, seed) = (INDEXERS * vcpus, options.seed);
            let load = Workload::Psearchy { threads, files: CORPUS, seed };
            let subject = vm("psearchy", vcpus, &all, size.work_memory(vcpus), load);
            (subject, hogs(vcpus, &all, size))
        },
    },
    // Threads of a program announce their critical sections (crate `hint`); the host reads the
    // announcements through the region that it offers, and tells the program which vCPUs are
    // preempted. Measured are preemptions of vCPUs inside such sections, seen from outside at
    // context switches, whoever schedules, and what the program was answered.
    Experiment {
        name: "guest-threads",
        summary: "16 threads per vCPU that announce their sections to the host",
        competition: "3 VMs that never stop computing",
        source: "[ECS] from user space of a guest",
        vms: |size, _| {
            let all = size.all();
            let vcpus = all.len() as u32;
            let (threads, section_us, pause_us) = (PER_VCPU * vcpus, SECTION_US, PAUSE_US);
            let load = Workload::Hinted { threads, section_us, pause_us };
            let subject = vm("program", vcpus, &all, size.small_memory(vcpus) + 64, load);
            (subject, hogs(vcpus, &all, size))
        },
    },
];
