// SPDX-License-Identifier: MIT OR Apache-2.0

include!("../watch/bpf/build.rs");

fn main() {
    build_programs(&["guard"], &[("guard.h", "guard_constants.rs")]);
    // The scheduler in user space, for the simulator (src/sched_ext/simulator). clang, as for eBPF:
    // it puts variables into a section of their own.
    println!("cargo:rerun-if-changed=src/sched_ext/simulator/native");
    println!("cargo:rustc-link-search=native={}", env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    cc::Build::new()
        .compiler("clang")
        .file("src/sched_ext/simulator/native/guard.c")
        .includes(["src/sched_ext/simulator/native", "bpf", "../watch/bpf"])
        .flag("-fno-strict-aliasing")
        .opt_level(2)
        .warnings(false)
        .cargo_metadata(false)
        .compile("guard_native");
}
