// SPDX-License-Identifier: MIT OR Apache-2.0
//! Holds the width of comments and Markdown.
//!
//! rustfmt on its stable channel and clang-format leave long comments as they are. Left out,
//! because they cannot be wrapped: tables, code in fences or indented by four columns, headings,
//! and a line of a single word, such as an address.

use crate::Finding;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// In columns; rustfmt's `max_width` for code.
const WIDTH: usize = 100;
const TAB: usize = 8;

/// How a file marks the lines that are checked.
#[derive(Clone, Copy, PartialEq)]
enum Text {
    Markdown,
    /// Lines that begin with one of these.
    Comments(&'static [&'static str]),
}

/// Reports lines of `files`, relative to `root`, that are too wide.
pub fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for file in files {
        let Some(text) = kind(file) else { continue };
        let path = root.join(file);
        let source = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        findings.extend(too_wide(&source, text).map(|(line, width)| Finding {
            file: file.clone(),
            line,
            message: format!("{width} columns: wrap comments and Markdown at {WIDTH}"),
        }));
    }
    Ok(findings)
}

fn kind(file: &Path) -> Option<Text> {
    let name = file.file_name()?.to_str()?;
    let hash = Text::Comments(&["#"]);
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => Some(Text::Comments(&["///", "//!", "//"])),
        Some("c" | "h") => Some(Text::Comments(&["/*", "* ", "//"])),
        Some("md") => Some(Text::Markdown),
        Some("toml") => Some(hash),
        None if name == "Makefile" || file.parent()?.iter().any(|of| of == "scripts") => Some(hash),
        _ => None,
    }
}

/// The lines of `source` that are too wide: number, width.
fn too_wide(source: &str, text: Text) -> impl Iterator<Item = (usize, usize)> {
    let mut fence = false;
    source.lines().enumerate().filter_map(move |(i, line)| {
        let body = match text {
            Text::Markdown => line,
            Text::Comments(marks) => {
                let code = line.trim_start();
                let mark = marks.iter().find(|&&mark| code.starts_with(mark));
                let Some(mark) = mark else {
                    fence = false;
                    return None;
                };
                let body = &code[mark.len()..];
                body.strip_prefix(' ').unwrap_or(body)
            }
        };
        let words = body.trim_start();
        if words.starts_with("```") {
            fence = !fence;
        }
        let verbatim = fence
            || words.starts_with('|')
            || words.starts_with('#')
            || body.starts_with("    ")
            || body.starts_with('\t')
            || !words.contains(' ');
        let width = columns(line);
        (width > WIDTH && !verbatim).then_some((i + 1, width))
    })
}

fn columns(line: &str) -> usize {
    line.chars().fold(0, |column, c| match c {
        '\t' => (column / TAB + 1) * TAB,
        _ => column + 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(name: &str, source: &str) -> Vec<usize> {
        too_wide(source, kind(Path::new(name)).unwrap()).map(|(line, _)| line).collect()
    }

    #[test]
    fn wide_comments_are_found() {
        let wide = "word ".repeat(21);
        for (name, mark) in [
            ("a.rs", "//"),
            ("a.rs", "    /// "),
            ("a.h", " * "),
            ("Makefile", "# "),
            ("scripts/a", "# "),
            ("crates/a/scripts/b", "# "),
        ] {
            assert_eq!(lines(name, &format!("{mark} short\n{mark} {wide}x")), [2], "{name}");
        }
        assert_eq!(lines("a.md", &format!("short\n\n- {wide}x")), [3]);
        assert_eq!(lines("a.c", &format!("\t\t\t/* {} */", &wide[..80])), [1]);
        assert_eq!(lines("a.rs", &format!("let a = \"{wide}\";")), [0; 0]);
    }

    #[test]
    fn text_that_cannot_be_wrapped_passes() {
        let wide = "word ".repeat(21);
        for body in [format!("| {wide}"), format!("```\n{wide}\n```"), format!("    {wide}")] {
            assert_eq!(lines("a.md", &body), [0; 0], "{body}");
            let comment: String = body.lines().map(|line| format!("//! {line}\n")).collect();
            assert_eq!(lines("a.rs", &comment), [0; 0], "{comment}");
        }
        assert_eq!(lines("a.md", &"x".repeat(120)), [0; 0]);
    }

    #[test]
    fn a_fence_ends_with_its_comment() {
        let wide = "word ".repeat(21);
        assert_eq!(lines("a.rs", &format!("/// ```\n/// {wide}\nfn f() {{}}\n// {wide}x")), [4]);
    }

    #[test]
    fn tabs_are_eight_columns() {
        assert_eq!([columns("\tx"), columns("x\tx"), columns("\u{d7}")], [9, 9, 1]);
    }
}
