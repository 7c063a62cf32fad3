// SPDX-License-Identifier: MIT OR Apache-2.0
//! Links the library so that it is never unloaded: it has handlers for forks.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
