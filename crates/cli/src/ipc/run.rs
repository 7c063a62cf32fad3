// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve ipc run`.

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
    refused: &[preload::ADDRESS_SANITIZER],
};

pub fn run(directory: Option<PathBuf>, command: &[OsString]) -> Result<ExitCode> {
    preload::run(&LIBRARY, command, || {
        let namespace = match directory {
            // Programs may change their working directory.
            Some(directory) => Namespace::open(std::path::absolute(directory)?)?,
            None => Namespace::open_default()?,
        };
        Ok(vec![("REPRIEVE_IPC_DIR", namespace.directory().into())])
    })
}
