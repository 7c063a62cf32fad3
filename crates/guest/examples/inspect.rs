// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints everything that this crate reads of a VM:
//! `cargo run --release -p reprieve-guest --example inspect -- NAME-OR-PID [SYMBOLS-TO]`.

use reprieve_guest::{Guest, vmm};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let Some(query) = args.next() else {
        for vm in vmm::list()? {
            println!("{vm:x?}");
        }
        return Ok(());
    };
    let start = Instant::now();
    let vm = vmm::find(&query)?;
    println!("found in {:?}: {vm:x?}", start.elapsed());
    let start = Instant::now();
    let guest = Guest::attach(&vm)?;
    println!(
        "attached in {:?}: Linux {}, {} symbols, {} types, {:?} Hz, boot {:x}",
        start.elapsed(),
        guest.release(),
        guest.symbols().len(),
        guest.types().map_or(0, |t| t.len()),
        guest.hz(),
        guest.boot()
    );
    println!("memory: {:x?}", guest.memory().segments());
    for cpu in guest.online()? {
        let vcpu = guest.vcpu(cpu)?;
        println!(
            "CPU {cpu}: thread {:?}, preempt_count {:x?}, {:?}",
            vcpu.tid(),
            vcpu.preempt_count()?,
            vcpu.current_task()
        );
        println!("    {:?}", vcpu.rcu_data());
    }
    let rcu = guest.rcu()?;
    println!("{:?}\n{:?}\n{:?}\n{:?}", rcu.model(), rcu.kthread(), rcu.grace_period(), rcu.owing());
    println!("{:#x?}", guest.layout()?);
    for name in ["schedule", "rcu_gp_kthread"] {
        let address = guest.symbols().address(name)? + 5;
        println!("{address:#x} {:?}", guest.resolve(address).map(|r| r.to_string()));
    }
    println!("{:?}", guest.alive());
    if let Some(path) = args.next() {
        let lines =
            guest.symbols().iter().map(|s| format!("{:016x} {} {}\n", s.address, s.kind, s.name));
        std::fs::write(path, lines.collect::<String>())?;
    }
    Ok(())
}
