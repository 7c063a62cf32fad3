// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs under the shim.

mod common;

use common::{compile, run, scratch, shim};
use std::process::Command;

/// The loader's lines about the program's calls that it binds to the shim.
fn bound(program: &mut Command) -> Vec<String> {
    let output = program.env("LD_DEBUG", "bindings").env("LD_BIND_NOW", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let to_shim = |line: &&str| {
        let mut parts = line.split(" to ");
        let from_program = parts.next().is_some_and(|from| from.contains("shim-locks"));
        from_program && parts.next().is_some_and(|to| to.contains("libreprieve_locks"))
    };
    text.lines().filter(to_shim).map(String::from).collect()
}

#[test]
fn locks_of_c_programs() {
    let program = compile("locks", "locks", &[]);
    let shim = shim();
    assert_eq!(run(&mut Command::new(&program)), "alone\n");
    assert_eq!(run(Command::new(&program).env("LD_PRELOAD", &shim)), "preloaded\n");
    let bound = bound(Command::new(&program).arg("loaded").env("LD_PRELOAD", &shim));
    for function in ["pthread_mutex_lock", "pthread_rwlock_wrlock", "pthread_cond_wait"] {
        let named = format!("`{function}'");
        assert!(bound.iter().any(|line| line.contains(&named)), "{function}: {bound:?}");
    }
}

/// Right with the C library's locks and with the shim's.
fn check(name: &str, says: &str, arguments: &[&str]) {
    let program = compile(name, name, &[]);
    let output = |command: &mut Command| run(command.args(arguments));
    assert_eq!(output(&mut Command::new(&program)), says);
    assert_eq!(output(Command::new(&program).env("LD_PRELOAD", shim())), says);
}

/// No lock allocates, be it the first of a process or of a child.
#[test]
fn an_allocator_that_takes_locks() {
    check("allocator", "allocated\n", &[]);
}

/// Locks make no system call that the C library's do not, be they the first of a process or of a
/// child, and with nobody waiting none at all: nor does a signal.
#[test]
fn sandboxed_programs_make_no_new_system_calls() {
    let (program, shim) = (compile("sandbox", "sandbox", &[]), shim());
    for how in ["first", "child", "free"] {
        let mut command = Command::new(&program);
        let status = command.arg(how).env("LD_PRELOAD", &shim).status().unwrap();
        assert_eq!(status.code(), Some(7), "{how}, with the shim");
        assert_eq!(Command::new(&program).arg(how).status().unwrap().code(), Some(7), "{how}");
    }
}

#[test]
fn waiting_for_a_condition_is_a_cancellation_point() {
    check("cancel", "324 cancelled\n", &[]);
    println!("programs: cancellation: 324 of 324 threads that waited");
}

#[test]
fn more_threads_than_places() {
    check("threads", "came and went\n", &[]);
}

/// The program, a plugin and functions found by name share locks, alone and with another library
/// preloaded in front of the shim or behind it. A debugger finds a lock's owner.
#[test]
fn every_way_to_a_lock_is_the_same() {
    let library = ["-shared", "-fPIC"];
    let plugin = compile("deep", "deep.so", &library);
    let second = compile("second", "second.so", &library);
    let (second, shim) = (second.to_str().unwrap(), shim());
    let shim = shim.to_str().unwrap();
    let program = compile("ways", "ways", &[]);
    for preload in ["", shim, &format!("{second}:{shim}"), &format!("{shim}:{second}")] {
        let mut command = Command::new(&program);
        assert_eq!(run(command.arg(&plugin).env("LD_PRELOAD", preload)), "one lock\n", "{preload}");
    }
}

/// Conditions as in glibc 2.41, and as before. Elsewhere all stays the C library's.
#[test]
fn layouts_of_conditions() {
    let program = compile("locks", "layouts", &[]);
    let shim = shim();
    let replaced = |offset: u32| {
        let define = format!("-DAT={offset}");
        let options = [define.as_str(), "-shared", "-fPIC", "-nostdlib"];
        // The library has the name by which the shim knows the C library.
        std::fs::create_dir_all(scratch().join(format!("shim-{offset}"))).unwrap();
        let library = compile("conditions", &format!("{offset}/libc.so.6"), &options);
        let preload = format!("{}:{}", shim.display(), library.display());
        run(Command::new(&program).arg("replaced").env("LD_PRELOAD", preload))
    };
    assert_eq!([28, 36, 40].map(replaced), ["yes\n", "yes\n", "no\n"]);
}
