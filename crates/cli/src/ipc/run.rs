// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve ipc run`.

use super::past;
use crate::preload::{self, Library};
use anyhow::Result;
use reprieve_ipc::Namespace;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

const LIBRARY: Library = Library {
    file: "libreprieve_ipc.so",
    package: "reprieve-ipc-preload",
    variable: "REPRIEVE_IPC_LIBRARY",
    refused: &[],
};

pub fn run(directory: Option<PathBuf>, strict: bool, command: &[OsString]) -> Result<ExitCode> {
    preload::run(&LIBRARY, command, || {
        // AddressSanitizer refuses to start behind another library.
        let mut sanitizer = std::env::var_os("ASAN_OPTIONS").unwrap_or_default();
        sanitizer.push(if sanitizer.is_empty() { "" } else { ":" });
        sanitizer.push("verify_asan_link_order=0");
        let mut environment = vec![("ASAN_OPTIONS", sanitizer)];
        // Another IPC namespace's objects are others.
        let namespace = reprieve_ipc::ipc_namespace().map_or(String::new(), |n| n.to_string());
        environment.push(("REPRIEVE_IPC_NAMESPACE", namespace.into()));
        match directory {
            Some(directory) => {
                // Programs may change their working directory.
                let namespace = Namespace::open(std::path::absolute(directory)?)?;
                environment.push(("REPRIEVE_IPC_DIR", namespace.directory().into()));
            }
            // Each user's own: a program may give up being root.
            None => drop(Namespace::open_default()?),
        }
        if strict {
            past::forbid_the_kernels()?;
        }
        Ok(environment)
    })
}
