// SPDX-License-Identifier: MIT OR Apache-2.0
//! A benchmark of the `reprieve` command: the grace periods of programs inside a VM.
//!
//! The benchmark starts with the phase and gets its length, for which it measures; it ends by
//! itself, after a warm-up and a clean-up as well. So stopping the load waits for its end, and the
//! competitors of the phase run until then.

use super::{Done, Load};
use crate::children::Process;
use crate::protocol::{Better, Figure, REPRIEVE_ARGV};
use crate::sys::{Context, Result, now_ns, scaled};
use serde_json::Value;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long the benchmark may take, given the length of its phase: less than the lab waits.
const FACTOR: u32 = 3;
const EXTRA: Duration = Duration::from_secs(100);

/// Most output that is read.
const LONGEST: u64 = 4 << 20;

pub fn prepare(arguments: &[String]) -> Result<Box<dyn Load>> {
    let argv = std::fs::read_to_string(REPRIEVE_ARGV)
        .context(format_args!("{REPRIEVE_ARGV} (the image is made without `reprieve`)"))?;
    let argv: Vec<String> =
        argv.lines().map(String::from).chain(arguments.iter().cloned()).collect();
    Ok(Box::new(Bench { argv, length: Duration::ZERO, running: None, figures: Vec::new() }))
}

struct Bench {
    argv: Vec<String>,
    length: Duration,
    running: Option<Running>,
    figures: Vec<Figure>,
}

/// The process, and its standard output and standard error, which arrive at its end.
struct Running(Process, [Receiver<String>; 2]);

impl Load for Bench {
    fn ready(&mut self, duration_ms: Option<u64>) -> Result<()> {
        self.running = None;
        let ms = duration_ms.ok_or("a benchmark is no load without end")?;
        self.length = Duration::from_millis(ms);
        Ok(())
    }

    fn start(&mut self) -> Result<u64> {
        let (program, arguments) = self.argv.split_first().ok_or("no program")?;
        let mut command = Command::new(program);
        command.args(arguments).arg("--seconds").arg(self.length.as_secs_f64().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let from = now_ns();
        let mut process = Process::spawn(&mut command)?;
        let out = collect(process.child.stdout.take())?;
        let err = collect(process.child.stderr.take())?;
        self.running = Some(Running(process, [out, err]));
        Ok(from)
    }

    fn stop(&mut self) -> Result<Done> {
        let Running(process, output) = self.running.take().ok_or("the benchmark does not run")?;
        let limit = scaled(self.length * FACTOR + EXTRA);
        let status = process.wait(limit);
        let end_ns = now_ns();
        drop(process);
        let [out, err] = output.map(|o| o.recv_timeout(scaled(Duration::from_secs(10))));
        match status {
            Some(0) => {}
            Some(status) => {
                let why = err.unwrap_or_default();
                return Err(format!("reprieve ended with status {status}: {}", why.trim()));
            }
            None => {
                return Err(format!("reprieve did not end within {} s", limit.as_secs()));
            }
        }
        self.figures = figures(&out.unwrap_or_default())?;
        Ok(Done { end_ns, operations: 0.0, unit: "", notice: None })
    }

    fn figures(&mut self) -> Vec<Figure> {
        std::mem::take(&mut self.figures)
    }
}

/// Reads `from` to its end on a thread of its own, so that the writer never has to wait.
fn collect(from: Option<impl Read + Send + 'static>) -> Result<Receiver<String>> {
    let from = from.ok_or("no pipe")?;
    let (tell, told) = channel();
    let read = move || {
        let mut data = Vec::new();
        let _ = from.take(LONGEST).read_to_end(&mut data);
        let _ = tell.send(String::from_utf8_lossy(&data).into_owned());
    };
    let thread = std::thread::Builder::new().name("collector".into()).stack_size(64 << 10);
    thread.spawn(read).context("starting the reader of reprieve")?;
    Ok(told)
}

/// What a report shows of what `reprieve bench --json` prints.
fn figures(json: &str) -> Result<Vec<Figure>> {
    let outcome: Value = serde_json::from_str(json).context("what reprieve bench printed")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let columns = list(&outcome["columns"]);
    let mut figures = Vec::new();
    let told = |column: &Value| {
        let title = column["title"].as_str().unwrap_or_default();
        !matches!(title, "samples" | "p50" | "max" | "update, mean" | "update, p50")
    };
    for (i, column) in columns.iter().enumerate().filter(|(_, column)| told(column)) {
        for row in list(&outcome["rows"]) {
            let Some(value) = row["figures"][i]["value"].as_f64() else {
                continue;
            };
            figures.push(Figure {
                subject: text(&row["subject"]),
                group: text(&row["group"]),
                measure: text(&column["title"]),
                unit: text(&column["unit"]),
                value,
                at_least: false,
                better: match column["more_is_better"] == true {
                    true => Better::Higher,
                    false => Better::Lower,
                },
            });
        }
    }
    if figures.is_empty() {
        return Err("reprieve bench printed no figures".into());
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_become_figures() {
        let json = r#"{"columns": [
            {"title": "mean", "unit": "ms"},
            {"title": "p50", "unit": "ms"},
            {"title": "updates", "unit": "K/s", "more_is_better": true}],
          "rows": [
            {"group": "1 reader", "subject": "plain", "figures": [{"value": 1.5}, {"value": 1}, {"value": 7}]},
            {"group": "1 reader", "subject": "seize", "figures": [{"value": 2}, {"value": 1}, null]}]}"#;
        let short = |f: &Figure| {
            format!("{} {} {} {} {:?}", f.subject, f.measure, f.value, f.unit, f.better)
        };
        let found: Vec<String> = figures(json).unwrap().iter().map(short).collect();
        let expected =
            ["plain mean 1.5 ms Lower", "seize mean 2 ms Lower", "plain updates 7 K/s Higher"];
        assert_eq!(found, expected);
        assert!(figures(r#"{"columns": [], "rows": []}"#).is_err());
        assert!(figures("round 1: plain").is_err());
    }

    #[test]
    fn an_image_without_the_command_is_named() {
        let error = prepare(&["bench".into()]).err().unwrap();
        assert!(error.contains("made without"), "{error}");
    }
}
