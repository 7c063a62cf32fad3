// SPDX-License-Identifier: MIT OR Apache-2.0
//! A region as a program inside a guest uses it. A file takes the place of the device's memory, and
//! the test the place of the host, and of other programs of the guest that write what they like.

use reprieve_hint::abi::region::{BYTES, MAGIC, PROBES, Region, SLOTS, Slot, VERSION};
use reprieve_hint::{
    Missing, Mutex, ThreadId, connect_host, current_thread, is_overloaded, is_preempted,
    is_vcpu_preempted, non_preemptable, preemptable,
};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn map(file: &File) -> &'static Region {
    // SAFETY: a new mapping of a file of that size, for good.
    unsafe {
        let (null, both) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
        let at = libc::mmap(null, BYTES, both, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(at, libc::MAP_FAILED);
        &*at.cast()
    }
}

fn tid() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// As the host looks for a thread: the first slot with its number. Its counts.
fn found(region: &Region, thread: u32) -> Option<(u32, u32)> {
    let place = |i: usize| &region.slots[(thread as usize + i) % SLOTS];
    let slot = (0..PROBES).map(place).find(|slot| slot.thread.load(Relaxed) == thread)?;
    Some((slot.non_preemptable.load(Relaxed), slot.preemptable.load(Relaxed)))
}

fn mine(region: &Region) -> Option<(u32, u32)> {
    found(region, tid())
}

/// Until `done`, beside a host that goes on serving.
fn until(region: &Region, mut done: impl FnMut() -> bool) {
    while !done() {
        region.beat.fetch_add(1, Relaxed);
        thread::sleep(Duration::from_millis(1));
    }
}

fn fill(slots: &[Slot], thread: impl Fn(usize) -> u32) {
    for (i, slot) in slots.iter().enumerate() {
        slot.thread.store(thread(i), Relaxed);
        slot.non_preemptable.store(u32::MAX, Relaxed);
        slot.preemptable.store(u32::MAX, Relaxed);
    }
}

#[test]
fn hints_reach_the_region_and_answers_come_back() {
    let directory = Directory(std::env::temp_dir().join(format!("region-{}", std::process::id())));
    std::fs::create_dir(&directory.0).unwrap();
    let path = directory.0.join("region");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    // SAFETY: no other thread of this process runs yet that reads the environment.
    unsafe {
        std::env::set_var("REPRIEVE_HINT_REGION", &path);
    }
    if std::fs::metadata("/proc/self/ns/pid").unwrap().ino() != 0xeffffffc {
        assert!(matches!(connect_host(), Err(Missing::Namespace)));
        return;
    }
    let refused = |what: &str| {
        let error = connect_host().unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("region"), "{error}");
    };
    refused("smaller than a region");
    file.set_len(BYTES as u64).unwrap();
    refused("no region of this version");
    // A thread that gave a hint before there was a region.
    drop(non_preemptable());
    let region = map(&file);
    region.version.store(VERSION, Relaxed);
    region.magic.store(MAGIC, Relaxed);
    connect_host().unwrap();

    // Hints. A thread without a section has a slot, too.
    assert_eq!(mine(region), Some((0, 0)));
    let section = non_preemptable();
    let second = (non_preemptable(), preemptable());
    assert_eq!(mine(region), Some((2, 1)));
    drop(second);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _section = preemptable();
            assert_eq!(mine(region), Some((0, 1)));
        });
    });
    assert_eq!(mine(region), Some((1, 0)));
    drop(section);
    assert_eq!(mine(region), Some((0, 0)));
    let mutex = Mutex::new(());
    let held = mutex.lock();
    assert_eq!(mine(region), Some((0, 1)), "a lock is a section");
    drop(held);

    // A child of a fork has a slot of its own, and leaves its parent's alone.
    let _section = non_preemptable();
    let parent = tid();
    // SAFETY: the child writes to its own line and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let _another = preemptable();
        let right = mine(region) == Some((1, 1)) && found(region, parent) == Some((1, 0));
        // SAFETY: ends the process.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = 0;
    // SAFETY: our child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);

    // Answers: only while the host's beat goes on.
    let answers = || (is_preempted(current_thread()), is_vcpu_preempted(0), is_overloaded(0));
    assert_eq!(answers(), (None, None, None), "the host does not serve it yet");
    for vcpu in &region.vcpus {
        vcpu.state.store(2, Relaxed);
        vcpu.runnable.store(1, Relaxed);
    }
    until(region, || answers() == (Some(true), Some(true), Some(false)));
    for vcpu in &region.vcpus {
        vcpu.state.store(1, Relaxed);
        vcpu.runnable.store(2, Relaxed);
    }
    until(region, || answers() == (Some(false), Some(false), Some(true)));
    assert_eq!((is_vcpu_preempted(u32::MAX), is_overloaded(1 << 20)), (None, None));
    // C may name any number as a thread.
    let odd = [u64::from(u32::MAX), u64::MAX].map(ThreadId::from_number);
    assert_eq!(odd.map(is_preempted), [None, None]);
    for vcpu in &region.vcpus {
        vcpu.state.store(4, Relaxed);
        vcpu.runnable.store(u32::MAX, Relaxed);
    }
    until(region, || answers() == (None, None, Some(true)));
    // Unknown again when the host has stopped.
    while is_overloaded(0).is_some() {
        thread::sleep(Duration::from_millis(20));
    }

    // Whatever others write there, hints and locks go on. Slots of threads that do not exist, or
    // cannot, are free; those of threads that live are not.
    let check = |known: bool| {
        thread::scope(|scope| {
            scope.spawn(|| {
                let held = mutex.lock();
                assert_eq!(mine(region), known.then_some((0, 1)));
                drop(held);
                let _section = non_preemptable();
                assert_eq!(mine(region), known.then_some((1, 0)));
            });
        });
    };
    fill(&region.slots, |_| u32::MAX);
    check(true);
    fill(&region.slots, |i| (1 << 30) + i as u32);
    check(true);
    let alive = tid();
    fill(&region.slots, |_| alive);
    check(false);
    region.magic.store(0, Relaxed);
    region.beat.store(u64::MAX, Relaxed);
    fill(&region.slots, |_| 0);
    check(true);
}
