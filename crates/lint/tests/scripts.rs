// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scripts whose faults show only in certain surroundings.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// A copy of what is installed, and an empty library; installs it from another directory.
#[test]
fn the_c_library_goes_where_a_relative_path_leads() {
    let dir = tempfile::tempdir().unwrap();
    let files = [
        "Cargo.toml",
        "crates/rcu/scripts",
        "crates/rcu/include",
        "crates/rcu/capi/liburcu.pc.in",
        "crates/rcu/capi/reprieve.pc.in",
        "crates/hint/include",
    ];
    run(Command::new("cp")
        .args(["-r", "--parents"])
        .args(files)
        .arg(dir.path())
        .current_dir(root()));
    let user = dir.path().join("user");
    fs::create_dir(&user).unwrap();
    fs::write(user.join("empty.c"), "").unwrap();
    run(Command::new("cc").args(["-c", "empty.c"]).current_dir(&user));
    run(Command::new("ar").args(["rcs", "libreprieve.a", "empty.o"]).current_dir(&user));
    for (arguments, place, prefix) in [
        (&["prefix"][..], "prefix", user.join("prefix")),
        (&["/usr", "stage"], "stage/usr", "/usr".into()),
    ] {
        let mut install = Command::new(dir.path().join("crates/rcu/scripts/install-c"));
        run(install.arg(".").args(arguments).current_dir(&user));
        let place = user.join(place);
        for file in ["include/reprieve/scan.h", "lib/libreprieve.a", "lib/libreprieve.so.1"] {
            assert!(place.join(file).is_file(), "{file} in {}", place.display());
        }
        let package = fs::read_to_string(place.join("lib/pkgconfig/reprieve.pc")).unwrap();
        assert!(package.contains(&format!("prefix={}\n", prefix.display())), "{package}");
    }
}

/// A terminal that is closed while apt-get runs. Nothing is fetched: a stand-in on `PATH` sends the
/// signal.
#[test]
fn suites_that_are_not_fetched_leave_nothing() {
    // Without it the script ends earlier.
    if !Path::new("/usr/share/keyrings/debian-archive-keyring.gpg").is_file() {
        return;
    }
    for (signal, code) in [("HUP", 129), ("INT", 130), ("TERM", 143)] {
        let dir = tempfile::tempdir().unwrap();
        let (bin, cache) = (dir.path().join("bin"), dir.path().join("cache"));
        fs::create_dir(&bin).unwrap();
        // The script is the parent. In the lists of apt its releases stand by name.
        let script = format!(
            "#!/bin/sh\ncase $1 in\nindextargets) sed -n 's/^VERSION_CODENAME=/Origin:  Packages deb /p' /etc/os-release | sed 's|$| http://localhost/|' ;;\n*) kill -{signal} $PPID ;;\nesac\n"
        );
        let apt_get = bin.join("apt-get");
        // Written by another process: a child of another test might have it open for writing.
        run(Command::new("sh")
            .args(["-c", "printf %s \"$1\" >\"$2\"", "sh", &script])
            .arg(&apt_get));
        fs::set_permissions(apt_get, fs::Permissions::from_mode(0o755)).unwrap();
        // Signals that the tests' own parent ignores, no shell could trap.
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP,INT,TERM").arg(root().join("scripts/ipc-suites"));
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).env("REPRIEVE_CACHE", &cache).stdin(Stdio::null());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let left = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["ipc-suites.lock"]);
    }
}
