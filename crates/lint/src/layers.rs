// SPDX-License-Identifier: MIT OR Apache-2.0
//! Holds the direction of imports: between crates, and between the top-level modules of a crate.
//!
//! `layers.txt` has one part per scope. A line is a layer; lower layers come first; modules on one
//! line do not import each other. Then the exceptions, each with its reason:
//!
//! ```text
//! [crates/x/src]
//! bottom
//! left right
//! top
//! allow left/file.rs -> top: why it has to
//! ```
//!
//! Every crate and every module has to be listed, every exception has to be in use. A file in
//! `src` itself (`error.rs`) is a module like a folder; `lib.rs` and `main.rs` see everything.

use crate::Finding;
use crate::imports::{imports, module_path};
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The scope of the workspace's crates, by package name.
const CRATES: &str = "crates";

/// All of `layers.txt`.
#[derive(Debug)]
pub struct Layers {
    scopes: Vec<Scope>,
}

/// A set of names and their layers.
#[derive(Debug)]
struct Scope {
    /// [`CRATES`], or the path of a crate's sources.
    name: String,
    layer: BTreeMap<String, usize>,
    allowed: Vec<Exception>,
}

/// An import against the direction that is wanted all the same.
#[derive(Debug)]
struct Exception {
    /// Relative to the scope.
    file: String,
    target: String,
}

impl Layers {
    pub fn parse(text: &str) -> Result<Layers> {
        let mut scopes: Vec<Scope> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                let (layer, allowed) = (BTreeMap::new(), Vec::new());
                scopes.push(Scope { name: name.to_owned(), layer, allowed });
                continue;
            }
            let scope = scopes.last_mut().context("layers.txt: begins without a [scope]")?;
            scope.add(line).with_context(|| format!("layers.txt:{}: `{line}`", number + 1))?;
        }
        Ok(Layers { scopes })
    }

    /// Checks all scopes but [`CRATES`], in the repository `root`.
    pub fn check_folders(&self, root: &Path) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        for scope in self.scopes.iter().filter(|scope| scope.name != CRATES) {
            scope.check_folder(root, &mut findings)?;
        }
        Ok(findings)
    }

    /// Checks `edges`: crate, imported crate.
    pub fn check_crates(&self, edges: &[(String, String)]) -> Vec<Finding> {
        let mut findings = Vec::new();
        let file = Path::new("Cargo.toml");
        let crates = self.scopes.iter().find(|scope| scope.name == CRATES);
        for (from, to) in edges {
            let message = match crates {
                None => Some(format!("layers.txt has no [{CRATES}]")),
                Some(scope) => scope.objection(from, to),
            };
            findings.extend(message.map(|message| finding(file, 0, message)));
        }
        findings
    }
}

impl Scope {
    /// Adds a line: a layer or an exception.
    fn add(&mut self, line: &str) -> Result<()> {
        if let Some(rest) = line.strip_prefix("allow ") {
            let (import, reason) = rest.split_once(':').context("an exception needs `: REASON`")?;
            let (file, target) = import.split_once("->").context("FILE -> MODULE is missing")?;
            ensure!(!reason.trim().is_empty(), "an exception needs a reason");
            let (file, target) = (file.trim().to_owned(), target.trim().to_owned());
            self.allowed.push(Exception { file, target });
            return Ok(());
        }
        let next = self.layer.values().max().map_or(0, |last| last + 1);
        for name in line.split_whitespace() {
            if self.layer.insert(name.to_owned(), next).is_some() {
                bail!("`{name}` is listed twice");
            }
        }
        Ok(())
    }

    /// The objection to an import of `to` by `from`, if anything.
    fn objection(&self, from: &str, to: &str) -> Option<String> {
        let [low, high] = [to, from].map(|name| self.layer.get(name));
        match (low, high) {
            (None, _) => Some(format!("`{to}` is not in layers.txt, [{}]", self.name)),
            (_, None) => Some(format!("`{from}` is not in layers.txt, [{}]", self.name)),
            (Some(low), Some(high)) if from != to && low >= high => Some(format!(
                "`{from}` imports `{to}`, which is not below it: layers.txt, [{}]",
                self.name
            )),
            _ => None,
        }
    }

    /// Checks the sources in the folder that the scope is named after.
    fn check_folder(&self, root: &Path, findings: &mut Vec<Finding>) -> Result<()> {
        let folder = Path::new(&self.name);
        let mut used = BTreeSet::new();
        let mut modules = BTreeSet::new();
        for file in sources(&root.join(folder))? {
            let path = folder.join(&file);
            let module = module_path(&file);
            // The root module declares the others; that is no import.
            let Some(from) = module.first() else { continue };
            modules.insert(from.clone());
            let source =
                fs::read_to_string(root.join(&path)).with_context(|| path.display().to_string())?;
            let imports = imports(&source, &module).with_context(|| path.display().to_string())?;
            for import in imports {
                let exception = self.allowed.iter().position(|exception| {
                    Path::new(&exception.file) == file && exception.target == import.target
                });
                match self.objection(from, &import.target) {
                    Some(_) if exception.is_some() => used.extend(exception),
                    Some(message) => findings.push(finding(&path, import.line, message)),
                    None => {}
                }
            }
        }
        for name in self.layer.keys().filter(|name| !modules.contains(*name)) {
            let message = format!("layers.txt, [{}]: there is no module `{name}`", self.name);
            findings.push(finding(folder, 0, message));
        }
        for name in modules.iter().filter(|name| !self.layer.contains_key(*name)) {
            let message = format!("`{name}` is not in layers.txt, [{}]", self.name);
            findings.push(finding(folder, 0, message));
        }
        for (i, exception) in self.allowed.iter().enumerate().filter(|(i, _)| !used.contains(i)) {
            let message = format!(
                "layers.txt, [{}], exception {}: nothing needs it; remove it",
                self.name,
                i + 1
            );
            findings.push(finding(&folder.join(&exception.file), 0, message));
        }
        Ok(())
    }
}

fn finding(file: &Path, line: usize, message: String) -> Finding {
    Finding { file: file.to_owned(), line, message }
}

/// The Rust files in `folder` and its folders, relative to it; files of tests alone are left out.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).with_context(|| next.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                if name != "tests" && !name.ends_with("_tests") {
                    files.push(path.strip_prefix(folder)?.to_owned());
                }
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: &str = "[crates/x/src]\nlow\nleft right\nhigh # the top\n";

    /// The findings in a crate with these files, after the layers `layers`.
    fn check(layers: &str, files: &[(&str, &str)]) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join("crates/x/src").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let findings = Layers::parse(layers).unwrap().check_folders(root.path()).unwrap();
        let text = |f: Finding| format!("{}:{}: {}", f.file.display(), f.line, f.message);
        findings.into_iter().map(text).collect()
    }

    /// A crate whose imports all point downwards, but for `left/mod.rs`.
    fn files(left: &str) -> [(&'static str, &str); 5] {
        [
            ("lib.rs", "mod high; mod low; pub use high::X;"),
            ("low.rs", ""),
            ("left/mod.rs", left),
            ("right/mod.rs", "use crate::low;"),
            ("high/inner.rs", "use crate::{left, right}; use super::other; use crate::high::y;"),
        ]
    }

    #[test]
    fn imports_that_point_downwards_pass() {
        assert_eq!(check(LAYERS, &files("use super::low;")), [""; 0]);
    }

    #[test]
    fn an_arrow_turned_round_is_found() {
        for (import, target) in [("crate::high", "high"), ("super::right", "right")] {
            let source = format!("\nuse {import};");
            let found = check(LAYERS, &files(&source));
            assert_eq!(found.len(), 1, "{found:?}");
            let expected = format!("crates/x/src/left/mod.rs:2: `left` imports `{target}`");
            assert!(found[0].starts_with(&expected), "{found:?}");
        }
        // The same arrows, with the layers turned round.
        let turned = "[crates/x/src]\nhigh\nleft right\nlow\n";
        assert_eq!(check(turned, &files("use super::low;")).len(), 4);
    }

    #[test]
    fn exceptions_are_needed_or_reported() {
        let allowed = format!("{LAYERS}allow left/mod.rs -> high: on purpose\n");
        assert_eq!(check(&allowed, &files("use crate::high;")), [""; 0]);
        let found = check(&allowed, &files(""));
        assert!(found.len() == 1 && found[0].contains("nothing needs it"), "{found:?}");
    }

    #[test]
    fn modules_that_nobody_listed_are_found() {
        let found = check("[crates/x/src]\nlow\nleft right\n", &files(""));
        assert!(found.iter().any(|line| line.contains("`high` is not in layers.txt")), "{found:?}");
        let found = check(&format!("{LAYERS}more\n"), &files(""));
        assert!(found.len() == 1 && found[0].contains("no module `more`"), "{found:?}");
        // An item of the crate's root is above everything.
        let found = check(LAYERS, &files("use crate::X;"));
        assert!(found.len() == 1 && found[0].contains("`X` is not in layers.txt"), "{found:?}");
    }

    #[test]
    fn crates_have_layers_as_well() {
        let layers = Layers::parse("[crates]\nlow\nhigh\n").unwrap();
        let edge = |from: &str, to: &str| (from.to_owned(), to.to_owned());
        let good = [edge("low", "low"), edge("high", "low"), edge("high", "high")];
        assert_eq!(layers.check_crates(&good).len(), 0);
        assert_eq!(layers.check_crates(&[edge("low", "high"), edge("new", "low")]).len(), 2);
    }

    #[test]
    fn mistakes_in_the_list_are_named() {
        for text in ["low\n", "[x]\na\na\n", "[x]\nallow a.rs -> b\n", "[x]\nallow a.rs: why\n"] {
            assert!(Layers::parse(text).is_err(), "{text}");
        }
    }

    /// The real list and the real tree: turned round, the check fails in every scope.
    #[test]
    fn the_real_layers_turned_round_are_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let mut layers = Layers::parse(include_str!("../layers.txt")).unwrap();
        layers.scopes.retain(|scope| scope.name != CRATES);
        assert!(!layers.scopes.is_empty());
        for scope in layers.scopes {
            let mut findings = Vec::new();
            scope.check_folder(root, &mut findings).unwrap();
            assert!(findings.is_empty(), "{findings:?}");
            let top = scope.layer.values().max().unwrap();
            if *top == 0 {
                continue; // Independent modules: no arrow to turn.
            }
            let layer = scope.layer.iter().map(|(name, layer)| (name.clone(), top - layer));
            let turned = Scope { layer: layer.collect(), allowed: Vec::new(), ..scope };
            turned.check_folder(root, &mut findings).unwrap();
            assert!(!findings.is_empty(), "{}", turned.name);
        }
    }
}
