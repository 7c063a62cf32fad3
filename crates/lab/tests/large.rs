// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runtime, the locks and System V IPC on more CPUs than test machines have. The speed of
//! emulated CPUs says nothing, so the test looks at results and counts interrupts.

mod common;

use common::{FOREVER, built};
use reprieve_lab::dilation::Dilation;
use reprieve_lab::images::Images;
use reprieve_lab::process::Cancel;
use reprieve_lab::progress::Silent;
use reprieve_lab::protocol::{Command, Event};
use reprieve_lab::vm::{Accel, Config, Vm};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// More than the bits of a word.
const MOST: u32 = 72;

/// Readers that run while grace periods are counted.
const READERS: u32 = 4;

/// The limit of the first attempt to boot, by the machine's own clock.
const LIMIT: Duration = Duration::from_secs(60);

/// Complaints of the kernel about a CPU that is slow say nothing.
const QUIET: &str = "nowatchdog rcupdate.rcu_cpu_stall_suppress=1 workqueue.watchdog_thresh=0";

struct Machine<'a> {
    vm: Vm,
    programs: &'a BTreeMap<String, PathBuf>,
    cancel: Cancel,
    _logs: TempDir,
}

impl<'a> Machine<'a> {
    fn boot(cpus: u32, programs: &'a BTreeMap<String, PathBuf>) -> Machine<'a> {
        let cancel = Cancel::default();
        let paths: Vec<_> = programs.values().cloned().collect();
        let (image, qemu) = Images::open(&cancel, &Silent).unwrap().machine(&paths).unwrap();
        let logs = tempfile::tempdir().unwrap();
        // A CPU of ours carries so many. Their timers alone could be all that it has time for.
        let here = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let dilation = Dilation::new(cpus.div_ceil(here)).unwrap();
        let console = |attempt| logs.path().join(format!("console.{attempt}.log"));
        let config = |attempt| Config {
            dilation,
            vcpus: cpus,
            memory_mib: 3072,
            args: QUIET.into(),
            ..Config::new("large", Accel::Tcg, &image, console(attempt))
        };
        let again = |attempt, error: &_| {
            eprintln!("boot {attempt} failed: {error}");
            Ok(())
        };
        let vm =
            Vm::boot_with_retries(config, &qemu, dilation.outside(LIMIT), &cancel, again).unwrap();
        eprintln!("{cpus} CPUs: booted in {:.0?}", vm.boot_time);
        Machine { vm, programs, cancel, _logs: logs }
    }

    /// Runs the program, which has to succeed; its standard output.
    fn run(&mut self, program: &str, args: &[String], env: &[(&str, &str)]) -> String {
        let path = self.programs[program].to_str().unwrap().to_string();
        let argv = [&[path], args].concat();
        let env = env.iter().map(|&(name, value)| (name.into(), value.into())).collect();
        let mut output = String::new();
        let end = self.vm.call(&Command::Exec { argv, env }, FOREVER, &self.cancel, |event| {
            let Event::Output { stderr, line } = event else { panic!("{event:?}") };
            eprintln!("{program}: {line}");
            output += &if stderr { String::new() } else { line + "\n" };
            Ok(())
        });
        assert_eq!(end.unwrap(), Event::Exited { status: 0 }, "{program} {args:?}");
        output
    }
}

/// Of an outcome of `bench grace`: readers, and interrupts and waits per grace period.
fn counts(outcome: &str) -> Vec<(String, [f64; 2])> {
    let outcome: serde_json::Value = serde_json::from_str(outcome).unwrap();
    let columns = outcome["columns"].as_array().unwrap();
    let column = |title| columns.iter().position(|column| column["title"] == title).unwrap();
    let count = ["interrupts", "waits"].map(column);
    let counted = |row: &serde_json::Value| {
        let figure = |column: usize| row["figures"][column]["value"].as_f64();
        let [interrupts, waits] = count.map(figure);
        Some((row["subject"].as_str()?.into(), [interrupts?, waits?]))
    };
    outcome["rows"].as_array().unwrap().iter().filter_map(counted).collect()
}

#[test]
#[ignore = "boots machines of many CPUs: make test-large, make test-lab"]
fn all_is_right_and_no_grace_period_interrupts_all_cpus() {
    let cancel = Cancel::default();
    let tests = ["torture", "visit", "stress", "random_kills"];
    let mut args = vec!["test", "--no-run", "-p=reprieve", "-p=reprieve-hint", "-p=reprieve-ipc"];
    tests.iter().for_each(|test| args.extend(["--test", test]));
    let mut programs = built(&args, &cancel).unwrap();
    programs.extend(built(&["build", "--bin=reprieve"], &cancel).unwrap());

    // No subject of this family takes part.
    let bench = |name: &str, readers: u32| {
        let (readers, plain) = (format!("--readers={readers}"), "--against=arc-swap".into());
        let more = ["--neighbour=none", "--rounds=1", "--seconds=4", "--json"].map(String::from);
        ["bench".into(), name.into(), readers, plain].into_iter().chain(more).collect::<Vec<_>>()
    };
    let nocapture = ["--nocapture".to_string()];
    let title = "| CPUs | barrier | readers | interrupts | waits |\n|---|---|---|---|---|\n";
    let mut page = String::from(title);
    for cpus in [2, 16, 64, MOST] {
        let mut machine = Machine::boot(cpus, &programs);
        for barrier in ["interrupt", "visit"] {
            let env = [("REPRIEVE_TORTURE", "2"), ("REPRIEVE_BARRIER", barrier)];
            if cpus == MOST {
                machine.run("torture", &nocapture, &env);
            }
            let outcome = machine.run("reprieve", &bench("grace", READERS), &env);
            for (readers, [interrupts, waits]) in counts(&outcome) {
                page +=
                    &format!("| {cpus} | {barrier} | {readers} | {interrupts:.1} | {waits:.1} |\n");
                // The kernel calls functions for itself, too.
                let few = interrupts < f64::from(MOST / 2);
                assert!(few || barrier == "visit", "{interrupts} interrupts of {cpus} CPUs");
            }
        }
        if cpus == MOST {
            for test in ["visit", "stress", "random_kills"] {
                machine.run(test, &nocapture, &[]);
            }
            machine.run("reprieve", &bench("callbacks", MOST), &[]);
        }
        machine.vm.shut_down(&cancel);
    }
    page.lines().for_each(|line| println!("large: {line}"));
}
