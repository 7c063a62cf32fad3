// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the library that slows QEMU's clocks. It becomes part of the program, since a lab run
//! must not depend on files beside it.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=dilate");
    println!("cargo:rerun-if-env-changed=CC");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut compile = cc::Build::new().opt_level(2).get_compiler().to_command();
    compile.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-Wl,-z,now"]);
    compile.arg("-o").arg(out.join("dilate.so")).arg("dilate/dilate.c");
    match compile.status() {
        Ok(status) if status.success() => {}
        failed => {
            eprintln!("cannot compile dilate/dilate.c ({failed:?}): it needs a C compiler");
            std::process::exit(1);
        }
    }
}
