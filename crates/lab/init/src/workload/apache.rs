// SPDX-License-Identifier: MIT OR Apache-2.0
//! The real Apache, and wrk as its client, over the loopback interface.
//!
//! Apache runs from preparation on and has nothing to do outside the phases. wrk is started with
//! the phase and interrupted at its end. Each request is a connection of its own: the guest makes
//! and frees sockets, their inodes and file descriptors, the last of them after a grace period. The
//! rate is wrk's, over the time that it ran, and with it the operations of the phase, which lasts
//! until wrk has reported.
//!
//! The latencies are wrk's too: from the first byte of a request, so without the connect, of
//! requests that were answered in less than 2 s, and corrected for coordinated omission (for a
//! request that took L, wrk adds ones of L - i, L - 2i, ..., with i the mean time per request of a
//! connection).

use super::pty_program::{Line, PtyProgram};
use super::{Directory, Done, Load, needs};
use crate::protocol::{Better, Figure, Program};
use crate::sys::{Context, Result, now_ns};
use rustix::process::Signal;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const APACHE: &str = Program::Apache.debian_programs()[0];
const WRK: &str = Program::Apache.debian_programs()[1];
const EVENT: &str = Program::Apache.debian_programs()[2];
const AUTHZ: &str = Program::Apache.debian_programs()[3];
const ADDRESS: &str = "127.0.0.1:80";
/// MOSBENCH's value.
const PAGE_BYTES: usize = 300;
const WORKERS_PER_PROCESS: u32 = 32;
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Longer than any phase, and within the program's range.
const ENDLESS: &str = "1000000000s";
/// wrk counts a request that takes this long or longer, and leaves its latency out.
const TIMEOUT_S: u32 = 2;

pub fn prepare(connections: u32) -> Result<Box<dyn Load>> {
    needs(Program::Apache)?;
    let processes = crate::sys::cpus();
    let directory = Directory::mount("apache")?;
    users()?;
    let (pages, run) = (directory.path().join("pages"), directory.path().join("run"));
    for dir in [&pages, &run] {
        fs::create_dir(dir).context(dir.display())?;
    }
    let page = pages.join("page");
    fs::write(&page, vec![b'.'; PAGE_BYTES]).context(page.display())?;
    let path = directory.path().join("apache.conf");
    fs::write(&path, configuration(directory.path(), processes)).context(path.display())?;
    let mut command = Command::new(APACHE);
    command.args(["-D", "FOREGROUND", "-f"]).arg(&path);
    let server = PtyProgram::start("apache", &mut command)?;
    let deadline = Instant::now() + crate::sys::scaled(START_LIMIT);
    while TcpStream::connect(ADDRESS).is_err() {
        let log = || fs::read_to_string(run.join("errors")).unwrap_or_default();
        server.check().map_err(|e| format!("{e}; its log: {}", log().trim()))?;
        if Instant::now() > deadline {
            return Err(format!("apache did not listen on {ADDRESS}; its log: {}", log().trim()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let apache = Apache {
        connections,
        threads: processes,
        started_ns: 0,
        client: None,
        figures: Vec::new(),
        server,
        _directory: directory,
    };
    Ok(Box::new(apache))
}

struct Apache {
    connections: u32,
    threads: u32,
    started_ns: u64,
    client: Option<PtyProgram>,
    figures: Vec<Figure>,
    server: PtyProgram,
    /// Dropped after the server.
    _directory: Directory,
}

impl Load for Apache {
    fn start(&mut self) -> Result<u64> {
        self.started_ns = now_ns();
        let mut command = Command::new(WRK);
        let threads = self.threads.min(self.connections).to_string();
        command.args(["-t", &threads, "-c", &self.connections.to_string(), "-d", ENDLESS]);
        command.args(["--latency", "--timeout", &format!("{TIMEOUT_S}s")]);
        command.args(["-H", "Connection: close", &format!("http://{ADDRESS}/page")]);
        self.client = Some(PtyProgram::start("wrk", &mut command)?);
        Ok(self.started_ns)
    }

    fn stop(&mut self) -> Result<Done> {
        let client = self.client.take().ok_or("wrk does not run")?;
        self.server.check()?;
        client.signal(Signal::INT);
        client.wait_for(|line| line.starts_with("Transfer/sec:"), STOP_LIMIT)?;
        // Not before: wrk looks for the signal every 100 ms and works on until then, and the host
        // counts the CPU time of that.
        let end_ns = now_ns();
        let report = Report::parse(&client.lines())?;
        self.figures = report.latencies;
        let operations = report.rate * end_ns.saturating_sub(self.started_ns) as f64 / 1e9;
        Ok(Done { end_ns, operations, unit: "request", notice: report.errors })
    }

    fn check(&mut self, _: Duration) -> Result<()> {
        self.server.check()?;
        self.client.as_ref().map_or(Ok(()), PtyProgram::check)
    }

    fn figures(&mut self) -> Vec<Figure> {
        std::mem::take(&mut self.figures)
    }
}

/// Apache asks for the names of its user and group.
fn users() -> Result<()> {
    fs::create_dir_all("/etc").context("/etc")?;
    for (path, text) in [
        ("/etc/passwd", "root:x:0:0::/:\nnobody:x:65534:65534::/:\n"),
        ("/etc/group", "root:x:0:\nnogroup:x:65534:\n"),
    ] {
        if !Path::new(path).exists() {
            fs::write(path, text).context(path)?;
        }
    }
    Ok(())
}

fn configuration(directory: &Path, processes: u32) -> String {
    let directory = directory.display();
    let workers = processes * WORKERS_PER_PROCESS;
    format!(
        "ServerName {ADDRESS}
Listen {ADDRESS}
LoadModule mpm_event_module {EVENT}
LoadModule authz_core_module {AUTHZ}
ServerRoot {directory}
DefaultRuntimeDir {directory}/run
PidFile {directory}/run/pid
ErrorLog {directory}/run/errors
Mutex default:{directory}/run
User nobody
Group nogroup
DocumentRoot {directory}/pages
<Directory {directory}/pages>
Require all granted
</Directory>
KeepAlive Off
StartServers {processes}
ServerLimit {processes}
ThreadLimit {WORKERS_PER_PROCESS}
ThreadsPerChild {WORKERS_PER_PROCESS}
MaxRequestWorkers {workers}
MinSpareThreads {WORKERS_PER_PROCESS}
MaxSpareThreads {workers}
"
    )
}

/// The words of wrk at its end.
#[derive(Debug, PartialEq)]
struct Report {
    /// Requests per second.
    rate: f64,
    latencies: Vec<Figure>,
    /// Its lines that tell of failed requests, for the user.
    errors: Option<String>,
}

impl Report {
    fn parse(lines: &[Line]) -> Result<Report> {
        let texts = || lines.iter().map(|line| line.text.trim());
        let rate = texts().find_map(|l| l.strip_prefix("Requests/sec:")?.trim().parse().ok());
        let rate: f64 = rate.ok_or("wrk printed no rate")?;
        let failed = texts().find(|l| l.starts_with("Non-2xx or 3xx responses:"));
        if let Some(failed) = failed {
            return Err(format!("wrk got other answers than the page: {failed}"));
        }
        let errors = texts().find(|l| l.starts_with("Socket errors:"));
        let left_out = match errors {
            None => 0.0,
            Some(errors) => {
                let count = errors.rsplit_once("timeout ").and_then(|(_, n)| n.parse().ok());
                count.ok_or_else(|| format!("wrk: {errors:?} has no number of timeouts"))?
            }
        };
        let requests = texts().find_map(|l| l.split_once(" requests in ")?.0.parse().ok());
        let requests: f64 = requests.ok_or("wrk printed no number of requests")?;
        let mut latencies = Vec::new();
        for line in texts() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [share @ ("50%" | "99%"), time] = words[..] else { continue };
            let share = share.trim_end_matches('%');
            let (Some(value), Ok(percent)) = (milliseconds(time), share.parse::<f64>()) else {
                continue;
            };
            // More of them than may be above the percentile: it is among those.
            let at_least = left_out > requests * (100.0 - percent) / 100.0;
            latencies.push(Figure {
                subject: "request".into(),
                group: String::new(),
                measure: format!("p{share}"),
                unit: "ms".into(),
                value: if at_least { 1e3 * f64::from(TIMEOUT_S) } else { value },
                at_least,
                better: Better::Lower,
            });
        }
        Ok(Report { rate, latencies, errors: errors.map(|e| format!("wrk: {e}")) })
    }
}

/// A time as wrk prints it, e.g. `635.00us`.
fn milliseconds(text: &str) -> Option<f64> {
    let unit = text.find(|c: char| c.is_ascii_alphabetic())?;
    let factor = match &text[unit..] {
        "us" => 1e-3,
        "ms" => 1.0,
        "s" => 1e3,
        "m" => 60e3,
        "h" => 3600e3,
        _ => return None,
    };
    Some(text[..unit].parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "Running 16666667m test @ http://127.0.0.1:80/page
  2 threads and 32 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.49ms    3.25ms  55.19ms   92.52%
    Req/Sec    10.18k     1.71k   14.02k    75.00%
  Latency Distribution
     50%  635.00us
     75%    1.08ms
     90%    3.22ms
     99%    1.20s
  40681 requests in 2.01s, 20.33MB read
  Socket errors: connect 0, read 3, write 0, timeout 0
Requests/sec:  20238.77
Transfer/sec:     10.11MB";

    fn lines(text: &str) -> Vec<Line> {
        text.lines().map(|l| Line { time_ns: 0, text: l.into() }).collect()
    }

    #[test]
    fn rate_latencies_and_errors_are_read() {
        let report = Report::parse(&lines(PRINTED)).unwrap();
        assert_eq!(report.rate, 20238.77);
        let figures: Vec<_> =
            report.latencies.iter().map(|f| (f.measure.as_str(), f.value)).collect();
        assert_eq!(figures, [("p50", 0.635), ("p99", 1200.0)]);
        let errors = "wrk: Socket errors: connect 0, read 3, write 0, timeout 0";
        assert_eq!(report.errors.as_deref(), Some(errors));
    }

    #[test]
    fn a_percentile_of_requests_that_wrk_leaves_out_is_a_bound() {
        // 1 % of 40,681 is 406.81.
        for (left_out, p50, p99) in [
            (406, (0.635, false), (1200.0, false)),
            (407, (0.635, false), (2000.0, true)),
            (20_341, (2000.0, true), (2000.0, true)),
        ] {
            let printed = PRINTED.replace("timeout 0", &format!("timeout {left_out}"));
            let report = Report::parse(&lines(&printed)).unwrap();
            let figures: Vec<_> = report.latencies.iter().map(|f| (f.value, f.at_least)).collect();
            assert_eq!(figures, [p50, p99], "{left_out}");
            assert!(report.errors.unwrap().ends_with(&format!("timeout {left_out}")));
        }
        assert!(Report::parse(&lines(&PRINTED.replace("timeout 0", ""))).is_err());
        let without = PRINTED.replace(" requests in ", " ");
        assert!(Report::parse(&lines(&without)).unwrap_err().contains("number of requests"));
    }

    #[test]
    fn other_answers_than_the_page_are_errors() {
        let printed = format!("  Non-2xx or 3xx responses: 40681\n{PRINTED}");
        assert!(Report::parse(&lines(&printed)).unwrap_err().contains("40681"));
        assert!(Report::parse(&lines("unable to connect")).unwrap_err().contains("no rate"));
    }

    #[test]
    fn times_have_units() {
        assert_eq!(milliseconds("1.50m"), Some(90_000.0));
        assert_eq!(milliseconds("1.50"), None);
        assert_eq!(milliseconds("us"), None);
    }
}
