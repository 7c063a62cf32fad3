// SPDX-License-Identifier: MIT OR Apache-2.0
//! Beside other libraries that are preloaded, and in programs that are hard to reach.

use crate::{Namespace, as_nobody, compiled, done, tell, texts};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A C source of this directory's, as a library.
fn library(name: &str, to: &Path) -> PathBuf {
    let source = format!("{}/tests/ipc/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let library = to.join(format!("lib{name}.so"));
    let flags = ["-O1", "-Wall", "-fno-builtin", "-shared", "-fPIC"];
    done(Command::new("cc").args(flags).arg(source).arg("-o").arg(&library));
    library
}

#[test]
fn functions_that_other_libraries_replace_are_not_called() {
    let n = Namespace::new();
    let directory = tempfile::tempdir().unwrap();
    let program = compiled("calls", directory.path());
    let replaced = library("replaced", directory.path());
    let mut run = n.run(&[program.to_str().unwrap()]);
    assert_eq!(done(run.env("LD_PRELOAD", &replaced)), "fine\n");
}

/// Fakeroot's own server and its clients talk by System V messages.
#[test]
#[ignore = "needs fakeroot: make test-lab"]
fn fakeroot_sysv_works_as_a_user() {
    const FILES: usize = 20;
    let n = Namespace::new();
    let script = format!(
        "fakeroot-sysv -- sh -c 'for i in $(seq {FILES}); do touch $i; chown $i:2 $i; done; \
         for i in $(seq {FILES}); do stat -c %u:%g $i; done'"
    );
    let owners: String = (1..=FILES).map(|i| format!("{i}:2\n")).collect();
    assert_eq!(done(&mut as_nobody(&n, &script)), owners);
    tell("fakeroot-sysv as a user", format_args!("{FILES} of {FILES} owners"));
}

#[test]
#[ignore = "needs faketime: make test-lab"]
fn time_limits_end_under_faketime() {
    let n = Namespace::new();
    let directory = tempfile::tempdir().unwrap();
    let program = compiled("calls", directory.path());
    let script = format!("faketime -f '2001-01-01 00:00:00' {}", program.display());
    assert_eq!(done(&mut n.run(&["sh", "-c", &script])), "fine\n");
    tell("faketime", "1 of 1 program of timed calls");
}

fn deep(to: &Path, name: &str, compiler: &str, flags: &[&str]) -> String {
    let source = format!("{}/tests/ipc/deep.c", env!("CARGO_MANIFEST_DIR"));
    let program = to.join(name);
    done(Command::new(compiler).args(flags).arg(source).arg("-o").arg(&program));
    program.to_str().unwrap().to_owned()
}

/// As PHP's extensions are loaded.
#[test]
fn libraries_that_find_the_c_library_first_are_reached() {
    let n = Namespace::new();
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path();
    let library = deep(to, "library.so", "cc", &["-shared", "-fPIC", "-DLIBRARY"]);
    let program = deep(to, "program", "cc", &["-Wall"]);
    done(&mut n.run(&[&program, &library]));
    assert_eq!(n.objects().len(), 2);
}

#[test]
fn children_that_cannot_load_the_library_start_and_are_told_of() {
    let n = Namespace::new();
    let directory = tempfile::tempdir().unwrap();
    for (name, compiler, flags) in [("static", "cc", "-static"), ("musl", "musl-gcc", "-O1")] {
        let program = deep(directory.path(), name, compiler, &[flags, "-DWAITS"]);
        let script = format!("{program}; echo done");
        let mut run = n.run(&["sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
        let number = lines.next().expect("it starts").unwrap();
        let listed = texts(&n.command("ls").output().unwrap());
        // SAFETY: its parent waits for it.
        unsafe { libc::kill(number.parse().unwrap(), libc::SIGKILL) };
        run.wait().unwrap();
        let told = format!("process {number} ({name}) has not loaded the library");
        assert!(listed.1.contains(&told), "{listed:?}");
        // Not of those that have.
        assert_eq!(listed.1.lines().filter(|line| line.contains("(sh)")).count(), 0, "{listed:?}");
    }
}

#[test]
fn strict_ends_who_goes_past_the_library() {
    let n = Namespace::new();
    let directory = tempfile::tempdir().unwrap();
    let program = deep(directory.path(), "static", "cc", &["-static", "-DWAITS"]);
    let script = format!("ipcmk -S 1 >/dev/null && exec {program} call");
    let run = |strict: &[&str]| {
        let mut command = n.command("run");
        command.args(strict).args(["--", "sh", "-c", &script]).status().unwrap()
    };
    assert_eq!(run(&["--strict"]).signal(), Some(libc::SIGSYS));
    assert_eq!(run(&[]).code(), Some(0));
    assert_eq!(n.objects().len(), 2);
}

#[test]
#[ignore = "needs php-cli: make test-lab"]
fn phps_extensions_are_reached() {
    let n = Namespace::new();
    let script = r#"
        $sem = sem_get(1); sem_acquire($sem) || exit(1); sem_release($sem) || exit(2);
        $queue = msg_get_queue(2); msg_send($queue, 1, "text") || exit(3);
        msg_receive($queue, 0, $type, 100, $text) && $text === "text" || exit(4);
        $shm = shm_attach(3, 10000); shm_put_var($shm, 7, "seven") || exit(5);
        $block = shmop_open(4, "c", 0600, 100); shmop_write($block, "data", 0) === 4 || exit(6);
        echo shm_get_var($shm, 7), shmop_read($block, 0, 4), "\n";
    "#;
    assert_eq!(done(&mut n.run(&["php", "-r", script])), "sevendata\n");
    assert_eq!(n.objects().len(), 4);
    tell("PHP", "4 of 4 extensions (sysvsem, sysvmsg, sysvshm, shmop)");
}
