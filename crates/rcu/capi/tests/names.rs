// SPDX-License-Identifier: MIT OR Apache-2.0
//! Name by name: what liburcu's installed headers define outside the data structures, `compat`
//! defines as well, or it is on the list below with a reason.
//!
//! The preprocessor's own output is read (`-E -dD`): each line with the file that it comes from. A
//! name is a macro's, or that of a function, variable, structure or type at the outermost level.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The headers that are replaced.
const HEADERS: [&str; 31] = [
    "urcu.h",
    "urcu-bp.h",
    "urcu-call-rcu.h",
    "urcu-defer.h",
    "urcu-flavor.h",
    "urcu-pointer.h",
    "urcu-qsbr.h",
    "urcu/annotate.h",
    "urcu/arch.h",
    "urcu/assert.h",
    "urcu/call-rcu.h",
    "urcu/compiler.h",
    "urcu/config.h",
    "urcu/debug.h",
    "urcu/defer.h",
    "urcu/flavor.h",
    "urcu/hlist.h",
    "urcu/list.h",
    "urcu/pointer.h",
    "urcu/rcuhlist.h",
    "urcu/rculist.h",
    "urcu/ref.h",
    "urcu/system.h",
    "urcu/tls-compat.h",
    "urcu/uatomic.h",
    "urcu/urcu-bp.h",
    "urcu/urcu-mb.h",
    "urcu/urcu-memb.h",
    "urcu/urcu-qsbr.h",
    "urcu/urcu-signal.h",
    "urcu/urcu.h",
];

/// Headers of liburcu's that are used as they are installed, beside ours: data structures, and
/// helpers that have nothing to do with RCU. What a replaced header defines by way of them does not
/// count.
const KEPT: [&str; 5] =
    ["urcu/wfcqueue.h", "static/wfcqueue.h", "urcu/futex.h", "syscall-compat.h", "urcu-futex.h"];

/// Whether a name is left out, and why.
fn left_out(name: &str) -> Option<&'static str> {
    let begins = |list: &[&str]| list.iter().any(|p| name.starts_with(p));
    let ends = |list: &[&str]| list.iter().any(|p| name.ends_with(p));
    let has = |list: &[&str]| list.iter().any(|p| name.contains(p));
    let is = |list: &[&str]| list.contains(&name);
    if begins(&["_"]) && ends(&["_H"]) {
        return Some("an include guard");
    }
    if is(&["URCU_API_MAP"]) {
        return Some("the program's own choice, which our headers only ask for");
    }
    if ends(&["_memb", "_mb", "_bp", "_qsbr", "_sig"]) && !begins(&["cmm_"])
        || begins(&["rcu_memb_", "rcu_mb_", "rcu_qsbr_", "rcu_sig_"])
    {
        return Some("<urcu/map/*.h>: compatibility with \"prior undocumented\" names");
    }
    if has(&["GP_COUNT", "GP_CTR", "GP_ONLINE", "has_sys_membarrier", "smp_mb_slave"])
        || ends(&["_gp", "_reader", "_reader_state", "_update", "_update_and_wakeup"])
        || is(&["urcu_state", "urcu_bp_state", "urcu_bp_register", "urcu_common_wake_up_gp"])
    {
        return Some(
            "the state of liburcu's readers and grace periods, which its inline code uses",
        );
    }
    if is(&["_Static_assert", "__aligned__"]) {
        return Some("a word of the language");
    }
    if is(&["CONFIG_RCU_EMIT_LEGACY_MB"]) {
        return Some("how liburcu was configured");
    }
    if begins(&["_cmm_", "_CMM_", "_UATOMIC_HAS_", "cmm_annotate_die", "cmm_annotate_dereference"])
        || begins(&["_uatomic_"]) && !has(&["and", "or", "inc", "dec", "add", "xchg"])
    {
        return Some("a part of a macro of 0.15");
    }
    if begins(&["__hp", "__uatomic_"])
        || is(&["_uatomic_link_error", "UATOMIC_COMPAT", "__URCU_DEREFERENCE_USE_ATOMIC_CONSUME"])
    {
        return Some("a part of a macro");
    }
    if is(&["__cds_list_del"]) {
        return Some("a part of cds_list_del");
    }
    if is(&["rcu_yield_active", "rcu_rand_yield"]) {
        return Some("a hook of liburcu's own tests");
    }
    is(&["SIGRCU"]).then_some("the signal of the signal flavor; no signal is used here")
}

/// The names that `header` defines in files whose path `counts`. `None`: there is no such header.
fn names(
    header: &str,
    options: &[String],
    counts: impl Fn(&str) -> bool,
) -> Option<BTreeSet<String>> {
    let output = Command::new("cc")
        .args(["-E", "-dD", "-include", header, "-x", "c", "/dev/null"])
        .args(options)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        assert!(error.contains("No such file"), "{header}: {error}");
        return None;
    }
    let (mut found, mut code, mut counting) = (BTreeSet::new(), String::new(), false);
    let text = String::from_utf8(output.stdout).unwrap();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("#"), Some(_)) => counting = line.split('"').nth(1).is_some_and(&counts),
            (Some("#define"), Some(name)) if counting => {
                found.insert(name.split('(').next().unwrap().to_owned());
            }
            (Some("#undef"), Some(name)) if counting => {
                found.remove(name);
            }
            _ if counting && !line.starts_with('#') => code += &(line.to_owned() + "\n"),
            _ => {}
        }
    }
    declared(&code, &mut found);
    Some(found)
}

/// Adds the names of declarations at the outermost level to `found`.
fn declared(code: &str, found: &mut BTreeSet<String>) {
    let mut tokens: Vec<String> = vec![];
    let (mut depth, mut quoted) = (0, false);
    for c in code.chars() {
        match c {
            '"' => quoted = !quoted,
            _ if quoted => {}
            '{' => {
                depth += 1;
                if depth == 1 {
                    tokens.push("{".into());
                }
            }
            '}' => {
                depth -= 1;
            }
            _ if depth > 0 => {}
            _ if c == '_' || c.is_alphanumeric() => {
                match tokens
                    .last_mut()
                    .filter(|t| t.ends_with(|l: char| l == '_' || l.is_alphanumeric()))
                {
                    Some(token) => token.push(c),
                    None => tokens.push(c.into()),
                }
            }
            _ => tokens.push(c.into()),
        }
    }
    tokens.retain(|t| !t.trim().is_empty());
    for window in tokens.windows(2) {
        let name = &window[0];
        let keyword = ["struct", "union", "enum", "extern", "aligned"].contains(&name.as_str());
        let word = !keyword && name.starts_with(|c: char| c == '_' || c.is_alphabetic());
        let (function, object) = (window[1] == "(", window[1] == ";" || window[1] == "{");
        if word && (function || object) && !name.starts_with("__attribute") {
            found.insert(name.clone());
        }
    }
}

/// Names that liburcu 0.15.2 (Debian 13) has and 0.13 lacks, in the form `header: name`.
/// `REPRIEVE_LIBURCU=INCLUDE_DIRECTORY cargo test -p reprieve-capi --test names -- --ignored`
/// writes the list, where 0.13 is installed.
const NEWER: &str = "tests/liburcu-0.15.2.txt";

const MODES: [&[&str]; 2] = [&["-DURCU_API_MAP"], &["-DURCU_API_MAP", "-D_LGPL_SOURCE"]];

fn options(mode: &[&str]) -> Vec<String> {
    mode.iter().map(|option| option.to_string()).collect()
}

/// Names that liburcu's own header defines. An included header that is replaced, too, is compared
/// under its own name.
fn theirs(header: &str, options: &[String]) -> Option<BTreeSet<String>> {
    names(header, options, |file| {
        let own = file.ends_with(&format!("/{header}"));
        let part = ["/urcu/map/", "/urcu/arch/", "/urcu/uatomic/", "/urcu/static/"]
            .iter()
            .any(|p| file.contains(p));
        (own || part) && !KEPT.iter().any(|k| file.ends_with(k))
    })
}

fn ours(header: &str, mode: &[&str]) -> BTreeSet<String> {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include");
    let ours = [
        format!("-I{}", include.join("reprieve/compat").display()),
        format!("-I{}", include.display()),
    ];
    // liburcu's headers for no flavor declare functions that none of its libraries has, until the
    // header of a flavor maps their names: ours wait for that.
    let flavor = ["-include".to_string(), "urcu.h".to_string()];
    // Names are mapped to a single flavor, and `<urcu.h>` is not of qsbr.
    let flavor = if header.contains("qsbr") { &[][..] } else { &flavor[..] };
    let options = [&options(mode)[..], &ours[..], flavor].concat();
    names(header, &options, |file| file.contains("/reprieve/")).unwrap()
}

#[test]
fn every_name_of_liburcu_is_here_or_left_out_for_a_reason() {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join(NEWER);
    let list = std::fs::read_to_string(list).unwrap();
    let mut missing = BTreeSet::new();
    let mut compared = 0;
    for header in HEADERS {
        let newer = list.lines().filter_map(|line| line.split_once(": "));
        let newer: BTreeSet<String> =
            newer.filter(|(h, _)| *h == header).map(|(_, name)| name.to_string()).collect();
        let mut here = BTreeSet::new();
        for mode in MODES {
            let own = ours(header, mode);
            if let Some(theirs) = theirs(header, &options(mode)) {
                compared += theirs.len();
                let lacking = theirs.difference(&own).filter(|name| left_out(name).is_none());
                missing.extend(lacking.map(|name| format!("{header}: {name}")));
            }
            here.extend(own);
        }
        compared += newer.len();
        let lacking = newer.difference(&here).filter(|name| left_out(name).is_none());
        missing.extend(lacking.map(|name| format!("{header} of 0.15: {name}")));
    }
    println!("{compared} names compared");
    assert!(missing.is_empty(), "neither defined nor left out: {missing:#?}");
}

#[test]
#[ignore = "needs another version's headers: see NEWER"]
fn write_the_list() {
    let Ok(directory) = std::env::var("REPRIEVE_LIBURCU") else {
        return println!(
            "skipped: no REPRIEVE_LIBURCU, the directory of another version's headers"
        );
    };
    let mut found = BTreeSet::new();
    for (header, mode) in HEADERS.iter().flat_map(|h| MODES.map(|mode| (h, mode))) {
        let newer = [options(mode), vec![format!("-I{directory}")]].concat();
        let known = theirs(header, &options(mode)).unwrap_or_default();
        let names = theirs(header, &newer).unwrap_or_default();
        let names = names.difference(&known).filter(|name| left_out(name).is_none());
        found.extend(names.map(|name| format!("{header}: {name}\n")));
    }
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join(NEWER);
    std::fs::write(list, found.into_iter().collect::<String>()).unwrap();
}

/// The list above has nothing on it that a program may need.
#[test]
fn what_is_left_out_is_no_documented_name() {
    for name in [
        "rcu_read_lock",
        "_rcu_read_lock",
        "urcu_memb_read_lock",
        "_urcu_qsbr_quiescent_state",
        "rcu_flavor",
        "urcu_bp_flavor",
        "caa_get_cycles",
        "CAA_CACHE_LINE_SIZE",
        "cmm_smp_mb",
        "uatomic_add_return",
        "call_rcu",
        "cmm_mb",
        "rcu_bp_before_fork",
        "urcu_mb_synchronize_rcu",
    ] {
        assert_eq!(left_out(name), None, "{name}");
    }
}
