// SPDX-License-Identifier: MIT OR Apache-2.0
//! The label `vm`.

use crate::show::text::plain;
use std::collections::HashMap;

/// A name for each VM, by its process ID and its own name. Prometheus refuses a page on which two
/// series are the same, so VMs that share a name get their process ID appended.
pub fn unique<'a>(vms: impl Iterator<Item = (u32, &'a str)> + Clone) -> Vec<String> {
    let mut uses: HashMap<String, u32> = HashMap::new();
    for (_, name) in vms.clone() {
        *uses.entry(plain(name)).or_default() += 1;
    }
    vms.map(|(pid, name)| match plain(name) {
        name if uses.get(&name).is_some_and(|n| *n > 1) => format!("{name} (pid {pid})"),
        name => name,
    })
    .collect()
}
