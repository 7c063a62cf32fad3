// SPDX-License-Identifier: MIT OR Apache-2.0
//! The real dbench program on tmpfs: clients that replay the file operations of an office on a file
//! server.
//!
//! dbench warms up for a fifth of the time it is given, then prints every second the mean
//! throughput since the end of its warm-up. It is started before the phase. The phase begins with
//! the first such line, and at its end dbench is killed. Operations are megabytes (10^6 bytes): the
//! amount that was moved between the first and the last line of the phase, scaled to the length of
//! the phase. Megabytes per second differ from one part of its load file to the next, so a phase
//! with few lines says little.

use super::pty_program::{Line, PtyProgram};
use super::{Directory, Done, Load, needs};
use crate::protocol::Program;
use crate::sys::{Result, now_ns};
use rustix::process::Signal;
use std::process::Command;
use std::time::Duration;

const DBENCH: &str = Program::Dbench.debian_programs()[0];
const LOAD_FILE: &str = Program::Dbench.debian_data()[0];
const READY_LIMIT: Duration = Duration::from_secs(120);
/// A phase in which less time was between the first and the last line is reported as short.
const ENOUGH: f64 = 4.0;

pub fn prepare(clients: u32) -> Result<Box<dyn Load>> {
    needs(Program::Dbench)?;
    Ok(Box::new(Dbench { clients, started_ns: 0, running: None }))
}

struct Dbench {
    clients: u32,
    started_ns: u64,
    /// The program of this phase or the last; it goes before the directory with its files.
    running: Option<(PtyProgram, Directory)>,
}

impl Load for Dbench {
    fn ready(&mut self, duration_ms: Option<u64>) -> Result<()> {
        self.running = None;
        // The program's limit is an int.
        let seconds = duration_ms.map_or(1_000_000_000, |ms| (ms / 1000 + 10).min(1_000_000_000));
        let directory = Directory::mount("dbench")?;
        let mut command = Command::new(DBENCH);
        command.args(["-c", LOAD_FILE, "-t", &seconds.to_string(), "-D"]);
        command.arg(directory.path()).arg(self.clients.to_string());
        let program = PtyProgram::start("dbench", &mut command)?;
        let limit = READY_LIMIT + Duration::from_secs(seconds / 5);
        if duration_ms.is_some() {
            program.wait_for(|l| parse(l).is_some(), limit)?;
        } else {
            program.wait_for(|l| l.contains("releasing clients"), READY_LIMIT)?;
        }
        self.running = Some((program, directory));
        Ok(())
    }

    fn start(&mut self) -> Result<u64> {
        self.started_ns = now_ns();
        Ok(self.started_ns)
    }

    fn stop(&mut self) -> Result<Done> {
        let end_ns = now_ns();
        let Some((program, _)) = &self.running else {
            return Err("dbench does not run".into());
        };
        let ended = program.check();
        // Its files stay until the next phase is made ready: the host counts the CPU time of the
        // guest until the load has stopped.
        program.signal(Signal::KILL);
        ended?;
        let rate = rate(&program.lines())
            .ok_or("dbench reported less than two seconds: the phase is too short for it")?;
        let operations = operations(&rate, self.started_ns, end_ns);
        Ok(Done { end_ns, operations, unit: "MB", notice: rate.notice() })
    }

    fn check(&mut self, _: Duration) -> Result<()> {
        self.running.as_ref().map_or(Ok(()), |(program, _)| program.check())
    }
}

/// Megabytes in a phase: the rate between the first and the last report, times the length of the
/// phase.
fn operations(rate: &Rate, started_ns: u64, end_ns: u64) -> f64 {
    rate.megabytes * end_ns.saturating_sub(started_ns) as f64 / 1e9
}

/// Between the first and the last report.
#[derive(Debug)]
struct Rate {
    /// Per second.
    megabytes: f64,
    /// How many seconds were between them.
    between: f64,
}

impl Rate {
    fn notice(&self) -> Option<String> {
        let Rate { between, .. } = self;
        (*between < ENOUGH).then(|| {
            format!("dbench's throughput is that of {between:.0} s between its reports, and depends on which part of its load file that was: take phases of 6 s or more")
        })
    }
}

fn rate(lines: &[Line]) -> Option<Rate> {
    let reports: Vec<(u64, Report)> =
        lines.iter().filter_map(|l| Some((l.time_ns, parse(&l.text)?))).collect();
    let (first, last) = (reports.first()?, reports.last()?);
    let between = last.0.saturating_sub(first.0) as f64 / 1e9;
    if between <= 0.0 {
        return None;
    }
    // The printed seconds are rounded; the time since the first report is exact.
    let (t0, t1) = (first.1.seconds, first.1.seconds + between);
    let megabytes = ((last.1.mean * t1 - first.1.mean * t0) / between).max(0.0);
    Some(Rate { megabytes, between })
}

/// A line such as `   2    379150  4105.59 MB/sec  execute   1 sec  latency 1.432 ms`.
#[derive(Debug, PartialEq)]
struct Report {
    /// MB/s since the end of the warm-up.
    mean: f64,
    /// Since the end of the warm-up.
    seconds: f64,
}

fn parse(line: &str) -> Option<Report> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        [_, _, mean, "MB/sec", "execute", seconds, "sec", "latency", _, "ms"] => {
            let report = Report { mean: mean.parse().ok()?, seconds: seconds.parse().ok()? };
            (report.mean.is_finite() && report.seconds.is_finite()).then_some(report)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_after_the_warm_up_count() {
        let line = "   2    379150  4105.59 MB/sec  execute   1 sec  latency 1.432 ms";
        assert_eq!(parse(line), Some(Report { mean: 4105.59, seconds: 1.0 }));
        assert_eq!(parse(&line[..60]), None);
        assert_eq!(parse("   1  176003   963.76 MB/sec  warmup   1 sec  latency 18.902 ms"), None);
        assert_eq!(parse("   2  cleanup   3 sec"), None);
        assert_eq!(parse("Throughput 4076.02 MB/sec  2 clients  2 procs"), None);
    }

    #[test]
    fn rate_is_that_between_the_reports() {
        let line = |s: u64, mean: f64| Line {
            time_ns: s * 1_000_000_000 + 77,
            text: format!("1 1 {mean:.2} MB/sec execute {s} sec latency 1.0 ms"),
        };
        // 100 MB in the first second, then 200 MB/s.
        let rate = rate(&[line(1, 100.0), line(2, 150.0), line(4, 175.0)]).unwrap();
        assert!((rate.megabytes - 200.0).abs() < 1e-6, "{rate:?}");
        assert!(rate.notice().unwrap().contains("3 s"), "{rate:?}");
        assert!(super::rate(&[line(1, 100.0)]).is_none());
        let long = super::rate(&[line(1, 100.0), line(6, 150.0)]).unwrap();
        assert_eq!((long.between, long.notice()), (5.0, None));
    }

    #[test]
    fn throughput_is_the_rate_whenever_the_phase_began() {
        let line = |s: u64, mean: f64| Line {
            time_ns: s * 1_000_000_000,
            text: format!("1 1 {mean:.2} MB/sec execute {s} sec latency 1.0 ms"),
        };
        let lines = [line(1, 100.0), line(2, 150.0), line(4, 175.0)];
        for (start, end) in [(1_000_000_000, 4_000_000_000), (1_900_000_000, 4_700_000_000)] {
            let megabytes = operations(&rate(&lines).unwrap(), start, end);
            let per_second = megabytes / ((end - start) as f64 / 1e9);
            assert!((per_second - 200.0).abs() < 1e-6, "{per_second}");
        }
    }
}
