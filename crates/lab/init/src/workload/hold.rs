// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps CPUs in known states, to check watchers of the guest against.
//!
//! Threads of init do so in user mode, the kernel module `reprieve_hold` in the kernel; its source
//! explains how.

use super::{Done, Load, Operation, threads::Threads};
use crate::kmod;
use crate::protocol::{Held, Hold};
use crate::sys::{Result, now_ns, semaphore_set};
use std::time::Duration;

pub fn prepare(holds: &[Hold], graces: bool) -> Result<Box<dyn Load>> {
    let (user, kernel): (Vec<&Hold>, Vec<&Hold>) =
        holds.iter().partition(|hold| hold.held == Held::User);
    if !kernel.is_empty() && !kmod::hold_is_loaded() {
        return Err("holds need the kernel module reprieve_hold, which is not loaded".into());
    }
    let mut work: Vec<_> = user.iter().map(|hold| (Some(hold.cpu), operation(hold))).collect();
    if graces {
        // The kernel frees the set after a grace period.
        let ask: Operation = Box::new(|_| {
            std::thread::sleep(Duration::from_millis(20));
            semaphore_set(1)
        });
        work.push((Some(0), ask));
    }
    let user = match work.is_empty() {
        true => None,
        false => Some(Threads::prepare("hold", "hold", work)?),
    };
    let cpus = kernel.iter().map(|hold| hold.cpu).collect();
    let commands = kernel.iter().map(|hold| {
        let Hold { cpu, held, hold_us } = hold;
        format!("start {cpu} {} {hold_us}", held.name())
    });
    Ok(Box::new(Holds { user, cpus, commands: commands.collect() }))
}

/// A hold of user mode: as many steps as take `hold_us` of CPU time.
fn operation(hold: &Hold) -> Operation {
    let mut x = u64::from(hold.cpu);
    let steps = super::steps_in(hold.hold_us);
    Box::new(move |slot| {
        x = super::compute(x, steps);
        slot.operation();
        Ok(())
    })
}

struct Holds {
    user: Option<Threads>,
    /// The CPUs of the module's holds.
    cpus: Vec<u32>,
    /// The commands that start the module's holds.
    commands: Vec<String>,
}

impl Load for Holds {
    fn start(&mut self) -> Result<u64> {
        let from = now_ns();
        self.commands.iter().try_for_each(|command| kmod::hold_command(command))?;
        if let Some(user) = &mut self.user {
            user.start()?;
        }
        Ok(from)
    }

    fn stop(&mut self) -> Result<Done> {
        // First: the kernel's holds must not go on because one of user mode has failed.
        let kernel = match self.commands.is_empty() {
            true => Ok(0),
            false => kmod::hold_command("stop").and_then(|()| kmod::holds(&self.cpus)),
        };
        // After the last hold: until then, this thread may be without a CPU.
        let end_ns = now_ns();
        let mut done = match &mut self.user {
            Some(user) => user.stop()?,
            None => Done { end_ns, operations: 0.0, unit: "hold", notice: None },
        };
        done.operations += kernel? as f64;
        Ok(done)
    }

    fn check(&mut self, ran: Duration) -> Result<()> {
        self.user.as_mut().map_or(Ok(()), |user| user.check(ran))
    }
}

impl Drop for Holds {
    fn drop(&mut self) {
        if self.commands.is_empty() {
            return;
        }
        if let Err(e) = kmod::hold_command("stop") {
            eprintln!("reprieve-init: {e}");
        }
    }
}
