// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C programs under sanitizers, which are silent about right programs and report mistakes.
//!
//! The sanitizers see the program and the inline functions of the headers. They see the library's
//! heap blocks, and what it tells them of the order of threads (`platform/annotate.rs`).

use super::{HASH_TABLE, Link, PROGRAMS, compile, run, source, verify};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `file` for a sanitizer; the program.
fn build(name: &str, compiler: &str, file: &str, options: &[&str]) -> PathBuf {
    compile(compiler, &source(file), name, &[&["-O1"], options].concat(), Link::Static)
}

/// Runs all programs under a sanitizer; each is then for `look`.
fn run_all(option: &str, settings: (&str, &str), hash_table: bool, look: fn(&Path)) {
    for program in PROGRAMS.iter().filter(|program| hash_table || program.file != HASH_TABLE) {
        let Some(options) = program.options() else { continue };
        let options: Vec<&str> = options.iter().map(String::as_str).chain([option]).collect();
        let built = build(&format!("{}{option}", program.name), "cc", program.file, &options);
        run(Command::new(&built).env(settings.0, settings.1));
        look(&built);
    }
}

/// The mistake is reported, where the program is the same without it.
fn reports(program: &Path, mistake: &str, words: &[&str]) {
    let output = Command::new(program).arg(mistake).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{mistake}: no report");
    assert!(words.iter().any(|word| text.contains(word)), "{mistake}: {text}");
    assert!(text.contains("races.c"), "{mistake}: {text}");
}

const RACES: &str = "races.c";
/// Reads of freed memory.
const READS: [&str; 4] =
    ["frees-at-once", "read-outside", "read-after-release", "read-beside-a-callback"];

mod asan {
    use super::*;

    const OPTION: &str = "-fsanitize=address,undefined";

    /// The library is not instrumented inside.
    #[test]
    fn right_programs() {
        run_all(OPTION, ("UBSAN_OPTIONS", "halt_on_error=1"), true, verify);
    }

    #[test]
    fn mistakes() {
        let program = build("asan-races", "cc", RACES, &[OPTION]);
        run(&mut Command::new(&program));
        READS.iter().for_each(|mistake| reports(&program, mistake, &["heap-use-after-free"]));
    }
}

mod tsan {
    use super::*;

    const OPTION: &str = "-fsanitize=thread";

    /// The sanitizer sees no order in the hash table, which is liburcu-cds's own.
    #[test]
    fn right_programs() {
        let settings = ("TSAN_OPTIONS", "die_after_fork=0");
        run_all(OPTION, settings, false, |_| {});
        let program = build("tsan-saferecl", "c++", "saferecl.cc", &["-std=c++20", OPTION]);
        run(Command::new(&program).env(settings.0, settings.1));
    }

    #[test]
    fn mistakes() {
        let program = build("tsan-races", "cc", RACES, &[OPTION]);
        run(&mut Command::new(&program));
        for mistake in READS.iter().chain(&["read-before-the-free", "writes-in-place"]) {
            reports(&program, mistake, &["data race", "heap-use-after-free"]);
        }
    }
}
