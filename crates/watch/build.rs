// SPDX-License-Identifier: MIT OR Apache-2.0

include!("bpf/build.rs");

fn main() {
    build_programs(&["watch", "publish"], &[("watch.h", "constants.rs")]);
}
