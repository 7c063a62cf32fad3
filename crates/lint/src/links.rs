// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds links in Markdown that lead to a file or a heading of this repository that does not exist.

use crate::Finding;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Reports broken links in the Markdown files among `files`, relative to `root`.
pub fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let markdown = |file: &&PathBuf| file.extension().is_some_and(|extension| extension == "md");
    for file in files.iter().filter(markdown) {
        let path = root.join(file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let leads = |link: &str| leads_somewhere(root, files, file, link);
        for (line, link) in links(&text).filter(|(_, link)| !leads(link)) {
            let message = format!("`{link}` leads nowhere");
            findings.push(Finding { file: file.clone(), line, message });
        }
    }
    Ok(findings)
}

/// Whether the target of a link in the file `from` is one of `files`, or a folder of theirs. Other
/// sites are not asked.
fn leads_somewhere(root: &Path, files: &[PathBuf], from: &Path, link: &str) -> bool {
    if link.contains("://") || link.starts_with("mailto:") {
        return true;
    }
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = match file {
        "" => from.to_owned(),
        _ => plain(&from.parent().unwrap_or(from).join(file)),
    };
    let has =
        |text: String| prose(&text).any(|(_, line)| anchor(line).is_some_and(|a| a == heading));
    files.iter().any(|file| file.starts_with(&target))
        && (heading.is_empty() || fs::read_to_string(root.join(target)).is_ok_and(has))
}

/// The path without `.` and `..`, as far as that is possible.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if plain.file_name().is_some() => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

/// The links of a text: line, target.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(number, line)| {
        line.split("](").skip(1).filter_map(move |rest| Some((number, rest.split_once(')')?.0)))
    })
}

/// The lines outside fences, numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence = false;
    text.lines().enumerate().filter_map(move |(i, line)| {
        if line.trim_start().starts_with("```") {
            fence = !fence;
        }
        (!fence).then_some((i + 1, line))
    })
}

/// The anchor of a heading, as GitHub makes it: lower case, hyphens for spaces, no punctuation.
fn anchor(line: &str) -> Option<String> {
    let heading =
        line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))?;
    let keep = |c: char| c.is_alphanumeric() || "-_ ".contains(c);
    let letters = heading.trim().chars().filter(|&c| keep(c)).flat_map(char::to_lowercase);
    Some(letters.map(|c| if c == ' ' { '-' } else { c }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_links_are_found() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("docs")).unwrap();
        let readme = "[a](docs/a.md) [b](docs/b.md)\n[c](docs/a.md#one-two) [d](docs/a.md#three)\n\
            ```\n[in a fence](nowhere.md)\n```\n[e](https://example.org) [f](#here)\n## Here\n\
            [g](ignored.md) [h](/etc/hosts) [i](docs/)\n";
        fs::write(dir.path().join("ignored.md"), "").unwrap();
        fs::write(dir.path().join("README.md"), readme).unwrap();
        fs::write(dir.path().join("docs/a.md"), "# One, `two`\n[up](../README.md#here)\n").unwrap();
        let files = ["README.md", "docs/a.md", "docs/none.rs"].map(PathBuf::from);
        let findings = check(dir.path(), &files).unwrap();
        let found: Vec<_> = findings.iter().map(|f| (f.line, f.message.as_str())).collect();
        assert_eq!(
            found,
            [
                (1, "`docs/b.md` leads nowhere"),
                (2, "`docs/a.md#three` leads nowhere"),
                (8, "`ignored.md` leads nowhere"),
                (8, "`/etc/hosts` leads nowhere")
            ]
        );
    }
}
