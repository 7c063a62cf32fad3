// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every error, flag and command that the manual pages of the calls list, through the C library's
//! names: `tests/c/manual.c` tries them, here and in the kernel, and what it prints must be equal.
//! [`MANUAL`] is the pages' list; whatever of it no case tries is a failure. Calls with generated
//! arguments are compared in `crates/ipc/tests/kernel.rs`.

use crate::{Namespace, done, kernel_has_ipc};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// For each call: errors, then flags and commands (Linux man-pages 6.03).
const MANUAL: &[(&str, &str, &str)] = &[
    ("ftok", "ENOENT EFAULT", ""),
    ("semget", "EACCES EEXIST EINVAL ENOENT ENOMEM ENOSPC", "IPC_CREAT IPC_EXCL IPC_PRIVATE"),
    (
        "semop",
        "E2BIG EACCES EAGAIN EFAULT EFBIG EIDRM EINTR EINVAL ENOMEM ERANGE",
        "IPC_NOWAIT SEM_UNDO",
    ),
    ("semtimedop", "EAGAIN EFAULT EINTR EINVAL", ""),
    (
        "semctl",
        "EACCES EFAULT EIDRM EINVAL EPERM ERANGE",
        "IPC_STAT IPC_SET IPC_RMID IPC_INFO SEM_INFO SEM_STAT SEM_STAT_ANY GETALL GETNCNT GETPID \
         GETVAL GETZCNT SETALL SETVAL",
    ),
    ("msgget", "EACCES EEXIST ENOENT ENOMEM ENOSPC", "IPC_CREAT IPC_EXCL IPC_PRIVATE"),
    ("msgsnd", "EACCES EAGAIN EFAULT EIDRM EINTR EINVAL ENOMEM", "IPC_NOWAIT"),
    (
        "msgrcv",
        "E2BIG EACCES EFAULT EIDRM EINTR EINVAL ENOMSG ENOSYS",
        "IPC_NOWAIT MSG_COPY MSG_EXCEPT MSG_NOERROR",
    ),
    (
        "msgctl",
        "EACCES EFAULT EIDRM EINVAL EPERM",
        "IPC_STAT IPC_SET IPC_RMID IPC_INFO MSG_INFO MSG_STAT MSG_STAT_ANY",
    ),
    (
        "shmget",
        "EACCES EEXIST EINVAL ENFILE ENOENT ENOMEM ENOSPC EPERM",
        "IPC_CREAT IPC_EXCL IPC_PRIVATE SHM_HUGETLB SHM_NORESERVE",
    ),
    ("shmat", "EACCES EIDRM EINVAL ENOMEM", "SHM_EXEC SHM_RDONLY SHM_REMAP SHM_RND"),
    ("shmdt", "EINVAL", ""),
    (
        "shmctl",
        "EACCES EFAULT EIDRM EINVAL ENOMEM EOVERFLOW EPERM",
        "IPC_STAT IPC_SET IPC_RMID IPC_INFO SHM_INFO SHM_STAT SHM_STAT_ANY SHM_LOCK SHM_UNLOCK \
         SHM_DEST",
    ),
];

/// Cases that are listed and not tried, and why.
const NOT_TRIED: &[(&str, &str, &str)] = &[
    ("semget", "ENOMEM", "the machine would have to run out of memory"),
    ("semop", "ENOMEM", "as above"),
    ("msgget", "ENOMEM", "as above"),
    ("msgsnd", "ENOMEM", "as above"),
    ("shmget", "ENFILE", "the machine would have to run out of files"),
    ("semctl", "EIDRM", "only beside a removal at the same moment; else EINVAL"),
    ("msgctl", "EIDRM", "as above"),
    ("shmat", "EIDRM", "as above"),
    ("shmctl", "EIDRM", "as above"),
    ("shmctl", "EOVERFLOW", "64-bit programs have room for every number"),
    ("msgrcv", "ENOSYS", "of kernels without CONFIG_CHECKPOINT_RESTORE; this library has MSG_COPY"),
];

/// Whether a case takes another user or low limits, which only root can have.
fn takes_root(call: &str, what: &str) -> bool {
    let others = ["EACCES", "EPERM", "ENOSPC"].contains(&what);
    others || (call, what) == ("shmctl", "ENOMEM")
}

/// Listed errors and words that no case of these lines tries.
fn not_tried(lines: &[String], root: bool) -> Vec<String> {
    let mut missing = Vec::new();
    for (call, errors, words) in MANUAL {
        let of_call: Vec<(&str, &str)> = lines
            .iter()
            .filter_map(|line| line.strip_prefix(call)?.strip_prefix(' ')?.split_once(": "))
            .collect();
        let exempt = |what: &str| {
            NOT_TRIED.iter().any(|(c, w, _)| c == call && *w == what)
                || !root && takes_root(call, what)
        };
        let errors = errors
            .split_whitespace()
            .filter(|error| !exempt(error) && !of_call.iter().any(|(_, result)| result == error));
        let words = words.split_whitespace().filter(|word| {
            let has = |text: &str| text.split([' ', ',']).any(|w| w == *word);
            !of_call.iter().any(|(text, _)| has(text))
        });
        missing.extend(errors.chain(words).map(|what| format!("{call} {what}")));
    }
    missing
}

#[test]
fn what_the_manual_lists_is_as_in_the_kernel() {
    let n = Namespace::new();
    let directory = n.0.path().join("ns");
    // Other users use it, too, and make segments in it.
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(n.0.path(), Permissions::from_mode(0o755)).unwrap();
    let program = n.0.path().join("manual");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/manual.c");
    done(Command::new("cc").args(["-O2", "-Wall", source, "-o"]).arg(&program));
    let lines = |mut command: Command| -> Vec<String> {
        done(&mut command).lines().map(str::to_owned).collect()
    };
    let ours = lines(n.run(&[program.to_str().unwrap()]));
    assert_eq!(n.objects().len(), 0);
    let root = ours.last().unwrap() == "done: all";
    assert_eq!(not_tried(&ours, root), Vec::<String>::new(), "no case for these");
    if !root {
        println!("SKIPPED: only root can have an IPC namespace with low limits");
    }
    if !root || !kernel_has_ipc() {
        return;
    }
    let kernel = lines(Command::new(program));
    assert_eq!(kernel.len(), ours.len());
    let no_copies = kernel.iter().any(|line| line.ends_with(": ENOSYS"));
    let differ = |(kernel, ours): &(&String, &String)| {
        kernel != ours && !(no_copies && kernel.contains("MSG_COPY"))
    };
    let differences: Vec<_> = kernel.iter().zip(&ours).filter(differ).collect();
    assert!(differences.is_empty(), "the kernel, then ours: {differences:#?}");
}

#[test]
fn a_case_that_is_missing_is_noticed() {
    let line = |text: &str| text.to_owned();
    let missing = not_tried(&[line("shmdt twice: EINVAL"), line("ftok NULL: EFAULT")], true);
    assert!(missing.contains(&line("ftok ENOENT")) && missing.contains(&line("shmat SHM_RND")));
    assert!(!missing.contains(&line("shmdt EINVAL")) && !missing.contains(&line("ftok EFAULT")));
}
