// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that somebody has written into, and sandboxes that lack system calls.

#[path = "../../rcu/tests/common/beside.rs"]
mod beside;
mod common;

use beside::beside;
use common::{Child, namespace, op, shared};
use fastrand::Rng;
use libc::{IPC_CREAT, IPC_NOWAIT, IPC_PRIVATE, SEM_UNDO};
use reprieve_ipc::{Namespace, OpenError, Owner, SemOp};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Duration;

/// Calls of all kinds, none of which waits; what they return does not matter.
fn use_everything(n: &Namespace, random: &mut Rng) {
    let id = random.u64(..4) as i32;
    let num = random.u64(..3) as u16;
    let change = random.u64(..5) as i16 - 2;
    let flags = IPC_NOWAIT | if random.u64(..2) == 0 { SEM_UNDO } else { 0 };
    match random.u64(..14) {
        0 => drop(n.semget(random.u64(..3) as i32, 3, IPC_CREAT | 0o600).is_ok()),
        1..=4 => {
            let ops: [SemOp; 2] = [op(num, change, flags), op(0, 1, flags)];
            let _ = n.semop(id, &ops, None);
        }
        5 => drop(n.sem_values(id).is_ok()),
        6 => drop(n.set_sem_values(id, &[1, 2, 3]).is_ok()),
        7 => drop(n.sem_waiters(id, 0, false).is_ok()),
        8 => drop(n.msgget(random.u64(..3) as i32, IPC_CREAT | 0o600).is_ok()),
        9 => drop(n.msgsnd(id, 1, &[1; 100], IPC_NOWAIT).is_ok()),
        10 => drop(n.msgrcv(id, &mut [0; 200], 0, IPC_NOWAIT).is_ok()),
        11 => drop((n.sem_info().is_ok(), n.msg_info().is_ok(), n.shm_info().is_ok())),
        12 => match random.u64(..8) {
            0 => drop(n.remove_sem(id).is_ok()),
            1 => drop(n.remove_msg(id).is_ok()),
            _ => drop(n.shm_status(id).is_ok()),
        },
        _ => {
            if let Ok(id) = n.shmget(random.u64(..2) as i32, 4096, IPC_CREAT | 0o600) {
                // SAFETY: nothing is remapped, and nothing used.
                let _ = unsafe { n.shmat(id, 0, 0).and_then(|at| Namespace::shmdt(at as usize)) };
            }
        }
    }
}

#[test]
fn random_bytes_crash_nobody() {
    for seed in 0..4 {
        let (directory, n) = namespace();
        let stop = shared::<AtomicU32>();
        let children: Vec<Child> = (0..2)
            .map(|i| {
                Child::run(|| {
                    let mut random = Rng::with_seed(seed * 7 + i);
                    while stop.load(SeqCst) == 0 {
                        use_everything(&n, &mut random);
                    }
                })
            })
            .collect();
        let file = std::fs::File::options().write(true).open(directory.path().join("space"));
        let file = file.unwrap();
        let mut random = Rng::with_seed(seed);
        for _ in 0..400 {
            // Where things are: the header, processes, threads, the heap.
            let at = match random.u64(..4) {
                0 => random.u64(..1024),
                1 => (1 << 16) + random.u64(..512),
                2 => (66 + random.u64(..4)) * 32768 + random.u64(..640),
                _ => (520 << 20) + random.u64(..16384),
            };
            let word = match random.u64(..4) {
                0 => 0,
                1 => random.u64(..64),
                2 => (520 << 20) + random.u64(..16384),
                _ => random.u64(..),
            };
            file.write_all_at(&word.to_le_bytes(), at & !7).unwrap();
            std::thread::sleep(Duration::from_micros(300));
        }
        stop.store(1, SeqCst);
        children.into_iter().for_each(Child::succeeds);
    }
}

#[test]
fn files_of_others_are_refused() {
    let parent = tempfile::tempdir().unwrap();
    let make = |name: &str, bytes: &[u8]| {
        let directory = parent.path().join(name);
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("space"), bytes).unwrap();
        directory
    };
    let foreign = Namespace::open(make("foreign", &[7; 10_000])).unwrap_err();
    assert!(matches!(foreign, OpenError::Foreign { .. }), "{foreign}");
    let short = Namespace::open(make("short", b"")).unwrap_err();
    assert!(matches!(short, OpenError::Foreign { .. }), "{short}");
    let mut other = b"reprvipc".to_vec();
    other.extend(99u64.to_le_bytes());
    other.resize(8192, 0);
    let newer = Namespace::open(make("newer", &other)).unwrap_err();
    assert!(matches!(newer, OpenError::Version { found: 99, .. }), "{newer}");
    assert!(newer.to_string().contains("REPRIEVE_IPC_DIR"));
}

#[test]
fn a_directory_that_was_removed_and_made_again_is_another_namespace() {
    let (directory, n) = namespace();
    let first = n.semget(5, 1, IPC_CREAT | 0o600).unwrap();
    let segments = [(); 2].map(|()| n.shmget(IPC_PRIVATE, 4096, 0o600).unwrap());
    std::fs::remove_dir_all(directory.path()).unwrap();
    std::fs::create_dir(directory.path()).unwrap();
    let again = Namespace::open(directory.path()).unwrap();
    assert_eq!(again.sem_value(first, 0).unwrap_err().0, libc::EINVAL);
    // The new namespace has a file to grow in; those who still use the old one go on.
    (0..2000).for_each(|_| assert!(again.semget(IPC_PRIVATE, 32, 0o600).is_ok()));
    assert_eq!(n.sem_value(first, 0), Ok(0));
    // The new one's segments have the old one's ids, and so the names of its files.
    assert_eq!(segments, [(); 2].map(|()| again.shmget(IPC_PRIVATE, 4096, 0o600).unwrap()));
    let file = |id| directory.path().join(format!("shm.{id}"));
    // SAFETY: nothing is remapped, and nothing used.
    assert_eq!(unsafe { n.shmat(segments[0], 0, 0) }.unwrap_err().0, libc::EACCES);
    n.remove_shm(segments[0]).unwrap();
    assert_eq!(n.shmget(IPC_PRIVATE, 4096, 0o600).unwrap_err().0, libc::EACCES);
    // A thread that finds the dead as it registers looks for files of nobody's segments.
    (0..2).for_each(|_| beside(&[&|| n.semop(first, &[op(0, 1, 0)], None).unwrap()], || ()));
    for id in segments {
        assert!(file(id).exists());
        // SAFETY: nothing is remapped, and nothing used.
        unsafe { Namespace::shmdt(again.shmat(id, 0, 0).unwrap() as usize).unwrap() };
    }
    again.remove_shm(segments[1]).unwrap();
    // A child of another test may have it attached still, which was forked in the loop above.
    common::until(|| {
        again.shm_info().unwrap();
        !file(segments[1]).exists()
    });
    assert!(file(segments[0]).exists());
}

/// As after `setuid` and `chroot`: the process can no longer open what is in the directory.
#[test]
fn who_cannot_reach_the_directory_any_more_goes_on() {
    let (directory, n) = namespace();
    let id = n.semget(IPC_PRIVATE, 1, 0o600).unwrap();
    let moved = directory.path().with_extension("moved");
    std::fs::rename(directory.path(), &moved).unwrap();
    // New threads and children register, and memory grows.
    let blocks = || moved.join("space").metadata().unwrap().blocks();
    let before = blocks();
    let grows = std::panic::catch_unwind(|| {
        Child::run(|| {
            (0..2000).for_each(|_| assert!(n.semget(IPC_PRIVATE, 32, 0o600).is_ok()));
            beside(&[&|| n.semop(id, &[op(0, 1, 0)], None).unwrap()], || ());
        })
        .succeeds();
        assert!(blocks() > before);
        // Somebody else's namespace in its place is not this one's.
        std::fs::create_dir(directory.path()).unwrap();
        let other = Namespace::open(directory.path()).unwrap();
        Child::run(|| n.semop(id, &[op(0, 1, 0)], None).unwrap()).succeeds();
        assert!(other.sem_value(id, 0).is_err());
        assert_eq!(n.sem_value(id, 0), Ok(2));
    });
    let _ = std::fs::remove_dir_all(directory.path());
    std::fs::rename(&moved, directory.path()).unwrap();
    assert!(grows.is_ok());
    // A process that has closed all of its files can open them again.
    Child::run(|| {
        // SAFETY: nobody in this process uses them.
        assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) }, 0);
        n.semop(id, &[op(0, 1, 0)], None).unwrap();
    })
    .succeeds();
    assert_eq!(n.sem_value(id, 0), Ok(3));
}

#[test]
fn the_descriptor_that_stays_open_is_no_standard_one() {
    let (_directory, n) = namespace();
    let id = n.semget(IPC_PRIVATE, 1, 0o600).unwrap();
    Child::run(|| {
        let few = libc::rlimit { rlim_cur: 40, rlim_max: 40 };
        // SAFETY: this process, which has no use for files; `few` outlives the call.
        let is_open = unsafe {
            assert_eq!(libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0), 0);
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &few), 0);
            n.semop(id, &[op(0, 1, 0)], None).unwrap();
            [0, 1, 2, 3].map(|number| libc::fcntl(number, libc::F_GETFD) >= 0)
        };
        assert_eq!(is_open, [false, false, false, true]);
    })
    .succeeds();
}

/// Another thread of who registers waits for a lock of this program's: no deadlock.
#[test]
fn a_deadlock_that_the_kernel_sees_is_none() {
    fn lock(file: &std::fs::File) -> i32 {
        use std::os::fd::AsRawFd;
        // SAFETY: plain data, a file that is open, and data that outlives the call.
        unsafe {
            let mut whole: libc::flock = std::mem::zeroed();
            whole.l_type = libc::F_WRLCK as libc::c_short;
            libc::fcntl(file.as_raw_fd(), libc::F_SETLKW, &raw const whole)
        }
    }
    let (directory, n) = namespace();
    let id = n.semget(IPC_PRIVATE, 1, 0o600).unwrap();
    let open = |name| {
        let mut options = std::fs::File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        options.open(directory.path().join(name)).unwrap()
    };
    let own = open("own");
    assert_eq!(lock(&own), 0);
    let step = shared::<AtomicU32>();
    let other = Child::run(|| {
        let registry = open("lock");
        assert_eq!(lock(&registry), 0);
        std::thread::spawn({
            let own = open("own");
            move || {
                step.store(1, SeqCst);
                lock(&own);
            }
        });
        common::until(|| step.load(SeqCst) == 2);
        drop(registry);
        step.store(3, SeqCst);
        common::forever();
    });
    common::until(|| step.load(SeqCst) == 1);
    // Only to see it: whoever is first, nobody fails.
    std::thread::sleep(Duration::from_millis(50));
    let registers = std::thread::spawn(move || n.semop(id, &[op(0, 1, 0)], None));
    std::thread::sleep(Duration::from_millis(50));
    step.store(2, SeqCst);
    assert_eq!(registers.join().unwrap(), Ok(()));
    common::until(|| step.load(SeqCst) == 3);
    other.kill();
}

/// Whether this is root; else says what only root can do.
fn is_root(does: &str) -> bool {
    // SAFETY: no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("SKIPPED: only root can {does}");
    }
    root
}

#[test]
fn who_gives_up_being_root_goes_on() {
    if !is_root("become somebody else") {
        return;
    }
    let (_directory, n) = namespace();
    let id = n.semget(IPC_PRIVATE, 1, 0o600).unwrap();
    n.set_sem_owner(id, Owner { uid: 65534, gid: 65534, mode: 0o600 }).unwrap();
    Child::run(|| {
        // SAFETY: this process only, which has one thread.
        unsafe {
            assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
            assert_eq!(libc::setresgid(65534, 65534, 65534), 0);
            assert_eq!(libc::setresuid(65534, 65534, 65534), 0);
        }
        reprieve_ipc::credentials_changed();
        assert!(std::fs::File::open(n.directory().join("space")).is_err());
        n.semop(id, &[op(0, 1, SEM_UNDO)], None).unwrap();
        beside(&[&|| n.semop(id, &[op(0, 1, 0)], None).unwrap()], || ());
        // Heaps grow, too: a queue holds 16 KiB.
        for _ in 0..40 {
            let queue = n.msgget(IPC_PRIVATE, 0o600).unwrap();
            n.msgsnd(queue, 1, &[0; 8000], IPC_NOWAIT).unwrap();
        }
    })
    .succeeds();
    assert_eq!(n.sem_value(id, 0), Ok(1));
}

/// A process that owes a set three units and waits, stopped. The thread that took them has ended.
fn who_owes(n: &Namespace, id: i32) -> Child {
    let child = Child::run(|| {
        beside(&[&|| n.semop(id, &[op(0, 3, SEM_UNDO)], None).unwrap()], || ());
        // SAFETY: this process.
        unsafe { libc::raise(libc::SIGSTOP) };
    });
    child.stopped();
    child
}

#[test]
fn who_has_no_proc_any_more_knows_the_living() {
    if !is_root("move its root") {
        return;
    }
    let (_directory, n) = namespace();
    let id = n.semget(IPC_PRIVATE, 1, 0o600).unwrap();
    let empty = tempfile::tempdir().unwrap();
    let owes = who_owes(&n, id);
    Child::run(|| {
        assert_eq!(n.sem_value(id, 0), Ok(3));
        std::os::unix::fs::chroot(empty.path()).unwrap();
        without(&[libc::SYS_pidfd_open]);
        assert_eq!(n.sem_value(id, 0), Ok(3));
        Child::run(|| assert_eq!(n.sem_value(id, 0), Ok(3))).succeeds();
        // Others of its namespace know it.
        let owes = who_owes(&n, id);
        assert_eq!(n.sem_value(id, 0), Ok(6));
        owes.kill();
        assert_eq!(n.sem_value(id, 0), Ok(3));
    })
    .succeeds();
    assert_eq!(n.sem_value(id, 0), Ok(3));
    owes.kill();
    assert_eq!(n.sem_value(id, 0), Ok(0));
}

/// Its parent does not reap it before it has got what it owes.
#[test]
fn who_has_no_proc_any_more_knows_a_zombie() {
    if !is_root("move its root") {
        return;
    }
    let (_directory, n) = namespace();
    let id = n.semget(IPC_PRIVATE, 1, 0o600).unwrap();
    let empty = tempfile::tempdir().unwrap();
    Child::run(|| {
        assert_eq!(n.sem_value(id, 0), Ok(0));
        std::os::unix::fs::chroot(empty.path()).unwrap();
        let owes = who_owes(&n, id);
        assert_eq!(n.sem_value(id, 0), Ok(3));
        owes.dies();
        n.semop(id, &[op(0, 0, 0)], None).unwrap();
        assert_eq!(n.sem_value(id, 0), Ok(0));
    })
    .succeeds();
}

/// The remover may not unlink the file, which is root's.
#[test]
fn a_removed_segment_in_a_sticky_directory_takes_no_memory() {
    if !is_root("become somebody else") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let sticky = std::fs::Permissions::from_mode(0o1777);
    std::fs::set_permissions(directory.path(), sticky).unwrap();
    let n = Namespace::open(directory.path()).unwrap();
    let id = n.shmget(IPC_PRIVATE, 1 << 16, 0o600).unwrap();
    n.set_shm_owner(id, Owner { uid: 65534, gid: 65534, mode: 0o600 }).unwrap();
    let file = directory.path().join(format!("shm.{id}"));
    std::fs::write(&file, [1; 1 << 16]).unwrap();
    Child::run(|| {
        // SAFETY: this process only, which has one thread.
        assert_eq!(unsafe { libc::setresuid(65534, 65534, 65534) }, 0);
        reprieve_ipc::credentials_changed();
        n.remove_shm(id).unwrap();
    })
    .succeeds();
    let left = std::fs::metadata(&file).unwrap();
    assert_eq!((left.len(), left.blocks()), (0, 0));
}

/// The parent cannot reap it while it waits for what the dead one owes.
#[test]
fn who_has_no_descriptor_left_knows_a_dead_child() {
    let (_directory, n) = namespace();
    let id = n.semget(IPC_PRIVATE, 1, 0o600).unwrap();
    Child::run(|| {
        assert_eq!(n.sem_value(id, 0), Ok(0));
        let owes = who_owes(&n, id);
        assert_eq!(n.sem_value(id, 0), Ok(3));
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: plain data.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &none) }, 0);
        owes.dies();
        n.semop(id, &[op(0, 0, 0)], None).unwrap();
        assert_eq!(n.sem_value(id, 0), Ok(0));
    })
    .succeeds();
}

/// `unshare` without a mount: the numbers in `/proc` are those of other processes.
#[test]
fn another_namespaces_proc_tells_nothing() {
    if !is_root("make a PID namespace") {
        return;
    }
    let (_directory, n) = namespace();
    let id = n.semget(IPC_PRIVATE, 1, 0o600).unwrap();
    Child::run(|| {
        // SAFETY: for children of this process.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWPID) }, 0);
        Child::run(|| {
            let owes = who_owes(&n, id);
            assert_eq!(n.sem_value(id, 0), Ok(3));
            owes.kill();
            assert_eq!(n.sem_value(id, 0), Ok(0));
        })
        .succeeds();
    })
    .succeeds();
}

/// Where another time since the boot is shown, processes seem to have started at another time.
#[test]
fn another_time_namespace_knows_the_living() {
    const CLONE_NEWTIME: i32 = 0x80;
    let (_directory, n) = namespace();
    let id = n.semget(IPC_PRIVATE, 1, 0o600).unwrap();
    let owes = who_owes(&n, id);
    let first = Child::run(|| {
        n.semop(id, &[op(0, 3, SEM_UNDO)], None).unwrap();
        // SAFETY: this process.
        unsafe { libc::raise(libc::SIGSTOP) };
    });
    first.stopped();
    Child::run(|| {
        // SAFETY: for children of this process.
        let made = unsafe { libc::unshare(CLONE_NEWTIME) } == 0;
        if !made || std::fs::write("/proc/self/timens_offsets", "boottime 100000 0").is_err() {
            println!("SKIPPED: only root can make a time namespace, where the kernel has them");
            return;
        }
        Child::run(|| {
            // Dead threads that the kernel has not marked are looked for once a second.
            let began = std::time::Instant::now();
            while began.elapsed() < Duration::from_millis(2500) {
                assert_eq!(n.sem_value(id, 0), Ok(6));
                std::thread::sleep(Duration::from_millis(10));
            }
        })
        .succeeds();
    })
    .succeeds();
    assert_eq!(n.sem_value(id, 0), Ok(6));
    owes.kill();
    first.kill();
    assert_eq!(n.sem_value(id, 0), Ok(0));
}

#[test]
fn a_working_directory_is_left() {
    common::passes_alone("leaves_its_working_directory");
}

#[test]
#[ignore = "a_working_directory_is_left runs it"]
fn leaves_its_working_directory() {
    let directory = tempfile::tempdir().unwrap();
    std::env::set_current_dir(directory.path()).unwrap();
    let n = Namespace::open("here").unwrap();
    assert_eq!(n.directory(), directory.path().join("here"));
    let id = n.semget(IPC_PRIVATE, 1, 0o600).unwrap();
    let segment = n.shmget(IPC_PRIVATE, 4096, 0o600).unwrap();
    std::env::set_current_dir("/").unwrap();
    beside(&[&|| n.semop(id, &[op(0, 1, 0)], None).unwrap()], || ());
    // SAFETY: nothing is remapped, and nothing used.
    unsafe { n.shmat(segment, 0, 0).unwrap() };
}

/// Has the kernel refuse system calls in this process, as sandboxes do.
fn without(calls: &[libc::c_long]) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for &call in calls {
        let compare = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        filter.push(libc::sock_filter { code: compare, jt: 0, jf: 1, k: call as u32 });
        let refused = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
        filter.push(statement(libc::BPF_RET | libc::BPF_K, refused));
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a program of that length.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program);
        assert_eq!(set, 0);
    }
}

const MISSING: [libc::c_long; 3] =
    [libc::SYS_membarrier, libc::SYS_rseq, libc::SYS_get_robust_list];

/// Sandboxed processes and others count in one critical section; sets come and go beside it, so
/// that memory is freed after grace periods; one of each is killed inside.
fn shared_by(sandboxed: usize, others: usize) {
    let (_directory, n) = namespace();
    let mutex = n.semget(IPC_PRIVATE, 2, 0o600).unwrap();
    n.set_sem_values(mutex, &[1, 0]).unwrap();
    let worker = |i: usize| {
        Child::run(|| {
            if i < sandboxed {
                without(&MISSING);
            }
            for _ in 0..200 {
                n.semop(mutex, &[op(0, -1, SEM_UNDO), op(1, 1, SEM_UNDO)], None).unwrap();
                assert_eq!(n.sem_value(mutex, 1), Ok(1));
                n.semop(mutex, &[op(1, -1, SEM_UNDO), op(0, 1, SEM_UNDO)], None).unwrap();
                let set = n.semget(IPC_PRIVATE, 5, 0o600).unwrap();
                n.semop(set, &[op(4, 2, 0)], None).unwrap();
                assert_eq!(n.sem_values(set), Ok(vec![0, 0, 0, 0, 2]));
                n.remove_sem(set).unwrap();
            }
        })
    };
    let workers: Vec<Child> = (0..sandboxed + others).map(worker).collect();
    workers.into_iter().for_each(Child::succeeds);
    assert_eq!(n.sem_values(mutex), Ok(vec![1, 0]));
    for sandboxed in [true, false] {
        let holder = Child::run(|| {
            if sandboxed {
                without(&MISSING);
            }
            n.semop(mutex, &[op(0, -1, SEM_UNDO)], None).unwrap();
            common::forever();
        });
        common::until(|| n.sem_value(mutex, 0) == Ok(0));
        let waiter = Child::run(|| {
            without(&MISSING);
            n.semop(mutex, &[op(0, -1, SEM_UNDO)], None).unwrap();
        });
        common::until(|| n.sem_waiters(mutex, 0, false) == Ok(1));
        holder.kill();
        waiter.succeeds();
        assert_eq!(n.sem_value(mutex, 0), Ok(1));
    }
}

#[test]
fn sandboxed_processes_among_themselves() {
    shared_by(3, 0);
}

#[test]
fn sandboxed_processes_among_others() {
    shared_by(2, 2);
}
