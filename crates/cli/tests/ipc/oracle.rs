// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that must print the same here and in the kernel.

use crate::{Namespace, compiled, done, kernel_has_ipc};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Runs a program of this directory's, and compares what it prints.
fn is_as_in_the_kernel(name: &str, arguments: &[&str]) {
    let n = Namespace::new();
    let directory = tempfile::tempdir().unwrap();
    let program = compiled(name, directory.path());
    let command: Vec<_> =
        [program.to_str().unwrap()].into_iter().chain(arguments.iter().copied()).collect();
    let ours = done(&mut n.run(&command));
    if kernel_has_ipc() {
        assert_eq!(ours, done(Command::new(&program).args(arguments)));
    }
    assert_eq!(n.objects().len(), 0);
}

/// Whether this is root, with namespaces to make.
fn is_root() -> bool {
    let is = Command::new("unshare").args(["-Uri", "true"]).output();
    // SAFETY: no preconditions.
    let is = unsafe { libc::geteuid() } == 0 && is.is_ok_and(|output| output.status.success());
    if !is {
        println!("SKIPPED: not root, or no namespaces");
    }
    is
}

#[test]
fn what_the_manual_leaves_open() {
    is_as_in_the_kernel("errors", &[]);
}

/// `munmap`, `mremap`, `remap_file_pages`, and what replaces a part.
#[test]
fn what_becomes_of_attachments() {
    is_as_in_the_kernel("mappings", &[]);
}

#[test]
fn children_behind_a_filter_that_kills() {
    is_as_in_the_kernel("filtered", &[]);
}

#[test]
fn a_first_call_where_no_file_can_be_opened() {
    is_as_in_the_kernel("filtered", &["files"]);
}

#[test]
fn children_that_may_have_no_descriptor() {
    is_as_in_the_kernel("filtered", &["limit"]);
}

#[test]
fn a_forks_child_asks_nothing_of_the_kernel() {
    is_as_in_the_kernel("filtered", &["forks"]);
}

#[test]
fn who_leaves_namespaces() {
    if is_root() {
        is_as_in_the_kernel("left", &[]);
    }
}

#[test]
fn users_of_user_namespaces() {
    if !is_root() || !kernel_has_ipc() {
        return;
    }
    let n = Namespace::new();
    let directory = n.0.path().join("ns");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(n.0.path(), Permissions::from_mode(0o755)).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ipc/users.sh");
    let kernel = done(Command::new("sh").arg(script));
    assert_eq!(done(&mut n.run(&["sh", script])), kernel);
}

/// With the limit that it names, and one that leaves room for little more than
/// the program.
#[test]
fn programs_with_little_address_space_make_calls() {
    let n = Namespace::new();
    let directory = tempfile::tempdir().unwrap();
    let program = compiled("mappings", directory.path());
    let run = |limit: &str| {
        let script = format!("ulimit -v {limit}; exec {}", Path::new(&program).display());
        done(&mut n.run(&["sh", "-c", &script]))
    };
    let unlimited = run("unlimited");
    assert_eq!([run("4000000"), run("60000")], [unlimited.clone(), unlimited]);
}
