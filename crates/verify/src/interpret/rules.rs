// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules: what an instruction may do, given what is known before it, and what breaks them.

use super::transfer::place;
use crate::code::{self, Code};
use crate::descriptor;
use crate::image::{Fixup, Image};
use crate::report::{Finding, Rule};
use crate::value::{Armed, RSP, SAVED, State, Value};
use iced_x86::{
    CpuidFeature, FlowControl, Formatter, Instruction, IntelFormatter, Mnemonic, OpAccess,
    Register, UsedMemory,
};
use std::collections::{BTreeMap, BTreeSet};

/// Why a store is refused.
const NOT_OWN: &str = "it is the return address or a caller's frame";
const ANYWHERE: &str = "the pointer comes from memory or from arithmetic";

/// The rules, and the instructions that broke one.
pub(super) struct Rules<'a> {
    image: &'a Image<'a>,
    code: &'a Code,
    /// The self-tests' probes, one per descriptor.
    pub(super) probes: BTreeSet<u64>,
    /// The abort handlers, one per descriptor: going there is what the kernel does in an abort.
    aborts: BTreeSet<u64>,
    /// Functions that arm or disarm, or call one that does.
    pub(super) arming: BTreeSet<u64>,
    /// Findings of the scan, and what the interpretation did in this round.
    scanned: BTreeMap<(u64, Rule), String>,
    findings: BTreeMap<(u64, Rule), String>,
}

impl<'a> Rules<'a> {
    pub(super) fn new(image: &'a Image<'a>, code: &'a Code) -> Rules<'a> {
        let descriptors: BTreeSet<u64> = code
            .instructions
            .iter()
            .filter(|i| i.mnemonic() == Mnemonic::Lea && i.is_ip_rel_memory_operand())
            .map(Instruction::ip_rel_memory_address)
            .filter(|&at| descriptor::fault(image, at).is_none())
            .collect();
        let all = |of: fn(&Image<'_>, u64) -> Option<u64>| {
            descriptors.iter().filter_map(|&at| of(image, at)).collect()
        };
        let mut rules = Rules {
            image,
            code,
            probes: all(descriptor::probe),
            aborts: all(descriptor::abort),
            arming: BTreeSet::new(),
            scanned: BTreeMap::new(),
            findings: BTreeMap::new(),
        };
        rules.scan();
        rules.scanned = std::mem::take(&mut rules.findings);
        rules
    }

    /// Forgets the findings of a round.
    pub(super) fn restart(&mut self) {
        self.findings.clear();
    }

    pub(super) fn clean(&self) -> bool {
        self.scanned.is_empty() && self.findings.is_empty()
    }

    pub(super) fn find(&mut self, i: &Instruction, rule: Rule, detail: impl Into<String>) {
        self.findings.entry((i.ip(), rule)).or_insert_with(|| detail.into());
    }

    /// Checks what does not depend on the state: each instruction by itself.
    fn scan(&mut self) {
        let code = self.code;
        if !self.image.executable {
            self.find(&code.instructions[0], Rule::Undecodable, "the section is not executable");
        }
        for (i, padding) in code.instructions.iter().zip(code.padding()) {
            if padding {
                continue;
            }
            if i.is_invalid() {
                self.undecodable(i);
            } else if is_system(i) {
                self.find(i, Rule::System, "no grace period may wait for what happens there");
            } else if is_direction(i) {
                self.find(i, Rule::State, "string instructions must go upwards");
            } else if is_unrestored(i) {
                self.find(
                    i,
                    Rule::State,
                    "a restart restores no x87 or MMX registers (long double), nor rounding modes",
                );
            } else if is_segment_load(i) {
                self.find(
                    i,
                    Rule::State,
                    "segment registers, which lead to thread-local storage, must stay as they are",
                );
            } else if let Some(target) = code::target(i) {
                let call = i.flow_control() == FlowControl::Call;
                if !call && self.aborts.contains(&target) {
                    continue;
                }
                if !self.image.contains(target) {
                    self.leads_outside(i, if call { "calls" } else { "jumps to" }, target);
                } else if code.index(target).is_none() {
                    self.find(
                        i,
                        Rule::Control,
                        format!("leads into the middle of an instruction, {target:#x}"),
                    );
                }
            }
        }
    }

    pub(super) fn undecodable(&mut self, i: &Instruction) {
        self.find(i, Rule::Undecodable, "bytes that are no valid instruction");
    }

    /// Notes that `i` calls or jumps to `target`, which is not in the section.
    pub(super) fn leads_outside(&mut self, i: &Instruction, verb: &str, target: u64) {
        let name = self.image.name(target);
        self.find(i, Rule::Control, format!("{verb} {name}{}", advice(&name)));
    }

    /// Notes that the target of `i` cannot be bounded.
    pub(super) fn goes_anywhere(&mut self, i: &Instruction) {
        self.find(i, Rule::Indirect, self.why_anywhere(i));
    }

    fn why_anywhere(&self, i: &Instruction) -> String {
        if i.is_ip_rel_memory_operand() {
            return match self.image.pointer(i.ip_rel_memory_address()) {
                Some(Fixup::Symbol(name)) => {
                    format!("goes to `{name}`{}", advice(&name.to_string()))
                }
                Some(Fixup::Here(target)) if self.image.data(target, 1).is_some() => {
                    let name = self.image.name(target);
                    format!("goes to {name}, through a pointer in memory{}", advice(&name))
                }
                _ => "a function pointer in memory: call functions of the section by name".into(),
            };
        }
        "a function pointer, or a table without a bound: call functions of the section by name, and build with -fno-jump-tables".into()
    }

    pub(super) fn check_return(&mut self, i: &Instruction, state: &State) {
        if state.registers[RSP] != Value::Stack(0) || i.op_count() != 0 {
            self.find(
                i,
                Rule::Return,
                "the stack pointer cannot be shown to be where it was at entry",
            );
        } else if let Some(&r) = SAVED.iter().find(|&&r| state.registers[r] != Value::Entry(r)) {
            let name = [
                "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11",
                "r12", "r13", "r14", "r15",
            ][r];
            self.find(
                i,
                Rule::Return,
                format!("{name} cannot be shown to hold what it held at entry"),
            );
        }
    }

    /// Checks where a push or call puts its word.
    pub(super) fn check_push(&mut self, i: &Instruction, state: &State) {
        match state.registers[RSP] {
            Value::Stack(at) if at <= 0 => {}
            Value::OnStack => {}
            Value::Stack(_) => self.find(i, Rule::Store, NOT_OWN),
            _ => self.find(i, Rule::Store, ANYWHERE),
        }
    }

    /// Checks what the instruction reads and writes, and remembers what it writes to the frame.
    pub(super) fn memory(
        &mut self,
        function: u64,
        i: &Instruction,
        uses: &[UsedMemory],
        state: &mut State,
        value: Value,
    ) {
        let odd = match i.mnemonic() {
            Mnemonic::Push | Mnemonic::Pop => i.stack_pointer_increment().abs() != 8,
            Mnemonic::Leave => i.code() != iced_x86::Code::Leaveq,
            Mnemonic::Enter => true,
            _ => false,
        };
        if odd {
            self.find(i, Rule::Store, "it moves the stack pointer by something else than a word");
        }
        for used in uses {
            let access = used.access();
            let reads = matches!(
                access,
                OpAccess::Read | OpAccess::ReadWrite | OpAccess::ReadCondWrite | OpAccess::CondRead
            );
            let writes = matches!(
                access,
                OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite
            );
            let local = matches!(used.segment(), Register::FS | Register::GS);
            if writes && i.mnemonic() == Mnemonic::Push {
                self.check_push(i, state);
                continue;
            }
            let (mut place, start) = if i.is_ip_rel_memory_operand() {
                let place = Value::Address(i.ip_rel_memory_address());
                (place, place)
            } else {
                place(state, used.base(), used.index(), used.scale(), used.displacement())
            };
            if i.has_rep_prefix() || i.has_repne_prefix() {
                place = match place {
                    Value::Stack(_) => place.somewhere(),
                    other => other,
                };
            }
            if reads && !local {
                self.check_read(i, state, place);
            }
            if writes {
                if local {
                    self.find(i, Rule::Store, "it is thread-local storage");
                    continue;
                }
                let size = used.memory_size().size() as i64;
                match (place, start) {
                    // An array of which not even the first element does.
                    (Value::OnStack, Value::Stack(at)) if !spares_return(at, size) => {
                        self.find(i, Rule::Store, NOT_OWN);
                    }
                    (Value::OnStack, Value::Stack(at)) => state.forget_slots(Some(at)),
                    (Value::OnStack, _) => state.forget_slots(None),
                    _ => self.check_write(function, i, state, place, value, size),
                }
            }
        }
    }

    fn check_read(&mut self, i: &Instruction, state: &State, place: Value) {
        let own = match place {
            Value::Stack(_) | Value::OnStack | Value::Result | Value::Cs => true,
            Value::Address(at) => self.image.constant(at, 1).is_some(),
            _ => false,
        };
        if !own && state.armed != Armed::Yes {
            let detail = match state.armed {
                Armed::Disarmed => "it has been disarmed: a grace period may have ended meanwhile",
                Armed::Maybe => "on some path to this instruction it is not armed",
                _ => {
                    "a function that is entered from outside must arm first (is it called by reprieve_lookup or reprieve_protect?)"
                }
            };
            self.find(i, Rule::Arming, detail);
        }
    }

    fn check_write(
        &mut self,
        function: u64,
        i: &Instruction,
        state: &mut State,
        place: Value,
        value: Value,
        size: i64,
    ) {
        // The stored value is known for a plain move of a whole word only.
        let value = if i.mnemonic() == Mnemonic::Mov && size == 8 { value } else { Value::Unknown };
        match place {
            Value::Stack(at) if spares_return(at, size) => state.store(at, size, value),
            Value::Stack(_) => self.find(i, Rule::Store, NOT_OWN),
            Value::Result => {}
            Value::Cs => self.arm(function, i, state, value),
            Value::First if self.probes.contains(&function) => {}
            Value::First => {
                self.find(i, Rule::Store, "it is the lookup itself, the first argument")
            }
            Value::Address(at) | Value::Pointer(at) => {
                self.find(i, Rule::Store, format!("it is {}, a global", self.image.name(at)))
            }
            _ => self.find(i, Rule::Store, ANYWHERE),
        }
    }

    fn arm(&mut self, function: u64, i: &Instruction, state: &mut State, value: Value) {
        self.arming.insert(function);
        state.armed = match value {
            Value::Constant(0) => Armed::Disarmed,
            Value::Address(at) => {
                if let Some(fault) = descriptor::fault(self.image, at) {
                    self.find(i, Rule::Descriptor, format!("{}: {fault}", self.image.name(at)));
                }
                Armed::Yes
            }
            _ => {
                self.find(
                    i,
                    Rule::Descriptor,
                    "what it stores is neither the address of a descriptor nor 0",
                );
                Armed::Maybe
            }
        };
    }

    /// Notes that `function` calls `target`. Returns whether that arms or disarms.
    pub(super) fn passes_arming(&mut self, target: u64, function: u64) -> bool {
        let arms = self.arming.contains(&target);
        if arms {
            self.arming.insert(function);
        }
        arms
    }

    /// All findings, in order of address.
    pub(super) fn into_findings(self) -> Vec<Finding> {
        let mut found = self.findings;
        found.extend(self.scanned);
        let mut formatter = IntelFormatter::new();
        let findings = found.into_iter().filter_map(|((address, rule), detail)| {
            let i = &self.code.instructions[self.code.index(address)?];
            let mut instruction = String::new();
            if !i.is_invalid() {
                formatter.format(i, &mut instruction);
            }
            let start = self.code.function(address);
            Some(Finding {
                rule,
                function: match start {
                    Some(start) => self.image.function(start),
                    None => "before the first function".into(),
                },
                offset: address - start.unwrap_or(address),
                address,
                instruction,
                detail,
            })
        });
        findings.collect()
    }
}

/// Whether a store to the stack ends below the return address.
fn spares_return(at: i64, size: i64) -> bool {
    // The decoder gives 0 for a size that it does not know.
    size > 0 && at.saturating_add(size) <= 0
}

fn leaves(i: &Instruction) -> bool {
    i.is_jmp_far()
        || i.is_jmp_far_indirect()
        || i.is_call_far()
        || i.is_call_far_indirect()
        || matches!(i.mnemonic(), Mnemonic::Retf)
}

pub(super) fn is_system(i: &Instruction) -> bool {
    use Mnemonic::*;
    let kernel = matches!(
        i.mnemonic(),
        Syscall
            | Sysenter
            | Sysret
            | Sysexit
            | Int
            | Into
            | Iret
            | Iretd
            | Iretq
            | Vmcall
            | Vmmcall
            | Hlt
    );
    let thread = matches!(
        i.mnemonic(),
        Wrfsbase | Wrgsbase | Wrpkru | Xbegin | Xrstor | Xrstor64 | Uiret | Senduipi
    );
    kernel || thread || i.is_privileged() || leaves(i)
}

/// Whether it may set the direction flag: where stores go is known for the other direction.
fn is_direction(i: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(i.mnemonic(), Std | Popf | Popfd | Popfq)
}

/// Whether it writes a segment register.
fn is_segment_load(i: &Instruction) -> bool {
    use Mnemonic::*;
    let first = matches!(i.mnemonic(), Mov | Pop) && i.op0_register().is_segment_register();
    first || matches!(i.mnemonic(), Lfs | Lgs | Lss)
}

/// Whether it uses what neither the abort handler restores nor the caller takes for lost.
fn is_unrestored(i: &Instruction) -> bool {
    use CpuidFeature::*;
    use Mnemonic::*;
    let control = matches!(i.mnemonic(), Ldmxcsr | Vldmxcsr | Fxrstor | Fxrstor64);
    let unit = |f: &CpuidFeature| {
        matches!(f, FPU | FPU287 | FPU287XL_ONLY | FPU387 | FPU387SL_ONLY | MMX | D3NOW)
    };
    control
        || i.cpuid_features().iter().any(unit)
        || (0..i.op_count()).any(|n| i.op_register(n).is_mm())
}

/// How to avoid a call that the compiler made.
fn advice(name: &str) -> &'static str {
    if ["memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen"].iter().any(|f| name.contains(f))
    {
        ": copy less than 128 bytes at a time, or word by word"
    } else if name.contains("panic") || name.contains("unwrap_failed") {
        ": a check that panics; use unchecked access, or arithmetic that cannot overflow"
    } else if name.contains("stack_chk") {
        ": the stack protector; build these functions without it"
    } else if name.contains("asan") || name.contains("ubsan") || name.contains("tsan") {
        ": a sanitizer; exempt these functions from it"
    } else {
        ""
    }
}
