// SPDX-License-Identifier: MIT OR Apache-2.0
//! Labels that name a series: `vm`, `cgroup`.

use crate::show::text::plain;
use std::collections::HashMap;

/// A name for each of `named`, by its number and its own name. Prometheus refuses a page on which
/// two series are the same, so those that share a name get their number appended, which is called
/// `what` (`pid`). So do those whose own name looks as if it were made here.
pub fn unique<'a>(what: &str, named: impl Iterator<Item = (u64, &'a str)>) -> Vec<String> {
    let named: Vec<(u64, String)> = named.map(|(id, name)| (id, plain(name))).collect();
    let mut uses: HashMap<&str, u32> = HashMap::new();
    named.iter().for_each(|(_, name)| *uses.entry(name).or_default() += 1);
    let made = format!(" ({what} ");
    let name = |(id, name): &(u64, String)| match uses[name.as_str()] > 1 || name.contains(&made) {
        true => format!("{name}{made}{id})"),
        false => name.clone(),
    };
    named.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::unique;

    #[test]
    fn no_name_is_used_twice() {
        let names = |vms: &[(u64, &str)]| unique("pid", vms.iter().copied());
        assert_eq!(names(&[(1, "a"), (2, "b")]), ["a", "b"]);
        assert_eq!(
            names(&[(1, "a"), (2, "a"), (3, "a (pid 2)"), (4, "b")]),
            ["a (pid 1)", "a (pid 2)", "a (pid 2) (pid 3)", "b"]
        );
    }
}
