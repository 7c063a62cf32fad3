// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that go past the library: those that were to load it and have not, and those that have
//! made calls of the kernel's. And `--strict`, which has such calls end the process.

use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const LIBRARY: &[u8] = b"libreprieve_ipc";

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// A line for each process that this user may look at.
pub fn processes() -> Vec<String> {
    let kernels = users_of_the_kernels();
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut lines = Vec::new();
    for number in numbers {
        let directory = Path::new("/proc").join(number.to_string());
        let file = |name| fs::read(directory.join(name)).unwrap_or_default();
        let is_preload =
            |variable: &[u8]| variable.starts_with(b"LD_PRELOAD=") && contains(variable, LIBRARY);
        if !file("environ").split(|&b| b == 0).any(is_preload) {
            continue;
        }
        let maps = file("maps");
        let why = match kernels.get(&number) {
            Some(calls) => calls,
            // A process that has ended, or is the kernel's business, has no maps.
            None if !maps.is_empty() && !contains(&maps, LIBRARY) => {
                "has not loaded the library (static, set-uid or of another C library)"
            }
            None => continue,
        };
        let name = String::from_utf8_lossy(&file("comm")).trim().to_owned();
        lines.push(format!("process {number} ({name}) {why}"));
    }
    lines
}

/// Processes that have last used objects of the kernel's, as far as the kernel tells: not of
/// semaphores.
fn users_of_the_kernels() -> BTreeMap<u32, &'static str> {
    let tables = [
        ("msg", ["lspid", "lrpid"], "has used message queues of the kernel's"),
        ("shm", ["cpid", "lpid"], "has used shared memory of the kernel's"),
    ];
    let mut users = BTreeMap::new();
    for (table, columns, what) in tables {
        let text = fs::read_to_string(format!("/proc/sysvipc/{table}")).unwrap_or_default();
        let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let head = lines.next().unwrap_or_default();
        let places = head.iter().enumerate().filter(|(_, name)| columns.contains(name));
        let places: Vec<usize> = places.map(|(place, _)| place).collect();
        for line in lines {
            let numbers = places.iter().filter_map(|&place| line.get(place)?.parse().ok());
            users.extend(numbers.map(|number| (number, what)));
        }
    }
    users
}

/// The calls of System V IPC.
const CALLS: [libc::c_long; 12] = [
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmdt,
    libc::SYS_shmctl,
];

/// `AUDIT_ARCH_X86_64`, `AUDIT_ARCH_AARCH64`.
const ARCHITECTURE: u32 = if cfg!(target_arch = "aarch64") { 0xc000_00b7 } else { 0xc000_003e };

/// From here on, in this process and its children, a call of the kernel's System V IPC ends the
/// process with SIGSYS. The library makes none.
pub fn forbid_the_kernels() -> Result<()> {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let number = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    let architecture = std::mem::offset_of!(libc::seccomp_data, arch) as u32;
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    // The numbers of 32-bit programs are others.
    let mut filter = vec![
        step(load, 0, 0, architecture),
        step(equals, 0, CALLS.len() as u8 + 1, ARCHITECTURE),
        step(load, 0, 0, number),
    ];
    for (i, call) in CALLS.iter().enumerate() {
        filter.push(step(equals, (CALLS.len() - i) as u8, 0, *call as u32));
    }
    filter.push(step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW));
    filter.push(step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let install = || {
        // SAFETY: a filter that outlives the call.
        let result = unsafe {
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
        };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    let installed = install().or_else(|_| {
        // A user who is not root has to give up set-uid programs first.
        // SAFETY: numbers only.
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        install()
    });
    installed.context("--strict: the kernel takes no seccomp filter")
}
