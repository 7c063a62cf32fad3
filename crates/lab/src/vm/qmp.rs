// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU's monitor: a JSON object per line. (The crate `qapi` generates code for hundreds of
//! commands, of which the lab needs ten.)

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Error, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Longest line, bytes.
const LINE_MAX: u64 = 16 << 20;

pub struct Qmp(BufReader<UnixStream>);

impl Qmp {
    pub fn new(stream: UnixStream) -> Qmp {
        Qmp(BufReader::new(stream))
    }

    /// Reads QEMU's greeting, and begins.
    pub fn greet(&mut self) -> Result<()> {
        self.line().map_err(|_| Error::other("it ended without a greeting"))?;
        self.execute("qmp_capabilities", json!({})).map(drop)
    }

    /// Executes `command` with `arguments`, an object.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let line = json!({ "execute": command, "arguments": arguments });
        self.0.get_mut().write_all(format!("{line}\n").as_bytes())?;
        loop {
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                return Err(Error::other(error["desc"].to_string()));
            }
            // Other lines are events.
            if let Some(result) = answer.get_mut("return") {
                return Ok(result.take());
            }
        }
    }

    /// How long an answer may take.
    pub fn limit(&mut self, limit: Duration) -> Result<()> {
        self.0.get_mut().set_read_timeout(Some(limit))?;
        self.0.get_mut().set_write_timeout(Some(limit))
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        match (&mut self.0).take(LINE_MAX).read_line(&mut line)? {
            0 => Err(Error::other("it closed its monitor")),
            _ => Ok(serde_json::from_str(&line)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_from_events_and_errors() {
        let (here, mut qemu) = UnixStream::pair().unwrap();
        let answers = "{\"QMP\": {}}\r\n{\"return\": {}}\r\n{\"event\": \"STOP\"}\r\n\
            {\"return\": [1]}\r\n{\"error\": {\"class\": \"GenericError\", \"desc\": \"no\"}}\r\n";
        qemu.write_all(answers.as_bytes()).unwrap();
        let mut qmp = Qmp::new(here);
        qmp.greet().unwrap();
        assert_eq!(qmp.execute("stop", json!({})).unwrap(), json!([1]));
        assert!(qmp.execute("cont", json!({})).unwrap_err().to_string().contains("no"));
        let mut asked = String::new();
        BufReader::new(&qemu).read_line(&mut asked).unwrap();
        assert_eq!(asked, "{\"arguments\":{},\"execute\":\"qmp_capabilities\"}\n");
        qemu.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(qmp.execute("cont", json!({})).is_err());
    }
}
