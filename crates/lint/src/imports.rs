// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds which top-level modules of its crate a source file names.
//!
//! Reads tokens, not syntax: so paths inside macros count as well. `crate::a::b`, `crate::{a, b}`,
//! `$crate::a`, `super::a` and `self::super::a` are resolved; a bare `a::b` after `use crate::a` is
//! not a second import, nor is an exported macro, `crate::m!`. Code under `#[cfg(test)]` is left
//! out: a test may look at everything.

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};
use std::path::Path;

/// A mention of a top-level module.
#[derive(Debug, PartialEq, Eq)]
pub struct Import {
    pub line: usize,
    /// The first name behind `crate::`: a top-level module, or an item of the crate's root. `*` for
    /// all of them.
    pub target: String,
}

/// The module path of the file `path`, relative to its crate's `src`.
///
/// ```text
/// lib.rs -> []    a.rs -> [a]    a/mod.rs -> [a]    a/b.rs -> [a, b]
/// ```
pub fn module_path(path: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        path.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if matches!(names.last().map(String::as_str), Some("mod"))
        || names.len() == 1 && matches!(names[0].as_str(), "lib" | "main")
    {
        names.pop();
    }
    names
}

/// All imports in `source`, the text of the module `module`.
pub fn imports(source: &str, module: &[String]) -> Result<Vec<Import>> {
    let tokens: TokenStream =
        source.parse().map_err(|error| anyhow!("cannot be split into tokens: {error}"))?;
    let mut found = Vec::new();
    walk(tokens, &mut module.to_vec(), &mut found);
    Ok(found)
}

fn walk(tokens: TokenStream, module: &mut Vec<String>, found: &mut Vec<Import>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut i = 0;
    while i < tokens.len() {
        if let Some(next) = behind_test_item(&tokens, i) {
            i = next;
        } else if let Some((name, body)) = inline_module(&tokens, i) {
            module.push(name.to_string());
            walk(body, module, found);
            module.pop();
            i += 3;
        } else if let Some((base, behind)) = path_root(&tokens, i, module) {
            targets(&tokens[behind..], &base, found);
            i = behind;
        } else if let Some(line) = renamed_root(&tokens, i) {
            found.push(Import { line, target: "*".into() });
            i += 2;
        } else {
            if let TokenTree::Group(group) = &tokens[i] {
                walk(group.stream(), module, found);
            }
            i += 1;
        }
    }
}

/// If an item under `#[cfg(test)]` starts at `i`: the index behind it.
fn behind_test_item(tokens: &[TokenTree], i: usize) -> Option<usize> {
    let is = |i: usize, c| punctuation(tokens, i, c);
    let TokenTree::Group(attribute) = tokens.get(i + 1)? else { return None };
    let text: String = attribute.stream().to_string().split_whitespace().collect();
    if !is(i, '#') || !(text == "cfg(test)" || text.starts_with("cfg(all(test,")) {
        return None;
    }
    let mut next = i + 2;
    while next < tokens.len() {
        let body =
            matches!(&tokens[next], TokenTree::Group(g) if g.delimiter() == Delimiter::Brace);
        next += 1;
        // `use a::{b, c};` has braces in the middle.
        if is(next - 1, ';') || body && !is(next, ';') {
            break;
        }
    }
    Some(next)
}

/// `mod name { body }` at `i`.
fn inline_module(tokens: &[TokenTree], i: usize) -> Option<(Ident, TokenStream)> {
    match tokens.get(i..i + 3)? {
        [TokenTree::Ident(keyword), TokenTree::Ident(name), TokenTree::Group(body)]
            if keyword == "mod" && body.delimiter() == Delimiter::Brace =>
        {
            Some((name.clone(), body.stream()))
        }
        _ => None,
    }
}

/// If `crate::`, or one or more `super::`, starts at `i`: the module that it leads to, and the
/// index of what follows. `None` for `super` in a visibility, `pub(super)`.
fn path_root(tokens: &[TokenTree], i: usize, module: &[String]) -> Option<(Vec<String>, usize)> {
    let word = |i: usize, w: &str| matches!(tokens.get(i), Some(TokenTree::Ident(id)) if id == w);
    let (mut base, mut next) = (module.to_vec(), i);
    if word(next, "crate") && separator(tokens, next + 1) {
        return Some((Vec::new(), next + 3));
    }
    while word(next, "super") && separator(tokens, next + 1) {
        base.pop();
        next += 3;
    }
    (next > i).then_some((base, next))
}

/// The line of `crate as` at `i`: behind another name, everything in the root can be meant.
fn renamed_root(tokens: &[TokenTree], i: usize) -> Option<usize> {
    match tokens.get(i..i + 2)? {
        [TokenTree::Ident(root), TokenTree::Ident(by)] if root == "crate" && by == "as" => {
            Some(root.span().start().line)
        }
        _ => None,
    }
}

/// Whether `::` is at `i`.
fn separator(tokens: &[TokenTree], i: usize) -> bool {
    punctuation(tokens, i, ':') && punctuation(tokens, i + 1, ':')
}

fn punctuation(tokens: &[TokenTree], i: usize, c: char) -> bool {
    matches!(tokens.get(i), Some(TokenTree::Punct(p)) if p.as_char() == c)
}

/// The imports of the path or group of paths that `tokens` begins with, below the module `base`.
fn targets(tokens: &[TokenTree], base: &[String], found: &mut Vec<Import>) {
    match tokens.first() {
        // The path stays in the same top-level module.
        Some(token) if !base.is_empty() => {
            let line = token.span().start().line;
            found.push(Import { line, target: base[0].clone() });
        }
        // Exported macros live in the crate's root, wherever they are written.
        Some(TokenTree::Ident(_)) if punctuation(tokens, 1, '!') => {}
        Some(TokenTree::Ident(name)) => {
            found.push(Import { line: name.span().start().line, target: name.to_string() });
        }
        Some(TokenTree::Punct(star)) if star.as_char() == '*' => {
            found.push(Import { line: star.span().start().line, target: "*".into() });
        }
        Some(TokenTree::Group(group)) => {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            let comma = |t: &TokenTree| matches!(t, TokenTree::Punct(p) if p.as_char() == ',');
            inner.split(comma).for_each(|path| targets(path, base, found));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets_of(source: &str, module: &[&str]) -> Vec<String> {
        let module: Vec<String> = module.iter().map(|&name| name.to_owned()).collect();
        imports(source, &module).unwrap().into_iter().map(|import| import.target).collect()
    }

    #[test]
    fn paths_from_the_root() {
        assert_eq!(targets_of("use crate::a::b;", &["x"]), ["a"]);
        assert_eq!(targets_of("use crate::{a::{b, c}, d};", &["x"]), ["a", "d"]);
        assert_eq!(targets_of("fn f() { crate::a::f(crate::b::C) }", &["x"]), ["a", "b"]);
        assert_eq!(targets_of("macro_rules! m { () => { $crate::a::b() } }", &["x"]), ["a"]);
        assert_eq!(targets_of("m! { x => crate::a::b }", &["x"]), ["a"]);
        assert_eq!(targets_of("$crate::m!(crate::a::b)", &["x"]), ["a"]);
        assert_eq!(targets_of("pub(crate) fn f() {} pub(super) use y::z;", &["x"]), [""; 0]);
    }

    #[test]
    fn paths_from_the_parents() {
        assert_eq!(targets_of("use super::b;", &["x"]), ["b"]);
        assert_eq!(targets_of("use super::{b, c::d};", &["x"]), ["b", "c"]);
        assert_eq!(targets_of("use super::b;", &["x", "y"]), ["x"]);
        assert_eq!(targets_of("use super::super::b;", &["x", "y"]), ["b"]);
        assert_eq!(targets_of("mod z { use super::super::b; }", &["x"]), ["b"]);
    }

    #[test]
    fn all_of_the_root() {
        assert_eq!(targets_of("use crate::*; use super::{a, *};", &["x"]), ["*", "a", "*"]);
        assert_eq!(targets_of("use crate as root;", &["x"]), ["*"]);
        assert_eq!(targets_of("use super::*;", &["x", "y"]), ["x"]);
    }

    #[test]
    fn tests_may_import_everything() {
        let source = "#[cfg(test)] use crate::{a, b}; use crate::c;
            #[cfg(test)] mod tests { use crate::d; } fn f() -> crate::e::E {}
            #[cfg(all(test, not(loom)))] mod more { use crate::f; } #[cfg(test)] mod g; use crate::h;";
        assert_eq!(targets_of(source, &["x"]), ["c", "e", "h"]);
    }

    #[test]
    fn lines_count_from_one() {
        assert_eq!(imports("\n\nuse crate::a;", &[]).unwrap()[0].line, 3);
    }

    #[test]
    fn modules_of_files() {
        for (file, module) in [("lib.rs", ""), ("a.rs", "a"), ("a/mod.rs", "a"), ("a/b.rs", "a b")]
        {
            assert_eq!(module_path(Path::new(file)).join(" "), module);
        }
    }
}
