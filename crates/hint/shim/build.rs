// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the part that is in C.

fn main() {
    println!("cargo:rerun-if-changed=src/cancel.c");
    cc::Build::new().file("src/cancel.c").flag("-fno-exceptions").compile("reprieve_cancel");
}
