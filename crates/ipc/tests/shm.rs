// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared memory segments across processes.

#[path = "../../rcu/tests/common/beside.rs"]
mod beside;
mod common;

use beside::beside;
use common::{Child, errno, namespace, one};
use libc::{IPC_CREAT, IPC_PRIVATE};
use reprieve_ipc::{Namespace, Result, SHM_DEST};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::*;

fn attach(n: &Namespace, id: i32, address: usize, flags: i32) -> Result<*mut u8> {
    // SAFETY: the tests remap only what they attached themselves.
    unsafe { n.shmat(id, address, flags) }
}

fn detach(at: *mut u8) -> Result<()> {
    // SAFETY: the tests use no segment after this.
    unsafe { Namespace::shmdt(at as usize) }
}

fn word(at: *mut u8) -> &'static AtomicU32 {
    // SAFETY: a segment that is attached as long as the word is used, and aligned.
    unsafe { &*at.cast() }
}

fn attached(n: &Namespace, id: i32) -> u64 {
    n.shm_status(id).unwrap().attached
}

fn files(n: &Namespace) -> usize {
    let names = std::fs::read_dir(n.directory()).unwrap().map(|f| f.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().starts_with("shm.")).count()
}

#[test]
fn processes_see_the_same_bytes() {
    let _one = one();
    let (_directory, n) = namespace();
    let id = n.shmget(7, 5000, IPC_CREAT | 0o600).unwrap();
    assert_eq!(n.shmget(7, 1, 0), Ok(id));
    assert_eq!(errno(n.shmget(7, 5001, 0)), libc::EINVAL);
    assert_eq!(errno(n.shmget(IPC_PRIVATE, 0, 0)), libc::EINVAL);
    let at = attach(&n, id, 0, 0).unwrap();
    word(at).store(1, SeqCst);
    Child::run(|| {
        let at = attach(&n, id, 0, 0).unwrap();
        word(at).fetch_add(1, SeqCst);
    })
    .succeeds();
    assert_eq!(word(at).load(SeqCst), 2);
    assert_eq!(attached(&n, id), 1);
    detach(at).unwrap();
    assert_eq!(errno(detach(at)), libc::EINVAL);
    assert_eq!(attached(&n, id), 0);
    n.remove_shm(id).unwrap();
    assert_eq!(files(&n), 0);
    // Where it cannot be mapped, nobody has attached it.
    let id = n.shmget(IPC_PRIVATE, 5000, 0o600).unwrap();
    let taken = attach(&n, id, 0, 0).unwrap();
    let other = n.shmget(IPC_PRIVATE, 5000, 0o600).unwrap();
    assert_eq!(errno(attach(&n, other, taken as usize, 0)), libc::EINVAL);
    let seen = n.shm_status(other).unwrap();
    assert_eq!((seen.attached, seen.atime, seen.dtime, seen.last), (0, 0, 0, 0));
    detach(taken).unwrap();
    for id in [id, other] {
        n.remove_shm(id).unwrap();
    }
}

#[test]
fn a_removed_segment_stays_until_its_last_user_goes() {
    let _one = one();
    let (_directory, n) = namespace();
    let id = n.shmget(7, 4096, IPC_CREAT | 0o600).unwrap();
    let at = attach(&n, id, 0, 0).unwrap();
    let child = Child::run(|| {
        // Inherited.
        word(at).store(1, SeqCst);
        common::forever();
    });
    common::until(|| word(at).load(SeqCst) == 1);
    assert_eq!(attached(&n, id), 2);
    n.remove_shm(id).unwrap();
    assert_eq!(errno(n.shmget(7, 0, 0)), libc::ENOENT);
    assert_eq!(n.shm_status(id).unwrap().status.mode & SHM_DEST, SHM_DEST);
    detach(at).unwrap();
    assert_eq!(attached(&n, id), 1);
    child.kill();
    assert_eq!(n.shm_info().unwrap().segments, 0);
    assert_eq!(files(&n), 0);
    assert_eq!(errno(n.shm_status(id)), libc::EINVAL);
}

#[test]
fn a_child_counts_from_the_fork_on() {
    let _one = one();
    let (_directory, n) = namespace();
    let id = n.shmget(IPC_PRIVATE, 4096, 0o600).unwrap();
    let at = attach(&n, id, 0, 0).unwrap();
    let again = attach(&n, id, 0, 0).unwrap();
    let children = [0; 3].map(|_| Child::run(|| common::forever()));
    assert_eq!(attached(&n, id), 8);
    children.into_iter().for_each(Child::kill);
    assert_eq!(attached(&n, id), 2);
    Child::run(|| {
        detach(at).unwrap();
        assert_eq!(attached(&n, id), 3);
        let child = Child::run(|| assert_eq!(attached(&n, id), 4));
        child.succeeds();
    })
    .succeeds();
    detach(at).unwrap();
    detach(again).unwrap();
    assert_eq!(attached(&n, id), 0);
}

/// The only thread that made calls has ended; the others use the memory.
#[test]
fn a_segment_outlives_the_thread_that_attached_it() {
    let _one = one();
    let (_directory, n) = namespace();
    let ids = n.msgget(IPC_PRIVATE, 0o600).unwrap();
    let attaches = || {
        let id = n.shmget(IPC_PRIVATE, 4096, 0o600).unwrap();
        attach(&n, id, 0, 0).unwrap();
        n.msgsnd(ids, 1, &id.to_le_bytes(), 0).unwrap();
    };
    let id = || {
        let mut id = [0; 4];
        n.msgrcv(ids, &mut id, 0, 0).unwrap();
        i32::from_le_bytes(id)
    };
    // A child that stops itself once the thread has ended, which its parent sees.
    let stops = |f: &dyn Fn()| {
        let child = Child::run(|| {
            beside(&[&attaches], || ());
            f();
        });
        child.stopped();
        child
    };
    // SAFETY: stops this process.
    let stop = || assert_eq!(unsafe { libc::raise(libc::SIGSTOP) }, 0);
    let child = stops(&stop);
    let first = id();
    assert_eq!(attached(&n, first), 1);
    n.remove_shm(first).unwrap();
    assert_eq!(attached(&n, first), 1);
    assert_eq!(files(&n), 1);
    child.kill();
    assert_eq!(n.shm_info().unwrap().segments, 0);
    assert_eq!(files(&n), 0);
    // The process goes on with another program, which makes no calls.
    let child = stops(&|| {
        stop();
        let arguments = [c"sleep".as_ptr(), c"1000000".as_ptr(), std::ptr::null()];
        // SAFETY: strings, and a null pointer behind them.
        unsafe { libc::execvp(arguments[0], arguments.as_ptr()) };
    });
    let second = id();
    assert_eq!(attached(&n, second), 1);
    child.signal(libc::SIGCONT);
    common::until(|| attached(&n, second) == 0);
    assert!(!child.is_over());
    child.kill();
}

/// The kernel tells nobody when a process's second thread executes another program.
#[test]
fn a_second_thread_executes_another_program() {
    let _one = one();
    let (_directory, n) = namespace();
    let set = n.semget(IPC_PRIVATE, 1, 0o600).unwrap();
    let segment = n.shmget(IPC_PRIVATE, 4096, 0o600).unwrap();
    let executes = |program: [&std::ffi::CStr; 2]| {
        Child::run(|| {
            let thread = || {
                let up =
                    reprieve_ipc::SemOp { sem_num: 0, sem_op: 1, sem_flg: libc::SEM_UNDO as _ };
                n.semop(set, &[up], None).unwrap();
                attach(&n, segment, 0, 0).unwrap();
                let arguments = [program[0].as_ptr(), program[1].as_ptr(), std::ptr::null()];
                // SAFETY: strings, and a null pointer behind them.
                unsafe { libc::execvp(arguments[0], arguments.as_ptr()) };
            };
            beside(&[&thread], || common::forever());
        })
    };
    let sleeps = executes([c"sleep", c"1000000"]);
    // The process is there, with its adjustment, and without its attachment.
    let program = || std::fs::read_to_string(format!("/proc/{}/comm", sleeps.pid())).unwrap();
    common::until(|| program() == "sleep\n");
    common::until(|| n.sem_value(set, 0) == Ok(1) && attached(&n, segment) == 0);
    assert!(!sleeps.is_over());
    sleeps.kill();
    common::until(|| n.sem_value(set, 0) == Ok(0));
    executes([c"true", c""]).succeeds();
    common::until(|| n.sem_value(set, 0) == Ok(0) && attached(&n, segment) == 0);
    n.remove_shm(segment).unwrap();
    assert_eq!(files(&n), 0);
}

/// Numbers of processes and threads mean others in the parent's PID namespace than in its child's.
#[test]
fn a_child_in_another_pid_namespace_is_alive() {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIPPED: only root can make a PID namespace");
        return;
    }
    let _one = one();
    let (_directory, n) = namespace();
    let set = n.semget(IPC_PRIVATE, 1, 0o600).unwrap();
    let segment = n.shmget(IPC_PRIVATE, 4096, 0o600).unwrap();
    let parent = Child::run(|| {
        attach(&n, segment, 0, 0).unwrap();
        // SAFETY: for children of this process.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWPID) }, 0);
        let child = Child::run(|| {
            let up = reprieve_ipc::SemOp { sem_num: 0, sem_op: 1, sem_flg: libc::SEM_UNDO as _ };
            n.semop(set, &[up], None).unwrap();
            common::forever();
        });
        child.succeeds();
    });
    common::until(|| n.sem_value(set, 0) == Ok(1));
    // Dead threads that the kernel has not marked are looked for once a second.
    let began = std::time::Instant::now();
    while began.elapsed() < std::time::Duration::from_millis(2500) {
        assert_eq!((n.sem_value(set, 0), attached(&n, segment)), (Ok(1), 2));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    parent.kill();
    common::until(|| n.sem_value(set, 0) == Ok(0) && attached(&n, segment) == 0);
}

/// In a process of its own, whose first call this is: what watches its forks begins with it.
#[test]
fn the_first_call_detaches() {
    common::passes_alone("detaches_first");
}

#[test]
#[ignore = "the_first_call_detaches runs it"]
fn detaches_first() {
    assert_eq!(errno(detach(std::ptr::null_mut())), libc::EINVAL);
    let (_directory, n) = namespace();
    let id = n.shmget(IPC_PRIVATE, 4096, 0o600).unwrap();
    let at = attach(&n, id, 0, 0).unwrap();
    Child::run(|| {
        assert_eq!(attached(&n, id), 2);
        detach(at).unwrap();
        assert_eq!(attached(&n, id), 1);
    })
    .succeeds();
    detach(at).unwrap();
}

/// In a process of its own: no other thread is in the allocator when it forks.
#[test]
fn a_child_of_a_fork_without_handlers_counts() {
    common::passes_alone("forks_without_handlers");
}

#[test]
#[ignore = "a_child_of_a_fork_without_handlers_counts runs it"]
fn forks_without_handlers() {
    let (_directory, n) = namespace();
    let (_other_directory, other) = namespace();
    let id = n.shmget(IPC_PRIVATE, 4096, 0o600).unwrap();
    let ats = [(); 2].map(|()| attach(&n, id, 0, 0).unwrap());
    n.remove_shm(id).unwrap();
    // SAFETY: a fork; the child only makes calls, and ends without destructors.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32;
    assert!(child >= 0);
    if child == 0 {
        // Whatever call is the first.
        let counts = other.sem_info().is_ok()
            && n.shm_status(id).is_ok_and(|status| status.attached == 4)
            && ats.into_iter().all(|at| detach(at).is_ok())
            && attached(&n, id) == 2;
        // SAFETY: this process.
        unsafe { libc::_exit(if counts { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!((status, attached(&n, id)), (0, 2));
    ats.into_iter().for_each(|at| detach(at).unwrap());
    assert_eq!(files(&n), 0);
}

#[test]
fn processes_that_have_attached_a_segment_leave_no_memory_behind() {
    let _one = one();
    let (_directory, n) = namespace();
    let id = n.shmget(IPC_PRIVATE, 4096, 0o600).unwrap();
    let run = |times| {
        for i in 0..times {
            Child::run(|| {
                let at = attach(&n, id, 0, 0).unwrap();
                if i % 2 == 0 {
                    detach(at).unwrap();
                }
            })
            .succeeds();
        }
        common::memory(&n)
    };
    // More than fit into the piece of memory that the first ones had the file system reserve.
    assert_eq!(run(10), run(6000));
    assert_eq!(attached(&n, id), 0);
}

#[test]
fn children_that_inherit_a_segment_leave_no_memory_behind() {
    let _one = one();
    let (_directory, n) = namespace();
    let id = n.shmget(IPC_PRIVATE, 4096, 0o600).unwrap();
    let at = attach(&n, id, 0, 0).unwrap();
    let run = |times| {
        (0..times).for_each(|_| Child::run(|| ()).succeeds());
        common::memory(&n)
    };
    assert_eq!(run(10), run(50));
    assert_eq!(attached(&n, id), 1);
    detach(at).unwrap();
}

#[test]
fn a_removed_segment_whose_users_have_died_does_not_come_back() {
    let _one = one();
    let (_directory, n) = namespace();
    let flag = n.shmget(IPC_PRIVATE, 4096, 0o600).unwrap();
    let flag = attach(&n, flag, 0, 0).unwrap();
    let id = n.shmget(IPC_PRIVATE, 4096, 0o600).unwrap();
    let child = Child::run(|| {
        attach(&n, id, 0, 0).unwrap();
        word(flag).store(1, SeqCst);
        common::forever();
    });
    common::until(|| word(flag).load(SeqCst) == 1);
    n.remove_shm(id).unwrap();
    assert_eq!(attached(&n, id), 1);
    child.kill();
    assert_eq!(errno(attach(&n, id, 0, 0)), libc::EINVAL);
    assert_eq!(files(&n), 1);
    detach(flag).unwrap();
}

/// The kernel would end who makes a file beyond the limit.
#[test]
fn a_limit_on_files_is_a_limit_on_segments() {
    let _one = one();
    let (directory, n) = namespace();
    Child::run(|| {
        let most = libc::rlimit { rlim_cur: 8192, rlim_max: 8192 };
        // SAFETY: this process; `most` outlives the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &most) }, 0);
        assert_eq!(errno(n.shmget(IPC_PRIVATE, 8193, 0o600)), libc::ENOMEM);
        let other = Namespace::open(directory.path().join("other")).unwrap_err();
        assert_eq!(other.errno().0, libc::EFBIG);
        let id = n.shmget(IPC_PRIVATE, 8192, 0o600).unwrap();
        n.remove_shm(id).unwrap();
    })
    .succeeds();
}
