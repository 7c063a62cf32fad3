// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C interface as its users meet it: installed, found by pkg-config's file, compiled by the C
//! and C++ compilers, linked with either library.
//!
//! Each program in `crates/rcu/tests/c` runs statically and dynamically linked, under sanitizers,
//! and under valgrind where it is installed; its restartable section is verified. Each header's
//! example runs, too.

mod sanitizers;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// `crates/rcu`.
fn rcu() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Builds and installs the package once; the prefix.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let (target, prefix) = (scratch().parent().unwrap(), scratch().join("prefix"));
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--offline", "--release", "--target-dir"]).arg(target);
        run(build.current_dir(env!("CARGO_MANIFEST_DIR")));
        // Files that an earlier version installed must not be found.
        let _ = fs::remove_dir_all(&prefix);
        run(Command::new(rcu().join("scripts/install-c")).arg(target.join("release")).arg(&prefix));
        prefix
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Link {
    Static,
    Shared,
}

/// Compiles; the program.
fn compile(compiler: &str, source: &Path, name: &str, options: &[&str], link: Link) -> PathBuf {
    let program = scratch().join(name);
    let library = prefix().join("lib");
    let mut command = Command::new(compiler);
    command
        .args(["-Wall", "-Wextra", "-Werror", "-g"])
        .args(options)
        .arg("-I")
        .arg(prefix().join("include"));
    command.arg("-o").arg(&program).arg(source);
    match link {
        Link::Static => {
            command.arg(library.join("libreprieve.a")).args(["-lpthread", "-lm", "-ldl"])
        }
        Link::Shared => command
            .arg("-L")
            .arg(&library)
            .arg("-lreprieve")
            .arg(format!("-Wl,-rpath,{}", library.display()))
            .arg("-lpthread"),
    };
    run(&mut command);
    program
}

fn verify(program: &Path) {
    let report = reprieve_verify::verify(&fs::read(program).unwrap()).unwrap();
    assert_eq!(report.findings, [], "{}", program.display());
}

fn source(name: &str) -> PathBuf {
    rcu().join("tests/c").join(name)
}

/// A program in `crates/rcu/tests/c`.
struct Program {
    name: &'static str,
    file: &'static str,
    options: &'static [&'static str],
    /// It has restartable code of its own.
    section: bool,
}

impl Program {
    /// Options of the compiler; `None` if a library that it needs is not installed.
    fn options(&self) -> Option<Vec<String>> {
        let library = if self.file == HASH_TABLE { liburcu_cds()? } else { &[] };
        // Only programs for liburcu have options, and need its headers.
        let compat = (!self.options.is_empty())
            .then(|| format!("-I{}", prefix().join("include/reprieve/compat").display()));
        let options = self.options.iter().chain(library).map(ToString::to_string);
        Some(options.chain(compat).collect())
    }
}

/// A program for liburcu that uses liburcu-cds's own hash table, which is not instrumented.
const HASH_TABLE: &str = "lfht.c";

/// The programs: each is a test, and the sanitizers see each.
macro_rules! programs {
    ($($name:ident: $file:expr, $section:literal, $options:expr;)*) => {
        const PROGRAMS: &[Program] = &[$(Program {
            name: stringify!($name),
            file: $file,
            options: &$options,
            section: $section,
        }),*];
        $(#[test]
        fn $name() {
            every_way(PROGRAMS.iter().find(|program| program.name == stringify!($name)).unwrap());
        })*
    };
}

programs! {
    first: "../../examples/first.c", true, [];
    scan: "scan.c", true, [];
    readers: "readers.c", true, [];
    wait: "wait.c", true, [];
    ordered_map_and_prefix_table: "maps.c", false, [];
    stalled_readers: "stall.c", false, [];
    hints_and_locks: "hint.c", false, [];
    fork_handlers_of_the_program: "atfork.c", false, [];
    two_flavors_in_one_program: "flavors.c", false, [];
    urcu_memb: "urcu.c", false, ["-DFLAVOR_HEADER=<urcu.h>"];
    urcu_mb: "urcu.c", false, ["-DFLAVOR_HEADER=<urcu/urcu-mb.h>", "-DURCU_API_MAP"];
    urcu_bp: "urcu.c", false, ["-DFLAVOR_HEADER=<urcu-bp.h>"];
    urcu_qsbr: "urcu.c", false, ["-DFLAVOR_HEADER=<urcu-qsbr.h>", "-DQSBR"];
    urcu_queue_memb: "lfq.c", false, ["-DFLAVOR_HEADER=<urcu.h>"];
    urcu_queue_qsbr: "lfq.c", false, ["-DFLAVOR_HEADER=<urcu-qsbr.h>", "-DQSBR"];
    urcu_queue_bp: "lfq.c", false, ["-DFLAVOR_HEADER=<urcu/urcu-bp.h>", "-D_LGPL_SOURCE"];
    urcu_hash_table_memb: HASH_TABLE, false, ["-DFLAVOR_HEADER=<urcu.h>"];
    urcu_hash_table_qsbr: HASH_TABLE, false, ["-DFLAVOR_HEADER=<urcu-qsbr.h>", "-DQSBR"];
}

/// In every way there is.
fn every_way(program: &Program) {
    let Some(options) = program.options() else { return };
    let (name, section, source) = (program.name, program.section, source(program.file));
    let with = |more| options.iter().map(String::as_str).chain([more]).collect::<Vec<_>>();
    for (kind, link) in [("static", Link::Static), ("shared", Link::Shared)] {
        for level in ["-O0", "-O2"] {
            let name = format!("{name}-{kind}{level}");
            let program = compile("cc", &source, &name, &with(level), link);
            run(&mut Command::new(&program));
            if section || link == Link::Static {
                verify(&program);
            }
        }
    }
    let program = scratch().join(format!("{name}-shared-O2"));
    run(Command::new(&program).env("REPRIEVE_FORCE", "plain"));
    if Command::new("valgrind").arg("--version").output().is_ok_and(|o| o.status.success()) {
        // Fair: threads that poll would starve the others.
        run(Command::new("valgrind")
            .args(["--quiet", "--fair-sched=yes", "--error-exitcode=9"])
            .arg(&program));
    } else {
        println!("valgrind is not installed: skipped");
    }
}

#[test]
fn first_in_cpp() {
    let source = source("../../examples/first.c");
    let program = compile("c++", &source, "first-cc", &["-x", "c++", "-O2"], Link::Shared);
    let output = run(&mut Command::new(&program));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "held: alpha, now: beta\n");
}

/// How to link liburcu-cds, if it is installed.
fn liburcu_cds() -> Option<&'static [&'static str]> {
    // The compiler echoes a name that it does not find.
    let found = run(Command::new("cc").arg("-print-file-name=liburcu-cds.so"));
    if found.stdout.starts_with(b"/") {
        return Some(&["-Wl,--no-as-needed", "-lurcu-cds", "-Wl,--as-needed"]);
    }
    println!("liburcu-dev is not installed: skipped");
    None
}

/// Full barriers of liburcu are full barriers where plain atomic operations are none: on aarch64 a
/// fence (`dmb`) stands on both sides of each.
#[test]
fn full_barriers_on_aarch64() {
    const COMPILER: &str = "aarch64-linux-gnu-gcc";
    if Command::new(COMPILER).arg("--version").output().is_err() {
        return println!("{COMPILER} is not installed: skipped");
    }
    let operations = ["xchg(p, 1)", "cmpxchg(p, 1, 2)", "add_return(p, 1)", "sub_return(p, 1)"];
    for operation in operations {
        let source = scratch().join("barriers.c");
        let body = format!("long f(long *p) {{ return uatomic_{operation}; }}");
        fs::write(&source, format!("#include <reprieve/uatomic.h>\n{body}\n")).unwrap();
        let mut command = Command::new(COMPILER);
        command.args(["-O2", "-Wall", "-Wextra", "-Werror", "-march=armv8-a", "-S", "-o", "-"]);
        let output = run(command.arg("-I").arg(rcu().join("include")).arg(&source)).stdout;
        let text = String::from_utf8(output).unwrap();
        assert_eq!(text.matches("\tdmb\tish\n").count(), 2, "{operation}: {text}");
    }
}

/// The C compiler's output for a program for liburcu.
fn cc_compat(options: &[&str], source: &Path) -> Output {
    Command::new("cc")
        .args(options)
        .arg(format!("-I{}", prefix().join("include").display()))
        .arg(format!("-I{}", prefix().join("include/reprieve/compat").display()))
        .arg(source)
        .output()
        .unwrap()
}

/// New names of liburcu 0.15, in both languages.
#[test]
fn newer_names_of_liburcu() {
    let compat = format!("-I{}", prefix().join("include/reprieve/compat").display());
    for (compiler, language) in [("cc", "c"), ("clang", "c"), ("c++", "c++"), ("clang++", "c++")] {
        let options = ["-O1", "-x", language, &compat];
        let name = format!("newer-{compiler}");
        run(&mut Command::new(compile(
            compiler,
            &source("newer.c"),
            &name,
            &options,
            Link::Shared,
        )));
    }
}

/// Projects find us by liburcu's own files for pkg-config.
#[test]
fn pkg_config_files_of_liburcu() {
    for (module, header, more) in [
        ("liburcu", "urcu.h", "-O1"),
        ("liburcu-mb", "urcu/urcu-mb.h", "-DURCU_API_MAP"),
        ("liburcu-bp", "urcu-bp.h", "-O1"),
        ("liburcu-qsbr", "urcu-qsbr.h", "-DQSBR"),
    ] {
        let mut ask = Command::new("pkg-config");
        ask.args(["--cflags", "--libs", &format!("{module} >= 0.13")]);
        ask.env("PKG_CONFIG_PATH", prefix().join("lib/reprieve/pkgconfig"));
        let flags = String::from_utf8(run(&mut ask).stdout).unwrap();
        let program = scratch().join(module);
        let mut command = Command::new("cc");
        command.args([more, &format!("-DFLAVOR_HEADER=<{header}>"), "-o"]).arg(&program);
        command.arg(source("urcu.c")).args(flags.split_whitespace()).arg("-lpthread");
        run(&mut command);
        run(Command::new(&program).env("LD_LIBRARY_PATH", prefix().join("lib")));
    }
}

/// The last header that stands for a flavor decides, as with liburcu's own.
#[test]
fn what_names_without_a_flavor_mean() {
    for (headers, option, flavor) in [
        (["urcu/urcu-qsbr.h", "urcu.h"], "-O0", "memb"),
        (["urcu/urcu-bp.h", "urcu/urcu.h"], "-O0", "memb"),
        (["urcu.h", "urcu/urcu-qsbr.h"], "-O0", "qsbr"),
        (["urcu.h", "urcu-qsbr.h"], "-DRCU_QSBR", "qsbr"),
        (["urcu/urcu-mb.h", "urcu-qsbr.h"], "-O0", "qsbr"),
        (["urcu/urcu-signal.h", "urcu.h"], "-O0", "memb"),
        (["urcu/urcu-qsbr.h", "urcu-bp.h"], "-O0", "bp"),
        (["urcu/urcu-bp.h", "urcu-qsbr.h"], "-O0", "qsbr"),
        (["urcu-bp.h", "urcu/urcu-qsbr.h"], "-O0", "qsbr"),
        (["urcu.h", "urcu-pointer.h"], "-DRCU_QSBR", "memb"),
        (["urcu.h", "urcu-pointer.h"], "-DRCU_MB", "mb"),
        (["urcu.h", "urcu-pointer.h"], "-DRCU_SIGNAL", "signal"),
        (["urcu-qsbr.h", "urcu.h"], "-O0", "memb"),
        (["urcu-bp.h", "urcu-pointer.h"], "-DRCU_SIGNAL", "bp"),
        (["urcu-bp.h", "urcu-pointer.h"], "-DRCU_MB", "bp"),
        (["urcu-qsbr.h", "urcu-pointer.h"], "-DRCU_SIGNAL", "qsbr"),
        (["urcu/urcu-memb.h", "urcu/urcu-qsbr.h"], "-DURCU_API_MAP", "qsbr"),
        (["urcu/urcu-qsbr.h", "urcu/urcu-memb.h"], "-DURCU_API_MAP", "memb"),
        (["urcu-call-rcu.h", "urcu-qsbr.h"], "-O0", "qsbr"),
    ] {
        let source = scratch().join("meaning.c");
        let includes = headers.map(|header| format!("#include <{header}>\n")).concat();
        fs::write(&source, includes + "meaning: rcu_read_lock\n").unwrap();
        let output = cc_compat(&["-E", "-P", option], &source);
        let text = String::from_utf8_lossy(&output.stdout);
        let found = text.lines().find_map(|line| line.strip_prefix("meaning: "));
        let expected = format!("urcu_{flavor}_read_lock");
        assert_eq!(found, Some(&*expected), "{headers:?} {option}");
    }
}

/// Two files become one before the assembler sees them, and counting for profiles stays out of
/// restartable code.
#[test]
fn optimized_together_and_instrumented() {
    let second = scratch().join("second.c");
    fs::write(&second, "#include <reprieve/restart.h>\n").unwrap();
    let options = ["-O2", "-flto", second.to_str().unwrap()];
    let program = compile("cc", &source("readers.c"), "readers-lto", &options, Link::Shared);
    run(&mut Command::new(&program));
    verify(&program);
    let callback = scratch().join("callback.c");
    let text = "void __sanitizer_cov_trace_pc(void);\nvoid __sanitizer_cov_trace_pc(void) {}\n";
    fs::write(&callback, text).unwrap();
    for option in ["--coverage", "-fprofile-generate", "-fsanitize-coverage=trace-pc"] {
        let options = ["-O2", option, callback.to_str().unwrap()];
        let name = format!("readers{option}");
        // The program does not run: it would leave its counters behind.
        verify(&compile("cc", &source("readers.c"), &name, &options, Link::Shared));
    }
    let lookup = scratch().join("lookup.cc");
    fs::write(&lookup, example(&rcu().join("include/reprieve/restart.h")).unwrap()).unwrap();
    for level in ["-O0", "-O2"] {
        let name = format!("lookup-coverage{level}");
        verify(&compile("c++", &lookup, &name, &[level, "--coverage"], Link::Shared));
    }
}

/// Lines of the comment behind ` * Example:`, as far as the comment goes.
fn example(header: &Path) -> Option<String> {
    let text = fs::read_to_string(header).unwrap();
    let (_, rest) = text.split_once(" * Example:\n *\n")?;
    let lines = rest.lines().take_while(|line| *line != " */");
    Some(
        lines
            .map(|line| {
                line.strip_prefix(" *").unwrap_or(line).strip_prefix('\t').unwrap_or("").to_owned()
                    + "\n"
            })
            .collect(),
    )
}

#[test]
fn each_headers_example_in_c_and_cpp() {
    let mut count = 0;
    for entry in fs::read_dir(rcu().join("include/reprieve")).unwrap() {
        let header = entry.unwrap().path();
        let Some(code) = header.is_file().then(|| example(&header)).flatten() else { continue };
        let name = header.file_stem().unwrap().to_str().unwrap().to_owned();
        for (compiler, suffix, options) in
            [("cc", "c", ["-std=gnu11", "-O2"]), ("c++", "cc", ["-std=gnu++17", "-O2"])]
        {
            let source = scratch().join(format!("example-{name}.{suffix}"));
            fs::write(&source, &code).unwrap();
            for link in [Link::Static, Link::Shared] {
                let program =
                    compile(compiler, &source, &format!("example-{name}-{suffix}"), &options, link);
                let output = run(&mut Command::new(&program));
                assert!(!output.stdout.is_empty(), "{name}: the example prints something");
            }
        }
        count += 1;
    }
    assert!(count >= 8, "{count}");
}

/// Every header by itself, in both languages, twice, without warnings that C++ programs have on.
#[test]
fn headers_stand_alone() {
    let include = prefix().join("include");
    let mut directories = vec![include.join("reprieve")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let (cast, useless) = ("-Wold-style-cast", "-Wuseless-cast");
            // Headers with the standard library's names are C++20.
            let newer = path.extension().is_none();
            let standard = if newer { "-std=c++20" } else { "-std=gnu++11" };
            let ways: [(_, _, &[_]); 3] = [
                ("c++", "cc", &[standard, cast, useless]),
                ("clang++", "cc", &[standard, cast]),
                ("cc", "c", &["-std=gnu11"]),
            ];
            for (compiler, suffix, options) in &ways[..if newer { 2 } else { 3 }] {
                let source = scratch().join(format!("alone.{suffix}"));
                let header = path.display();
                fs::write(&source, format!("#include \"{header}\"\n#include \"{header}\"\nint main(void) {{ return 0; }}\n")).unwrap();
                run(Command::new(compiler)
                    .args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"])
                    .arg(&include)
                    .args(*options)
                    .arg(format!("-I{}", include.join("reprieve/compat").display()))
                    .arg(&source));
            }
        }
    }
}

#[test]
fn the_shared_library_exports_its_prefix_only() {
    let library = prefix().join("lib/libreprieve.so.1");
    verify(&library);
    let output =
        run(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(&library));
    let text = String::from_utf8(output.stdout).unwrap();
    let names: Vec<&str> = text.lines().filter_map(|l| l.split(['@', ' ']).next()).collect();
    assert!(names.len() > 40 && names.contains(&"reprieve_thread"), "{names:?}");
    let strange: Vec<_> =
        names.iter().filter(|n| !n.starts_with("reprieve_") && **n != "REPRIEVE_1").collect();
    assert!(strange.is_empty(), "{strange:?}");
    let pc = fs::read_to_string(prefix().join("lib/pkgconfig/reprieve.pc")).unwrap();
    assert!(
        pc.contains(&format!("prefix={}\n", prefix().display()))
            && pc.contains("-lreprieve")
            && !pc.contains('@'),
        "{pc}"
    );
}

/// A lookup in a shared object that is opened at run time, beside one in the program: two sections,
/// two descriptors, one library.
#[test]
fn a_shared_object_has_a_section_of_its_own() {
    let options = ["-shared", "-fPIC", "-O2", "-DPLUGIN"];
    let plugin = compile("cc", &source("plugin.c"), "plugin.so", &options, Link::Shared);
    verify(&plugin);
    let program = compile("cc", &source("plugin.c"), "plugin", &["-O2"], Link::Shared);
    verify(&program);
    run(Command::new(&program).arg(&plugin));
}

/// C++26's names, in a namespace of their own and in the standard's.
#[test]
fn safe_reclamation_of_cpp26() {
    for compiler in ["c++", "clang++"] {
        for name in ["-DREPRIEVE_IN_OWN", "-DREPRIEVE_IN_STD"] {
            let options = ["-std=c++20", "-O2", "-Wold-style-cast", name];
            let name = format!("saferecl-{compiler}{name}");
            run(&mut Command::new(compile(
                compiler,
                &source("saferecl.cc"),
                &name,
                &options,
                Link::Shared,
            )));
        }
    }
}

/// Programs that have more warnings on than C's casts stand, and macros that expand in them.
#[test]
fn no_warnings_in_strict_cpp() {
    let strict = scratch().join("strict.cc");
    let text = "#include <reprieve/restart.h>
#include <reprieve/urcu.h>
#include <reprieve/cds.h>
#include <reprieve/scan.h>
#include <reprieve/stall.h>
#include <reprieve/hint.h>
#include <reprieve/ordered.h>
#include <reprieve/prefixes.h>
struct node { int value; reprieve_head head; reprieve_list_head link; cds_hlist_node hashed; };
static node *current;
static reprieve_list_head nodes = REPRIEVE_LIST_HEAD_INIT(nodes);
static CDS_LIST_HEAD(list);
static cds_hlist_head hash = CDS_HLIST_HEAD_INIT(hash);
REPRIEVE_RESTARTABLE static uintptr_t look(const void *, void *result)
{
\t*static_cast<int *>(result) = reprieve_dereference(current)->value;
\treturn 1;
}
REPRIEVE_RESTARTABLE static const void *get(const void *)
{
\treturn reprieve_dereference(current);
}
int main()
{
\tint value = 0;
\treprieve_protected held;
\treprieve_assign_pointer(current, new node());
\treprieve_lookup(look, nullptr, &value);
\treprieve_protect(get, nullptr, &held);
\treprieve_release(&held);
\tnode *old = rcu_xchg_pointer(&current, static_cast<node *>(nullptr));
\trcu_set_pointer(&current, old);
\trcu_assign_pointer(current, old);
\treprieve_scan scan = REPRIEVE_SCAN_INIT(&nodes);
\treprieve_list_add_rcu(&old->link, &nodes);
\twhile (node *n = reprieve_scan_next_entry(&scan, node, link))
\t\tvalue += n->value;
\treprieve_scan_del(&old->link);
\tnode *e, *next;
\tcds_list_for_each_entry(e, &list, link) value++;
\tcds_list_for_each_entry_rcu(e, &list, link) value++;
\tcds_list_for_each_entry_safe(e, next, &list, link) value++;
\tcds_hlist_for_each_entry_2(e, &hash, hashed) value++;
\tcds_hlist_for_each_entry_rcu_2(e, &hash, hashed) value++;
\tvalue += uatomic_add_return(&value, 1) + uatomic_xchg(&value, 2) + CMM_LOAD_SHARED(value);
\tCMM_STORE_SHARED(value, 3);
\tuatomic_set(&value, CMM_ACCESS_ONCE(value));
\tvalue += uatomic_cmpxchg(&value, 1, 2) + uatomic_read(&value);
\tnode *same = caa_container_of(&rcu_dereference(current)->head, node, head);
\tint failed = !value || same != reprieve_container_of(&old->head, node, head);
\tdelete old;
\treturn failed;
}
";
    fs::write(&strict, text).unwrap();
    for (compiler, more) in [("c++", "-Wuseless-cast"), ("clang++", "-Wextra")] {
        let options = ["-std=c++17", "-O2", "-Wold-style-cast", more];
        let name = format!("strict-{compiler}");
        run(&mut Command::new(compile(compiler, &strict, &name, &options, Link::Shared)));
    }
}

/// `reprieve_call` needs no memory: what it needs is in the node.
#[test]
fn memory_exhausted_in_a_registration() {
    for (name, link) in [("memory-static", Link::Static), ("memory-shared", Link::Shared)] {
        run(&mut Command::new(compile("cc", &source("memory.c"), name, &["-O2"], link)));
    }
}

/// A single line that names the mistake, and no backtrace of the library's insides.
#[test]
fn misuse_ends_the_program_with_one_line() {
    let program = compile("cc", &source("misuse.c"), "misuse", &["-O2"], Link::Shared);
    let run = |what| Command::new(&program).arg(what).output().unwrap();
    assert!(run("nothing").status.success());
    for (what, message) in [
        ("unlock", "underflow: a thread leaves a read-side section that it has not entered"),
        ("domain-unlock", "underflow: a thread leaves a read-side section that it has not entered"),
        ("synchronize", "waits for a grace period inside a read-side section"),
        ("expedited", "waits for a grace period inside a read-side section"),
        ("cond", "waits for a grace period inside a read-side section"),
        ("barrier", "waits for callbacks inside a read-side section"),
        ("domain-synchronize", "waits for a grace period inside a read-side section"),
        ("domain-barrier", "waits for callbacks inside a read-side section"),
        ("domain-free", "frees a domain inside a read-side section"),
    ] {
        let output = run(what);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((error.lines().count(), output.stdout.len()), (1, 0), "{what}: {error}");
        assert!(error.starts_with("reprieve: ") && error.contains(message), "{what}: {error}");
    }
}

/// Builds so many shared objects that have a copy of the library each.
fn copies(name: &str, count: usize) -> Vec<PathBuf> {
    let options = ["-shared", "-fPIC", "-O2", "-DPLUGIN"];
    let build = |n| {
        let name = format!("{name}{n}.so");
        compile("cc", &source("copies.c"), &name, &options, Link::Static)
    };
    (0..count).map(build).collect()
}

/// A shared object that links the archive, in a program that has the shared library or the archive;
/// and two of those, each with its names for all to see.
#[test]
fn two_copies_in_one_process() {
    let copies = copies("two", 2);
    for (name, link) in [("copies-shared", Link::Shared), ("copies-static", Link::Static)] {
        // As a program does that offers its own names to what it opens.
        let program = compile("cc", &source("copies.c"), name, &["-O2", "-rdynamic"], link);
        run(Command::new(&program).args(&copies));
    }
    let output =
        run(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(&copies[0]));
    let names = String::from_utf8(output.stdout).unwrap();
    // A small letter is the type of a local name, which nobody else sees.
    let exported = |line: &&str| line.split(' ').nth(1).is_some_and(|t| t != t.to_lowercase());
    let exported: Vec<_> = names.lines().filter(exported).collect();
    assert!(exported.iter().all(|line| line.starts_with("use ")) && exported.len() == 1, "{names}");
}

/// Each takes static TLS, of which a program that opens them late has little.
#[test]
fn five_copies_in_one_process() {
    let program = compile("cc", &source("copies.c"), "copies-five", &["-O2"], Link::Shared);
    run(Command::new(&program).args(copies("five", 5)));
}

/// `dlclose` of an image with a copy of the library: key destructors and fork handlers still point
/// into it.
#[test]
fn a_shared_object_that_contains_the_library_is_closed() {
    let options = ["-shared", "-fPIC", "-O2", "-DPLUGIN"];
    let plugin = compile("cc", &source("unload.c"), "unload.so", &options, Link::Static);
    let program = compile("cc", &source("unload.c"), "unload", &["-O2"], Link::Shared);
    run(Command::new(&program).arg(&plugin));
}
