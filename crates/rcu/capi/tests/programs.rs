// SPDX-License-Identifier: MIT OR Apache-2.0
//! liburcu's own programs, its examples and tests, compile with the headers in `compat`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's releases with liburcu 0.13 and 0.15, and how many files of C each version has there.
const RELEASES: [(&str, usize); 2] = [("bookworm", 71), ("trixie", 80)];

/// liburcu's configuration for glibc, as far as the programs ask for it. `rcu_*` names are memb's,
/// as where a program is built for the default flavor.
const CONFIGURED: [&str; 7] = [
    "-D_GNU_SOURCE",
    "-DRCU_MEMBARRIER",
    "-DHAVE_GETTID=1",
    "-DHAVE_RAND_R=1",
    "-DHAVE_SCHED_SETAFFINITY=1",
    "-DHAVE_SCHED_GETCPU=1",
    "-DHAVE_CPU_SET_T=1",
];

/// Unpacks the source package of a release, by an apt with lists of its own. `None`: the mirror
/// does not have it.
fn source(release: &str) -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("liburcu-{release}"));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(directory.join("lists/partial")).unwrap();
    let list =
        "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian";
    fs::write(directory.join("list"), format!("deb-src {list} {release} main\n")).unwrap();
    let apt = |words: &[&str]| {
        let set = |name: &str, to: &Path| format!("-o{name}={}", to.display());
        let mut apt = Command::new("apt-get");
        apt.args([
            set("Dir::Etc::SourceList", &directory.join("list")),
            set("Dir::Etc::SourceParts", Path::new("/dev/null")),
            set("Dir::State::Lists", &directory.join("lists")),
            set("Dir::Cache", &directory),
            "-oAPT::Sandbox::User=root".to_string(),
        ]);
        apt.args(words).current_dir(&directory).output().is_ok_and(|o| o.status.success())
    };
    let unpacked = apt(&["-qq", "update"])
        && apt(&["-qq", "source", "--download-only", "liburcu"])
        && Command::new("sh")
            .args(["-c", "mkdir source && tar -xf *.orig.tar.bz2 -C source --strip-components=1"])
            .current_dir(&directory)
            .status()
            .is_ok_and(|status| status.success());
    unpacked.then(|| directory.join("source"))
}

fn programs(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            programs(&path, found);
        } else if path.extension().is_some_and(|e| e == "c") {
            found.push(path);
        }
    }
}

fn compile_all(source: &Path, at_least: usize) {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include");
    let mut files = vec![];
    ["doc/examples", "tests"].iter().for_each(|part| programs(&source.join(part), &mut files));
    let failed: Vec<String> = files
        .iter()
        .filter_map(|file| {
            let mut cc = Command::new("cc");
            cc.args(["-w", "-O1", "-c", "-o", "/dev/null"]).args(CONFIGURED);
            cc.arg("-I").arg(include.join("reprieve/compat")).arg("-I").arg(&include);
            cc.arg("-I").arg(source.join("tests/common")).arg("-I").arg(source.join("tests/utils"));
            // Headers of liburcu's programs alone, behind all others.
            cc.arg("-idirafter").arg(source.join("src"));
            let output = cc.arg(file).output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            (!output.status.success()).then(|| format!("{}: {text}", file.display()))
        })
        .collect();
    println!("{}: {} of {}", source.display(), files.len() - failed.len(), files.len());
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(files.len() >= at_least, "{} files", files.len());
}

/// `REPRIEVE_LIBURCU_SOURCE=DIRECTORY` names an unpacked source of another version.
#[test]
#[ignore = "fetches source packages of Debian's"]
fn liburcus_own_programs_compile() {
    if let Some(directory) = std::env::var_os("REPRIEVE_LIBURCU_SOURCE") {
        compile_all(Path::new(&directory), 1);
    }
    for (release, at_least) in RELEASES {
        match source(release) {
            Some(source) => compile_all(&source, at_least),
            None => println!("no source of liburcu for {release}: skipped"),
        }
    }
}
