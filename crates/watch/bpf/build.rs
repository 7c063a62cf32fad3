// SPDX-License-Identifier: MIT OR Apache-2.0
// The code that the build scripts of crates with eBPF programs share: each includes this file.

use libbpf_cargo::SkeletonBuilder;
use std::env;
use std::path::PathBuf;

/// Compiles the eBPF programs `bpf/NAME.bpf.c` and writes their Rust side: maps, variables and
/// types from the programs' BTF (libbpf-cargo), and constants from each of `headers`, a file in
/// `bpf` and what the constants' file is called.
fn build_programs(names: &[&str], headers: &[(&str, &str)]) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-changed=../watch/bpf");
    println!("cargo:rerun-if-changed=../hint/include");
    for (header, file) in headers {
        let text = std::fs::read_to_string(format!("bpf/{header}")).expect(header);
        std::fs::write(out.join(file), constants(header, &text)).expect("OUT_DIR can be written");
    }
    for name in names {
        let built = SkeletonBuilder::new()
            .source(format!("bpf/{name}.bpf.c"))
            .rustfmt("/nonexistent/rustfmt") // needless, and rustup's may be a proxy for nothing
            // v3: compare-and-swap, and jumps that compare half words. Linux has had both since
            // 5.12.
            .clang_args(["-mcpu=v3", "-I../watch/bpf", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"])
            .build_and_generate(out.join(format!("{name}.skel.rs")));
        if let Err(error) = built {
            eprintln!(
                "cannot build the eBPF programs: {error:?}\nThey need clang (scripts/setup installs it)."
            );
            std::process::exit(1);
        }
    }
}

/// A Rust constant for each `#define NAME VALUE` of `header`.
fn constants(name: &str, header: &str) -> String {
    let mut out = String::new();
    for line in header.lines() {
        let mut words = line.split_ascii_whitespace();
        let ("#define", Some(constant), Some(value)) =
            (words.next().unwrap_or_default(), words.next(), words.next())
        else {
            continue;
        };
        let (kind, value) = match value {
            "(~0ULL)" => ("u64", "u64::MAX"),
            value if value.parse::<u32>().is_ok() => ("usize", value),
            value if value.parse::<i32>().is_ok() => ("i32", value),
            other => {
                panic!("bpf/{name}: {constant} is {other}, of which build.rs makes no constant")
            }
        };
        out += &format!("pub const {constant}: {kind} = {value};\n");
    }
    out
}
