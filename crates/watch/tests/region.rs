// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program inside a real guest (TCG) gives hints, which this host reads from the region, and asks
//! the questions that this host answers.

mod common;

use common::{boot_with, spin, wait_for, wait_until_watching, watch};
use patience::{NO_LIMIT, Wait};
use reprieve_hint::abi::region::BYTES;
use reprieve_lab::process::Cancel;
use reprieve_lab::protocol::{Command, Event, Workload};
use reprieve_watch::model::VmSnapshot;
use reprieve_watch::{Region, Watch};
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use common::patience;

const THREADS: u32 = 4;

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn hints_leave_a_guest_and_answers_enter_it() {
    let mut guest = boot_with("deb:6.12", None, 2, "", true);
    let region = Region::find(guest.vm.pid()).expect("QEMU has mapped the region");
    assert!(region.view().unwrap().threads.is_empty());
    let mut watch = watch(&guest, false);
    let seen = wait_until_watching(&mut watch);
    assert!(seen.vcpus.iter().all(|vcpu| vcpu.announced == 0), "{seen:?}");
    let cancel = Cancel::default();
    let mut call = |command| guest.vm.call(&command, NO_LIMIT, &cancel, |_| Ok(())).unwrap();
    let workload = Workload::Hinted { threads: THREADS, section_us: 100, pause_us: 300 };
    call(Command::Prepare { workload, measure: None });

    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&done);
        // vCPU 0 runs, and vCPU 1 waits for a CPU on which three threads are to run.
        let (region, done, writer) = (&region, &done, region.open().unwrap());
        scope.spawn(move || {
            for beat in 1.. {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                writer.publish(beat, &[(1, 1), (2, 3)]).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        // Each thread in a section at some time, and out of it at another.
        let hints = scope.spawn(move || {
            let (mut inside, mut outside) = (BTreeSet::new(), BTreeSet::new());
            let mut wait = Wait::new("hints of all threads");
            while inside.len() < THREADS as usize || inside.difference(&outside).count() > 0 {
                for thread in region.view().unwrap().threads {
                    let counts = (thread.non_preemptable, thread.preemptable);
                    assert!([(0, 0), (1, 0)].contains(&counts), "{thread:?}");
                    if counts.0 == 1 { &mut inside } else { &mut outside }.insert(thread.thread);
                }
                wait.pause(|| format!("inside {inside:?}, outside {outside:?}"));
            }
            inside
        });
        let mut asked = Wait::new("answers in the guest");
        for phase in 0.. {
            let result = match call(Command::Phase { phase, duration_ms: 500 }) {
                Event::PhaseDone { result, .. } => result,
                other => panic!("{other:?}"),
            };
            let share = |subject: &str| {
                let figure = result.figures.iter().find(|figure| figure.subject == subject);
                figure.unwrap_or_else(|| panic!("no {subject}: {result:?}")).value
            };
            // Half of the threads ask about each vCPU.
            let told = ["vCPU preempted", "vCPU not preempted", "its CPU overloaded"];
            let known = share("unknown") == 0.0 && told.iter().all(|what| share(what) > 0.0);
            if known && hints.is_finished() {
                break;
            }
            asked.pause(|| format!("{:?}", result.figures));
        }
        assert_eq!(hints.join().unwrap().len(), THREADS as usize);
    });

    // The eBPF program finds the sections in which the host takes CPUs away.
    call(Command::Start);
    let _spinners = spin(2 * std::thread::available_parallelism().unwrap().get());
    wait_for(&mut watch, "a preemption in a section of a program", |vm| {
        vm.vcpus.iter().any(|vcpu| vcpu.announced > 0 && vcpu.announced_off_cpu_ns > 0)
    });
    // Most of the time the threads are in no section.
    wait_for(&mut watch, "a preemption outside of any", |vm| {
        let all = vm.vcpus.iter().flat_map(|vcpu| &vcpu.preemptions);
        let all: u64 = all.map(|class| class.off_cpu.counts.iter().sum::<u64>()).sum();
        all > vm.vcpus.iter().map(|vcpu| vcpu.announced).sum()
    });

    // Whoever writes what, it is no region any more, or numbers.
    let (start, end) = (region.address(), region.address() + BYTES as u64);
    let path = format!("/proc/{}/map_files/{start:x}-{end:x}", guest.vm.pid());
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let mut random = 1u64;
    let mut byte = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 56) as u8
    };
    let noise: Vec<u8> = (0..BYTES).map(|_| byte()).collect();
    file.write_all_at(&noise[8..], 8).unwrap();
    assert!(Region::find(guest.vm.pid()) == Some(region.clone()) && region.view().is_ok());
    goes_on(&mut watch);
    file.write_all_at(&noise[..8], 0).unwrap();
    assert_eq!(Region::find(guest.vm.pid()), None);
    assert!(region.view().is_err() && region.open().is_err());
    goes_on(&mut watch);
}

/// The guest runs and is watched.
fn goes_on(watch: &mut Watch) {
    let ran = |vm: &VmSnapshot| vm.vcpus.iter().map(|vcpu| vcpu.on_cpu_ns).sum::<u64>();
    let before = wait_until_watching(watch);
    wait_for(watch, "the guest to run on", |vm| ran(vm) > ran(&before) + 100_000_000);
}
