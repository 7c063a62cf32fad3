// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole systems under the shim, as Debian packages them: programs that fork with an allocator's
//! locks held, that forbid their children system calls, or that have another library preloaded.
//!
//! `cargo test -p reprieve-shim --test systems -- --ignored --nocapture`

mod common;

use common::{compile, run, shim};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

/// A directory for everybody, with the shim in it.
fn shared() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
    let copy = directory.path().join("libreprieve_locks.so");
    fs::copy(shim(), &copy).unwrap();
    (directory, copy)
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Debian's Redis has jemalloc: the child of BGSAVE frees memory first of all.
#[test]
#[ignore = "long, and needs Debian's redis-server: make test-lab"]
fn redis_saves_in_a_child() {
    const SAVES: usize = 20;
    let (directory, shim) = shared();
    let socket = directory.path().join("socket");
    let mut server = Command::new("redis-server");
    server.args(["--port", "0", "--save", "", "--enable-debug-command", "local"]);
    server.args(["--loglevel", "warning", "--unixsocket"]);
    server.arg(&socket).arg("--dir").arg(directory.path()).env("LD_PRELOAD", shim);
    let mut server = Ended(server.spawn().unwrap());
    let ask = |words: &[&str]| {
        run(Command::new("redis-cli").arg("-s").arg(&socket).args(words)).trim().to_string()
    };
    while !socket.exists() {
        assert!(server.0.try_wait().unwrap().is_none());
        thread::sleep(Duration::from_millis(10));
    }
    for n in 0..SAVES {
        assert_eq!(ask(&["DEBUG", "POPULATE", &format!("{}", 5000 * (n + 1))]), "OK");
        assert!(ask(&["BGSAVE"]).starts_with("Background saving started"));
        while ask(&["INFO", "persistence"]).contains("rdb_bgsave_in_progress:1") {
            thread::sleep(Duration::from_millis(10));
        }
        assert!(ask(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:ok"));
    }
    println!("programs: Redis: {SAVES} of {SAVES} BGSAVEs under the shim");
}

/// Its renderers forbid themselves most system calls. By a user who is not root, for whom it has
/// its sandbox.
#[test]
#[ignore = "long, and needs Debian's chromium: make test-lab"]
fn chromium_with_its_sandbox() {
    let (directory, shim) = shared();
    // SAFETY: no preconditions.
    let mut chromium = if unsafe { libc::geteuid() } == 0 {
        let mut as_user = Command::new("setpriv");
        as_user.args(["--reuid=65534", "--regid=65534", "--clear-groups", "chromium"]);
        as_user
    } else {
        Command::new("chromium")
    };
    let home = directory.path().join("home");
    let profile = format!("--user-data-dir={}", home.join("profile").display());
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, Permissions::from_mode(0o777)).unwrap();
    chromium.env("HOME", &home).env("XDG_RUNTIME_DIR", &home).env("LD_PRELOAD", shim);
    chromium.args(["--headless", "--disable-gpu", "--dump-dom"]).arg(profile);
    chromium.arg("data:text/html,<p id=a></p><script>a.textContent = 6 * 7</script>");
    assert!(run(&mut chromium).contains("<p id=\"a\">42</p>"));
    println!("programs: Chromium: 1 page in its sandbox under the shim");
}

/// The part of sshd that speaks to strangers forbids itself most system calls. It speaks over
/// pipes here.
#[test]
#[ignore = "needs Debian's openssh-server: make test-lab"]
fn sshd_with_its_sandbox() {
    const LOGINS: usize = 5;
    let (directory, shim) = shared();
    let path = |name: &str| directory.path().join(name).display().to_string();
    for key in ["key", "host"] {
        run(Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(path(key)));
    }
    let user = run(Command::new("id").arg("-un"));
    // Debian's unit makes it.
    fs::create_dir_all("/run/sshd").unwrap();
    let proxy = format!(
        "ProxyCommand=env LD_PRELOAD={} /usr/sbin/sshd -i -f none -h {} -E {} -o \
         AuthorizedKeysFile={} -o StrictModes=no -o UsePAM=no -o PermitRootLogin=yes -o PidFile=none",
        shim.display(),
        path("host"),
        path("log"),
        path("key.pub"),
    );
    for _ in 0..LOGINS {
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes"]);
        ssh.args(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]);
        ssh.args(["-o", "LogLevel=ERROR", "-o", &proxy, "-i", &path("key")]);
        assert_eq!(run(ssh.arg(format!("{}@here", user.trim())).args(["echo", "in"])), "in\n");
    }
    println!("programs: sshd: {LOGINS} of {LOGINS} logins under the shim");
}

/// In front of the shim and behind it.
#[test]
#[ignore = "needs Debian's faketime: make test-lab"]
fn libfaketime_in_both_orders() {
    let faketime = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
    assert!(Path::new(faketime).exists());
    let (program, shim) = (compile("faked", "faked", &[]), shim());
    let shim = shim.to_str().unwrap();
    for preload in [format!("{faketime}:{shim}"), format!("{shim}:{faketime}")] {
        for time in ["+10d", "-10d", "2030-01-01 00:00:00"] {
            let mut command = Command::new(&program);
            let command = command.env("LD_PRELOAD", &preload).env("FAKETIME", time);
            assert_eq!(run(command), "waited\n", "{preload} {time}");
        }
    }
    println!("programs: libfaketime: 6 of 6 runs, before the shim and behind it");
}
