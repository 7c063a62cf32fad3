// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C programs under sanitizers, which are silent about right programs and report mistakes.
//!
//! The sanitizers see the program and the inline functions of the headers. They see the library's
//! heap blocks, and what it tells them of the order of threads (`platform/annotate.rs`).

use super::{Link, compile, liburcu_cds, prefix, run, source, verify};
use std::path::{Path, PathBuf};
use std::process::Command;

struct Program {
    file: &'static str,
    options: &'static [&'static str],
}

const fn program(file: &'static str, options: &'static [&'static str]) -> Program {
    Program { file, options }
}

const PROGRAMS: [Program; 17] = [
    program("../../examples/first.c", &[]),
    program("scan.c", &[]),
    program("readers.c", &[]),
    program("wait.c", &[]),
    program("maps.c", &[]),
    program("stall.c", &[]),
    program("hint.c", &[]),
    program("atfork.c", &[]),
    program("copies.c", &[]),
    program("flavors.c", &[]),
    program("urcu.c", &["-DFLAVOR_HEADER=<urcu.h>"]),
    program("urcu.c", &["-DFLAVOR_HEADER=<urcu/urcu-mb.h>", "-DURCU_API_MAP"]),
    program("urcu.c", &["-DFLAVOR_HEADER=<urcu-bp.h>"]),
    program("urcu.c", &["-DFLAVOR_HEADER=<urcu-qsbr.h>", "-DQSBR"]),
    program("lfq.c", &["-DFLAVOR_HEADER=<urcu.h>"]),
    program("lfq.c", &["-DFLAVOR_HEADER=<urcu-qsbr.h>", "-DQSBR"]),
    program("lfq.c", &["-DFLAVOR_HEADER=<urcu/urcu-bp.h>", "-D_LGPL_SOURCE"]),
];

/// liburcu-cds's own hash table, which is not instrumented: a thread sanitizer sees no order in it.
const HASH_TABLES: [Program; 2] = [
    program("lfht.c", &["-DFLAVOR_HEADER=<urcu.h>"]),
    program("lfht.c", &["-DFLAVOR_HEADER=<urcu-qsbr.h>", "-DQSBR"]),
];

/// Compiles for the sanitizers; the program.
fn build(name: &str, compiler: &str, program: &Program, options: &[&str]) -> PathBuf {
    let compat = format!("-I{}", prefix().join("include/reprieve/compat").display());
    let options = [&["-O1", &compat], options, program.options].concat();
    compile(compiler, &source(program.file), name, &options, Link::Static)
}

/// The mistake is reported, where the program is the same without it.
fn reports(program: &Path, mistake: &str, words: &[&str]) {
    let output = Command::new(program).arg(mistake).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{mistake}: no report");
    assert!(words.iter().any(|word| text.contains(word)), "{mistake}: {text}");
    assert!(text.contains("races.c"), "{mistake}: {text}");
}

const RACES: Program = program("races.c", &[]);
/// Reads of freed memory.
const READS: [&str; 4] =
    ["frees-at-once", "read-outside", "read-after-release", "read-beside-a-callback"];

mod asan {
    use super::*;

    const OPTION: &str = "-fsanitize=address,undefined";

    #[test]
    fn right_programs() {
        let cds = liburcu_cds();
        let hash_tables = if cds.is_some() { &HASH_TABLES[..] } else { &[] };
        for (i, program) in PROGRAMS.iter().chain(hash_tables).enumerate() {
            let libraries = if program.file == "lfht.c" { cds.unwrap() } else { &[] };
            let options = [&[OPTION], libraries].concat();
            let program = build(&format!("asan-{i}"), "cc", program, &options);
            run(Command::new(&program).env("UBSAN_OPTIONS", "halt_on_error=1"));
            // Not instrumented inside.
            verify(&program);
        }
    }

    #[test]
    fn mistakes() {
        let program = build("asan-races", "cc", &RACES, &[OPTION]);
        run(&mut Command::new(&program));
        READS.iter().for_each(|mistake| reports(&program, mistake, &["heap-use-after-free"]));
    }
}

mod tsan {
    use super::*;

    const OPTION: &str = "-fsanitize=thread";

    #[test]
    fn right_programs() {
        let cpp = program("saferecl.cc", &["-std=c++20"]);
        let all = PROGRAMS.iter().map(|program| ("cc", program)).chain([("c++", &cpp)]);
        for (i, (compiler, program)) in all.enumerate() {
            let program = build(&format!("tsan-{i}"), compiler, program, &[OPTION]);
            run(Command::new(&program).env("TSAN_OPTIONS", "die_after_fork=0"));
        }
    }

    #[test]
    fn mistakes() {
        let program = build("tsan-races", "cc", &RACES, &[OPTION]);
        run(&mut Command::new(&program));
        for mistake in READS.iter().chain(&["read-before-the-free", "writes-in-place"]) {
            reports(&program, mistake, &["data race", "heap-use-after-free"]);
        }
    }
}
