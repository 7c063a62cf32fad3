// SPDX-License-Identifier: MIT OR Apache-2.0

include!("../watch/bpf/build.rs");

fn main() {
    build_programs(&["guard"], &[("guard.h", "guard_constants.rs")]);
    // The scheduler's policy, for its tests.
    cc::Build::new()
        .file("bpf/guard_policy.c")
        .include("../watch/bpf")
        .warnings_into_errors(true)
        .compile("guard_policy");
}
