// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same sequences of calls against the kernel's System V IPC and against ours: results, errors
//! and what the `STAT` commands say afterwards must be equal.
//!
//! Sequences are generated; every call, command, flag and error that does not need a second process
//! comes up. Ids differ between the two and are compared by which object they name; times are
//! compared by whether they are set. Skipped where the kernel has no System V IPC.
#![allow(clippy::undocumented_unsafe_blocks, reason = "arguments are as the calls take them")]

mod common;

use common::{namespace, one, op};
use fastrand::Rng;
use libc::{IPC_CREAT, IPC_EXCL, IPC_NOWAIT, IPC_PRIVATE, c_int};
use reprieve_ipc::{Namespace, Owner, Result, SemOp};
use std::fmt::Debug;

fn of<T: Copy>(random: &mut Rng, all: &[T]) -> T {
    *random.choice(all).unwrap()
}

/// The kernel's answer, as ours gives it.
fn kernel<T>(result: i64, value: impl FnOnce() -> T) -> std::result::Result<T, i32> {
    if result == -1 {
        Err(std::io::Error::last_os_error().raw_os_error().unwrap())
    } else {
        Ok(value())
    }
}

fn ours<T>(result: Result<T>) -> std::result::Result<T, i32> {
    result.map_err(|error| error.0)
}

#[track_caller]
fn same<T: PartialEq + Debug>(
    what: impl Debug,
    kernel: std::result::Result<T, i32>,
    ours: std::result::Result<T, i32>,
) {
    assert_eq!(kernel, ours, "the kernel, then ours: {what:?}");
}

/// Whether a call of the kernel's and one of ours fail in the same way, or not; `=>`: with the same
/// number.
macro_rules! same {
    ($what:expr, $kernel:expr, $ours:expr) => {{
        let result = unsafe { $kernel } as i64;
        same($what, kernel(result, || ()), ours($ours).map(drop));
    }};
    ($what:expr, $kernel:expr => $ours:expr) => {{
        let result = unsafe { $kernel };
        same($what, kernel(result.into(), || result), ours($ours));
    }};
}

/// Whether there is System V IPC to compare with; in a namespace of this thread's alone, which the
/// kernel removes with its objects when the thread and its children end, however they do. Takes
/// root: without it the objects are removed one by one.
fn kernel_has_ipc() -> bool {
    // SAFETY: a namespace of this thread's; removes what it made.
    unsafe {
        libc::unshare(libc::CLONE_NEWIPC);
        let id = libc::semget(IPC_PRIVATE, 1, 0o600);
        if id == -1 {
            println!("SKIPPED: the kernel has no System V IPC here");
            return false;
        }
        libc::semctl(id, 0, libc::IPC_RMID) == 0
    }
}

/// A key that nobody else uses.
fn key(number: u64) -> i32 {
    ((std::process::id() << 8) as i32) | 0x40 | number as i32
}

/// Kernel objects that go when the test does.
struct Removed {
    ids: Vec<c_int>,
    remove: fn(c_int),
}

impl Drop for Removed {
    fn drop(&mut self) {
        self.ids.iter().for_each(|&id| (self.remove)(id));
    }
}

/// Ids of the same objects, the kernel's and ours. Removed ones stay in: stale ids are used, too.
type Pairs = Vec<(c_int, i32)>;

fn pick(random: &mut Rng, pairs: &Pairs) -> (c_int, i32) {
    if pairs.is_empty() || random.u64(..40) == 0 {
        return of(random, &[(-1, -1), (0x7fff_ffff, 0x7fff_ffff)]);
    }
    // Mostly of the last ones.
    let last = pairs.len().min(6) as u64;
    pairs[pairs.len() - 1 - random.u64(..last) as usize]
}

/// Notes which objects the two have found or made: the same.
#[track_caller]
fn found(pairs: &mut Pairs, kernels: &mut Removed, pair: Option<(c_int, i32)>) {
    let Some(pair) = pair else { return };
    // The last of an id: ids come again, after some 65,000 objects in a slot.
    match pairs.iter().rev().find(|p| p.0 == pair.0 || p.1 == pair.1) {
        Some(known) => assert_eq!(*known, pair, "different objects"),
        None => {
            pairs.push(pair);
            kernels.ids.push(pair.0);
        }
    }
}

#[track_caller]
fn both(
    kernel: std::result::Result<c_int, i32>,
    ours: std::result::Result<i32, i32>,
    what: impl Debug,
) -> Option<(c_int, i32)> {
    assert_eq!(kernel.err(), ours.err(), "the kernel, then ours: {what:?}");
    Some((kernel.ok()?, ours.ok()?))
}

fn semaphores(random: &mut Rng, n: &Namespace) {
    let mut pairs = Pairs::new();
    let remove = |id| {
        // SAFETY: removes an object of this test's.
        unsafe { libc::semctl(id, 0, libc::IPC_RMID) };
    };
    let mut kernels = Removed { ids: vec![], remove };
    for _ in 0..400 {
        let (k, o) = pick(random, &pairs);
        let num = of(random, &[0, 0, 1, 2, 3, 4, -1]);
        // SAFETY, for all calls of the kernel's here: arguments as the calls take them.
        match random.u64(..16) {
            0 | 1 => {
                let key = of(random, &[IPC_PRIVATE, key(1), key(2)]);
                let count = of(random, &[0, 1, 3, 4, 5, -1, 40_000]);
                let flags = of(random, &[0, IPC_CREAT, IPC_CREAT | IPC_EXCL, IPC_EXCL])
                    | of(random, &[0o600, 0o640, 0]);
                let result = unsafe { libc::semget(key, count, flags) };
                let kernel = kernel(result.into(), || result);
                let pair =
                    both(kernel, ours(n.semget(key, count, flags)), ("semget", key, count, flags));
                found(&mut pairs, &mut kernels, pair);
            }
            2..=8 => {
                let one = |random: &mut Rng| {
                    let change = of(random, &[0, 1, 2, -1, -2, 5, -7, 32767, 30000, -30000]);
                    let num = of(random, &[0, 0, 1, 2, 3, 9]);
                    op(num, change, of(random, &[IPC_NOWAIT, IPC_NOWAIT | libc::SEM_UNDO]))
                };
                let count = of(random, &[0, 1, 1, 1, 2, 3, 4, 501]);
                let mut ops: Vec<SemOp> = (0..count).map(|_| one(random)).collect();
                let shown: Vec<_> =
                    ops.iter().take(5).map(|o| (o.sem_num, o.sem_op, o.sem_flg)).collect();
                let result = unsafe { libc::semop(k, ops.as_mut_ptr(), ops.len()) };
                same(
                    ("semop", k, o, shown),
                    kernel(result.into(), || ()),
                    ours(n.semop(o, &ops, None)),
                );
            }
            9 => {
                same!(("GETVAL", num), libc::semctl(k, num, libc::GETVAL) => n.sem_value(o, num));
                same!(("GETPID", num), libc::semctl(k, num, libc::GETPID) => n.sem_pid(o, num));
            }
            10 => {
                for (command, zero) in [(libc::GETNCNT, false), (libc::GETZCNT, true)] {
                    same!(("counts", num), libc::semctl(k, num, command) => n.sem_waiters(o, num, zero));
                }
            }
            11 => {
                let value = of(random, &[0, 1, 7, 32767, 32768, -1]);
                same!(
                    ("SETVAL", num, value),
                    libc::semctl(k, num, libc::SETVAL, value),
                    n.set_sem_value(o, num, value)
                );
            }
            12 => {
                let Ok(count) = n.sem_count(o) else { continue };
                let values: Vec<u16> =
                    (0..count).map(|_| of(random, &[0, 1, 9, 32767, 32767, 4, 4])).collect();
                same!(
                    ("SETALL", &values),
                    libc::semctl(k, 0, libc::SETALL, values.as_ptr()),
                    n.set_sem_values(o, &values)
                );
            }
            13 => {
                let mut values = [0u16; 64];
                let result = unsafe { libc::semctl(k, 0, libc::GETALL, values.as_mut_ptr()) };
                let ours = ours(n.sem_values(o));
                let count = ours.as_ref().map_or(0, Vec::len);
                same("GETALL", kernel(result.into(), || values[..count].to_vec()), ours);
            }
            14 => {
                // SAFETY: plain data that the kernel fills in.
                let mut ds: libc::semid_ds = unsafe { std::mem::zeroed() };
                let result = unsafe { libc::semctl(k, 0, libc::IPC_STAT, &raw mut ds) };
                let kernel = kernel(result.into(), || {
                    let p = &ds.sem_perm;
                    (
                        (p.__key, p.uid, p.gid, p.cuid, p.cgid),
                        u32::from(p.mode),
                        ds.sem_nsems as u64,
                        ds.sem_otime != 0,
                    )
                });
                let ours = ours(n.sem_status(o)).map(|s| {
                    let p = &s.status;
                    ((p.key, p.uid, p.gid, p.cuid, p.cgid), p.mode, s.count, s.otime != 0)
                });
                same("IPC_STAT", kernel, ours);
            }
            _ if random.u64(..3) == 0 => {
                let result = unsafe { libc::semctl(k, 0, libc::IPC_RMID) };
                same("IPC_RMID", kernel(result.into(), || ()), ours(n.remove_sem(o)));
            }
            _ => {
                // SAFETY: plain data.
                let mut ds: libc::semid_ds = unsafe { std::mem::zeroed() };
                let (uid, gid) = (of(random, &[0, 1000, u32::MAX]), of(random, &[7, 7, u32::MAX]));
                let owner = Owner { uid, gid, mode: of(random, &[0o600, 0o7777]) };
                (ds.sem_perm.uid, ds.sem_perm.gid, ds.sem_perm.mode) =
                    (owner.uid, owner.gid, owner.mode as _);
                same!(
                    "IPC_SET",
                    libc::semctl(k, 0, libc::IPC_SET, &raw mut ds),
                    n.set_sem_owner(o, owner)
                );
            }
        }
    }
    for &(_, o) in &pairs {
        let _ = n.remove_sem(o);
    }
}

fn messages(random: &mut Rng, n: &Namespace) {
    let mut pairs = Pairs::new();
    let remove = |id| {
        // SAFETY: removes an object of this test's.
        unsafe { libc::msgctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
    };
    let mut kernels = Removed { ids: vec![], remove };
    #[repr(C)]
    struct Message {
        kind: i64,
        data: [u8; 9000],
    }
    let mut buffer = Message { kind: 0, data: [0; 9000] };
    for step in 0..500u32 {
        let (k, o) = pick(random, &pairs);
        // SAFETY, for all calls of the kernel's here: arguments as the calls take them.
        match random.u64(..12) {
            0 => {
                let key = of(random, &[IPC_PRIVATE, key(3), key(4)]);
                let flags = of(random, &[0, IPC_CREAT, IPC_CREAT | IPC_EXCL]) | 0o600;
                let result = unsafe { libc::msgget(key, flags) };
                let pair = both(
                    kernel(result.into(), || result),
                    ours(n.msgget(key, flags)),
                    ("msgget", key, flags),
                );
                found(&mut pairs, &mut kernels, pair);
            }
            1..=5 => {
                let size = of(random, &[0usize, 1, 8, 100, 1000, 8192, 8193]);
                buffer.kind = of(random, &[1, 2, 3, 4, 5, i64::MAX, 0, -1]);
                buffer.data[..size].fill(step as u8);
                let result =
                    unsafe { libc::msgsnd(k, (&raw const buffer).cast(), size, IPC_NOWAIT) };
                let ours = ours(n.msgsnd(o, buffer.kind, &buffer.data[..size], IPC_NOWAIT));
                same(("msgsnd", buffer.kind, size), kernel(result.into(), || ()), ours);
            }
            6..=9 => {
                let size = of(random, &[0usize, 8, 100, 9000, 9000, 9000]);
                let kind = of(random, &[0, 0, 1, 2, 3, -2, -4, i64::MIN, i64::MAX, 77]);
                let flags =
                    of(random, &[0, 0, libc::MSG_NOERROR, libc::MSG_EXCEPT, libc::MSG_COPY])
                        | of(random, &[0, libc::MSG_NOERROR])
                        | IPC_NOWAIT;
                let result =
                    unsafe { libc::msgrcv(k, (&raw mut buffer).cast(), size, kind, flags) };
                let kernel = kernel(result as i64, || {
                    (buffer.kind, buffer.data[..result as usize].to_vec())
                });
                let mut to = vec![0; size];
                let ours = ours(n.msgrcv(o, &mut to, kind, flags));
                // A kernel without CONFIG_CHECKPOINT_RESTORE has no MSG_COPY.
                if flags & libc::MSG_COPY != 0 && kernel == Err(libc::ENOSYS) {
                    continue;
                }
                let ours = ours.map(|(kind, bytes)| (kind, to[..bytes].to_vec()));
                same(("msgrcv", size, kind, flags), kernel, ours);
            }
            10 => {
                // SAFETY: plain data that the kernel fills in.
                let mut ds: libc::msqid_ds = unsafe { std::mem::zeroed() };
                let result = unsafe { libc::msgctl(k, libc::IPC_STAT, &mut ds) };
                let kernel = kernel(result.into(), || {
                    let p = &ds.msg_perm;
                    let numbers =
                        [ds.__msg_cbytes as u64, ds.msg_qnum as u64, ds.msg_qbytes as u64];
                    let pids = (ds.msg_lspid, ds.msg_lrpid);
                    (
                        (p.__key, p.uid, p.gid, p.mode as u32),
                        numbers,
                        pids,
                        (ds.msg_stime != 0, ds.msg_rtime != 0),
                    )
                });
                let ours = ours(n.msg_status(o)).map(|s| {
                    let p = &s.status;
                    let numbers = [s.bytes, s.messages, s.most_bytes];
                    (
                        (p.key, p.uid, p.gid, p.mode),
                        numbers,
                        (s.sender, s.receiver),
                        (s.stime != 0, s.rtime != 0),
                    )
                });
                same("IPC_STAT", kernel, ours);
            }
            _ if random.u64(..3) == 0 => {
                let result = unsafe { libc::msgctl(k, libc::IPC_RMID, std::ptr::null_mut()) };
                same("IPC_RMID", kernel(result.into(), || ()), ours(n.remove_msg(o)));
            }
            _ => {
                // SAFETY: plain data.
                let mut ds: libc::msqid_ds = unsafe { std::mem::zeroed() };
                let gid = of(random, &[3, 3, u32::MAX]);
                let owner = Owner { uid: 0, gid, mode: of(random, &[0o600, 0o7666]) };
                let bytes = of(random, &[16384, 1000, 100]);
                (ds.msg_perm.uid, ds.msg_perm.gid, ds.msg_perm.mode) =
                    (owner.uid, owner.gid, owner.mode as _);
                ds.msg_qbytes = bytes;
                same!(
                    "IPC_SET",
                    libc::msgctl(k, libc::IPC_SET, &mut ds),
                    n.set_msg_owner(o, owner, bytes)
                );
            }
        }
    }
    for &(_, o) in &pairs {
        let _ = n.remove_msg(o);
    }
}

fn segments(random: &mut Rng, n: &Namespace) {
    let mut pairs = Pairs::new();
    let remove = |id| {
        // SAFETY: removes an object of this test's.
        unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
    };
    let mut kernels = Removed { ids: vec![], remove };
    let mut attached: Vec<(usize, usize)> = vec![];
    for _ in 0..300 {
        let (k, o) = pick(random, &pairs);
        // SAFETY, for all calls here: arguments as the calls take them; nothing is remapped, and
        // what is detached is not used any more.
        match random.u64(..8) {
            0 | 1 => {
                let key = of(random, &[IPC_PRIVATE, key(5), key(6)]);
                let size = of(random, &[0, 1, 4096, 5000, 100_000]);
                let flags =
                    of(random, &[0, IPC_CREAT, IPC_CREAT | IPC_EXCL]) | of(random, &[0o600, 0o400]);
                let result = unsafe { libc::shmget(key, size, flags) };
                let pair = both(
                    kernel(result.into(), || result),
                    ours(n.shmget(key, size, flags)),
                    ("shmget", key, size, flags),
                );
                found(&mut pairs, &mut kernels, pair);
            }
            2 | 3 => {
                let flags = of(random, &[0, libc::SHM_RDONLY, libc::SHM_RND, libc::SHM_REMAP]);
                let address = of(random, &[0, 0, 0, 1, 4097]);
                if address != 0 && flags == libc::SHM_RND {
                    // The first pages: what is allowed there is the machine's setting.
                    continue;
                }
                let result = unsafe { libc::shmat(k, address as *const _, flags) } as i64;
                let kernel = kernel(result, || result as usize);
                let ours = ours(unsafe { n.shmat(o, address, flags) });
                same(("shmat", address, flags), kernel.map(|_| ()), ours.map(|_| ()));
                if let (Ok(kernel), Ok(ours)) = (kernel, ours) {
                    attached.push((kernel, ours as usize));
                }
            }
            4 => {
                let pair = match attached.len() as u64 {
                    0 => (4096, 4096),
                    some => attached.swap_remove(random.u64(..some) as usize),
                };
                let result = unsafe { libc::shmdt(pair.0 as *const _) };
                same(
                    "shmdt",
                    kernel(result.into(), || ()),
                    ours(unsafe { Namespace::shmdt(pair.1) }),
                );
            }
            5 | 6 => {
                // SAFETY: plain data that the kernel fills in.
                let mut ds: libc::shmid_ds = unsafe { std::mem::zeroed() };
                let result = unsafe { libc::shmctl(k, libc::IPC_STAT, &mut ds) };
                let kernel = kernel(result.into(), || {
                    let p = &ds.shm_perm;
                    let pids = (ds.shm_cpid, ds.shm_lpid);
                    (
                        (p.__key, p.uid, p.gid),
                        p.mode as u32,
                        ds.shm_segsz as u64,
                        ds.shm_nattch as u64,
                        pids,
                        (ds.shm_atime != 0, ds.shm_dtime != 0),
                    )
                });
                let ours = ours(n.shm_status(o)).map(|s| {
                    let p = &s.status;
                    (
                        (p.key, p.uid, p.gid),
                        p.mode,
                        s.size,
                        s.attached,
                        (s.creator, s.last),
                        (s.atime != 0, s.dtime != 0),
                    )
                });
                same("IPC_STAT", kernel, ours);
            }
            _ => {
                let result = unsafe { libc::shmctl(k, libc::IPC_RMID, std::ptr::null_mut()) };
                same("IPC_RMID", kernel(result.into(), || ()), ours(n.remove_shm(o)));
            }
        }
    }
    for (kernel, ours) in attached {
        // SAFETY: as above.
        unsafe {
            libc::shmdt(kernel as *const _);
            Namespace::shmdt(ours).unwrap();
        }
    }
    for &(_, o) in &pairs {
        let _ = n.remove_shm(o);
    }
}

fn compare(sequences: u64, run: fn(&mut Rng, &Namespace)) {
    if !kernel_has_ipc() {
        return;
    }
    let (_directory, n) = namespace();
    for seed in 1..=sequences {
        println!("sequence {seed}");
        run(&mut Rng::with_seed(seed), &n);
    }
}

#[test]
fn semaphores_are_the_kernels() {
    compare(40, semaphores);
}

#[test]
fn message_queues_are_the_kernels() {
    compare(40, messages);
}

#[test]
fn segments_are_the_kernels() {
    let _one = one();
    compare(40, segments);
}

/// The rights of somebody who is neither owner nor creator, for each mode; and who may do all.
#[test]
fn permissions_are_the_kernels() {
    // SAFETY: no preconditions.
    if !kernel_has_ipc() || unsafe { libc::geteuid() } != 0 {
        println!("SKIPPED: only root can become somebody else");
        return;
    }
    let _one = one();
    let (_directory, n) = namespace();
    let (mut sets, mut queues) = (vec![], vec![]);
    let mut kernel_sets = Removed {
        ids: vec![],
        remove: |id| {
            unsafe { libc::semctl(id, 0, libc::IPC_RMID) };
        },
    };
    let mut kernel_queues = Removed {
        ids: vec![],
        remove: |id| {
            unsafe { libc::msgctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
        },
    };
    for (i, mode) in [0, 0o600, 0o640, 0o660, 0o644, 0o666, 0o622, 0o604].into_iter().enumerate() {
        let key = key(16 + i as u64);
        let flags = IPC_CREAT | mode;
        let (set, queue) = unsafe { (libc::semget(key, 1, flags), libc::msgget(key, flags)) };
        assert!(set >= 0 && queue >= 0);
        kernel_sets.ids.push(set);
        kernel_queues.ids.push(queue);
        sets.push((key, set, n.semget(key, 1, flags).unwrap()));
        queues.push((key, queue, n.msgget(key, flags).unwrap()));
    }
    let compare = |group: u32| {
        n.sem_info().unwrap();
        unsafe {
            assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
            assert_eq!(libc::setresgid(group, group, group), 0);
            assert_eq!(libc::setresuid(65534, 65534, 65534), 0);
        }
        reprieve_ipc::credentials_changed();
        for &(key, k, o) in &sets {
            for flags in [0, 0o400, 0o200, 0o600, 0o060, 0o004] {
                let result = unsafe { libc::semget(key, 1, flags) };
                let ours = ours(n.semget(key, 1, flags)).map(|_| ());
                same(("semget", key, flags), kernel(result.into(), || ()), ours);
            }
            for change in [0, 1] {
                let mut ops = [op(0, change, IPC_NOWAIT)];
                same!(
                    ("semop", change),
                    libc::semop(k, ops.as_mut_ptr(), 1),
                    n.semop(o, &ops, None)
                );
            }
            same!("GETVAL", libc::semctl(k, 0, libc::GETVAL) => n.sem_value(o, 0));
            same!("SETVAL", libc::semctl(k, 0, libc::SETVAL, 0), n.set_sem_value(o, 0, 0));
            // SAFETY: plain data.
            let mut ds: libc::semid_ds = unsafe { std::mem::zeroed() };
            let result = unsafe { libc::semctl(k, 0, libc::IPC_SET, &raw mut ds) };
            let owner = Owner { uid: 0, gid: 0, mode: 0 };
            same("IPC_SET", kernel(result.into(), || ()), ours(n.set_sem_owner(o, owner)));
            same!("IPC_RMID", libc::semctl(k, 0, libc::IPC_RMID), n.remove_sem(o));
        }
        for &(_, k, o) in &queues {
            let message = (1i64, 5i64);
            same!(
                "msgsnd",
                libc::msgsnd(k, (&raw const message).cast(), 8, IPC_NOWAIT),
                n.msgsnd(o, 1, &[0; 8], IPC_NOWAIT)
            );
            let mut to = (0i64, 0i64);
            same!(
                "msgrcv",
                libc::msgrcv(k, (&raw mut to).cast(), 8, 0, IPC_NOWAIT),
                n.msgrcv(o, &mut [0; 8], 0, IPC_NOWAIT)
            );
            same!(
                "IPC_RMID",
                libc::msgctl(k, libc::IPC_RMID, std::ptr::null_mut()),
                n.remove_msg(o)
            );
        }
    };
    common::Child::run(|| compare(65534)).succeeds();
    common::Child::run(|| compare(0)).succeeds();
}
