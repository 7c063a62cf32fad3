// SPDX-License-Identifier: MIT OR Apache-2.0

include!("bpf/build.rs");

fn main() {
    build_programs(&["watch"], &[("watch.h", "constants.rs")]);
    cc::Build::new().file("bpf/cost_steps.c").warnings_into_errors(true).compile("cost_steps");
}
