// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instances of the real Postmark program on tmpfs, and how their transactions are counted.
//!
//! Postmark makes its files, does a given number of transactions, removes the files and reports. A
//! phase of the lab has a given length instead, and the transactions in it are counted. So each
//! instance gets a number of transactions that it will never reach. It makes its files when the
//! load is prepared, is stopped (SIGSTOP) as soon as it announces the transactions, and is
//! continued and stopped again with each phase. A phase begins with the files that the phase before
//! has left; their number and sizes stay about the same, since creations and removals are equally
//! likely.
//!
//! Postmark's output is of no use for counting (a dot per tenth of the work), but it keeps counts
//! of the files that it created and removed. Every transaction creates or removes one file, so the
//! sum of both counts, less the files made at first, is the number of transactions. A short run,
//! whose report has the values, finds the addresses of the counts; a second run confirms them
//! ([`Counters::find`]). They are read while the instance is stopped, so counting costs a phase
//! nothing.

use super::pty_program::PtyProgram;
use super::{Directory, Done, Load};
use crate::protocol::Program;
use crate::sys::{Context, Result, now_ns, scaled};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const POSTMARK: &str = Program::Postmark.debian_programs()[0];
/// Far more than a phase can hold, and within the program's `int`.
const ENDLESS: u32 = 2_000_000_000;
/// For the short runs and for making the files of all instances. Together with [`STOP_LIMIT`] less
/// than the 300 s that the lab gives a guest to prepare, so that the lab gets the reason.
const PREPARE_LIMIT: Duration = Duration::from_secs(240);
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// An instance that does no transaction in a phase, or until a check, for this long hangs.
const HANGS_AFTER: Duration = Duration::from_secs(5);

pub fn prepare(instances: u32, files: u32, seed: u64) -> Result<Box<dyn Load>> {
    let directory = Directory::mount("postmark")?;
    let limit = Instant::now() + scaled(PREPARE_LIMIT);
    let counters = Counters::find(directory.path(), limit)?;
    let mut running = Vec::new();
    for i in 0..instances {
        // The program's seed is a signed int.
        let seed = (seed.wrapping_add(i.into()) & 0x7fff_ffff) as u32;
        running.push(Instance::start(i, files, seed, directory.path())?);
    }
    for instance in &running {
        instance.program.wait_until(|l| l.contains("Performing transactions"), limit)?;
        instance.program.signal(libc::SIGSTOP);
    }
    let mut load = Postmark { instances: running, counters, started_ns: 0, _directory: directory };
    load.settle()?;
    Ok(Box::new(load))
}

struct Postmark {
    instances: Vec<Instance>,
    counters: Counters,
    started_ns: u64,
    /// Dropped after the instances.
    _directory: Directory,
}

struct Instance {
    program: PtyProgram,
    /// Counts when it was last stopped.
    before: u64,
    /// Counts at the last check.
    checked: u64,
    /// For how long the VM had run at the last check since the counts had changed.
    idle: Duration,
}

impl Instance {
    fn start(index: u32, files: u32, seed: u32, root: &Path) -> Result<Instance> {
        let location = root.join(index.to_string());
        fs::create_dir(&location).context(location.display())?;
        let mut program =
            PtyProgram::start(&format!("postmark {index}"), &mut Command::new(POSTMARK))?;
        program.say(&script(files, ENDLESS, seed, &location))?;
        Ok(Instance { program, before: 0, checked: 0, idle: Duration::ZERO })
    }
}

fn script(files: u32, transactions: u32, seed: u32, location: &Path) -> String {
    format!(
        "set number {files}\nset transactions {transactions}\nset seed {seed}\nset location {}\nrun\n",
        location.display()
    )
}

impl Postmark {
    /// Waits until all instances have stopped. Returns the files created and removed since the last
    /// call, and the instance with the fewest of them.
    fn settle(&mut self) -> Result<(u64, Option<(usize, u64)>)> {
        let limit = scaled(STOP_LIMIT);
        let deadline = Instant::now() + limit;
        let (mut sum, mut least) = (0, None);
        for (i, instance) in self.instances.iter_mut().enumerate() {
            loop {
                instance.program.check()?;
                if is_stopped(instance.program.pid()) {
                    break;
                }
                if Instant::now() > deadline {
                    return Err(format!("postmark {i} did not stop within {} s", limit.as_secs()));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            let now = self.counters.read(instance.program.pid())?;
            let done = now.saturating_sub(instance.before);
            instance.before = now;
            sum += done;
            if least.is_none_or(|(_, d)| done < d) {
                least = Some((i, done));
            }
        }
        Ok((sum, least))
    }
}

impl Load for Postmark {
    fn start(&mut self) -> Result<u64> {
        self.started_ns = now_ns();
        for instance in &self.instances {
            instance.program.signal(libc::SIGCONT);
        }
        Ok(self.started_ns)
    }

    fn stop(&mut self) -> Result<Done> {
        for instance in &self.instances {
            instance.program.signal(libc::SIGSTOP);
        }
        let end_ns = now_ns();
        let (transactions, least) = self.settle()?;
        if let Some((i, 0)) = least {
            let hangs_after = scaled(HANGS_AFTER).as_nanos() as u64;
            if end_ns.saturating_sub(self.started_ns) > hangs_after {
                return Err(format!("postmark {i} hangs: it did no transaction in the phase"));
            }
        }
        Ok(Done {
            end_ns,
            operations: transactions as f64,
            unit: "transaction",
            notice: least
                .filter(|(_, done)| *done == 0)
                .map(|(i, _)| format!("postmark {i} did no transaction in the phase")),
        })
    }

    fn check(&mut self, ran: Duration) -> Result<()> {
        for (i, instance) in self.instances.iter_mut().enumerate() {
            instance.program.check()?;
            let now = self.counters.read(instance.program.pid())?;
            let moved = now > instance.before.max(instance.checked);
            instance.checked = now;
            instance.idle = if moved { Duration::ZERO } else { instance.idle + ran };
            if instance.idle > scaled(HANGS_AFTER) {
                let seconds = instance.idle.as_secs();
                return Err(format!("postmark {i} hangs: it did no transaction in {seconds} s"));
            }
        }
        Ok(())
    }
}

/// Is every thread of this single-threaded process stopped by a signal?
fn is_stopped(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain anything.
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
}

/// Where the program keeps its counts of files created and removed: offsets from where it is
/// loaded.
#[derive(Clone, Debug, PartialEq)]
struct Counters([u64; 2]);

impl Counters {
    /// Finds the addresses, before `limit`.
    fn find(root: &Path, limit: Instant) -> Result<Counters> {
        let location = root.join("calibration");
        fs::create_dir(&location).context(location.display())?;
        let mut program = PtyProgram::start("postmark (calibration)", &mut Command::new(POSTMARK))?;
        let mut found: Option<Vec<u64>> = None;
        // Numbers that have nothing else in common.
        for (round, (files, transactions)) in [(61, 700), (97, 1_300)].into_iter().enumerate() {
            program.say(&script(files, transactions, 7 + round as u32, &location))?;
            let reports = |l: &str| l.contains("megabytes written");
            while program.lines().iter().filter(|l| reports(&l.text)).count() <= round {
                program.check()?;
                if Instant::now() > limit {
                    return Err("postmark did not report on a short run".into());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            let lines = program.lines();
            let texts: Vec<&str> = lines.iter().map(|l| l.text.as_str()).collect();
            let report = Report::parse(&texts)
                .ok_or("postmark: cannot parse its report; is it version 1.5?")?;
            let now = offsets_of(program.pid(), report.files)?;
            found = Some(match found {
                None => now,
                Some(before) => before.into_iter().filter(|o| now.contains(o)).collect(),
            });
        }
        match found.as_deref() {
            Some([created, removed]) => Ok(Counters([*created, *removed])),
            other => Err(format!(
                "postmark: found {} places that look like its counts of files instead of 2",
                other.map_or(0, <[u64]>::len)
            )),
        }
    }

    /// Files created plus files removed.
    fn read(&self, pid: i32) -> Result<u64> {
        let (base, _) = writable(pid)?;
        let memory = open_memory(pid)?;
        let mut sum = 0;
        for offset in self.0 {
            let mut value = [0; 4];
            memory.read_exact_at(&mut value, base + offset).context("postmark's memory")?;
            sum += u64::from(u32::from_ne_bytes(value));
        }
        Ok(sum)
    }
}

fn open_memory(pid: i32) -> Result<File> {
    File::open(format!("/proc/{pid}/mem")).context("postmark's memory")
}

/// The offsets of all aligned words of the program's variables that hold `value`.
fn offsets_of(pid: i32, value: u32) -> Result<Vec<u64>> {
    let (base, ranges) = writable(pid)?;
    let memory = open_memory(pid)?;
    let mut offsets = Vec::new();
    for (start, end) in ranges {
        let mut bytes = vec![0; (end - start) as usize];
        memory.read_exact_at(&mut bytes, start).context("postmark's memory")?;
        let words = bytes.chunks_exact(4).enumerate();
        let hits = words.filter(|(_, word)| **word == value.to_ne_bytes());
        offsets.extend(hits.map(|(i, _)| start + i as u64 * 4 - base));
    }
    Ok(offsets)
}

/// Where the program is loaded, and the memory of its variables.
fn writable(pid: i32) -> Result<(u64, Vec<(u64, u64)>)> {
    let path = format!("/proc/{pid}/maps");
    let maps = fs::read_to_string(&path).context(&path)?;
    parse_maps(&maps, POSTMARK).ok_or_else(|| format!("{path}: {POSTMARK} is not in it"))
}

/// The first address of `program`, and its writable mappings with the anonymous one that follows
/// (variables that start out as zero).
fn parse_maps(maps: &str, program: &str) -> Option<(u64, Vec<(u64, u64)>)> {
    let mut base = None;
    let mut ranges = Vec::new();
    let mut ours = false;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let (start, end) =
            (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let mode = words.next()?;
        let file = words.nth(3);
        ours = match file {
            Some(file) => file == program,
            None => ours,
        };
        if ours {
            base = base.or(Some(start));
            // A limit on the amount that is read, far above the program's variables.
            if mode.starts_with("rw") && end.saturating_sub(start) < 1 << 26 {
                ranges.push((start, end));
            }
        }
    }
    Some((base?, ranges))
}

/// The end of a run as Postmark tells it.
#[derive(Debug, PartialEq)]
struct Report {
    /// Files created, and removed: at the end of a run the same.
    files: u32,
}

impl Report {
    /// The last report in the output.
    fn parse(lines: &[&str]) -> Option<Report> {
        let start = lines.iter().rposition(|l| l.trim_end().ends_with("Files:"))?;
        let number = |word: &str| {
            let line = lines[start..].iter().find(|l| l.contains(word))?;
            line.split_whitespace().next()?.parse::<u32>().ok()
        };
        let (created, deleted) = (number(" created (")?, number(" deleted (")?);
        (created == deleted).then_some(Report { files: created })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_understood() {
        let text = "Time:\n\t1 seconds total\n\nFiles:\n\t384 created (384 per second)\n\
            \t\tCreation alone: 50 files (50 per second)\n\t353 read (353 per second)\n\
            \t345 appended (345 per second)\n\t384 deleted (384 per second)\n\
            \t\tDeletion alone: 18 files (18 per second)\n\nData:\n";
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(Report::parse(&lines), Some(Report { files: 384 }));
        assert_eq!(Report::parse(&[]), None);
        assert_eq!(Report::parse(&["Files:", "x created (", "1 deleted ("]), None);
    }

    #[test]
    fn variables_are_found_in_the_map_of_the_process() {
        let maps = "\
55961d000000-55961d006000 r-xp 00000000 00:01 12 /usr/bin/postmark
55961d205000-55961d206000 r--p 00005000 00:01 12 /usr/bin/postmark
55961d206000-55961d207000 rw-p 00006000 00:01 12 /usr/bin/postmark
55961d207000-55961d208000 rw-p 00000000 00:00 0 
559632290000-5596322b1000 rw-p 00000000 00:00 0 [heap]
7f4bfd047000-7f4bfd04a000 rw-p 00000000 00:00 0 
7f4bfd219000-7f4bfd21d000 r--p 001cf000 00:01 13 /usr/lib/libc.so.6
";
        let (base, ranges) = parse_maps(maps, POSTMARK).unwrap();
        assert_eq!(base, 0x55961d000000);
        let expected = [(0x55961d206000, 0x55961d207000), (0x55961d207000, 0x55961d208000)];
        assert_eq!(ranges, expected);
        assert_eq!(parse_maps(maps, "/usr/bin/other"), None);
        assert_eq!(parse_maps("nonsense", POSTMARK), None);
    }

    #[test]
    fn reading_at_least_finds_what_is_in_memory() {
        // This process stands in for Postmark: its own variables, its own map.
        static VALUE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0x5ca1ab1e);
        let pid = std::process::id() as i32;
        let exe = fs::read_link("/proc/self/exe").unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let (base, ranges) = parse_maps(&maps, exe.to_str().unwrap()).unwrap();
        let at = &raw const VALUE as u64;
        assert!(ranges.iter().any(|(s, e)| (*s..*e).contains(&at)), "{at:x} not in {ranges:x?}");
        let mut value = [0; 4];
        open_memory(pid).unwrap().read_exact_at(&mut value, base + (at - base)).unwrap();
        assert_eq!(u32::from_ne_bytes(value), VALUE.load(std::sync::atomic::Ordering::Relaxed));
    }
}
