// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the eBPF programs and writes the Rust side of their maps and variables.

use libbpf_cargo::SkeletonBuilder;
use std::env;
use std::path::PathBuf;

fn main() {
    let out =
        PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("watch.skel.rs");
    println!("cargo:rerun-if-changed=bpf");
    let built = SkeletonBuilder::new()
        .source("bpf/watch.bpf.c")
        // v3: compare-and-swap, and jumps that compare half words. Linux has had both since 5.12.
        .clang_args(["-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"])
        .build_and_generate(&out);
    if let Err(error) = built {
        eprintln!(
            "cannot build the eBPF programs: {error:?}\nThey need clang (scripts/setup installs it)."
        );
        std::process::exit(1);
    }
}
