// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the C side: always the loops without protection and by this project's headers, and one
//! file per flavor of liburcu if the library's headers and static archives are there. Without them
//! the crate builds all the same, and says at run time what is missing.
//!
//! The archives are linked statically: the command then runs where liburcu is not installed (in a
//! guest, say).

use std::path::{Path, PathBuf};
use std::process::Command;

const FLAVORS: [&str; 3] = ["memb", "mb", "qsbr"];

fn main() {
    println!("cargo:rustc-check-cfg=cfg(urcu)");
    println!("cargo:rerun-if-changed=c");
    println!("cargo:rerun-if-changed=../rcu/include");
    println!("cargo:rerun-if-env-changed=CC");
    let mut build = cc::Build::new();
    // Whatever the profile: a peer compiled without optimization would be no peer.
    build
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .flag_if_supported("-std=gnu11")
        .flag("-Werror=implicit-function-declaration")
        // As in a program. The code is position-independent, where a variable of a library's takes
        // a call, and the linker, which removes the call, cannot give the registers back.
        .flag("-ftls-model=initial-exec");
    build
        .files(["c/brcu.c", "c/floor.c", "c/reprieve.c", "c/reprieve_qsbr.c"])
        .include("../rcu/include");
    let compiler = build.get_compiler();
    println!(
        "cargo:rustc-env=REPRIEVE_BENCH_CC={}",
        first_line(compiler.to_command().arg("--version"))
    );
    match liburcu(&compiler) {
        Some(directory) => {
            build.files(FLAVORS.map(|f| format!("c/{f}.c")));
            build.compile("reprieve_bench");
            println!("cargo:rustc-cfg=urcu");
            println!("cargo:rustc-link-search=native={}", directory.display());
            for flavor in FLAVORS {
                println!("cargo:rustc-link-lib=static=urcu-{flavor}");
            }
            println!("cargo:rustc-link-lib=static=urcu-cds");
            println!("cargo:rustc-link-lib=static=urcu-common");
        }
        None => {
            build.compile("reprieve_bench");
            // Looks again at each build.
            println!("cargo:rerun-if-changed=liburcu-is-not-installed");
        }
    }
}

/// The directory of the static archives, if header files and all archives are where the compiler
/// looks.
fn liburcu(compiler: &cc::Tool) -> Option<PathBuf> {
    let mut probe = compiler.to_command();
    probe.args(["-E", "-o", "/dev/null", "-include", "urcu/urcu-memb.h", "c/floor.c"]);
    if !probe.output().ok()?.status.success() {
        return None;
    }
    let mut directory = None;
    for name in FLAVORS.iter().copied().chain(["cds", "common"]) {
        let found =
            first_line(compiler.to_command().arg(format!("-print-file-name=liburcu-{name}.a")));
        let path = Path::new(&found);
        // The compiler echoes a name that it does not find.
        if !path.is_absolute() {
            return None;
        }
        println!("cargo:rerun-if-changed={found}");
        directory = path.parent().map(Path::to_path_buf);
    }
    directory
}

fn first_line(command: &mut Command) -> String {
    let output = command.output().map(|o| o.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next().unwrap_or_default().to_owned()
}
