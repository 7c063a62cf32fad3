// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads of a program that announces its critical sections, inside a guest: to the guest's host,
//! through the region that the host offers. After each section a thread asks the host about another
//! vCPU.

use super::{Done, Load, Operation, threads::Threads};
use crate::protocol::{Better, Figure};
use crate::sys::{Result, cpus};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How often each answer came.
#[derive(Default)]
struct Answers {
    preempted: AtomicU64,
    on_cpu: AtomicU64,
    unknown: AtomicU64,
    overloaded: AtomicU64,
}

impl Answers {
    fn ask(&self, vcpu: u32) {
        let count = match reprieve_hint::is_vcpu_preempted(vcpu) {
            Some(true) => &self.preempted,
            Some(false) => &self.on_cpu,
            None => &self.unknown,
        };
        count.fetch_add(1, Relaxed);
        if reprieve_hint::is_overloaded(vcpu) == Some(true) {
            self.overloaded.fetch_add(1, Relaxed);
        }
    }
}

struct Hinted {
    threads: Threads,
    answers: Arc<Answers>,
}

pub fn prepare(threads: u32, section_us: u32, pause_us: u32) -> Result<Box<dyn Load>> {
    reprieve_hint::connect_host().map_err(|error| error.to_string())?;
    let (section, pause) = (super::steps_in(section_us), super::steps_in(pause_us));
    let answers = Arc::<Answers>::default();
    let work = (0..threads)
        .map(|i| {
            let (vcpu, answers) = (i % cpus(), answers.clone());
            let mut x = u64::from(i);
            let operation: Operation = Box::new(move |slot| {
                let announced = reprieve_hint::non_preemptable();
                x = super::compute(x, section);
                drop(announced);
                answers.ask((vcpu + 1) % cpus());
                x = super::compute(x, pause);
                slot.operation();
                Ok(())
            });
            (Some(vcpu), operation)
        })
        .collect();
    Ok(Box::new(Hinted { threads: Threads::prepare("hinted", "section", work)?, answers }))
}

impl Load for Hinted {
    fn start(&mut self) -> Result<u64> {
        self.threads.start()
    }

    fn stop(&mut self) -> Result<Done> {
        self.threads.stop()
    }

    fn check(&mut self, ran: Duration) -> Result<()> {
        self.threads.check(ran)
    }

    /// Counts of the questions since the last figures.
    fn figures(&mut self) -> Vec<Figure> {
        let Answers { preempted, on_cpu, unknown, overloaded } = &*self.answers;
        let [preempted, on_cpu, unknown, overloaded] =
            [preempted, on_cpu, unknown, overloaded].map(|count| count.swap(0, Relaxed) as f64);
        let all = (preempted + on_cpu + unknown).max(1.0);
        let named = [
            ("vCPU preempted", preempted),
            ("vCPU not preempted", on_cpu),
            ("unknown", unknown),
            ("its CPU overloaded", overloaded),
        ];
        let figure = |(subject, count): (&str, f64)| Figure {
            subject: subject.into(),
            group: String::new(),
            measure: "answers of the host".into(),
            unit: "%".into(),
            value: 100.0 * count / all,
            at_least: false,
            better: Better::Neither,
        };
        named.into_iter().map(figure).collect()
    }
}
