// SPDX-License-Identifier: MIT OR Apache-2.0
//! Live views and metrics, which commands that run for long have in common.

use reprieve_page::output::tell;
use reprieve_page::plain;
use reprieve_watch::names;
use reprieve_watch::show::prometheus::Server;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::time::Duration;

/// Parses the time between two looks.
pub fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|e| e.to_string())?;
    if (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&interval) {
        Ok(interval)
    } else {
        Err("from 100ms to 1h".into())
    }
}

/// Parses where metrics are served.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "give an IP address and a port, as 127.0.0.1:9977".into())
}

/// The VMs that were asked for, and that were not seen so far.
pub struct Missing(Vec<String>);

impl Missing {
    pub fn of(asked_for: &[String]) -> Missing {
        Missing(asked_for.to_vec())
    }

    /// Takes process IDs and names of VMs that run.
    pub fn note<'a>(&mut self, vms: impl Iterator<Item = (u32, &'a str)>) {
        vms.for_each(|(pid, name)| self.0.retain(|query| !names(query, pid, Some(name))));
    }

    /// What to say of them; `None`: all were seen.
    pub fn text(&self) -> Option<String> {
        let missing = (!self.0.is_empty()).then(|| self.0.join(", "));
        missing.map(|missing| format!("no VM {} was seen", plain(&missing)))
    }

    /// Whether none was seen.
    pub fn is_all(&self, asked_for: &[String]) -> bool {
        self.0.len() == asked_for.len()
    }
}

/// Raises the number of files that this process may have open as far as it may: some are open for
/// each VM.
pub fn open_more_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Without it there is room for fewer VMs.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Whether somebody sits at a terminal that can show a live view.
pub fn interactive() -> bool {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    terminal && shows_views(set("TERM").as_deref(), locale.as_deref())
}

/// Whether a terminal of that kind moves its cursor, and has the characters of views in that
/// locale.
fn shows_views(terminal: Option<&str>, locale: Option<&str>) -> bool {
    let utf8 = |locale: &str| locale.to_lowercase().replace('-', "").contains("utf8");
    terminal != Some("dumb") && locale.is_none_or(utf8)
}

/// Whether the terminal view may have colours.
pub fn colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Says where metrics are, and who can read them.
pub fn announce(server: &Server) {
    tell(format!("metrics at http://{}/metrics", server.address()));
    if !server.address().ip().is_loopback() {
        tell(format!(
            "warning: everybody who reaches {} can read them: VM names, guest kernels and load",
            server.address()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::{Missing, shows_views};

    #[test]
    fn vms_that_were_never_seen_are_named() {
        let asked_for = ["db", "4711", "no\u{1b}such"].map(String::from);
        let mut missing = Missing::of(&asked_for);
        assert!(missing.is_all(&asked_for));
        missing.note([(4711, "web"), (7, "db2")].into_iter());
        assert_eq!(missing.text().as_deref(), Some("no VM db, no?such was seen"));
        missing.note([(8, "db")].into_iter());
        assert!(!missing.is_all(&asked_for));
        missing.note([(9, asked_for[2].as_str())].into_iter());
        assert_eq!(missing.text(), None);
    }

    #[test]
    fn a_dumb_terminal_and_another_character_set_get_lines() {
        assert!(shows_views(Some("xterm"), Some("de_DE.UTF-8")));
        assert!(shows_views(Some("xterm"), Some("C.utf8")) && shows_views(None, None));
        assert!(!shows_views(Some("dumb"), Some("C.UTF-8")));
        assert!(!shows_views(Some("xterm"), Some("C")));
        assert!(!shows_views(Some("xterm"), Some("de_DE.ISO-8859-1")));
    }
}
