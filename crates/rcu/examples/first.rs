// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first lookups: `cargo run --release -p reprieve --example first`.

use reprieve::structures::Map;

fn main() {
    let hosts: Map<u64, String> = Map::new();
    hosts.insert(1, "alpha".into());

    // Protected: held for any time, across blocking calls. No grace period waits for it, and what
    // it refers to stays.
    let host = hosts.protect(&1).expect("just inserted");
    hosts.insert(1, "beta".into());
    reprieve::synchronize_rcu();
    println!("held: {}, now: {}", *host, *hosts.protect(&1).expect("still there"));

    // A copy, by a restartable lookup.
    let ports: Map<u64, u64> = Map::new();
    ports.insert(80, 8080);
    println!("port: {:?}", ports.copied(&80));
    println!("{}", reprieve::support().restartable);
}
