// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve hint region`.

use anyhow::{Context as _, Result, anyhow};
use reprieve_hint::abi::region::{self, BYTES, View};
use reprieve_page::output::{print, print_json, tell};
use serde_json::json;
use std::path::Path;

pub fn create(file: &Path) -> Result<()> {
    let file = std::path::absolute(file)?;
    let name = file.display();
    let new = region::create(&file).with_context(|| format!("{name}"))?;
    tell(format!("{name}: {}", if new { "created" } else { "is a region already" }));
    print(&options(&file))
}

/// The options to add to the VM.
fn options(file: &Path) -> String {
    let name = file.display().to_string();
    // A comma ends a value.
    let value = name.replace(',', ",,");
    let mut text = format!(
        "QEMU, whose user has to be able to read and write the file:\n  \
         -object memory-backend-file,id=reprieve,mem-path={value},size={BYTES},share=on\n  \
         -device ivshmem-plain,memdev=reprieve\n"
    );
    let shm = file.strip_prefix("/dev/shm").ok().and_then(|name| name.to_str());
    match shm.filter(|name| !name.contains(['/', '<', '&', '\''])) {
        Some(shm) => {
            text += &format!(
                "libvirt, among the domain's devices:\n  \
                 <shmem name='{shm}'><model type='ivshmem-plain'/><size unit='M'>1</size></shmem>\n"
            );
        }
        None => text += "libvirt: takes files in /dev/shm only\n",
    }
    text
}

pub fn show(file: Option<&Path>, json: bool) -> Result<()> {
    let view = match file {
        Some(file) => {
            let bytes = region::read(file).with_context(|| format!("{}", file.display()))?;
            View::parse(&bytes)
        }
        None => {
            reprieve_hint::connect_host()?;
            View::mapped()
        }
    };
    let view = view.ok_or_else(|| anyhow!("the region is no longer one"))?;
    if json {
        return print_json(&to_json(&view));
    }
    print(&text(&view))
}

fn state(state: u32) -> &'static str {
    match state {
        1 => "running",
        2 => "preempted",
        3 => "blocked",
        _ => "unknown",
    }
}

fn to_json(view: &View) -> serde_json::Value {
    let vcpus = view.vcpus.iter().map(
        |vcpu| json!({ "vcpu": vcpu.vcpu, "state": state(vcpu.state), "runnable": vcpu.runnable }),
    );
    let threads = view.threads.iter().map(|thread| {
        json!({
            "thread": thread.thread,
            "non_preemptable": thread.non_preemptable,
            "preemptable": thread.preemptable,
        })
    });
    json!({
        "beat": view.beat,
        "vcpus": vcpus.collect::<Vec<_>>(),
        "threads": threads.collect::<Vec<_>>(),
    })
}

fn text(view: &View) -> String {
    let mut text = String::new();
    if view.vcpus.is_empty() {
        text += "the host has said nothing of vCPUs (`reprieve guard` on the host does)\n";
    }
    for vcpu in &view.vcpus {
        let (number, state, runnable) = (vcpu.vcpu, state(vcpu.state), vcpu.runnable);
        text += &format!("vCPU {number}: {state}, vCPUs on its CPU: {runnable}\n");
    }
    let inside = |count: fn(&region::ThreadView) -> u32| {
        view.threads.iter().filter(|thread| count(thread) != 0).count()
    };
    text += &format!(
        "{} threads have given hints; in non-preemptable sections: {}, in preemptable ones: {}\n",
        view.threads.len(),
        inside(|thread| thread.non_preemptable),
        inside(|thread| thread.preemptable),
    );
    text
}
