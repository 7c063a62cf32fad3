// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stock kernels that Debian offers, newest first.
//!
//! A kernel comes as one package (`linux-image-REL`), or as three (`linux-binary-REL` or
//! `linux-binary-unsigned-REL`, and `linux-modules-REL`, with the configuration in
//! `linux-base-REL`; then `linux-image-REL` is empty). Only the cloud flavour is used, the smallest
//! one with virtio and KVM. Archives keep images whose headers or modules were removed, so both are
//! looked for.

use super::Context;
use super::apt::{Apt, Stanza};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A kernel that can be fetched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// `uname -r` of the kernel.
    pub release: String,
    /// Version of its packages.
    pub version: String,
    /// Packages that hold the kernel and its modules.
    pub image: Vec<String>,
    /// Packages that a module build needs; empty where there are none.
    pub headers: Vec<String>,
}

const FLAVOUR: &str = "-cloud-amd64";

/// Reads the offers from apt's lists, newest first.
pub fn read(apt: &Apt, cx: &Context) -> Result<Vec<Offer>> {
    let pattern = "^linux-(image|binary|binary-unsigned|modules|base|headers)-[0-9].*-cloud-amd64(-unsigned)?$";
    let offers = offers(&apt.find(pattern, cx)?);
    if offers.is_empty() {
        return Err(Error::missing(
            "a Linux kernel package in the mirror's lists",
            "check that the mirror carries bookworm and trixie for amd64",
        ));
    }
    Ok(offers)
}

/// The newest offer that `wanted` (`7`, `6.12`, `6.1.176`) is a prefix of; one with headers, if
/// there is any.
pub fn choose<'a>(offers: &'a [Offer], wanted: &str) -> Option<&'a Offer> {
    let mut fitting =
        offers.iter().filter(|o| has_prefix(&o.release, wanted) || has_prefix(&o.version, wanted));
    let first = fitting.clone().next();
    fitting.find(|o| !o.headers.is_empty()).or(first)
}

fn offers(packages: &[Stanza]) -> Vec<Offer> {
    let by_name: BTreeMap<&str, &Stanza> =
        packages.iter().filter_map(|p| Some((p.get("Package")?.as_str(), p))).collect();
    // `linux-image-6.12-cloud-amd64` depends on the newest 6.12, which has an offer of its own.
    let by_name: BTreeMap<&str, &Stanza> =
        by_name.into_iter().filter(|(_, p)| !is_meta(p)).collect();
    let has = |name: &String| by_name.contains_key(name.as_str());
    let releases: std::collections::BTreeSet<&str> =
        by_name.keys().filter_map(|name| release_of(name)).collect();
    let mut all: Vec<Offer> = releases
        .into_iter()
        .filter_map(|release| {
            let name = |prefix: &str| format!("linux-{prefix}-{release}");
            let binary = [name("binary"), name("binary-unsigned")].into_iter().find(has);
            let modules = Some(name("modules")).filter(has);
            let whole =
                [name("image"), format!("{}-unsigned", name("image"))].into_iter().find(has);
            let image = match (binary, modules) {
                (Some(binary), Some(modules)) => {
                    [binary, modules].into_iter().chain(Some(name("base")).filter(has)).collect()
                }
                (None, None) => vec![whole?],
                _ => return None,
            };
            let version = by_name[image[0].as_str()].get("Version")?.clone();
            let headers = name("headers");
            let headers = by_name.get(headers.as_str()).map(|p| header_packages(&headers, p));
            let headers = headers.unwrap_or_default();
            Some(Offer { release: release.into(), version, image, headers })
        })
        .collect();
    all.sort_by_key(|offer| std::cmp::Reverse((numbers(&offer.version), numbers(&offer.release))));
    all
}

/// The numbers in a kernel's version, by which Debian's kernels are in order.
pub fn numbers(version: &str) -> Vec<u64> {
    let parts = version.split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

/// Whether `version` is `prefix` or continues it with a new component: `6.1` is a prefix of
/// `6.1.0-50`, not of `6.12`.
fn has_prefix(version: &str, prefix: &str) -> bool {
    let rest = version.strip_prefix(prefix);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

fn is_meta(package: &Stanza) -> bool {
    let field = |name: &str| package.get(name).map(String::as_str).unwrap_or_default();
    field("Package").starts_with("linux-image-")
        && field("Depends").split(", ").any(|d| d.starts_with("linux-image-"))
}

fn release_of(package: &str) -> Option<&str> {
    let rest = package.strip_prefix("linux-")?;
    let rest =
        ["image-", "binary-unsigned-", "binary-"].iter().find_map(|p| rest.strip_prefix(p))?;
    let release = rest.strip_suffix("-unsigned").unwrap_or(rest);
    release.ends_with(FLAVOUR).then_some(release)
}

/// The headers package, and the packages of headers and build tools that it depends on.
fn header_packages(name: &str, package: &Stanza) -> Vec<String> {
    let depends = package.get("Depends").map(String::as_str).unwrap_or_default();
    let needed = depends
        .split(',')
        .filter_map(|d| d.split_whitespace().next())
        .filter(|d| d.starts_with("linux-headers-") || d.starts_with("linux-kbuild-"));
    std::iter::once(name).chain(needed).map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, depends: &str) -> Stanza {
        [("Package", name), ("Version", version), ("Depends", depends)]
            .into_iter()
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .collect()
    }

    fn archive() -> Vec<Offer> {
        offers(&[
            package("linux-image-6.1.0-47-cloud-amd64", "6.1.170-3", ""),
            package("linux-image-6.1.0-50-cloud-amd64", "6.1.176-1", ""),
            package("linux-image-6.1.0-50-cloud-amd64-unsigned", "6.1.176-1", ""),
            package(
                "linux-headers-6.1.0-50-cloud-amd64",
                "6.1.176-1",
                "linux-headers-6.1.0-50-common (= 6.1.176-1), linux-kbuild-6.1 (>= 6.1.176-1), linux-compiler-gcc-12-x86",
            ),
            package("linux-image-6.12.95+deb12-cloud-amd64", "6.12.95-1~bpo12+1", ""),
            package("linux-headers-6.12.95+deb12-cloud-amd64", "6.12.95-1~bpo12+1", ""),
            package("linux-image-6.12.99+deb12-cloud-amd64", "6.12.99-1~bpo12+1", ""),
            package(
                "linux-image-6.12-cloud-amd64",
                "6.12.99-1~bpo12+1",
                "linux-image-6.12.99+deb12-cloud-amd64 (= 6.12.99-1~bpo12+1)",
            ),
            // Its modules are gone from the archive.
            package("linux-binary-7.1.3+deb13-cloud-amd64", "7.1.3-1~bpo13+1", ""),
            package("linux-image-7.1.3+deb13-cloud-amd64", "7.1.3-1~bpo13+1", ""),
            package("linux-binary-unsigned-7.3.4+deb13-cloud-amd64", "7.3.4-1~bpo13+1", ""),
            package("linux-modules-7.3.4+deb13-cloud-amd64", "7.3.4-1~bpo13+1", ""),
            package("linux-base-7.3.4+deb13-cloud-amd64", "7.3.4-1~bpo13+1", ""),
        ])
    }

    #[test]
    fn offers_are_complete_and_newest_first() {
        let all = archive();
        let versions: Vec<&str> = all.iter().map(|o| o.version.as_str()).collect();
        let sorted =
            ["7.3.4-1~bpo13+1", "6.12.99-1~bpo12+1", "6.12.95-1~bpo12+1", "6.1.176-1", "6.1.170-3"];
        assert_eq!(versions, sorted);
        assert_eq!(all[0].image.len(), 3);
        assert_eq!(
            all[3].headers,
            [
                "linux-headers-6.1.0-50-cloud-amd64",
                "linux-headers-6.1.0-50-common",
                "linux-kbuild-6.1"
            ]
        );
    }

    #[test]
    fn the_newest_fitting_kernel_with_headers_is_chosen() {
        let all = archive();
        let release = |wanted: &str| choose(&all, wanted).map(|o| o.release.as_str());
        assert_eq!(release("6.1"), Some("6.1.0-50-cloud-amd64"));
        assert_eq!(release("6.1.170"), Some("6.1.0-47-cloud-amd64"));
        assert_eq!(release("6.12"), Some("6.12.95+deb12-cloud-amd64"));
        assert_eq!(release("6.12.99"), Some("6.12.99+deb12-cloud-amd64"));
        assert_eq!(release("7"), Some("7.3.4+deb13-cloud-amd64"));
        assert_eq!(release("7.1"), None);
    }

    #[test]
    fn versions_are_in_order_and_prefixes_end_with_a_component() {
        let sorted = ["6.1.170-3", "6.1.176-1", "6.12.9-1", "6.12.95-1~bpo12+1", "6.12.107-1+b1"];
        assert!(sorted.is_sorted_by_key(|version| numbers(version)));
        assert!(has_prefix("6.1.0-50-cloud-amd64", "6.1") && has_prefix("7.3.4", "7.3.4"));
        assert!(!has_prefix("6.12.95", "6.1") && !has_prefix("16.1", "6.1"));
    }
}
