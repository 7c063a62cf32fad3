// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real binaries: examples of the runtime in both profiles, and programs in C that break one rule
//! each.

use reprieve_verify::{Error, Finding, Report, Rule, verify};
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, with little memory: a test that wants more ends.
struct Little;

/// Bytes for all tests here at once.
const MEMORY: usize = 1 << 30;
static USED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything on to the system's allocator, whose contract is the same, or refuses.
unsafe impl GlobalAlloc for Little {
    unsafe fn alloc(&self, size: Layout) -> *mut u8 {
        if USED.fetch_add(size.size(), Ordering::Relaxed) > MEMORY {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, size: Layout) {
        USED.fetch_sub(size.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Little = Little;

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Builds the runtime's examples with a profile, beside what has been built; where they are.
fn examples(profile: &str, directory: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    run(Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--offline", "-p=reprieve", "--examples", "--target-dir"])
        .arg(target)
        .args(["--profile", profile])
        .current_dir(env!("CARGO_MANIFEST_DIR")));
    target.join(directory).join("examples")
}

fn examine(file: &Path) -> Report {
    verify(&std::fs::read(file).unwrap()).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

#[test]
fn rust_programs_of_both_profiles() {
    for (profile, directory) in [("dev", "debug"), ("release", "release")] {
        let examples = examples(profile, directory);
        let keeps = examples.join("keeps");
        run(&mut Command::new(&keeps));
        let report = examine(&keeps);
        assert_eq!(report.findings, []);
        assert!(report.entries >= 3, "{report:?}");
        let report = examine(&examples.join("breaks"));
        let named = |f: &&Finding| f.function.contains("value_body") && f.detail.contains("panic");
        assert!(report.findings.iter().any(|f| named(&f)), "{report:#?}");
    }
}

/// Compiles `body` behind the entry; the report.
fn c(name: &str, options: &[&str], body: &str) -> Report {
    examine(&compile(name, options, body))
}

fn compile(name: &str, options: &[&str], body: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = directory.join(format!("{name}.c"));
    let entry = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/entry.c");
    std::fs::write(&source, format!("#include \"{entry}\"\n{body}\n")).unwrap();
    let program = directory.join(name);
    run(Command::new("cc").args(options).arg("-o").arg(&program).arg(&source));
    program
}

const SEARCH: &str = "
    IN uintptr_t body(const void *argument, void *result) {
        const struct node *n = *(struct node *const volatile *)argument;
        while (n && n->key != 7)
            n = n->next;
        if (n)
            *(uint64_t *)result = n->key;
        return n != 0;
    }";

#[track_caller]
fn broken(report: &Report, rule: Rule, function: &str, detail: &str) {
    let found = report
        .findings
        .iter()
        .any(|f| f.rule == rule && f.function == function && f.detail.contains(detail));
    assert!(found, "{report:#?}");
}

#[test]
fn c_code_that_keeps_the_rules() {
    for options in [["-O0"], ["-O2"], ["-Os"], ["-O3"]] {
        assert_eq!(c("keeps-c", &options, SEARCH).findings, [], "{options:?}");
    }
    assert_eq!(c("keeps-static", &["-O2", "-static"], SEARCH).findings, []);
    assert_eq!(c("keeps-fixed", &["-O2", "-no-pie"], SEARCH).findings, []);
}

/// Behind a function with a symbol, one without: a local one of a file linked with `-x`.
#[test]
fn code_that_nothing_leads_to() {
    let hidden = "ret\n.size body, . - body\nmov %rax, (%rdi); ret";
    let report = c("unreached", &[], &body(hidden));
    broken(&report, Rule::Unreached, "body", "symbols are removed");
    assert_eq!(report.findings.len(), 1, "{report:#?}");
    let trap = body("ret; ud2; int3; nop");
    assert_eq!(c("unreached-trap", &[], &trap).findings, []);
}

#[test]
fn a_large_copy_calls_memcpy() {
    let body = "
        IN uintptr_t body(const void *argument, void *result) {
            const struct node *n = *(struct node *const *)argument;
            memcpy(result, n->value, sizeof n->value);
            return 1;
        }";
    for options in [&["-O0"][..], &["-O2", "-mmemcpy-strategy=libcall:-1:noalign"]] {
        broken(&c("memcpy", options, body), Rule::Control, "body", "`memcpy`");
    }
    broken(&c("memcpy-static", &["-O0", "-static"], body), Rule::Control, "body", "calls");
    // Expanded in line, a copy of any size is fine.
    assert_eq!(
        c("memcpy-inline", &["-O2", "-mmemcpy-strategy=rep_8byte:-1:align"], body).findings,
        []
    );
    broken(&c("memcpy-noplt", &["-O0", "-fno-plt"], body), Rule::Indirect, "body", "`memcpy`");
}

#[test]
fn a_system_call() {
    let body = "
        IN uintptr_t body(const void *argument, void *result) {
            long n = 39;
            __asm__ volatile(\"syscall\" : \"+a\"(n) :: \"rcx\", \"r11\", \"memory\");
            return n;
        }";
    let report = c("syscall", &["-O2"], body);
    broken(&report, Rule::System, "body", "");
    assert_eq!(report.findings[0].instruction, "syscall");
}

#[test]
fn state_that_a_restart_does_not_restore() {
    let long = "
        IN uintptr_t body(const void *argument, void *result) {
            *(double *)result = *(const double *)argument * (long double)3;
            return 1;
        }";
    broken(&c("long-double", &["-O2"], long), Rule::State, "body", "long double");
    for (name, asm) in [
        ("x87", "fld1"),
        ("x87-control", "fldcw -8(%rsp)"),
        ("mmx", "movq2dq %mm1, %xmm0"),
        ("mmx-end", "emms"),
        ("mxcsr", "ldmxcsr -8(%rsp)"),
        ("vmxcsr", "vldmxcsr -8(%rsp)"),
        ("fxrstor", "fxrstor -512(%rsp)"),
        ("direction", "std"),
        ("flags", "popfq"),
        ("segment", "xor %eax, %eax; mov %eax, %fs"),
        ("segment-memory", "mov -8(%rsp), %ds"),
        ("segment-popped", "push %rax; pop %gs"),
        ("segment-far-fs", "lfs -16(%rsp), %eax"),
        ("segment-far-gs", "lgs -16(%rsp), %eax"),
        ("segment-far-ss", "lss -16(%rsp), %eax"),
    ] {
        broken(&c(name, &[], &body(&format!("{asm}; ret"))), Rule::State, "body", "");
    }
    broken(&c("fs-base", &[], &body("wrfsbase %rax; ret")), Rule::System, "body", "");
    let kept = "movaps %xmm0, %xmm1; vaddsd %xmm1, %xmm1, %xmm1; cld; stmxcsr -8(%rsp); mov %fs, %eax; push %fs; pop %rax; ret";
    assert_eq!(c("sse", &[], &body(kept)).findings, []);
}

#[test]
fn stores_to_other_memory() {
    let to = |place: &str| {
        format!(
            "IN uintptr_t body(const void *argument, void *result) {{ {place} = 1; return 0; }}"
        )
    };
    broken(&c("store-global", &["-O2"], &to("global")), Rule::Store, "body", "global");
    broken(
        &c("store-node", &["-O2"], &to("(*(struct node *const *)argument)->key")),
        Rule::Store,
        "body",
        "memory",
    );
    broken(
        &c("store-argument", &["-O2"], &to("*(long *)argument")),
        Rule::Store,
        "body",
        "first argument",
    );
    let local =
        "__thread long own; IN uintptr_t body(const void *a, void *r) { own = 1; return 0; }";
    broken(&c("store-thread", &["-O2"], local), Rule::Store, "body", "thread-local");
    let caller = "IN uintptr_t body(const void *a, void *r) { __asm__ volatile(\"movq $0, 8(%rsp)\"); return 0; }";
    broken(&c("store-caller", &["-O2"], caller), Rule::Store, "body", "caller's frame");
    let short = "push %rax; mov %rdi, (%esp); pop %rax; ret";
    broken(&c("store-short", &[], &body(short)), Rule::Store, "body", "pointer");
    let own =
        "IN uintptr_t body(const void *a, void *r) { volatile long x[4]; x[1] = 2; return x[1]; }";
    assert_eq!(c("store-own", &["-O2"], own).findings, []);
}

#[test]
fn indirect_calls_and_jumps() {
    let hook = "IN uintptr_t body(const void *a, void *r) { hook(); return 0; }";
    broken(&c("hook", &["-O2"], hook), Rule::Indirect, "body", "function pointer");
    let switch = "
        IN uintptr_t body(const void *argument, void *result) {
            uint64_t *out = result;
            switch (*(const volatile unsigned *)argument) {
            case 0: *out = 3; return 5;
            case 1: *out = 1; out[1] = 3; return 7;
            case 2: out[2] = 4; return 1;
            case 3: out[1] = 6; return 8;
            case 4: out[1] = 7; out[3] = 6; return 9;
            case 5: out[5] = 2; return 2;
            case 6: out[4] = 1; return 6;
            default: return 0;
            }
        }";
    for options in [&["-O2"][..], &["-O3"], &["-O2", "-no-pie", "-fno-pie"]] {
        let program = compile("switch", options, switch);
        let disassembly = Command::new("objdump")
            .args(["-d", "-j", "reprieve_restart"])
            .arg(&program)
            .output()
            .unwrap();
        assert!(
            String::from_utf8_lossy(&disassembly.stdout).contains("jmp    *"),
            "{options:?}: no jump table to be tested"
        );
        assert_eq!(examine(&program).findings, [], "{options:?}");
    }
    let unbounded = switch.replace("default: return 0;", "default: __builtin_unreachable();");
    broken(
        &c("switch-unbounded", &["-O2"], &unbounded),
        Rule::Indirect,
        "body",
        "-fno-jump-tables",
    );
}

/// `body` in assembly.
fn body(asm: &str) -> String {
    let asm = asm.replace('\n', "\\n");
    format!(
        "__asm__(\".pushsection reprieve_restart\\n.globl body\\n.type body,@function\\nbody: {asm}\\n.popsection\");"
    )
}

#[test]
fn jumps_beside_the_table() {
    let jump = |name: &str, asm: &str| {
        let data = ".pushsection .rodata\n.balign 8\ntable: .quad 1b, 1b, 1b, 1b\n.popsection\n.pushsection .data\npointer: .quad table\n.popsection";
        c(name, &["-no-pie"], &body(&format!("{asm}\n1: ret\n{data}")))
    };
    let bounded = "mov (%rdi), %rax; cmp $3, %rax; ja 1f; jmp *table(,%rax,8)";
    assert_eq!(jump("table", bounded).findings, []);
    let load = "mov (%rdi), %rcx; mov (%rdi), %eax; and $3, %eax;";
    assert_eq!(
        jump("table-address", &format!("{load} lea table(%rip), %rdx; jmp *(%rdx,%rax,8)"))
            .findings,
        []
    );
    for (name, asm) in [
        ("table-pointer", format!("{load} mov pointer(%rip), %rdx; jmp *(%rdx,%rax,8)")),
        ("table-moved", format!("{load} lea table(,%rcx,8), %rdx; jmp *(%rdx,%rax,8)")),
        ("table-thread", format!("{load} jmp *%fs:table(,%rax,8)")),
        ("table-short", format!("{load} lea table(%rip), %rdx; jmp *(%edx,%eax,8)")),
        ("table-loop", "mov (%rdi), %ecx; and $3, %ecx; loop 2f; 2: jmp *table(,%rcx,8)".into()),
        (
            "table-pop",
            "push (%rdi); mov (%rdi), %rax; cmp $3, %rax; pop %rax; ja 1f; jmp *table(,%rax,8)"
                .into(),
        ),
        (
            "table-half",
            "mov (%rdi), %rax; movzbw (%rdi), %ax; cmp $3, %eax; ja 1f; jmp *table(,%rax,8)".into(),
        ),
    ] {
        broken(&jump(name, &asm), Rule::Indirect, "body", "");
    }
    let called = "mov callee(%rip), %rax; call *%rax; ret\n.pushsection .data\ncallee: .quad main\n.popsection";
    let report = c("called-pointer", &["-no-pie"], &body(called));
    broken(&report, Rule::Control, "body", "`main`");
}

#[test]
fn the_stack_and_the_saved_registers() {
    broken(&c("unbalanced", &[], &body("push %rdi; ret")), Rule::Return, "body", "stack pointer");
    broken(&c("clobbers", &[], &body("xor %ebx, %ebx; ret")), Rule::Return, "body", "rbx");
    broken(&c("falls", &[], &body("nop; nop")), Rule::Control, "body", "runs off");
    broken(
        &c("middle", &[], &body("jmp .+3; mov $0xc3, %eax; ret")),
        Rule::Control,
        "body",
        "middle",
    );
    broken(&c("undecodable", &[], &body(".byte 0x06; ret")), Rule::Undecodable, "body", "");
    // A system call that a symbol splits.
    let split = "jmp 1f; ret; nop; 1: .byte 0x0f\n.size body, . - body\nsplit: .byte 0x05; ret";
    broken(&c("split", &[], &body(split)), Rule::Undecodable, "body", "");
    broken(
        &c("returns-elsewhere", &[], &body("mov %rdi, (%rsp); ret")),
        Rule::Store,
        "body",
        "return address",
    );
    broken(&c("tail", &[], &body("jmp main")), Rule::Control, "body", "`main`");
    let saves = "push %rbx; push %rdi; xor %ebx, %ebx; pop %rdi; pop %rbx; ret";
    assert_eq!(c("saves", &[], &body(saves)).findings, []);
    let clobbers =
        "push %rdi; push %rbx; push %rdi; xor %ebx, %ebx; pop (%rsp); pop %rbx; pop %rcx; ret";
    broken(&c("pops-to-saved", &[], &body(clobbers)), Rule::Return, "body", "rbx");
}

#[test]
fn local_variables_whose_address_is_passed() {
    let helper = "
        IN uintptr_t fill(const struct node *n, uint64_t *key) {
            *key = n->key;
            return n->next == 0;
        }
        IN uintptr_t body(const void *argument, void *result) {
            const struct node *n = *(struct node *const volatile *)argument;
            uint64_t key = 0;
            if (!n || !fill(n, &key))
                return 0;
            *(uint64_t *)result = key;
            return 1;
        }";
    let array = "
        IN uintptr_t other(void) { return 1; }
        IN uintptr_t body(const void *argument, void *result) {
            const struct node *n = *(struct node *const volatile *)argument;
            volatile uint64_t seen[4];
            while (n) {
                seen[n->key & 3] = n->key;
                n = n->next;
            }
            other();
            *(uint64_t *)result = seen[3];
            return 1;
        }";
    for options in [["-O0"], ["-O1"], ["-O2"], ["-Os"], ["-O3"]] {
        assert_eq!(c("passes-local", &options, helper).findings, [], "{options:?}");
        assert_eq!(c("indexes-local", &options, array).findings, [], "{options:?}");
    }
    let saved = "push %rbx; sub $16, %rsp; xor %ebx, %ebx; mov %rsp, %rdi; call g; add $16, %rsp; pop %rbx; ret\n.type g,@function\ng: mov %rsi, (%rdi); ret";
    assert_eq!(c("passes-frame", &[], &body(saved)).findings, []);
    // Not the place of a saved register itself, and not what the callee may have changed.
    let itself = saved.replace("mov %rsp, %rdi", "lea 16(%rsp), %rdi");
    broken(&c("passes-saved", &[], &body(&itself)), Rule::Return, "body", "rbx");
    let changed = "push %rsi; mov %rsp, %rdi; call g; pop %rax; mov %rsi, (%rax); ret\n.type g,@function\ng: mov %rax, (%rdi); ret";
    broken(&c("passes-result", &[], &body(changed)), Rule::Store, "body", "pointer");
}

#[test]
fn overwritten_return_addresses() {
    let stores = |name: &str, asm: &str, function: &str, detail: &str| {
        broken(&c(name, &[], &body(asm)), Rule::Store, function, detail);
    };
    stores("pushed-over", "pop %rcx; push %rdi; ret", "body", "return address");
    stores("called-over", "add $16, %rsp; call g; sub $16, %rsp; ret\ng: ret", "body", "return");
    stores("pushed-above", "add $16, %rsp; push %rax; push %rax; ret", "body", "return address");
    stores("pushed-anywhere", "mov %rdi, %rsp; push %rax; ud2", "body", "arithmetic");
    stores("half-push", "push %ax; mov %rdi, (%rsp); pop %ax; ret", "body", "than a word");
    // Pointers to it that are passed, joined, moved, or left behind below the stack pointer.
    let g = "ret\n.type g,@function\ng: mov %rsi, (%rdi); ret";
    stores("passed", &format!("lea (%rsp), %rdi; call g; {g}"), "g", "pointer");
    stores("passed-below", &format!("lea -8(%rsp), %rdi; call g; {g}"), "g", "pointer");
    let joined = "lea -16(%rsp), %rax; test %esi, %esi; je 1f; lea -8(%rsp), %rax; je 1f; lea (%rsp), %rax; 1: mov %rsi, (%rax); ret";
    stores("joined", joined, "body", "pointer");
    stores("indexed", "mov %rsi, (%rsp,%rcx,8); ret", "body", "pointer");
    stores("repeated", "lea (%rsp), %rdi; rep stosq; ret", "body", "pointer");
    // Where the index is 0, the displacement leads from the place of %rbx to the return address.
    for (name, store) in [
        ("moved-base", "mov %rsi, 8(%rsp,%rcx)"),
        ("moved-index", "mov %rsp, %rax; mov %rsi, 8(%rcx,%rax)"),
        ("moved-by-lea", "lea 8(%rsp,%rcx), %rax; mov %rsi, (%rax)"),
        ("moved-index-by-lea", "mov %rsp, %rax; lea 8(%rcx,%rax), %rax; mov %rsi, (%rax)"),
    ] {
        stores(name, &format!("push %rbx; mov (%rdi), %ecx; {store}; pop %rbx; ret"), "body", "");
    }
    let half = "movups %xmm0, -8(%rsp,%rcx); ret";
    stores("longer-than-its-place", half, "body", "return address");
    // Displacements that stay below it.
    let below = "sub $24, %rsp; mov %rsp, %rax; mov %rsi, 8(%rsp,%rcx); mov %rsi, 8(%rcx,%rax); lea 8(%rcx,%rax), %rdx; mov %rsi, (%rdx); add $24, %rsp; mov %rsi, -24(%rsp,%rcx); ret";
    assert_eq!(c("moved-below", &[], &body(below)).findings, []);
    // Also with the registers in the other order the place of a saved register is lost.
    let saved = "push %rbx; mov %rsp, %rax; mov %rsi, (%rcx,%rax); pop %rbx; ret";
    broken(&c("indexes-saved", &[], &body(saved)), Rule::Return, "body", "rbx");
    stores("unknown-size", "xsave -64(%rsp); ret", "body", "return address");
}

#[test]
fn arming() {
    let unarmed =
        format!("{SEARCH}\nIN uintptr_t other(struct node *const *a) {{ return (*a)->key; }}");
    broken(&c("unarmed", &["-O2"], &unarmed), Rule::Arming, "other", "must arm first");
    // Disarmed by a function that the callee calls, or goes on to.
    for (name, to) in [("disarms-once", "jmp"), ("disarms-twice", "call")] {
        let asm = format!(
            "push %rdi; call g; pop %rdi; mov (%rdi), %rax; ret\n.type g,@function\ng: {to} h; ret\n.type h,@function\nh: movq $0, (%rdx); ret"
        );
        broken(&c(name, &[], &body(&asm)), Rule::Arming, "body", "on some path");
    }
    let program = compile("wrong-descriptor", &["-O2", "-no-pie"], SEARCH);
    let mut bytes = std::fs::read(&program).unwrap();
    // The signature before the abort handler.
    let at =
        bytes.windows(7).position(|w| w == [0x0f, 0xb9, 0x3d, 0x53, 0x30, 0x05, 0x53]).unwrap();
    bytes[at + 3] = 0;
    broken(&verify(&bytes).unwrap(), Rule::Descriptor, "entry", "signature");
}

#[test]
fn functions_that_only_recursion_reaches() {
    let itself = "other: mov %rax, (%rdi); call *(%rdi); call other; ret";
    let each_other =
        "other: mov %rax, (%rdi); call *(%rdi); call third; ret\nthird: call other; ret";
    for (name, asm) in [("recursion", itself), ("mutual-recursion", each_other)] {
        let report = c(name, &[], &body(&format!("ret\n.type other,@function\n{asm}")));
        broken(&report, Rule::Store, "other", "pointer");
        broken(&report, Rule::Indirect, "other", "function pointer");
    }
    // A helper that the armed function calls may call itself.
    let helper = "push %rdi; mov (%rdi), %rdi; call helper; pop %rdi; ret\n.type helper,@function\nhelper: mov (%rdi), %rax; call helper; ret";
    assert_eq!(c("helper-recursion", &[], &body(helper)).findings, []);
}

#[test]
fn files_that_cannot_be_examined() {
    let error = |bytes: &[u8]| verify(bytes).unwrap_err();
    let program = compile("plain", &["-O2"], SEARCH);
    let good = std::fs::read(&program).unwrap();
    assert!(matches!(error(b""), Error::Malformed(_)));
    assert!(matches!(error(b"#!/bin/sh\nexit 0\n and more"), Error::Malformed(_)));
    assert!(error(b"!<arch>\n/               0     ").to_string().contains("archive"));
    let mut foreign = good.clone();
    foreign[18] = 183;
    assert_eq!(error(&foreign), Error::Architecture("aarch64".into()));
    assert!(error(&foreign).to_string().contains("x86-64 only"));
    let mut bare = good.clone();
    bare[40..48].fill(0);
    bare[60..62].fill(0);
    assert_eq!(error(&bare), Error::NoSectionTable);
    let bare = program.with_extension("stripped");
    run(Command::new("strip").arg("-o").arg(&bare).arg(&program));
    assert_eq!(error(&std::fs::read(bare).unwrap()), Error::NoSymbols);
    let object = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plain.o");
    run(Command::new("cc").args(["-c", "-o"]).arg(&object).arg(program.with_extension("c")));
    assert_eq!(error(&std::fs::read(object).unwrap()), Error::NotLinked);
    assert_eq!(error(&std::fs::read("/bin/true").unwrap()), Error::NoSection);
}

/// Many symbols that share a long name, in the section's own addresses and elsewhere.
#[test]
fn long_names_are_not_copied() {
    let good = std::fs::read(compile("named", &["-O2"], SEARCH)).unwrap();
    let word = |at: usize| u64::from_le_bytes(good[at..at + 8].try_into().unwrap()) as usize;
    let headers = word(40);
    let kind = |n: usize| good[headers + 64 * n + 4];
    let symbols = headers + 64 * (1..).find(|&n| kind(n) == 2).unwrap();
    let strings = headers + 64 * good[symbols + 40] as usize;
    let place = |bytes: &mut Vec<u8>, header: usize, contents: &[u8]| {
        let at = bytes.len() as u64;
        bytes[header + 24..header + 32].copy_from_slice(&at.to_le_bytes());
        bytes[header + 32..header + 40].copy_from_slice(&(contents.len() as u64).to_le_bytes());
        bytes.extend(contents);
    };
    let name = format!("{}\0", "a".repeat(1 << 20));
    let mut table = good[word(symbols + 24)..][..word(symbols + 32)].to_vec();
    table.chunks_mut(24).for_each(|symbol| symbol[..4].fill(0));
    for n in 0..1u64 << 16 {
        table.extend(0u32.to_le_bytes());
        // A global function of the first section.
        table.extend([0x12, 0, 1, 0]);
        table.extend((0x1000_0000 + 16 * n).to_le_bytes());
        table.extend(8u64.to_le_bytes());
    }
    let mut bad = good.clone();
    place(&mut bad, strings, name.as_bytes());
    place(&mut bad, symbols, &table);
    // Copied, they would be 64 GiB.
    assert_eq!(verify(&bad).unwrap().findings, []);
}

/// Tuples of two of the tuple before: what Rust's compiler can say with references back.
#[test]
fn names_are_cut() {
    let digits: Vec<char> = ('0'..='9').chain('a'..='z').chain('A'..='Z').collect();
    let back = |to: usize| format!("B{}{}_", digits[(to - 1) / 62], digits[(to - 1) % 62]);
    let mut name = String::from("IC1a");
    let mut pair = String::from("hh");
    for _ in 0..20 {
        let here = name.len();
        name.push_str(&format!("T{pair}E"));
        pair = back(here).repeat(2);
    }
    let asm = format!("ret\n.type _R{name}E,@function\n_R{name}E: syscall");
    let report = c("short-name", &[], &body(&asm));
    let shown = &report.findings[0].function;
    assert!(shown.starts_with("a::<(u8, u8), ((u8, u8), (u8, u8)), "), "{shown}");
    assert!(shown.ends_with("...") && shown.len() < 1000, "{shown}");
}

/// A table whose every entry leads to a jump through it: each step has thousands of successors.
#[test]
fn jumps_with_many_targets() {
    let asm = "mov (%rdi), %eax; jmp 1f\n.rept 4096\n1: and $4095, %eax; jmp *table(,%rax,8); nop; nop; nop; nop\n.endr\n.pushsection .rodata\n.balign 8\ntable:\n.set at, body + 4\n.rept 4096\n.quad at\n.set at, at + 16\n.endr\n.popsection";
    let error = verify(&std::fs::read(compile("many-targets", &["-no-pie"], &body(asm))).unwrap());
    assert!(matches!(error, Err(Error::TooLarge(_))), "{error:?}");
}

/// Mutated files: each gives a report or an error. The interpreter bounds its steps, not its time.
#[test]
fn hostile_files() {
    let seed = std::env::var("REPRIEVE_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(0x9e37_79b9_7f4a_7c15u64);
    let mut random = seed;
    let mut next = move |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below as u64) as usize
    };
    for (name, options) in [("fuzz", &["-O2"][..]), ("fuzz-slow", &["-O0"])] {
        let good = std::fs::read(compile(name, options, SEARCH)).unwrap();
        let code = good
            .windows(8)
            .position(|w| w[..2] == [0x52, 0x48] && w[2] == 0x8d)
            .expect("the entry");
        let (mut found, mut refused) = (0, 0);
        for turn in 0..3000 {
            let mut bad = good.clone();
            for _ in 0..=next(8) {
                // The header, the section's code, the end with the section table, or anything.
                let at = match turn % 4 {
                    0 => next(1024),
                    1 => code + next(160),
                    2 => bad.len() - 1 - next(3000),
                    _ => next(bad.len()),
                };
                bad[at] = if next(3) == 0 { 0xff } else { next(256) as u8 };
            }
            if turn % 16 == 15 {
                bad.truncate(next(bad.len()));
            }
            match verify(&bad) {
                Ok(report) => found += usize::from(!report.findings.is_empty()),
                Err(_) => refused += 1,
            }
        }
        println!("{name}: {found} with findings, {refused} refused");
        assert!(found > 300 && refused > 100, "{found} {refused}: the mutations miss");
    }
}
