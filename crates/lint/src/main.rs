// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks of this repository's sources that rustfmt and clippy do not have. `make lint` runs them.
//!
//! - **Layers** ([`layers`]): crates and folders import only what lies below them. The layers stand
//!   in `layers.txt` beside this crate's `Cargo.toml`.
//! - **Widths** ([`widths`]): comments and Markdown end at column 100.
//! - **Links** ([`links`]): links in Markdown lead to files and headings that exist.
//!
//! Checks the checkout that the current directory is in. Prints one line per finding, `FILE:LINE:
//! what is wrong`, and exits with 1 if there is one.

mod imports;
mod layers;
mod links;
mod widths;

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// A place in a file of the repository and what is wrong with it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    /// Relative to the root of the repository.
    file: PathBuf,
    /// From 1; 0 for the file as a whole.
    line: usize,
    message: String,
}

fn main() -> Result<ExitCode> {
    let root = &checkout()?;
    let layers = root.join("crates/lint/layers.txt");
    let layers = fs::read_to_string(&layers).with_context(|| layers.display().to_string())?;
    let layers = layers::Layers::parse(&layers)?;
    let files = tracked(root)?;
    let mut findings = widths::check(root, &files)?;
    findings.extend(links::check(root, &files)?);
    findings.extend(layers.check_folders(root)?);
    findings.extend(layers.check_crates(&dependencies(root)?));
    findings.sort();
    for Finding { file, line, message } in &findings {
        println!("{}:{line}: {message}", file.display());
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The root of the checkout that the current directory is in. Not the directory of this crate as
/// it was built: clones that share a target directory share one binary.
fn checkout() -> Result<PathBuf> {
    let root = git(Path::new("."), &["rev-parse", "--show-toplevel"])?;
    Ok(root.trim_end_matches('\n').into())
}

/// The files of the repository that exist, those not yet committed included.
fn tracked(root: &Path) -> Result<Vec<PathBuf>> {
    let shown = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"];
    let names = git(root, &shown)?;
    let files = names.split_terminator('\0').map(PathBuf::from);
    Ok(files.filter(|file| root.join(file).is_file()).collect())
}

fn git(directory: &Path, arguments: &[&str]) -> Result<String> {
    // A checkout may belong to another user than the one who runs the checks.
    let output = Command::new("git")
        .args(["-c", "safe.directory=*"])
        .args(arguments)
        .current_dir(directory)
        .output()
        .context("git")?;
    ensure!(output.status.success(), "git: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).context("the name of a file is not UTF-8")
}

/// The dependencies of the workspace's crates on each other, tests' apart: crate, imported crate.
fn dependencies(root: &Path) -> Result<Vec<(String, String)>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--locked", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("cargo metadata")?;
    ensure!(output.status.success(), "cargo: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let mut edges = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            if dependency["kind"].as_str() != Some("dev") && dependency["path"].is_string() {
                let target = dependency["name"].as_str().unwrap_or_default();
                edges.push((name.to_owned(), target.to_owned()));
            }
        }
        // A crate that depends on no other has a layer as well.
        edges.push((name.to_owned(), name.to_owned()));
    }
    Ok(edges)
}
