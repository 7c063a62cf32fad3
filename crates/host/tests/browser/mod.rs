// SPDX-License-Identifier: MIT OR Apache-2.0
//! A page in headless Chromium, for the tests of each crate that makes pages.

use std::path::Path;
use std::process::{Command, Stdio};

/// The document after its scripts ran, and what they made the browser complain about.
pub fn open(page: &Path, part: &str) -> (String, Vec<String>) {
    let profile = tempfile::tempdir().unwrap();
    let browser = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        Command::new(name)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok()
    });
    let browser =
        browser.expect("no Chromium on PATH: install one, e.g. `apt-get install chromium`");
    // `timeout` ends the browser's helpers as well, which are in its group.
    let output = Command::new("timeout")
        .args([
            "-k",
            "5",
            "120",
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
        ])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--disable-extensions", "--disable-breakpad", "--disable-dev-shm-usage"])
        .args(["--enable-logging=stderr", "--log-level=0", "--dump-dom"])
        .arg("--host-resolver-rules=MAP * ~NOTFOUND")
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}{part}", page.display()))
        // Where it would leave files of its own.
        .env("TMPDIR", profile.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let console = errors.lines().filter(|l| l.contains(":CONSOLE")).map(str::to_owned).collect();
    (String::from_utf8_lossy(&output.stdout).into_owned(), console)
}
