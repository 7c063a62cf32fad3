// SPDX-License-Identifier: MIT OR Apache-2.0
//! However the live view ends, it restores the terminal: screen and settings.
//!
//! Each case runs [`helper`] of this program on a terminal of its own (`script`), and compares the
//! terminal's settings (`stty`) before and after.

use reprieve_watch::model::{Cost, Event, Snapshot};
use reprieve_watch::show::{Source, SourceError, terminal};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const LEAVE: &str = "\u{1b}[?1049l";
const ENTER: &str = "\u{1b}[?1049h";

/// A source without VMs. Each time it is asked for a snapshot, the view has the terminal; then it
/// sends its own process the next signal.
struct Nothing {
    panics: bool,
    /// Shell commands that send them.
    signals: VecDeque<String>,
    senders: Vec<Child>,
}

impl Source for Nothing {
    fn snapshot(&mut self) -> Result<Snapshot, SourceError> {
        assert!(!self.panics, "the collector panics");
        let sent = self.senders.last_mut().is_none_or(|shell| shell.try_wait().unwrap().is_some());
        if let Some(script) = sent.then(|| self.signals.pop_front()).flatten() {
            let mut shell = Command::new("sh");
            self.senders.push(shell.args(["-c", &script]).stdin(Stdio::null()).spawn().unwrap());
        }
        Ok(Snapshot {
            schema: 1,
            time_ns: 1,
            wall: 1,
            vms: vec![],
            processes: vec![],
            cost: Cost::default(),
        })
    }

    fn events(&mut self) -> Vec<Event> {
        vec![]
    }
}

/// The view that each case runs on its terminal; does nothing in a run of all tests.
#[test]
#[ignore = "run by the other tests"]
fn helper() {
    let Ok(case) = std::env::var("REPRIEVE_SESSION") else { return };
    // Signals come from outside, as those of a shell would.
    let me = std::process::id();
    let stopped = format!("grep -q '^State:.T' /proc/{me}/status");
    let signals = match case.as_str() {
        "stop" => vec![
            format!("kill -TSTP {me}; until {stopped}; do sleep 0.05; done; kill -CONT {me}"),
            format!("kill -TERM {me}"),
        ],
        "panic" => vec![],
        signal => vec![format!("kill -{signal} {me}")],
    };
    let mut source = Nothing { panics: case == "panic", signals: signals.into(), senders: vec![] };
    let outcome = terminal::run(&mut source, Duration::from_millis(100), true, &[]);
    println!("OUTCOME {outcome:?}");
    for mut sender in source.senders {
        sender.wait().unwrap();
    }
}

/// The output of the terminal, and its settings before and after.
fn on_a_terminal(case: &str) -> (String, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let (before, after) = (dir.path().join("before"), dir.path().join("after"));
    let program = std::env::current_exe().unwrap();
    let line = format!(
        "stty -g >{}; REPRIEVE_SESSION={case} '{}' --exact helper --ignored --nocapture; stty -g >{}",
        before.display(),
        program.display(),
        after.display()
    );
    let output = Command::new("script")
        .args(["-qefc", &line, "/dev/null"])
        .stdin(Stdio::null())
        .env("TERM", "xterm-256color")
        .output()
        .unwrap();
    let read = |path| std::fs::read_to_string(path).unwrap();
    (String::from_utf8_lossy(&output.stdout).into_owned(), read(&before), read(&after))
}

#[track_caller]
fn check(case: &str, entered: usize) -> String {
    let (output, before, after) = on_a_terminal(case);
    assert_eq!(output.matches(ENTER).count(), entered, "{case}: {output:?}");
    assert!(output.rfind(LEAVE) > output.rfind(ENTER), "{case}: {output:?}");
    assert!(output.rfind("\u{1b}[?25h") > output.rfind("\u{1b}[?25l"), "{case}: {output:?}");
    assert_eq!(before, after, "{case}: settings of the terminal");
    output
}

#[test]
fn signals_give_the_terminal_back() {
    for signal in ["TERM", "INT", "HUP", "QUIT"] {
        let output = check(signal, 1);
        assert!(output.contains("OUTCOME Ok(Signal)"), "{signal}: {output:?}");
    }
}

/// The view must not outlive its terminal. A terminal may end without a signal (a killed `tmux`, a
/// lost connection).
#[test]
fn a_terminal_that_goes_away_ends_the_view() {
    let program = std::env::current_exe().unwrap();
    // SIGHUP is ignored, so only the end of the terminal itself is left to notice.
    let line = format!(
        "trap '' HUP; echo $$; REPRIEVE_SESSION=CONT exec '{}' --exact helper --ignored --nocapture",
        program.display()
    );
    let mut script = Command::new("script")
        .args(["-qefc", &format!("exec sh -c \"{line}\"").replace("$$", "\\$\\$"), "/dev/null"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .env("TERM", "xterm-256color")
        .spawn()
        .unwrap();
    let mut output = BufReader::new(script.stdout.take().unwrap());
    let mut pid = String::new();
    output.read_line(&mut pid).unwrap();
    let pid: u32 = pid.trim().parse().expect(&pid);
    let mut shown = vec![];
    while !String::from_utf8_lossy(&shown).contains(ENTER) {
        let byte = output.by_ref().bytes().next().expect("the view's first screen").unwrap();
        shown.push(byte);
    }
    // The terminal's other side is `script`'s alone.
    script.kill().unwrap();
    script.wait().unwrap();
    let ended = || {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .map_or(true, |stat| stat.contains(") Z"))
    };
    while !ended() {
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_panic_gives_the_terminal_back_and_is_told() {
    let output = check("panic", 1);
    let told = output.rfind("the collector panics");
    assert!(told > output.find(LEAVE), "{output:?}");
}

#[test]
fn a_stop_gives_the_terminal_back_for_its_time() {
    let output = check("stop", 2);
    assert!(output.contains("OUTCOME Ok(Signal)"), "{output:?}");
}
