// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where little memory is to be had, and where another user may look. In mount namespaces of their
//! own, in which `/dev/shm` is new and as large as the test says.

use crate::{compiled, done, reprieve, texts};
use std::process::{Command, Output};

/// Whether this is root, who may mount. Else the test is skipped.
fn is_root() -> bool {
    // SAFETY: no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("SKIPPED: not root");
    }
    root
}

/// Runs a script with `/dev/shm` and `/var/tmp` of so many MiB; `$reprieve` is the command.
fn script(shm: u32, disk: u32, script: &str) -> Output {
    let mount = |size: u32, at: &str| format!("mount -t tmpfs -o mode=1777,size={size}m none {at}");
    let (shm, disk) = (mount(shm, "/dev/shm"), mount(disk, "/var/tmp"));
    let command = reprieve().get_program().to_owned();
    let mut run = Command::new("unshare");
    run.args(["-m", "sh", "-ec", &format!("{shm}; {disk}; cd /; {script}")]);
    run.env("reprieve", command).env_remove("REPRIEVE_IPC_DIR").output().unwrap()
}

fn fine(output: &Output) -> String {
    let (out, err) = texts(output);
    assert!(output.status.success(), "{}\n{out}{err}", output.status);
    out
}

/// One segment in `/dev/shm`, two in `/var/tmp`; and nothing stays.
#[test]
fn a_segment_that_does_not_fit_lies_on_the_disk() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = compiled("segments", directory.path());
    let run = format!("$reprieve ipc run -- {} 3 40; ls -A /var/tmp", program.display());
    assert_eq!(fine(&script(64, 100, &run)), "3\n");
}

/// Promised is promised, and the error says what would help.
#[test]
fn a_segment_that_fits_nowhere_is_refused_with_the_reason() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = compiled("segments", directory.path());
    let run = format!("$reprieve ipc run -- {} 3 40; ls -A /var/tmp", program.display());
    let output = script(64, 64, &run);
    assert_eq!(fine(&output), "2\n");
    let told = texts(&output).1;
    for part in ["segment of 40 MiB", "/dev/shm/reprieve-ipc-0 has", "/var/tmp has", "--dir"] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

/// With the 128 MB of shared buffers that PostgreSQL takes by itself.
#[test]
#[ignore = "installs a database: make test-lab"]
fn postgresql_works_with_64_mib_of_shared_memory() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(directory.path(), Some(65534), Some(65534)).unwrap();
    std::fs::write(directory.path().join("script"), crate::database()).unwrap();
    let run = format!(
        "cd {}; export HOME=$PWD; setpriv --reuid 65534 --regid 65534 --clear-groups \
         $reprieve ipc run -- bash -eu script; ls -A /var/tmp",
        directory.path().display()
    );
    assert_eq!(fine(&script(64, 1000, &run)), crate::DATABASE);
    let counts = "800 of 800 transactions are there after a kill, 100000 of 100000 rows";
    crate::tell("PostgreSQL with 64 MiB of /dev/shm", counts);
}

#[test]
fn who_gives_up_being_root_before_its_first_call_can_make_calls() {
    if !is_root() {
        return;
    }
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let all = "ipcmk -S 1 -Q -M 100";
    let listed = format!("{nobody} $reprieve ipc ls --json");
    let run =
        format!("$reprieve ipc run -- {nobody} {all} >/dev/null; XDG_RUNTIME_DIR=/tmp {listed}");
    let objects: serde_json::Value = serde_json::from_str(&fine(&script(64, 64, &run))).unwrap();
    let users = objects.as_array().unwrap().iter().map(|object| object["uid"].as_u64());
    assert_eq!(users.collect::<Vec<_>>(), [Some(65534); 3]);
    // In one process, and in a directory that is root's.
    let perl = "perl -e '$> = 65534; exit(defined semget(0, 1, 0600) ? 0 : 1)'";
    fine(&script(64, 64, &format!("$reprieve ipc run --dir /dev/shm/ns -- {perl}")));
    // Another program there is told what to do.
    let refused = format!("$reprieve ipc run --dir /dev/shm/ns -- {nobody} ipcmk -S 1 || true");
    assert!(texts(&script(64, 64, &refused)).1.contains("--dir"));
}

#[test]
fn a_stranger_is_told_that_it_may_not_look() {
    if !is_root() {
        return;
    }
    let run = "$reprieve ipc run --dir /dev/shm/ns -- ipcmk -S 1 >/dev/null
        setpriv --reuid 65534 --clear-groups $reprieve ipc ls --dir /dev/shm/ns";
    let output = script(64, 64, run);
    assert!(!output.status.success());
    assert!(texts(&output).1.contains("Permission denied"), "{output:?}");
}

#[test]
fn without_proc_the_variable_that_helps_is_named() {
    if !is_root() {
        return;
    }
    let library = done(
        Command::new("sh")
            .args(["-c", "echo $(dirname $0)/libreprieve_ipc.so"])
            .arg(reprieve().get_program()),
    );
    let run = "umount -l /proc 2>/dev/null || mount -t tmpfs none /proc; $reprieve ipc run -- true";
    let output = script(64, 64, run);
    assert!(texts(&output).1.contains("REPRIEVE_IPC_LIBRARY"), "{output:?}");
    let run = format!(
        "REPRIEVE_IPC_LIBRARY={} ; export REPRIEVE_IPC_LIBRARY; \
        mount -t tmpfs none /proc; $reprieve ipc run -- ipcmk -S 1 >/dev/null; \
        $reprieve ipc ls",
        library.trim()
    );
    assert!(fine(&script(64, 64, &run)).contains("1 semaphores"));
}

#[test]
fn objects_are_removed_by_key_and_shown_for_people() {
    let n = crate::Namespace::new();
    done(&mut n.run(&["perl", "-e", "semget(0x4d2, 1, 01600) // exit 1"]));
    let listed = done(&mut n.command("ls"));
    // SAFETY: no preconditions.
    let owner = if unsafe { libc::geteuid() } == 0 { " root " } else { " " };
    assert!(listed.contains("0x000004d2") && listed.contains(owner), "{listed}");
    let shown = done(n.command("stat").arg("sem:0x4d2"));
    assert!(shown.contains("changed         20") && shown.contains("operation  never"), "{shown}");
    done(n.command("rm").arg("sem:0x000004d2"));
    assert_eq!(n.objects().len(), 0);
    let gone = n.command("rm").arg("sem:0x4d2").output().unwrap();
    assert!(texts(&gone).1.contains("key 0x000004d2"));
}
