// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages in headless Chromium: what the browser makes of them, and pictures of them.
//!
//! The browser has no network here: no name resolves, and what a page asks for is logged. The
//! browser has a profile of its own, in which all its files are, and both are gone when a function
//! returns. Nothing here has a time limit; whoever starts the caller sets one.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// A page as the browser has it.
pub struct Seen {
    /// The document after its scripts ran, as HTML.
    pub dom: String,
    /// Lines that the page caused on the console.
    pub console: Vec<String>,
    /// URLs that the page asked for, local files apart.
    pub requests: Vec<String>,
}

/// Loads the file `page`; `fragment` is empty or begins with `#`.
///
/// # Panics
/// Without Chromium, and when it fails.
pub fn open(page: &Path, fragment: &str) -> Seen {
    // Virtual time ends when nothing is left to load or to draw: pages draw after they loaded.
    let mut browser = Browser::start(
        &format!("file://{}{fragment}", page.display()),
        &["--dump-dom".into(), "--virtual-time-budget=5000".into()],
    );
    browser.finish();
    let log = browser.text("net.json");
    let own = format!("file://{}", page.display());
    assert!(log.contains(&own), "the net log does not show the page itself");
    let console = browser.text("stderr");
    let console = console.lines().filter(|l| l.contains(":CONSOLE")).map(str::to_owned).collect();
    Seen { dom: browser.text("stdout"), console, requests: requests(&log) }
}

/// Writes a picture of the file `page` in a window of `width` times `height` to the PNG file `out`.
///
/// # Panics
/// As [`open`].
pub fn screenshot(page: &Path, fragment: &str, (width, height): (u32, u32), out: &Path) {
    let mut browser = Browser::start(
        &format!("file://{}{fragment}", page.display()),
        &[
            format!("--screenshot={}", out.display()),
            format!("--window-size={width},{height}"),
            "--hide-scrollbars".into(),
        ],
    );
    browser.finish();
    assert!(out.is_file(), "chromium wrote no {}: {}", out.display(), browser.text("stderr"));
}

/// A browser with a profile of its own; both are gone when this is.
struct Browser {
    child: Child,
    profile: TempDir,
}

impl Browser {
    fn start(url: &str, options: &[String]) -> Browser {
        let profile = tempfile::tempdir().unwrap();
        let file = |name: &str| profile.path().join(name);
        // The browser dies with the thread that started it, however that ends.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(chromium())
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"])
            .args(["--disable-extensions", "--disable-background-networking", "--disable-sync"])
            .args(["--disable-component-update", "--disable-breakpad", "--disable-crash-reporter"])
            .args(["--disable-dev-shm-usage", "--disable-default-apps", "--no-pings"])
            .args(["--no-default-browser-check", "--enable-logging=stderr", "--log-level=0"])
            .arg("--host-resolver-rules=MAP * ~NOTFOUND")
            // In seconds. A child that had no CPU for 15 would give up.
            .arg("--ipc-connection-timeout=100000")
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(format!("--log-net-log={}", file("net.json").display()))
            .args(options)
            .arg(url)
            // Where it would leave files of its own.
            .env("TMPDIR", profile.path())
            .env("HOME", profile.path())
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_CACHE_HOME")
            .stdin(Stdio::null())
            .stdout(File::create(file("stdout")).unwrap())
            .stderr(File::create(file("stderr")).unwrap())
            .process_group(0)
            .spawn()
            .expect("setpriv, of util-linux");
        Browser { child, profile }
    }

    /// Waits for its end, which must be a good one.
    fn finish(&mut self) -> ExitStatus {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "chromium: {status}: {}", self.text("stderr"));
        status
    }

    /// A file of its profile.
    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.profile.path().join(name)).unwrap()).into()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let group = self.child.id();
        // Not reaped yet, so the group is still ours.
        if let Ok(None) = self.child.try_wait() {
            let _ = kill_process_group(pid(group), Signal::KILL);
            let _ = self.child.wait();
        }
        // The profile can only go when no helper writes to it any more.
        loop {
            let left = processes(group, self.profile.path());
            if left.is_empty() {
                return;
            }
            for helper in left {
                // Gone meanwhile is as good.
                let _ = kill_process(pid(helper), Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn pid(pid: u32) -> Pid {
    Pid::from_raw(pid as i32).expect("no process has the number 0")
}

/// The browser's program.
fn chromium() -> PathBuf {
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .flat_map(|dir| names.map(|n| dir.join(n)))
        .find(|p| p.is_file());
    found.unwrap_or_else(|| {
        let names = names.join(", ");
        panic!("no Chromium on PATH ({names}): install one, e.g. `apt-get install chromium`")
    })
}

/// Processes of `group`, and those whose command line names `path` (helpers may have left the
/// group).
fn processes(group: u32, path: &Path) -> Vec<u32> {
    let name = path.as_os_str().as_encoded_bytes();
    let mut found = vec![];
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
        let cmdline = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // After the name in parentheses: state, parent, process group.
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let member = fields.get(2).is_some_and(|g| *g == group.to_string()) && fields[0] != "Z";
        if pid != std::process::id() && (member || cmdline.windows(name.len()).any(|w| w == name)) {
            found.push(pid);
        }
    }
    found
}

/// The requests of the page, from its net log, local files apart. What the browser
/// asks on its own behalf has no initiator; it does not count, and gets no answer.
fn requests(log: &str) -> Vec<String> {
    let mut urls: Vec<String> = vec![];
    for line in log.lines() {
        // An event per line; only those that start a request have both.
        match (text_of(line, "initiator"), text_of(line, "url")) {
            (Some(initiator), Some(url)) if initiator != "not an origin" => urls.push(url),
            _ => {}
        }
    }
    urls.retain(|url| !url.starts_with("file://"));
    urls.sort();
    urls.dedup();
    urls
}

/// The string under `name` in a line of a net log.
fn text_of(line: &str, name: &str) -> Option<String> {
    let (_, rest) = line.split_once(&format!("\"{name}\":\""))?;
    rest.split('"').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(dir: &TempDir, body: &str) -> PathBuf {
        let page = dir.path().join("page.html");
        std::fs::write(&page, format!("<!DOCTYPE html><title>x</title>{body}")).unwrap();
        page
    }

    /// The tests that use this would notice: a request is in the log, a refusal on the console.
    #[test]
    fn a_page_that_asks_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let image = "<img src=\"http://lab.invalid/x.png\">";
        let seen = open(&page(&dir, image), "");
        assert_eq!(seen.requests, ["http://lab.invalid/x.png"]);
        let policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'\">";
        let seen = open(&page(&dir, &format!("{policy}{image}")), "");
        assert_eq!(seen.requests, [""; 0]);
        assert!(seen.console.iter().any(|l| l.contains("Content Security Policy")));
    }

    #[test]
    fn a_picture_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("page.png");
        screenshot(&page(&dir, "text"), "", (300, 200), &out);
        let png = std::fs::read(&out).unwrap();
        // The size is where the header has it.
        assert_eq!(png[..4], *b"\x89PNG");
        assert_eq!((&png[16..20], &png[20..24]), (&[0, 0, 1, 44][..], &[0, 0, 0, 200][..]));
    }

    #[test]
    fn nothing_of_the_browser_stays() {
        let dir = tempfile::tempdir().unwrap();
        let page = page(&dir, "");
        open(&page, "");
        assert_eq!(processes(u32::MAX, &page), [0u32; 0]);
        // A browser that is given up on goes too, with its helpers.
        let browser = Browser::start("about:blank", &["--remote-debugging-port=0".into()]);
        let (group, profile) = (browser.child.id(), browser.profile.path().to_path_buf());
        while processes(group, &profile).len() < 3 {
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(browser);
        assert_eq!(processes(group, &profile), [0u32; 0]);
        assert!(!profile.exists(), "its profile is gone");
    }
}
