// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lines of kernel logs that say that something is stuck or broken.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

/// Parts of such lines: RCU stalls, lockups, hung tasks, the watchdog of sched_ext, and errors of
/// the kernel itself.
const PARTS: [&str; 15] = [
    "detected stall",
    "detected expedited stall",
    "self-detected stall",
    "kthread starved",
    "kthread timer wakeup didn't happen",
    "soft lockup",
    "hard LOCKUP",
    "workqueue lockup",
    "blocked for more than",
    "runnable task stall",
    "BUG:",
    "kernel BUG at",
    "Oops",
    "general protection fault",
    "Kernel panic",
];

/// Begins the kernel's warnings about itself. Further on in a line it is advice about the CPU.
const WARNING: &str = "WARNING:";

/// For records that the kernel overwrote before they were read.
const LOST: &str = "lines were lost before they were read, and complaints perhaps with them";

/// The lines of `text` with a complaint.
pub fn of(text: &str) -> Vec<String> {
    let complains = |line: &&str| {
        let message = line.split_once("] ").map_or(*line, |(_time, message)| message);
        message.starts_with(WARNING) || PARTS.iter().any(|part| line.contains(part))
    };
    text.lines().filter(complains).map(|line| line.trim().to_owned()).collect()
}

/// The log of this machine's kernel, from now on.
pub struct HostLog<R = File>(R);

impl HostLog {
    pub fn open() -> std::io::Result<HostLog> {
        let mut file =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg")?;
        file.seek(SeekFrom::End(0))?;
        Ok(HostLog(file))
    }
}

impl<R: Read> HostLog<R> {
    /// Complaints since the last look.
    pub fn look(&mut self) -> std::io::Result<Vec<String>> {
        let mut found = vec![];
        // A read returns one record, the longest of which has 8 KiB.
        let mut record = vec![0; 8 << 10];
        loop {
            match self.0.read(&mut record) {
                Ok(0) => return Ok(found),
                Ok(length) => {
                    found.extend(of(message(&String::from_utf8_lossy(&record[..length]))))
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(found),
                // The next read goes on after the records that were overwritten.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => found.push(LOST.into()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The message of a record `PRIORITY,NUMBER,TIME,FLAGS;MESSAGE`, and its keys in lines of their
/// own.
fn message(record: &str) -> &str {
    let text = record.split_once(';').map_or(record, |(_, text)| text);
    text.split_once('\n').map_or(text, |(line, _)| line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_complaints_are_found_among_other_lines() {
        let log = "[    1.0] rcu: Hierarchical RCU implementation.\r\n\
            [  21.5] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:\r\n\
            [  22.0] watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [init:1]\r\n\
            [  23.0] sched_ext: BPF scheduler \"reprieve\" disabled (unregistered from user space)\n\
            [  24.0] INFO: task init:1 blocked for more than 120 seconds.\n";
        let found = of(log);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].ends_with("CPUs/tasks:") && found[1].contains("CPU#1"), "{found:?}");
        let warning = "[  25.0] WARNING: CPU: 0 PID: 1 at kernel/rcu/tree.c:1";
        assert_eq!(of(warning), [warning]);
        let advice = "[   0.4] Speculative Return Stack Overflow: WARNING: See https://kernel.org";
        assert_eq!(of(advice), [""; 0]);
        for line in [
            "[ 9.1] rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 1-... } 21",
            "[ 9.2] rcu: INFO: rcu_sched self-detected stall on CPU",
            "[ 9.3] kernel BUG at kernel/sched/core.c:1234!",
        ] {
            assert_eq!(of(line), [line]);
        }
        let watchdog = "sched_ext: reprieve: runnable task stall (init[1] failed to run for 20.1s)";
        assert_eq!(of(watchdog), [watchdog]);
    }

    #[test]
    fn records_that_were_lost_are_a_complaint() {
        struct Records(Vec<std::io::Result<&'static str>>);

        impl Read for Records {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                let record = self.0.pop().unwrap_or(Err(ErrorKind::WouldBlock.into()))?;
                buffer[..record.len()].copy_from_slice(record.as_bytes());
                Ok(record.len())
            }
        }

        let lost = || Err(std::io::Error::from_raw_os_error(libc::EPIPE));
        let records = [Ok("4,7,1,-;Oops\n"), lost(), Ok("6,1,0,-;all is well\n")];
        let mut log = HostLog(Records(records.into()));
        assert_eq!(log.look().unwrap(), [LOST, "Oops"]);
        assert_eq!(log.look().unwrap(), [""; 0]);
    }

    #[test]
    fn a_record_is_its_message() {
        let record = "4,1234,567890,-;WARNING: CPU: 0 PID: 1\n SUBSYSTEM=cpu\n DEVICE=BUG:1\n";
        assert_eq!(message(record), "WARNING: CPU: 0 PID: 1");
        assert_eq!(message("no record"), "no record");
    }
}
