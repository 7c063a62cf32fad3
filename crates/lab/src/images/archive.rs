// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mirror from which this machine gets Debian's archive.
//!
//! The lab asks apt (`apt-get indextargets`) instead of reading its files, which come in two
//! formats with options and mirror lists. It uses the mirror that the machine uses for Debian's
//! packages.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// Releases whose kernels and programs the lab uses, oldest first.
pub const SUITES: [&str; 4] = ["bookworm", "bookworm-backports", "trixie", "trixie-backports"];

/// Kernels of Debian 12 that are newer than its last point release.
pub const SECURITY_SUITE: &str = "bookworm-security";

/// The release that the lab's programs come from.
pub const TOOLS_SUITE: &str = "trixie";

/// The machine's mirrors, as apt writes them.
#[derive(Clone, Debug, PartialEq)]
pub struct Mirrors {
    pub main: String,
    pub security: Option<String>,
}

/// Chooses from the output of `apt-get indextargets`.
///
/// Before the first `apt-get update` apt knows only the entry of a source, not its label: then the
/// release name decides.
pub fn mirrors(indextargets: &str) -> Option<Mirrors> {
    let targets: Vec<Target> = indextargets.split("\n\n").filter_map(Target::parse).collect();
    let by_label = |label: &str| targets.iter().find(|t| t.origin == "Debian" && t.label == label);
    let by_name = |name: fn(&str) -> bool| {
        targets.iter().find(|t| t.origin.is_empty() && t.component == "main" && name(t.release))
    };
    let main = by_label("Debian").or_else(|| by_name(is_main_suite))?;
    let security = by_label("Debian-Security").or_else(|| by_name(is_security_suite));
    Some(Mirrors { main: main.uri.into(), security: security.map(|t| t.uri.into()) })
}

/// The keyring that verifies the archive.
pub fn keyring() -> Result<PathBuf> {
    ["debian-archive-keyring.gpg", "debian-archive-keyring.pgp"]
        .iter()
        .map(|name| Path::new("/usr/share/keyrings").join(name))
        .find(|path| path.exists())
        .ok_or_else(|| {
            Error::missing(
                "the keyring of Debian's archive",
                "install the package debian-archive-keyring (`make setup` does)",
            )
        })
}

struct Target<'a> {
    uri: &'a str,
    release: &'a str,
    origin: &'a str,
    label: &'a str,
    component: &'a str,
}

impl<'a> Target<'a> {
    fn parse(stanza: &'a str) -> Option<Target<'a>> {
        let field = |name: &str| {
            stanza
                .lines()
                .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))
                .map(str::trim)
                .filter(|v| !v.is_empty())
        };
        (field("Created-By") == Some("Packages") && field("Target-Of") == Some("deb"))
            .then_some(())?;
        Some(Target {
            uri: field("Repo-URI")?,
            release: field("Release").unwrap_or_default(),
            origin: field("Origin").unwrap_or_default(),
            label: field("Label").unwrap_or_default(),
            component: field("Component").unwrap_or_default(),
        })
    }
}

fn is_main_suite(name: &str) -> bool {
    let base = name.split('-').next().unwrap_or(name);
    let known =
        ["bookworm", "trixie", "forky", "sid", "oldstable", "stable", "testing", "unstable"];
    known.contains(&base) && !is_security_suite(name)
}

fn is_security_suite(name: &str) -> bool {
    name.ends_with("-security") || name.ends_with("/updates")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stanza(uri: &str, release: &str, origin: &str, label: &str) -> String {
        let known = match origin {
            "" => String::new(),
            _ => format!("Origin: {origin}\nLabel: {label}\n"),
        };
        format!(
            "MetaKey: main/binary-amd64/Packages\n{known}Component: main\nCreated-By: Packages\nRelease: {release}\nRepo-URI: {uri}\nTarget-Of: deb\n"
        )
    }

    #[test]
    fn the_archive_is_told_from_other_sources() {
        let text = [
            stanza("http://vendor.example/apt/", "stable", "Vendor", "Vendor"),
            stanza("http://mirror.example/debian-security/", "x", "Debian", "Debian-Security"),
            stanza("mirror+file:/etc/apt/mirrors.txt", "bookworm", "Debian", "Debian"),
        ]
        .join("\n");
        let found = mirrors(&text).unwrap();
        assert_eq!(found.main, "mirror+file:/etc/apt/mirrors.txt");
        assert_eq!(found.security.as_deref(), Some("http://mirror.example/debian-security/"));
    }

    #[test]
    fn sources_never_fetched_are_known_by_their_suite() {
        let text = [
            stanza("http://vendor.example/apt/", "vendor-bookworm", "", ""),
            stanza("http://mirror.example/debian-security/", "bookworm-security", "", ""),
            stanza("http://mirror.example/debian/", "bookworm-updates", "", ""),
        ]
        .join("\n");
        let found = mirrors(&text).unwrap();
        assert_eq!(found.main, "http://mirror.example/debian/");
        assert_eq!(found.security.as_deref(), Some("http://mirror.example/debian-security/"));
        assert_eq!(mirrors("").map(|m| m.main), None);
    }
}
